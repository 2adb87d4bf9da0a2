"use strict";
// Data and themes. The other scripts add their charts to the same object.
const sinklens = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const narrow = 640; // pixels; below, a chart has no room for plotly's buttons or for a legend beside it

  function config(element, buttons = true) {
    const displayModeBar = buttons && element.clientWidth >= narrow ? "hover" : false;
    return { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"], displayModeBar };
  }

  // plotly reads some tags and entities in labels, and formulas between dollar signs.
  function escape(label) {
    const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" };
    return label.replace(/[&<>$]/g, (character) => entities[character]);
  }

  function number(value) {
    return Number.isFinite(value) ? String(Number(value.toPrecision(3))).replace("-", "−") : "n/a";
  }

  const remembered = (() => {
    try { return localStorage.getItem("sinklens-theme"); } catch { return null; } // a file may have no storage
  })();
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  root.dataset.theme = remembered || (system.matches ? "dark" : "light");
  const listeners = { theme: [], select: [] };

  function setTheme(name) {
    root.dataset.theme = name;
    listeners.theme.forEach((listener) => listener());
  }

  function look() {
    return data.style.themes[root.dataset.theme];
  }

  document.getElementById("theme").addEventListener("click", () => {
    const name = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("sinklens-theme", name); } catch { /* remembered for this visit only */ }
    setTheme(name);
  });
  system.addEventListener("change", (event) => { if (!remembered) setTheme(event.matches ? "dark" : "light"); });

  const on = (event, listener) => listeners[event].push(listener);
  return { data, config, narrow, listeners, look, on, setTheme, escape, number };
})();

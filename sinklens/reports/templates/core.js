"use strict";
// Data, themes, and which head is selected. The other scripts add their charts to the same object.
const sinklens = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const narrow = 640; // pixels; below, a chart has no room for plotly's buttons or for a legend beside it

  function config(element, buttons = true) {
    const displayModeBar = buttons && element.clientWidth >= narrow ? "hover" : false;
    return { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"], displayModeBar };
  }

  function bytes(base64) {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  }

  // Numbers lie in the file with their lowest byte first, whatever the machine that reads them.
  function floats(base64) {
    const view = new DataView(bytes(base64).buffer);
    return Float32Array.from({ length: view.byteLength / 4 }, (_, i) => view.getFloat32(4 * i, true));
  }

  function half(bits) {
    const sign = bits & 0x8000 ? -1 : 1;
    const exponent = (bits >> 10) & 0x1f;
    const fraction = bits & 0x3ff;
    if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
  }

  function halves(base64) {
    const view = new DataView(bytes(base64).buffer);
    return Float32Array.from({ length: view.byteLength / 2 }, (_, i) => half(view.getUint16(2 * i, true)));
  }

  function levels(base64, low, step) {
    return Float32Array.from(bytes(base64), (level) => (level === 255 ? NaN : low + level * step));
  }

  // plotly reads some tags and entities in labels, and formulas between dollar signs.
  function escape(label) {
    const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", $: "&#36;" };
    return label.replace(/[&<>$]/g, (character) => entities[character]);
  }

  function number(value) {
    return Number.isFinite(value) ? String(Number(value.toPrecision(3))).replace("-", "−") : "n/a";
  }

  // The robust ends of a colour scale; the same rule as sinklens.viz.ranges.
  function upper(sizes, share) {
    const sorted = Float64Array.from(sizes).sort();
    if (!sorted.length) return 1;
    const place = share * (sorted.length - 1);
    const below = Math.floor(place);
    const next = Math.min(below + 1, sorted.length - 1);
    const bound = sorted[below] + (place - below) * (sorted[next] - sorted[below]);
    return bound || sorted[sorted.length - 1] || 1;
  }

  const heads = { count: data.heads.heads, layers: data.heads.layers, kind: data.heads.kind, values: {} };
  for (const [name, text] of Object.entries(data.heads.values)) heads.values[name] = floats(text);
  heads.index = (layer, head) => heads.layers.indexOf(layer) * heads.count + head;

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

  const state = { layer: heads.layers[0], head: 0, chosen: false };

  function select(layer, head, chosen = true) {
    Object.assign(state, { layer, head, chosen: state.chosen || chosen });
    listeners.select.forEach((listener) => listener(state));
  }

  // One line of figures on a head, built without innerHTML.
  function describe(element, layer, head) {
    const index = heads.index(layer, head);
    const title = document.createElement("b");
    title.textContent = `Layer ${layer} · head ${head}`;
    element.replaceChildren(title);
    if (index < 0) return;
    const figures = ["sink_mass", "sink_intra", "sink_inter", "sink_value_ratio", "sink_alignment", "suppression"];
    const pairs = [["kind", data.kinds[heads.kind[index]]]];
    for (const name of figures) pairs.push([data.style.quantities[name].label.toLowerCase(), number(heads.values[name][index])]);
    for (const [label, value] of pairs) {
      const span = document.createElement("span");
      const strong = document.createElement("em");
      strong.textContent = value;
      span.append(`${label} `, strong);
      element.append(" ", span);
    }
  }

  const on = (event, listener) => listeners[event].push(listener);
  return { data, config, narrow, heads, state, look, on, select, setTheme, describe, escape, number, upper, floats, halves, levels, bytes };
})();

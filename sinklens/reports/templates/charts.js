"use strict";
// Charts whose figures were made by sinklens.viz: drawn when they come near the screen, recoloured with the theme.
(() => {
  const { data, config, narrow, look, on } = sinklens;
  const waiting = new Map(); // element → how to draw it
  const drawn = new Map();

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawNow(entry.target);
  }, { rootMargin: "500px" });

  function drawNow(element) {
    const draw = waiting.get(element);
    if (!draw) return;
    waiting.delete(element);
    observer.unobserve(element);
    drawn.set(element, draw);
    draw();
  }

  function whenNear(element, draw) {
    waiting.set(element, draw);
    observer.observe(element);
  }

  function redraw(element) {
    drawn.get(element)?.();
  }

  function themed(layout) {
    const { template, scales } = look();
    const result = { ...layout, template, autosize: true };
    for (const [axis, scale] of Object.entries(layout.meta?.scales ?? {})) {
      if (scale !== "kind") result[axis] = { ...layout[axis], colorscale: scales[scale] };
    }
    return result;
  }

  // Whiskers on bars have to be seen on the bar and on the page.
  function themedTrace(trace) {
    return trace.type === "bar" && trace.error_y ? { ...trace, error_y: { ...trace.error_y, color: look().text } } : trace;
  }

  function drawFigure(element) {
    const figure = data.figures[element.dataset.figure];
    const isMap = figure.layout.meta?.selects === "map";
    const legend = figure.layout.legend;
    const below = legend?.orientation === "h" && legend.yanchor !== "bottom"; // else the legend or the buttons are over the chart
    const titled = !isMap && panelTitles(figure.layout).length > 0; // they stand under plotly's buttons
    const margin = isMap ? { l: 40, r: 8, t: 6, b: 40 } : { l: 56, r: 16, t: titled ? 60 : below ? 14 : 36, b: 44 };
    const layout = { ...themed(figure.layout), margin };
    if (isMap) layout.shapes = sinklens.outline();
    if (!isMap) {
      placeLegend(layout, element);
      if (element.clientWidth < narrow) stackPanels(layout, element);
    }
    // Small maps have no room for plotly's buttons; dragging still zooms and a double click resets.
    Plotly.react(element, figure.data.map(themedTrace), layout, config(element, !isMap));
    if (isMap && !element.dataset.listens) {
      element.dataset.listens = "yes";
      element.on("plotly_click", ({ points: [point] }) => sinklens.select(sinklens.heads.layers[Math.round(point.y)], Math.round(point.x)));
    }
  }

  // A legend beside a narrow chart would leave no room for the chart.
  function placeLegend(layout, element) {
    if (element.clientWidth >= narrow || layout.coloraxis) return;
    layout.legend = { ...layout.legend, orientation: "h", x: 0, xanchor: "left", y: -0.2, yanchor: "top" };
    layout.margin = { ...layout.margin, r: 8, t: 14 };
    element.style.height = `${Math.max(element.clientHeight, 520)}px`;
  }

  function panelTitles(layout) {
    return (layout.annotations ?? []).filter(({ xref, yref, y, showarrow }) => xref === "paper" && yref === "paper" && y === 1 && !showarrow);
  }

  // Panels side by side that a narrow screen has no room for: one under the other, each with its own axis and title.
  function stackPanels(layout, element) {
    const panels = Object.keys(layout).filter((key) => /^xaxis\d*$/.test(key));
    const vertical = (key) => `yaxis${(layout[key].anchor ?? "y").slice(1)}`;
    const inOneRow = panels.every((key) => layout[vertical(key)]?.domain?.join() === "0,1");
    if (panels.length < 2 || !inOneRow) return;
    panels.sort((one, other) => layout[one].domain[0] - layout[other].domain[0]);
    const bars = Object.keys(layout).filter((key) => /^coloraxis\d*$/.test(key)).sort((one, other) => one.length - other.length || one.localeCompare(other));
    const base = (bars.length ? mapHeight(element) : 240) + 70; // with room for a title above and ticks below
    const height = panels.length * base + 110;
    const share = 1 / panels.length;
    const titles = panelTitles(layout).map((each) => ({ ...each, x: 0, xanchor: "left" }));
    const first = layout[vertical(panels[0])];
    panels.forEach((key, index) => {
      const top = 1 - index * share, bottom = top - share * (index < panels.length - 1 ? (base - 70) / base : 1);
      layout[key] = { ...layout[key], domain: [0, bars.length ? 0.88 : 1], showticklabels: true };
      layout[vertical(key)] = { ...layout[vertical(key)], domain: [Math.max(bottom, 0), top], showticklabels: true, title: first.title };
      if (titles[index]) titles[index].y = top;
      if (bars[index]) {
        const bar = { ...layout[bars[index]].colorbar, x: 0.9, y: (top + Math.max(bottom, 0)) / 2, len: top - Math.max(bottom, 0) };
        layout[bars[index]] = { ...layout[bars[index]], colorbar: { ...bar, yanchor: "middle", lenmode: "fraction" } };
      }
    });
    const others = (layout.annotations ?? []).filter((each) => !panelTitles(layout).includes(each));
    layout.annotations = [...others, ...titles];
    layout.margin = { ...layout.margin, t: 30 };
    if (layout.legend) layout.legend = { ...layout.legend, y: -60 / height };
    element.style.height = `${height}px`;
  }

  // Of maps as they are in a row, however often they are drawn.
  function mapHeight(element) {
    element.dataset.row ??= String(element.clientHeight);
    return Number(element.dataset.row) - 100;
  }

  on("select", () => {
    for (const element of drawn.keys()) {
      if (data.figures[element.dataset.figure]?.layout.meta?.selects === "map") Plotly.relayout(element, { shapes: sinklens.outline() });
    }
  });
  on("theme", () => drawn.forEach((draw) => draw()));

  // On paper: every chart, in the light theme, and back again.
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    [...waiting.keys()].forEach(drawNow);
    if (before !== "light") sinklens.setTheme("light");
  });
  window.addEventListener("afterprint", () => { if (before && before !== "light") sinklens.setTheme(before); });

  for (const element of document.querySelectorAll("[data-figure]")) whenNear(element, () => drawFigure(element));
  Object.assign(sinklens, { whenNear, drawNow, redraw, themed, drawAll: () => [...waiting.keys()].forEach(drawNow) });
})();

"use strict";
// All heads as points; the axes and the colour are chosen from any per-head quantity.
(() => {
  const { data, config, heads, state, look, on, select, themed, upper } = sinklens;
  const element = document.getElementById("scatter");
  const choices = Object.fromEntries(["x", "y", "color"].map((name) => [name, document.getElementById(`scatter-${name}`)]));
  const { quantities, kinds, neutral } = data.style;
  const hovered = ["sink_mass", "sink_intra", "sink_inter", "sink_value_ratio", "sink_alignment", "suppression"];
  const symbols = Object.fromEntries(kinds.map((kind) => [kind.name, kind]));

  const texts = Array.from(heads.kind, (kind, i) => {
    const lines = hovered.map((name) => `${quantities[name].label} ${sinklens.number(heads.values[name][i])}`);
    const place = `<b>Layer ${heads.layers[Math.floor(i / heads.count)]} · head ${i % heads.count}</b> (${data.kinds[kind]})`;
    return [place, ...lines].join("<br>");
  });

  function points(indices, marker, name) {
    return {
      type: "scatter", mode: "markers", name, showlegend: Boolean(name), customdata: indices, text: indices.map((i) => texts[i]),
      x: indices.map((i) => heads.values[choices.x.value][i]), y: indices.map((i) => heads.values[choices.y.value][i]),
      hovertemplate: "%{text}<extra></extra>", marker: { size: 8, opacity: 0.85, line: { width: 0.5, color: look().background }, ...marker },
    };
  }

  function byKind() {
    return data.kinds.map((name, kind) => {
      const indices = [...heads.kind.keys()].filter((i) => heads.kind[i] === kind);
      const { color, symbol } = symbols[name];
      const line = { width: symbol.endsWith("-open") ? 1.5 : 0.5, color: look().background };
      return points(indices, { color, symbol, line }, name);
    }).filter((trace) => trace.x.length);
  }

  // The same scales as the maps: ratios as powers of two around 1, signed quantities around 0.
  function byQuantity(name) {
    const quantity = quantities[name];
    const shown = Array.from(heads.values[name], (value) => (quantity.ratio ? Math.log2(Math.max(value, 2 ** -10)) : value));
    const bound = upper(shown.filter(Number.isFinite).map(Math.abs), 0.98);
    const [cmin, cmax] = quantity.limits ?? (quantity.scale === "diverging" ? [-bound, bound] : [0, bound]);
    const colorbar = { title: { text: quantity.label, side: "right" }, thickness: 10 };
    if (quantity.ratio) {
      const powers = [-8, -4, -2, -1, 0, 1, 2, 4, 8].filter((power) => Math.abs(power) <= bound);
      const ends = powers.length > 1 ? powers : [-bound, 0, bound];
      Object.assign(colorbar, { tickvals: ends, ticktext: ends.map((power) => sinklens.number(2 ** power)) });
    }
    const coloraxis = { cmin, cmax, colorscale: look().scales[quantity.scale], colorbar };
    return { trace: points([...shown.keys()], { color: shown, coloraxis: "coloraxis" }), coloraxis };
  }

  function identity() {
    if (!quantities[choices.x.value].share || !quantities[choices.y.value].share) return [];
    return [{
      type: "scatter", mode: "lines+text", x: [0, 1], y: [0, 1], text: ["", "y = x"], textposition: "top left", showlegend: false,
      hoverinfo: "skip", line: { color: neutral, width: 1, dash: "dash" }, textfont: { color: neutral },
    }];
  }

  function ring() {
    const index = heads.index(state.layer, state.head);
    if (!state.chosen || index < 0) return [];
    return [{
      type: "scatter", mode: "markers", x: [heads.values[choices.x.value][index]], y: [heads.values[choices.y.value][index]],
      hoverinfo: "skip", showlegend: false, marker: { size: 17, symbol: "circle-open", color: look().text, line: { width: 2.5 } },
    }];
  }

  function draw() {
    const color = choices.color.value;
    const coloured = color === "kind" ? null : byQuantity(color);
    const layout = {
      ...themed({ xaxis: { title: { text: quantities[choices.x.value].label } }, yaxis: { title: { text: quantities[choices.y.value].label } } }),
      legend: { orientation: "h", y: 1.0, yanchor: "bottom", x: 0 }, margin: { l: 56, r: 16, t: 40, b: 48 }, hovermode: "closest",
    };
    if (coloured) layout.coloraxis = coloured.coloraxis;
    Plotly.react(element, [...identity(), ...(coloured ? [coloured.trace] : byKind()), ...ring()], layout, config(element));
    if (element.dataset.listens) return;
    element.dataset.listens = "yes";
    element.on("plotly_click", ({ points: [point] }) => {
      select(heads.layers[Math.floor(point.customdata / heads.count)], point.customdata % heads.count);
    });
  }

  for (const choice of Object.values(choices)) choice.addEventListener("change", () => sinklens.drawNow(element) ?? sinklens.redraw(element));
  const readout = document.getElementById("readout");
  const link = document.getElementById("selected-head");
  on("select", ({ layer, head, chosen }) => {
    if (!chosen) return;
    sinklens.redraw(element);
    sinklens.describe(readout, layer, head);
    link.textContent = `Layer ${layer} · head ${head} →`;
    link.hidden = false;
  });
  sinklens.whenNear(element, draw);
})();

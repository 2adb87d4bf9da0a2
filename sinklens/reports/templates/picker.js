"use strict";
// One head of one prompt: attention, intra and inter contribution side by side, and one query as bars.
(() => {
  const { data, config, heads, state, look, on, select, themed, upper, escape } = sinklens;
  const maps = data.maps;
  if (!maps) return;
  const get = (name) => document.getElementById(`picker-${name}`);
  const [plot, bars, title, readout] = ["maps", "bars", "title", "readout"].map(get);
  const [layerChoice, headChoice, queryChoice, rangeChoice] = ["layer", "head", "query", "range"].map(get);
  const tokens = maps.tokens;
  const count = tokens.length;
  const positions = [...tokens.keys()];
  const sinks = new Set(maps.sinks);
  const names = { attention: "Attention", intra: "Intra contribution", inter: "Inter contribution" };
  const barColours = { attention: "#8c6bb1", intra: "#3a8fd6", inter: "#d55e00" };
  const shown = maps.layers.flatMap((layer) => Array.from({ length: maps.heads }, (_, head) => `${layer}.${head}`)).filter((key) => maps.maps[key]);
  const longest = plot.clientWidth < sinklens.narrow ? 9 : 14;
  const labels = tokens.map((token) => escape(token.length > longest ? `${token.slice(0, longest - 1)}…` : token));
  const full = tokens.map((token, i) => `${escape(token)} (${i})`);
  const masks = maps.masks.map(unpack);
  const mostLabelledCells = 40000;
  const smallestRange = 0.001;
  // A learned sink (gpt-oss) is no token: its column stands half a cell before the first, and holds what a row lacks of 1.
  const nullKey = maps.learnedSink ? -1.5 : undefined;
  const nullName = "learned sink";
  let current = null;

  function unpack(base64) {
    const packed = sinklens.bytes(base64);
    return Uint8Array.from({ length: count * count }, (_, i) => (packed[i >> 3] >> (7 - (i & 7))) & 1);
  }

  function decode({ data: text, low, step }) {
    if (maps.dtype === "u1") return sinklens.levels(text, low, step);
    return maps.dtype === "f2" ? sinklens.halves(text) : sinklens.floats(text);
  }

  // Only visible cells are in the file, row by row; the others stay NaN, which plotly leaves blank.
  function grid(entry, mask) {
    const values = decode(entry);
    const rows = positions.map(() => new Float32Array(count).fill(NaN));
    let next = 0;
    for (let i = 0; i < mask.length; i += 1) if (mask[i]) rows[Math.floor(i / count)][i % count] = values[next++];
    return rows;
  }

  function load(key) {
    if (current?.key === key) return current;
    const layer = Number(key.split(".")[0]);
    const mask = masks[maps.maskOfLayer[maps.layers.indexOf(layer)]];
    const rows = Object.fromEntries(maps.metrics.map((metric, i) => [metric, grid(maps.maps[key][i], mask)]));
    const degenerate = rows.intra.map((row, query) => row.every((value, k) => !mask[query * count + k] || Number.isNaN(value)));
    current = { key, mask, rows, degenerate };
    return current;
  }

  function onNullKey(head, query) {
    const seen = head.rows.attention[query].filter(Number.isFinite);
    return Math.max(0, 1 - seen.reduce((sum, value) => sum + value, 0));
  }

  function cellText(head) {
    if (count * count > mostLabelledCells) return undefined;
    return positions.map((query) => positions.map((k) => {
      if (!head.mask[query * count + k]) return `${full[query]} cannot see ${full[k]}`;
      const note = head.degenerate[query] ? "<br>degenerate row: the output is too short to divide by" : "";
      return `query ${full[query]}<br>key ${full[k]}${note}`;
    }));
  }

  // Attention has a natural largest value; contributions have none, so the last half percent saturates. Where all is
  // tiny, the scale still spans a thousandth: shares below that move nothing and shall not look as if they did.
  function range(metric, rows) {
    const sizes = [];
    for (const row of rows) row.forEach((value, k) => { if (Number.isFinite(value) && !(rangeChoice.checked && sinks.has(k))) sizes.push(Math.abs(value)); });
    const bound = Math.max(upper(sizes, metric === "attention" ? 1 : 0.995), smallestRange);
    return metric === "attention" ? [0, bound] : [-bound, bound];
  }

  // In pixels: square cells, room for token labels and for a colour bar beside each map; one below the other where it is narrow.
  function arrangement() {
    const width = Math.max(plot.clientWidth, 260);
    const stacked = width < 760;
    const left = 14 + 6.2 * Math.max(...tokens.map((token) => Math.min(token.length, longest)));
    const bottom = Math.max(left, nullKey === undefined ? 0 : 14 + 6.2 * nullName.length);
    const bar = 56;
    const across = stacked ? 1 : 3;
    const side = Math.min((width - left - across * bar) / across, 560);
    const step = Math.max(1, Math.ceil(count / Math.floor(side / 10.5)));
    return { width, stacked, left, bottom, bar, side, step, height: stacked ? 3 * (side + bottom + 34) : side + bottom + 34 };
  }

  function axes(place, index) {
    const { width, stacked, left, bottom, bar, side, step, height } = place;
    const ticks = positions.filter((position) => position % step === 0);
    const before = nullKey === undefined ? [] : [nullKey];
    const top = 30;
    const x0 = stacked ? 0 : (index * (side + bar)) / (width - left);
    const y1 = stacked ? 1 - (index * (side + bottom + 34)) / (height - top - bottom) : 1;
    const y0 = stacked ? y1 - side / (height - top - bottom) : 0;
    const x1 = x0 + side / (width - left);
    const common = {
      tickmode: "array", tickvals: ticks, ticktext: ticks.map((position) => labels[position]), showgrid: false, zeroline: false, ticks: "",
      tickfont: { family: data.style.tokenFont, size: count <= 45 ? 10 : 9 }, automargin: false,
    };
    const suffix = index ? String(index + 1) : "";
    return {
      [`xaxis${suffix}`]: {
        ...common, domain: [x0, x1], anchor: `y${suffix}`, range: [(nullKey ?? 0) - 0.5, count - 0.5], tickangle: -90, matches: index ? "x" : undefined,
        tickvals: [...before, ...common.tickvals], ticktext: [...before.map(() => nullName), ...common.ticktext],
      },
      [`yaxis${suffix}`]: {
        ...common, domain: [y0, y1], anchor: `x${suffix}`, range: [count - 0.5, -0.5], matches: index ? "y" : undefined,
        showticklabels: stacked || !index,
      },
      bar: { x: x1, xanchor: "left", xpad: 4, y: y1, yanchor: "top", len: side, lenmode: "pixels", thickness: 8, tickformat: ".2~g" },
      heading: { text: `<b>${names[maps.metrics[index]]}</b>`, x: x0, y: y1, xref: "paper", yref: "paper", xanchor: "left", yanchor: "bottom", yshift: 4, showarrow: false, font: { size: 13 } },
    };
  }

  function drawMaps() {
    const head = load(`${state.layer}.${state.head}`);
    const place = arrangement();
    const text = cellText(head);
    const layout = { margin: { l: place.left, r: 0, t: 30, b: place.bottom }, annotations: [], meta: { scales: {} }, height: place.height };
    const traces = maps.metrics.map((metric, index) => {
      const { bar, heading, ...pair } = axes(place, index);
      const name = index ? `coloraxis${index + 1}` : "coloraxis";
      const [cmin, cmax] = range(metric, head.rows[metric]);
      Object.assign(layout, pair, { [name]: { cmin, cmax, colorbar: bar } });
      layout.meta.scales[name] = metric === "attention" ? "sequential" : "diverging";
      layout.annotations.push(heading);
      const suffix = index ? String(index + 1) : "";
      const where = text ? "%{text}" : "query %{y}<br>key %{x}";
      return {
        type: "heatmap", z: head.rows[metric], x: positions, y: positions, xaxis: `x${suffix}`, yaxis: `y${suffix}`, coloraxis: name, text,
        hoverongaps: Boolean(text), hovertemplate: `${where}<br>${names[metric]} <b>%{z:.4g}</b><extra></extra>`, name: names[metric],
      };
    });
    if (nullKey !== undefined) traces.push(nullColumn(head));
    plot.style.height = `${place.height}px`;
    Plotly.react(plot, traces, themed(layout), config(plot));
    if (plot.dataset.listens) return;
    plot.dataset.listens = "yes";
    plot.on("plotly_click", ({ points: [point] }) => { queryChoice.value = String(Math.round(point.y)); sinklens.redraw(bars); });
  }

  function nullColumn(head) {
    return {
      type: "heatmap", z: positions.map((query) => [onNullKey(head, query)]), x: [nullKey], dx: 1, y: positions, xaxis: "x", yaxis: "y", coloraxis: "coloraxis",
      text: positions.map((query) => [`query ${full[query]}<br>${nullName}, a null key without a value`]), name: `${names.attention}, ${nullName}`,
      hovertemplate: `%{text}<br>${names.attention} <b>%{z:.4g}</b><extra></extra>`,
    };
  }

  function drawBars() {
    const head = load(`${state.layer}.${state.head}`);
    const query = Number(queryChoice.value);
    const keys = positions.filter((k) => head.mask[query * count + k]);
    const step = Math.max(1, Math.ceil(keys.length / Math.floor(Math.max(bars.clientWidth - 60, 100) / 13)));
    const ticks = keys.filter((_, i) => i % step === 0);
    const before = nullKey === undefined ? [] : [keys[0] + nullKey]; // beside the first key of a window
    const rest = (metric) => before.map(() => (metric === "attention" ? onNullKey(head, query) : 0));
    const traces = maps.metrics.map((metric) => ({
      type: "bar", name: names[metric], x: [...before, ...keys], y: [...rest(metric), ...keys.map((k) => head.rows[metric][query][k])],
      marker: { color: barColours[metric], line: { width: 0 } },
      text: [...before.map(() => nullName), ...keys.map((k) => full[k])], textposition: "none", hovertemplate: `key %{text}<br>${names[metric]} <b>%{y:.4g}</b><extra></extra>`,
    }));
    const layout = {
      barmode: "group", bargap: 0.25, margin: { l: 50, r: 8, t: 34, b: 90 }, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: {
        tickmode: "array", tickvals: [...before, ...ticks], ticktext: [...before.map(() => nullName), ...ticks.map((k) => labels[k])], tickangle: -60, tickfont: { family: data.style.tokenFont, size: 10 },
        showgrid: false, zeroline: false, range: [Math.min(keys[0], ...before) - 0.6, Math.max(keys[keys.length - 1], keys[0] + 1) + 0.6],
      },
      yaxis: { title: { text: "Share" } },
    };
    Plotly.react(bars, traces, themed(layout), config(bars));
  }

  function show({ layer, head }) {
    const known = Boolean(maps.maps[`${layer}.${head}`]);
    title.textContent = known ? `Layer ${layer} · head ${head}` : `Layer ${layer} · head ${head} has no maps on this page`;
    sinklens.describe(readout, layer, head);
    if (!known) return;
    layerChoice.value = String(layer);
    headChoice.value = String(head);
    sinklens.redraw(plot);
    sinklens.redraw(bars);
  }

  function choose(key) {
    const [layer, head] = key.split(".").map(Number);
    select(layer, head);
  }

  function step(by) {
    const index = shown.indexOf(`${state.layer}.${state.head}`);
    choose(shown[(Math.max(index, 0) + by + shown.length) % shown.length]);
  }

  // The head of the same number in the next layer that has maps.
  function stepLayer(by) {
    for (let row = maps.layers.indexOf(state.layer) + by; row >= 0 && row < maps.layers.length; row += by) {
      if (maps.maps[`${maps.layers[row]}.${state.head}`]) return select(maps.layers[row], state.head);
    }
    return undefined;
  }

  function chosen() {
    const key = `${layerChoice.value}.${headChoice.value}`;
    if (maps.maps[key]) choose(key);
    else select(Number(layerChoice.value), Number(headChoice.value));
  }

  layerChoice.addEventListener("change", chosen);
  headChoice.addEventListener("change", chosen);
  rangeChoice.addEventListener("change", () => sinklens.redraw(plot));
  queryChoice.addEventListener("change", () => sinklens.redraw(bars));
  get("previous").addEventListener("click", () => step(-1));
  get("next").addEventListener("click", () => step(1));
  document.getElementById("picker").addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowUp: () => stepLayer(-1), ArrowDown: () => stepLayer(1) };
    if (!moves[event.key] || event.target.matches("select, input") || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    moves[event.key]();
  });
  // A click on the charts moves the focus there, so that the arrow keys do what the caption says.
  document.getElementById("picker").addEventListener("click", (event) => {
    if (!event.target.closest("select, input, button, label, a")) plot.focus({ preventScroll: true });
  });
  let width = plot.clientWidth;
  window.addEventListener("resize", () => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    requestAnimationFrame(() => { sinklens.redraw(plot); sinklens.redraw(bars); });
  });

  on("select", show);
  plot.style.height = `${arrangement().height}px`;
  sinklens.whenNear(plot, drawMaps);
  sinklens.whenNear(bars, drawBars);
  sinklens.firstHead = mostAttentionForLeast();

  // The page opens on the head whose attention on the sink exceeds the sink's contribution most.
  function mostAttentionForLeast() {
    const { sink_mass: mass, sink_intra: intra } = heads.values;
    const excess = (key) => {
      const index = heads.index(...key.split(".").map(Number));
      return mass[index] - Math.abs(intra[index]) || 0;
    };
    return shown.reduce((best, key) => (excess(key) > excess(best) ? key : best), shown[0]);
  }
})();

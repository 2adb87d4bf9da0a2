"use strict";
// The heads of a profile, which of them is selected, and packed numbers.
(() => {
  const { data, listeners, look, number } = sinklens;

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

  // Around the selected head in every map.
  function outline() {
    const row = heads.layers.indexOf(state.layer);
    if (!state.chosen || row < 0) return [];
    const corner = { x0: state.head - 0.5, x1: state.head + 0.5, y0: row - 0.5, y1: row + 0.5 };
    const frame = (color, width) => ({ type: "rect", ...corner, line: { color, width } });
    return [frame(look().background, 6), frame(look().text, 2.5)]; // seen on light and on dark cells
  }

  Object.assign(sinklens, { heads, state, select, describe, outline, upper, floats, halves, levels, bytes });
})();

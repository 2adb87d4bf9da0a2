"use strict";
// All listeners are in place: select the first head to be seen.
{
  const [layer, head] = (sinklens.firstHead ?? `${sinklens.state.layer}.${sinklens.state.head}`).split(".").map(Number);
  sinklens.select(layer, head, false);
}

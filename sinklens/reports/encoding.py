"""Maps and per-head figures as compact text for a page: only what queries see, short numbers in base64."""

import base64
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinklens.metrics.patterns import KINDS
from sinklens.results import QUANTITIES, AttentionMaps, HeadProfile
from sinklens.viz.quantities import head_values

METRICS_SHOWN = ("attention", "intra", "inter")
MAPS_BUDGET = 6_000_000
# Below this, full precision costs too little to give it up.
FULL_PRECISION_BUDGET = 1_500_000
_LARGEST_HALF = 65504.0
_LEVELS, _NAN_LEVEL = 254, 255
_NOTES = {
    "f4": "Values are kept in full (32-bit).",
    "f2": "Values are kept as 16-bit floating-point numbers, about three digits.",
    "u1": "Values are rounded to 255 steps between the smallest and the largest of each map.",
}
_BYTES = {"f4": 4, "f2": 2, "u1": 1}


@dataclass(frozen=True)
class EncodedMaps:
    """Maps ready for a page.

    Attributes:
        payload: what the page's script reads; JSON can hold it.
        note: one or two sentences on what was rounded or left out.
    """

    payload: dict[str, Any]
    note: str


def encode_maps(maps: AttentionMaps, profile: HeadProfile, budget: int = MAPS_BUDGET) -> EncodedMaps:
    """Pack attention, intra and inter contribution of all heads, or of as many as the budget allows.

    Precision is given up first (32-bit, 16-bit, 8-bit), then heads: those with the most attention on the
    sink and the largest contributions of it stay.

    Args:
        maps: of the prompt.
        profile: chooses the heads where not all fit.
        budget: bytes of base64.

    Returns:
        An :class:`EncodedMaps`.
    """
    visible = [layer.numpy() for layer in maps.visible]
    cells = sum(int(layer.sum()) for layer in visible) * maps.n_heads
    dtype = _choose_dtype(cells, budget)
    heads = [(row, head) for row in range(len(maps.layers)) for head in range(maps.n_heads)]
    per_head = max(1, _encoded_size(max(int(layer.sum()) for layer in visible), dtype))
    kept = (
        heads
        if _encoded_size(cells, dtype) <= budget
        else _ranked_heads(maps, profile, heads)[: max(1, budget // per_head)]
    )
    masks, mask_of_layer = _distinct_masks(visible)
    payload = {
        "tokens": list(maps.tokens),
        "sinks": list(maps.sink_positions),
        "layers": list(maps.layers),
        "heads": maps.n_heads,
        "metrics": list(METRICS_SHOWN),
        "dtype": dtype,
        "learnedSink": maps.learned_sink,
        "masks": masks,
        "maskOfLayer": mask_of_layer,
        "maps": _encode_heads(maps, visible, sorted(kept), dtype),
    }
    return EncodedMaps(payload, _note(dtype, len(kept), len(heads)))


def encode_heads(profile: HeadProfile) -> dict[str, Any]:
    """Every per-head quantity and kind for the page's scatter.

    Args:
        profile: the measurement.

    Returns:
        A dictionary that JSON can hold; arrays are 32-bit base64 in the order of layers, then heads.
    """
    return {
        "layers": list(profile.layers),
        "heads": profile.n_heads,
        "values": {name: to_base64(head_values(profile, name).ravel().astype("<f4")) for name in QUANTITIES},
        "kind": [KINDS.index(kind) for row in profile.kind for kind in row],
    }


def to_base64(array: np.ndarray) -> str:
    """The bytes of an array as base64 text.

    Example:
        >>> to_base64(np.array([0, 255], dtype=np.uint8))
        'AP8='
    """
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _encoded_size(cells: int, dtype: str) -> int:
    return math.ceil(cells * _BYTES[dtype] * len(METRICS_SHOWN) * 4 / 3)


def _choose_dtype(cells: int, budget: int) -> str:
    if _encoded_size(cells, "f4") <= min(budget, FULL_PRECISION_BUDGET):
        return "f4"
    return "f2" if _encoded_size(cells, "f2") <= budget else "u1"


def _ranked_heads(maps: AttentionMaps, profile: HeadProfile, heads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Heads by their best rank in attention on the sink or in the size of its contributions."""
    measured = {layer: row for row, layer in enumerate(profile.layers)}
    places = [(measured[maps.layers[row]], head) if maps.layers[row] in measured else None for row, head in heads]
    best = np.full(len(heads), len(heads))
    for name in ("sink_mass", "sink_intra", "sink_inter"):
        size = np.abs(head_values(profile, name))
        score = np.array([-1.0 if place is None else np.nan_to_num(size[place], nan=-1.0) for place in places])
        rank = np.empty(len(heads), dtype=int)
        rank[np.argsort(-score, kind="stable")] = np.arange(len(heads))
        best = np.minimum(best, rank)
    return [heads[i] for i in np.argsort(best, kind="stable")]


def _distinct_masks(visible: list[np.ndarray]) -> tuple[list[str], list[int]]:
    packed = [to_base64(np.packbits(layer)) for layer in visible]
    distinct = list(dict.fromkeys(packed))
    return distinct, [distinct.index(mask) for mask in packed]


def _encode_heads(
    maps: AttentionMaps, visible: list[np.ndarray], kept: list[tuple[int, int]], dtype: str
) -> dict[str, list[dict[str, Any]]]:
    """One entry per head and metric; a layer's metrics live only while it is being packed."""
    encode = _ENCODERS[dtype]
    encoded: dict[str, list[dict[str, Any]]] = {}
    for row in sorted({row for row, _ in kept}):
        layer = maps.layers[row]
        one = maps.layer(layer)
        values = [one.metric(metric)[0].float().numpy() for metric in METRICS_SHOWN]
        for head in (head for kept_row, head in kept if kept_row == row):
            encoded[f"{layer}.{head}"] = [encode(metric[head][visible[row]]) for metric in values]
    return encoded


def _encode_full(values: np.ndarray) -> dict[str, Any]:
    return {"data": to_base64(values.astype("<f4"))}


def _encode_half(values: np.ndarray) -> dict[str, Any]:
    return {"data": to_base64(np.clip(values, -_LARGEST_HALF, _LARGEST_HALF).astype("<f2"))}


def _encode_bytes(values: np.ndarray) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    step = (high - low) / _LEVELS or 1.0
    levels = np.where(np.isfinite(values), np.round((np.nan_to_num(values) - low) / step), _NAN_LEVEL)
    return {"data": to_base64(levels.astype(np.uint8)), "low": low, "step": step}


_ENCODERS: dict[str, Callable[[np.ndarray], dict[str, Any]]] = {
    "f4": _encode_full,
    "f2": _encode_half,
    "u1": _encode_bytes,
}


def _note(dtype: str, kept: int, total: int) -> str:
    if kept == total:
        return _NOTES[dtype]
    return (
        f"{_NOTES[dtype]} To keep this page small, {kept} of {total} heads have maps here: those with "
        "the most attention "
        "on the sink and the largest contributions of it. sl.viz.attention_heatmaps shows any head."
    )

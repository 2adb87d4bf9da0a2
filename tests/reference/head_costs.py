"""Slow literal head costs: the d_model x d_model matrices themselves, in float64, and margins query by query."""

import math
from typing import Any

import numpy as np
from torch import Tensor

FROM_SINGULAR_VALUES = {
    "frobenius": lambda s: math.sqrt((s**2).sum()),
    "nuclear": lambda s: s.sum(),
    "spectral": lambda s: s.max(),
    "participation": lambda s: s.sum() ** 2 / (s**2).sum(),
}


def matrix(attention: Any, of: str, head: int, n_heads: int, gain: Tensor | None = None) -> np.ndarray:
    """``W_QK`` or ``W_VO`` of a head ``[d_model, d_model]``; the group of a query head is ``h // (H/G)``."""

    def own(name: str) -> np.ndarray:
        weight = getattr(attention, name).detach().double()
        return weight[head // (n_heads // len(weight))].numpy()

    g = 1.0 if gain is None else gain.detach().double().numpy()[:, None]
    if of == "qk":
        return (g * own("W_Q")) @ (g * own("W_K")).T
    return (g * own("W_V")) @ own("W_O")


def norm(matrix: np.ndarray, name: str) -> float:
    """Of all ``d_model`` singular values."""
    return float(FROM_SINGULAR_VALUES[name](np.linalg.svd(matrix, compute_uv=False)))


def margins(pattern: Tensor, kind: str, sink: int = 0) -> list[float]:
    """Of one head's causal pattern ``[query, key]``: by how much the target's logarithm beats every other key's."""
    found: list[float] = []
    for query in range(len(pattern)):
        target = sink if kind == "sink" else query
        others = [key for key in range(query + 1) if key != target]
        if others and (kind == "diagonal" or query > sink):
            weights = [math.log(float(pattern[query, key])) for key in others]
            found.append(math.log(float(pattern[query, target])) - max(weights))
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Rank correlation by its definition, ranks by counting."""

    def ranks(values: np.ndarray) -> np.ndarray:
        return np.array([(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values])

    a, b = (ranks(values) - ranks(values).mean() for values in (x, y))
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))

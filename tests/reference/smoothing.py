"""Slow literal oversmoothing in float64: every head's pattern written out, every token pair by pair."""

import torch
from torch import Tensor

from tests.captured import RawLayer
from tests.reference.theory import pairwise_cosine


def mixed_pattern(pattern: Tensor, visible: Tensor, path: str, strength: float) -> Tensor:
    """``(1-λ) I + λ U`` or ``(1-λ) A + λ U`` of one sequence ``[head, query, key]``, query by query."""
    mixed = torch.zeros_like(pattern)
    for head in range(pattern.shape[0]):
        for query in range(pattern.shape[1]):
            seen = visible[query].nonzero().flatten().tolist()
            start = pattern[head, query] if path == "own" else torch.eye(pattern.shape[1]).double()[query]
            mixed[head, query] = (1 - strength) * start
            for key in seen:
                mixed[head, query, key] += strength / len(seen)
    return mixed


def mixed_output(one: RawLayer, path: str, strength: float) -> Tensor:
    """``Σ_h Σ_j A_ij ṽ_j`` of one sequence ``[query, d_model]``, without a bias."""
    mixed = mixed_pattern(one.pattern[0], one.visible[0], path, strength)
    projected = one.projected[0].expand(-1, mixed.shape[1], -1, -1)  # with a gate it differs from query to query
    return torch.einsum("hqk,hqkm->qm", mixed, projected)


def own_direction(residual: Tensor, update: Tensor, one: RawLayer, path: str, strength: float) -> Tensor:
    """``r_i + Σ_j Ā_ij ||s_j|| r_j / ||r_j||``, key by key."""
    mean = mixed_pattern(one.pattern[0], one.visible[0], path, strength).mean(0)
    found = residual.clone()
    for query in range(len(residual)):
        for key in range(len(residual)):
            found[query] += mean[query, key] * update[key].norm() * residual[key] / residual[key].norm()
    return found


def collapse(rows: Tensor) -> float:
    """``||X - 1 x̄ᵀ||_F / ||X||_F``."""
    return ((rows - rows.mean(0)).norm() / rows.norm()).item()


def cosines(rows: Tensor, n_sinks: int = 1) -> tuple[float, float, float]:
    """Without the first tokens, with them, and the rank-collapse ratio without them."""
    return pairwise_cosine(rows[n_sinks:]), pairwise_cosine(rows), collapse(rows[n_sinks:])

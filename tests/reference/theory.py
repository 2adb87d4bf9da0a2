"""Slow literal versions of the theory: constraints one by one, attention as an explicit matrix, every pair of tokens."""

import torch
from torch import Tensor

from sinklens.theory import ScorePattern


def constraint_forms(X: Tensor, pattern: ScorePattern) -> list[tuple[int, int, Tensor]]:
    """Query, key and ``x_i (x_t(i) - x_j)ᵀ`` of each constraint."""
    rows = X.double()
    return [
        (i, j, torch.outer(rows[i], rows[int(pattern.target[i])] - rows[j]))
        for i in range(len(rows))
        for j in range(len(rows))
        if pattern.others[i, j]
    ]


def least_margin(W: Tensor, X: Tensor, pattern: ScorePattern) -> float:
    """The least score difference, constraint by constraint."""
    return min((W * form).sum().item() for _, _, form in constraint_forms(X, pattern))


def combination(multipliers: Tensor, X: Tensor, pattern: ScorePattern) -> Tensor:
    """The multipliers' sum of forms, term by term."""
    total = torch.zeros(X.shape[1], X.shape[1], dtype=torch.float64)
    for i, j, form in constraint_forms(X, pattern):
        total += multipliers[i, j] * form
    return total


def pairwise_cosine(X: Tensor) -> float:
    """Mean cosine over all pairs of different tokens, pair by pair."""
    unit = X.double() / X.double().norm(dim=1, keepdim=True)
    n = len(X)
    return sum((unit[i] @ unit[j]).item() for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def attention_step(residual: Tensor, update: Tensor, strength: float, causal: bool) -> Tensor:
    """``r + A s`` with the attention matrix ``(1-λ) I + λ U`` written out."""
    n = len(residual)
    uniform = torch.ones(n, n, dtype=torch.float64)
    if causal:
        uniform = uniform.tril()
    uniform = uniform / uniform.sum(1, keepdim=True)
    pattern = (1 - strength) * torch.eye(n, dtype=torch.float64) + strength * uniform
    return residual.double() + pattern @ update.double()

"""Costs that are known in closed form, for orthonormal embeddings (arXiv 2605.08453; the general forms are ours)."""

import math

import numpy as np
import torch

from sinklens.theory.arrays import checked_choice, checked_count
from sinklens.theory.patterns import ScorePattern, active_positions
from sinklens.theory.splitting import NORMS


def frobenius_cost(pattern: ScorePattern) -> float:
    """Least Frobenius norm of any pattern for margin 1: ``sqrt(Σ_i n_i / (n_i + 1))`` (ours).

    ``n_i`` is the number of keys that query ``i`` has to beat. Rows are independent, and a row's least score vector has
    ``n/(n+1)`` on its target and ``-1/(n+1)`` on the others. Sink and
    diagonal: ``sqrt(T - 1)`` full, ``sqrt(Σ_{i<T} i / (i + 1))`` causal.

    Args:
        pattern: the constraints.

    Returns:
        The cost; 0 without constraints.

    Example:
        >>> from sinklens.theory import score_pattern
        >>> frobenius_cost(score_pattern(5, "sink", causal=False))
        2.0
    """
    n_others = pattern.others.sum(1).double()
    return (n_others / (n_others + 1)).sum().sqrt().item()


def _count_multiplicities(n_tokens: int, kind: str, active_share: float, switch: str) -> dict[int, int]:
    """How many keys are the target of 1, 2, ... queries."""
    if kind == "sink":
        return {n_tokens: 1}
    if kind == "diagonal":
        return {1: n_tokens}
    if kind == "previous":
        return {1: n_tokens - 1}
    active = active_positions(n_tokens, active_share)
    if switch == "hard":
        # Position 0 is never copied, so the sink's dormant queries are all of its queries.
        per_key = torch.zeros(n_tokens, dtype=torch.long)
        per_key[0] = n_tokens - len(active)
    else:
        per_key = torch.ones(n_tokens, dtype=torch.long)
        per_key[active] -= 1
    per_key[active - 1] += 1
    values, multiplicity = torch.unique(per_key[per_key > 0], return_counts=True)
    return {int(value): int(count) for value, count in zip(values, multiplicity, strict=True)}


def full_nuclear_cost(n_tokens: int, kind: str, active_share: float = 0.5, switch: str = "hard") -> float:
    """Least nuclear norm for margin 1 where every query sees every key (ours).

    The tests prove each case optimal by its dual. All margins are tight: row ``i`` of the scores is ``e_t(i) - 1/T``.
    With ``c_k`` the number of queries that attend to ``k``, the squared singular values are the eigenvalues of ``diag(c)
    - √c √cᵀ / T``. Equal counts ``c`` of ``n`` keys give ``c`` itself ``n - 1`` times, so that the whole reduces to one
    small matrix over the distinct counts.

        sink √(T-1)   diagonal T-1   previous T-2+1/√T

    Args:
        n_tokens: ``T``.
        kind: ``sink``, ``diagonal``, ``previous`` or ``backcopy``.
        active_share: for ``backcopy``.
        switch: for ``backcopy``.

    Returns:
        The cost.

    Example:
        >>> full_nuclear_cost(17, "sink"), full_nuclear_cost(17, "diagonal")
        (4.0, 16.0)
        >>> round(full_nuclear_cost(16, "previous"), 6)
        14.25
    """
    if n_tokens == 1:
        return 0.0
    levels = _count_multiplicities(n_tokens, kind, active_share, switch)
    count, multiplicity = (np.array(list(side), dtype=float) for side in (levels.keys(), levels.values()))
    total = np.sqrt(count * multiplicity)
    reduced = np.diag(count) - np.outer(total, total) / n_tokens
    squared = np.linalg.eigvalsh(reduced)
    squared[np.abs(squared) < 1e-12 * count.max()] = 0.0
    return float(((multiplicity - 1) * np.sqrt(count)).sum() + np.sqrt(squared).sum())


def causal_sink_nuclear_cost(n_tokens: int) -> float:
    """Least nuclear norm of a causal sink for margin 1: ``(T-1)/√T`` (ours).

    Primal: the rank-one ``a bᵀ`` with ``a = 1`` on every query after the sink and ``b = e_0 - 1/T``. Dual: ``y_ii =
        1/√T`` alone,
    whose ``G = [1, -I]/√T`` has ``G Gᵀ = (1 1ᵀ + I)/T``, largest eigenvalue 1; so beating itself is all that binds a query.

    Args:
        n_tokens: ``T``.

    Returns:
        The cost.

    Example:
        >>> causal_sink_nuclear_cost(4), causal_sink_nuclear_cost(16)
        (1.5, 3.75)
    """
    return (n_tokens - 1) / math.sqrt(n_tokens)


def value_output_cost(n_tokens: int, norm: str = "frobenius", active_share: float = 0.5) -> float:
    """The value-output part of a copy task: least norm of ``W_VO`` that writes each copied token's own embedding (ours).

    On orthonormal embeddings ``W_VO x_k = x_k`` for the ``K`` tokens that are copied, and ``W_VO x_0 = 0`` for the sink
    of a hard switch, which then costs nothing more. The least ``W_VO`` is a projection of rank ``K = round(p (T - 2))``.

        Frobenius √K   nuclear K

    Args:
        n_tokens: ``T``.
        norm: ``frobenius`` or ``nuclear``.
        active_share: ``p``.

    Returns:
        The cost, for outputs of unit length.

    Raises:
        InputError: an unknown norm, no tokens, a share outside 0 to 1.

    Example:
        >>> value_output_cost(10, "nuclear", active_share=0.5), value_output_cost(10, "frobenius", active_share=0.5)
        (4.0, 2.0)
    """
    checked_choice("norm", norm, NORMS)
    checked_count("n_tokens", n_tokens, 1)
    n_copied = len(active_positions(n_tokens, active_share))
    return float(n_copied) if norm == "nuclear" else math.sqrt(n_copied)

"""Slow, literal float64 versions of masking by a metric; tests only.

Terms are ranked one by one in Python lists, and head outputs are summed term by term.
"""

import math
from typing import Any

import torch
from torch import Tensor

from tests.reference import attention as reference

Term = tuple[int, int, int]  # head, query, key
TOP = "comprehensiveness"


def scores(metric: str, pattern: Tensor, projected: Tensor) -> Tensor:
    """The metric of every term [batch head query key]; 0 where the output is degenerate."""
    if metric == "attention":
        return pattern.double()
    found = {
        "value_weighted": lambda: reference.value_weighted(pattern, projected),
        "output_normalized": lambda: reference.output_normalized(pattern, projected),
        "intra": lambda: reference.intra(pattern, projected),
        "inter": lambda: reference.inter(pattern, projected),
    }[metric]()
    return torch.where(found.isnan(), 0.0, found)


def rankable_terms(visible: Tensor, n_heads: int, sinks: set[int], exempt_self: bool) -> list[Term]:
    """The terms of one sequence that may be removed; visible [query key]."""
    n_queries, n_keys = visible.shape
    return [
        (h, i, j)
        for h in range(n_heads)
        for i in range(n_queries)
        for j in range(n_keys)
        if visible[i, j] and j not in sinks and not (exempt_self and i == j)
    ]


def removed_terms(
    values: Tensor, terms: list[Term], fraction: float, granularity: str, mode: str, absolute: bool = False
) -> set[Term]:
    """The terms of one sequence that go; values [head query key]."""
    number = {term: float(values[term]) for term in terms}
    if absolute:
        number = {term: abs(value) for term, value in number.items()}
    if granularity == "token":
        return _removed_tokens(number, terms, fraction, mode)
    number = {term: significant(value) for term, value in number.items()}
    groups: dict[Any, list[Term]] = {}
    for term in terms:
        group = term[1] if granularity == "pair" else term[:2]
        groups.setdefault(group, []).append(term)
    removed: set[Term] = set()
    for members in groups.values():
        removed |= set(_chosen(members, number, fraction, mode))
    return removed


def _removed_tokens(number: dict[Term, float], terms: list[Term], fraction: float, mode: str) -> set[Term]:
    of_key: dict[Any, list[float]] = {}
    for term in terms:
        of_key.setdefault(term[2], []).append(number[term])
    means = {key: significant(math.fsum(values) / len(values)) for key, values in of_key.items()}
    chosen = set(_chosen(sorted(means), means, fraction, mode))
    return {term for term in terms if term[2] in chosen}


def significant(number: float) -> float:
    """A number to 16 significant bits, halves away from zero."""
    mantissa, exponent = math.frexp(number)
    return math.copysign(math.floor(abs(mantissa) * 2**16 + 0.5) / 2**16, number) * 2.0**exponent


def _chosen(members: list[Any], number: dict[Any, float], fraction: float, mode: str) -> list[Any]:
    """Highest first, equal ones by index (head, then key); the first or the last ⌊fraction · n⌋ of them."""
    order = sorted(members, key=lambda member: (-number[member], member))
    n_removed = math.floor(fraction * len(order) + 1e-9)
    return order[:n_removed] if mode == TOP else order[len(order) - n_removed :]


def masked_z(
    pattern: Tensor, value: Tensor, gate: Tensor | None, removed: list[set[Term]], renormalize: bool = False
) -> Tensor:
    """z'_i = γ_i ⊙ Σ_j keep_ij A_ij v_j [batch query head d_head]; renormalised: the rest of a row keeps the row's sum."""
    batch, n_heads, n_queries, n_keys = pattern.shape
    n_kv_heads, d_head = value.shape[2:]
    z = torch.zeros(batch, n_queries, n_heads, d_head, dtype=torch.float64)
    for b in range(batch):
        for h in range(n_heads):
            for i in range(n_queries):
                kept = [j for j in range(n_keys) if (h, i, j) not in removed[b]]
                left = sum(float(pattern[b, h, i, j]) for j in kept)
                factor = float(pattern[b, h, i].double().sum()) / left if renormalize and left > 0 else 1.0
                for j in kept:
                    z[b, i, h] += (
                        factor * float(pattern[b, h, i, j]) * value[b, j, h // (n_heads // n_kv_heads)].double()
                    )
    return z if gate is None else z * gate.double()


def mean_loss(logits: Tensor, tokens: Tensor) -> float:
    """Mean next-token cross-entropy of one sequence; logits [position vocabulary]."""
    total = 0.0
    for position in range(len(tokens) - 1):
        row = logits[position].double()
        total -= float(row[tokens[position + 1]] - row.logsumexp(-1))
    return total / (len(tokens) - 1)

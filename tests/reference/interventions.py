"""Slow, literal float64 versions of the interventions: explicit sums over keys, one query and one head at a time.

Each takes one layer's tensors of one sequence, as in ``tests.reference.attention``, and says what the pattern or the head
output is afterwards: pattern ``[head query key]``, value ``[key kv_head d_head]``, gate ``[query head d_head]``.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor


def head_output(
    pattern: Tensor, value: Tensor, gate: Tensor | None, scaled: dict[tuple[int, int], float] | None = None,
    replaced: dict[tuple[int, int], Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """z^h_i = Σ_j A_ij f_hj v_j, gated: γ_i ⊙ that; ``scaled`` and ``replaced`` by (query head, key)."""
    scaled, replaced = scaled or {}, replaced or {}
    n_heads, n_queries, n_keys = pattern.shape
    z = torch.zeros(n_queries, n_heads, value.shape[-1], dtype=torch.float64)
    for h in range(n_heads):
        kv_head = h // (n_heads // value.shape[1])
        for i in range(n_queries):
            for j in range(n_keys):
                vector = replaced.get((h, j), value[j, kv_head].double() * scaled.get((h, j), 1.0))
                z[i, h] += pattern[h, i, j].double() * vector
            if gate is not None:
                z[i, h] *= gate[i, h].double()
    return z


def sink_mass(
    pattern: Tensor, sinks: Collection[int], mass: float, visible: Tensor, heads: Collection[int], learned: bool
) -> Tensor:
    """A_is := α, the rest of the row rescaled to 1 - α; a row without a visible sink or without a rest stays."""
    edited = pattern.double().clone()
    for h in heads:
        for i in range(pattern.shape[1]):
            row = pattern[h, i].double()
            seen = [s for s in sinks if visible[i, s]]
            others = [j for j in range(len(row)) if j not in sinks]
            present = math.fsum(float(row[s]) for s in seen)
            rest = math.fsum(float(row[j]) for j in others) + (1 - float(row.sum()) if learned else 0.0)
            if not seen or rest <= 0:
                continue
            for s in seen:
                edited[h, i, s] = mass * (float(row[s]) / present if present > 0 else 1 / len(seen))
            for j in others:
                edited[h, i, j] = (1 - mass) * float(row[j]) / rest
    return edited


def dense(pattern: Tensor, visible: Tensor, strength: float, base: str) -> Tensor:
    """(1-λ) A + λ U, or (1-λ) I + λ U, U uniform over the visible keys; a query that sees nothing keeps its row."""
    edited = pattern.double().clone()
    for h in range(pattern.shape[0]):
        for i in range(pattern.shape[1]):
            seen = [j for j in range(pattern.shape[2]) if visible[i, j]]
            for j in range(pattern.shape[2]) if seen else ():
                start = float(pattern[h, i, j]) if base == "attention" else float(i == j)
                edited[h, i, j] = (1 - strength) * start + strength * (1 / len(seen) if j in seen else 0.0)
    return edited


def diagonal(pattern: Tensor, visible: Tensor, strength: float) -> Tensor:
    """(1-λ) A + λ I."""
    edited = pattern.double().clone()
    for h in range(pattern.shape[0]):
        for i in range(pattern.shape[1]):
            for j in range(pattern.shape[2]) if bool(visible[i].any()) else ():
                edited[h, i, j] = (1 - strength) * float(pattern[h, i, j]) + strength * float(i == j)
    return edited


def without(pattern: Tensor, removed: Tensor, renormalize: bool) -> Tensor:
    """A_ij := 0 where removed; renormalised, what is left of a row is rescaled to the row's former sum."""
    edited = pattern.double().clone()
    for h in range(pattern.shape[0]):
        for i in range(pattern.shape[1]):
            kept = [j for j in range(pattern.shape[2]) if not removed[h, i, j]]
            left, whole = math.fsum(float(pattern[h, i, j]) for j in kept), float(pattern[h, i].double().sum())
            for j in range(pattern.shape[2]):
                scale = whole / left if renormalize and left > 0 else 1.0
                edited[h, i, j] = float(pattern[h, i, j]) * scale if j in kept else 0.0
    return edited


def cross_entropy(logits: Tensor, tokens: Tensor) -> list[float]:
    """-log softmax(logits_i)[token_{i+1}] for every position that has a next one."""
    losses = []
    for i in range(len(tokens) - 1):
        row = logits[i].double()
        largest = float(row.max())
        total = math.fsum(math.exp(float(x) - largest) for x in row)
        losses.append(largest + math.log(total) - float(row[tokens[i + 1]]))
    return losses


def divergence(clean: Tensor, edited: Tensor) -> list[float]:
    """KL(p_i || q_i) = Σ_x p (log p - log q) for every position that has a next one."""
    found = []
    for i in range(len(clean) - 1):
        p, q = clean[i].double().softmax(-1), edited[i].double().softmax(-1)
        found.append(math.fsum(float(a) * (math.log(a) - math.log(b)) for a, b in zip(p, q, strict=True)))
    return found

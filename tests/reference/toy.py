"""Copy-paste tasks and the masses of a toy, written out with loops in float64."""

import math

import torch
from torch import Tensor

from sinklens.toy import CopyTask


def next_law(task: CopyTask, tokens: list[int], position: int) -> list[float]:
    """The law of the token after ``position``, given all before."""
    table = task.table.tolist()
    here = tokens[position]
    if 1 <= here <= task.n_triggers:
        copied = tokens[position - task.offset]
        return [float(token == copied) for token in range(task.n_tokens)]
    row = table[here]
    if position + 1 < task.first_trigger:
        row = [0.0 if 1 <= token <= task.n_triggers else weight for token, weight in enumerate(row)]
    return [weight / sum(row) for weight in row]


def entropy(law: list[float]) -> float:
    """In nats."""
    return -sum(weight * math.log(weight) for weight in law if weight > 0)


def masses(task: CopyTask, tokens: Tensor, pattern: Tensor) -> dict[str, float]:
    """Mean attention on the first position, on itself, one back and on the token to copy; ``pattern`` ``[batch, query, key]``."""
    found: dict[str, list[float]] = {}
    for row, sequence in enumerate(tokens.tolist()):
        for query in range(1, len(sequence)):
            side = "active" if 1 <= sequence[query] <= task.n_triggers else "dormant"
            keys = {"sink": 0, "self": query, "previous": query - 1, "target": query - task.offset}
            for name, key in keys.items():
                mass = float(pattern[row, query, key]) if key >= 0 else 0.0
                found.setdefault(f"{name}_mass_{side}", []).append(mass)
            found.setdefault(f"learned_sink_mass_{side}", []).append(1 - float(pattern[row, query].sum()))
    return {name: math.fsum(values) / len(values) for name, values in found.items()}


def value_drain(value: Tensor, W_O: Tensor) -> float:
    """``||ṽ_0|| / mean_j ||ṽ_j||``, mean over sequences; ``value`` ``[batch, key, d_head]``."""
    norms = torch.linalg.vector_norm(value.double() @ W_O.double(), dim=-1)
    return (norms[:, 0] / norms[:, 1:].mean(1)).mean().item()

"""Slow, literal float64 versions of the head profile's quantities: one document, one head, one query at a time.

Vectors are the projected values in d_model themselves; nothing is computed in head space.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tests.reference import attention as reference

LEAST_REST = 1e-5  # a row whose attention is all on the sink has no mixture of the others

Sums = dict[str, list[float]]


def document_quantities(
    pattern: Tensor, projected: Tensor, visible: Tensor, sinks: Sequence[int], eps: float, entropy: str = "collision"
) -> list[Sums]:
    """For each head, every quantity's values: one per query for means over queries, at most one for a document.

    ``pattern`` [1 head query key], ``projected`` [1 head query key d_model], ``visible`` [1 query key].
    """
    n_heads, length = pattern.shape[1:3]
    queries = [i for i in range(length) if i not in sinks and any(visible[0, i, s] for s in sinks)]
    layer_outputs = reference.layer_output(reference.head_outputs(pattern, projected))[0]
    found: list[Sums] = []
    for h in range(n_heads):
        A, vectors = pattern[0, h], projected[0, h]
        values: Sums = {}
        for i in queries:
            keys = reference.keys_of(visible, 0, i)
            row = query_quantities(A[i], vectors[i], layer_outputs[i], i, keys, sinks, eps, entropy)
            for name, number in row.items():
                values.setdefault(name, []).append(number)
        if queries:
            for name, number in geometry(A, vectors, queries, sinks, eps).items():
                values[name] = [number]
        found.append(values)
    return found


def query_quantities(
    weights: Tensor, vectors: Tensor, layer_output: Tensor, i: int, keys: Sequence[int], sinks: Sequence[int],
    eps: float, entropy: str,
) -> dict[str, float]:  # fmt: skip
    """What one query of one head adds; a quantity that it does not define is left out."""
    mass = sum(float(weights[s]) for s in sinks)
    output = sum((weights[j] * vectors[j] for j in range(len(weights))), torch.zeros_like(layer_output))
    row = {
        "sink_mass": mass,
        "query_rate": float(mass > eps),
        "self_mass": float(weights[i]),
        "previous_mass": float(weights[i - 1]) if i else 0.0,
        "entropy": normalised_entropy([float(weights[j]) for j in keys], entropy),
        "learned_sink_mass": 1 - float(weights.sum()),
        "output_norm": float(output.norm()),
    }
    if float(output @ output) > reference.TINY:
        shares = [float(output @ (weights[j] * vectors[j])) / float(output @ output) for j in range(len(weights))]
        row |= {"sink_intra": sum(shares[s] for s in sinks), "self_intra": shares[i]}
    if float(layer_output @ layer_output) > reference.TINY:
        squared = float(layer_output @ layer_output)
        row["sink_inter"] = sum(float(layer_output @ (weights[s] * vectors[s])) / squared for s in sinks)
    if 1 - mass > LEAST_REST and mass > 0:
        others = [j for j in range(len(weights)) if j not in sinks]
        row |= suppression(weights, vectors, mass, output, sinks, others)
    return row


def normalised_entropy(weights: Sequence[float], kind: str) -> float:
    """Entropy of one row over its visible keys, as shares of what it gives to them, over the log of their number."""
    if len(weights) < 2:
        return 0.0
    total = sum(weights)
    shares = [weight / total for weight in weights]
    if kind == "shannon":
        return -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))
    return -math.log(sum(share * share for share in shares)) / math.log(len(shares))


def suppression(
    weights: Tensor, vectors: Tensor, mass: float, output: Tensor, sinks: Sequence[int], others: Sequence[int]
) -> dict[str, float]:
    """The sinks' mean value and the mixture of the others, and where between them the output is shortest."""
    zero = torch.zeros_like(output)
    sink_vector = sum((weights[s] * vectors[s] for s in sinks), zero) / mass
    mixture = sum((weights[j] * vectors[j] for j in others), zero) / (1 - mass)
    return {
        "alpha_star": reference.alpha_star(sink_vector, mixture),
        "interior_fraction": float(reference.is_interior(sink_vector, mixture)),
        "suppression": float(output.norm() / mixture.norm()),
        "other_norm": float(mixture.norm()),
        "sink_squared": float(sink_vector @ sink_vector),
        "inner": float(sink_vector @ mixture),
        "other_squared": float(mixture @ mixture),
    }


def geometry(
    pattern: Tensor, vectors: Tensor, queries: Sequence[int], sinks: Sequence[int], eps: float
) -> dict[str, float]:
    """The sinks' values against the other tokens'; under a gate each value is its mean over the queries."""
    length = pattern.shape[-1]
    values = vectors[list(queries)].mean(0)
    others = [j for j in range(length) if j not in sinks]
    readers = [i for i in range(length) if i in queries or i in sinks]
    received = sum(float(pattern[i, s]) for i in readers for s in sinks) / len(readers)
    sink_norm = sum(float(values[s].norm()) for s in sinks) / len(sinks)
    other_norm = sum(float(values[j].norm()) for j in others) / len(others)
    sink_vector = reference.mean_vector(values, sinks)
    cosines = [reference.cosine_between(sink_vector, values[j]) for j in others]
    return {
        "received": received,
        "sample_rate": float(received > eps),
        "sink_value_ratio": sink_norm / other_norm,
        "sink_alignment": reference.cosine_between(sink_vector, reference.mean_vector(values, others)),
        "sink_cosine": sum(cosines) / len(cosines),
        "value_norm": other_norm,
        "sink_value_norm": sink_norm,
    }

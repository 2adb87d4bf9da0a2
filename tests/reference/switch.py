"""Slow, literal float64 versions of the attention switch's figures: one document, one head, one query at a time.

Vectors are the projected values in d_model themselves. ``projected`` is [head query key d_model]: under a gate it differs
from query to query, and ``ungated`` [head key d_model] is what the gate multiplies.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.optimize import linprog, minimize
from torch import Tensor

from tests.reference import attention as reference

LEAST_REST = 1e-5
CARRIERS = ("gate", "learned_sink", "sink", "self", "cancellation", "short_values", "mixed")


def document_figures(
    pattern: Tensor, projected: Tensor, ungated: Tensor, visible: Tensor, sinks: Sequence[int], limits: dict[str, float],
    learned: bool, gated: bool,
) -> list[dict[str, float]]:  # fmt: skip
    """For each head its figures over one document; ``pattern`` [head query key], ``visible`` [query key]."""
    n_heads, length = pattern.shape[:2]
    queries = [i for i in range(length) if i not in sinks and any(visible[i, s] for s in sinks)]
    terms = pattern.double().unsqueeze(-1) * projected
    layer_outputs = terms.sum((0, 2))
    found = []
    for h in range(n_heads):
        others = [j for j in range(length) if j not in sinks]
        outputs = terms[h].sum(1)
        scales = {
            "median": _lower_median([float(outputs[i].norm()) for i in queries]),
            "values": _mean([float(ungated[h, j].norm()) for j in others]),
        }
        rows = []
        for i in queries:
            bare = sum(
                (pattern[h, i, j].double() * ungated[h, j] for j in range(length)), torch.zeros(ungated.shape[-1])
            )
            row = query_figures(
                pattern[h, i].double(), projected[h, i], bare if gated else None, i, sinks, scales, limits, learned
            )
            rows.append(row | _layer_parts(terms[:, i], layer_outputs[i], h, i, sinks))
        names = dict.fromkeys(name for row in rows for name in row)
        means = {name: _mean([row[name] for row in rows if name in row]) for name in names}
        found.append(means | exclusions(ungated[h, others], scales["values"], limits["values"], gated))
    return found


def query_figures(
    weights: Tensor, vectors: Tensor, bare: Tensor | None, i: int, sinks: Sequence[int], scales: dict[str, float],
    limits: dict[str, float], learned: bool,
) -> dict[str, float]:  # fmt: skip
    """What one query of one head adds; a figure that it does not define is left out."""
    terms = [weights[j] * vectors[j] for j in range(len(weights))]
    output = sum(terms, torch.zeros_like(vectors[0]))
    mass, norm = sum(float(weights[s]) for s in sinks), float(output.norm())
    sink_term = sum((terms[s] for s in sinks), torch.zeros_like(output))
    row = {
        "sink_mass": mass,
        "soft_attention": float(float(weights[i]) > limits["soft"]),
        "on_sink": float(mass > limits["sink"]),
    }
    for scale, full in scales.items():
        hard = norm <= limits[scale] * full
        open_without_gate = bare is not None and float(bare.norm()) > limits[scale] * full
        carrier = _carrier(weights, vectors, norm, i, mass, scales["values"], limits, learned, open_without_gate)
        row[f"hard_{scale}"] = float(hard)
        row |= {f"hard_{scale}_{name}": float(hard and carrier == name) for name in CARRIERS}
    short = float(sink_term.norm()) <= limits["values"] * scales["values"]
    row["hard_values_short_sink"] = row["hard_values_sink"] * short
    rest = float(weights.sum()) - mass
    if rest > LEAST_REST:
        mixture = (output - sink_term) / rest
        row["hard_without_sink"] = float(float(mixture.norm()) <= limits["values"] * scales["values"])
    if float(output @ output) > reference.TINY:
        sizes = [abs(float(output @ term)) for term in terms]
        quiet = sum(sizes[j] for j in {i, *sinks})
        row["communication"] = 1 - quiet / sum(sizes)
        row["soft_contribution"] = float(float(output @ terms[i]) / float(output @ output) > limits["soft"])
    return row


def _carrier(
    weights: Tensor, vectors: Tensor, norm: float, i: int, mass: float, full: float, limits: dict[str, float],
    learned: bool, open_without_gate: bool,
) -> str:  # fmt: skip
    attended = sum(float(weights[j]) * float(vectors[j].norm()) for j in range(len(weights)))
    if open_without_gate:
        return "gate"
    if learned and 1 - float(weights.sum()) > limits["learned_sink"]:
        return "learned_sink"
    if mass > limits["sink"]:
        return "sink"
    if float(weights[i]) > limits["self_mass"]:
        return "self"
    if attended > 0 and norm / attended < limits["cancellation"]:
        return "cancellation"
    return "short_values" if attended / full < limits["short_values"] else "mixed"


def _layer_parts(terms: Tensor, output: Tensor, h: int, i: int, sinks: Sequence[int]) -> dict[str, float]:
    """One head's parts of the layer's output; ``terms`` [head key d_model] of one query."""
    squared = float(output @ output)
    if squared <= reference.TINY:
        return {}
    signed = [[float(output @ term) for term in head] for head in terms]
    total = sum(abs(product) for head in signed for product in head)
    others = [j for j in range(len(signed[h])) if j != i and j not in sinks]
    return {
        "layer_self": abs(signed[h][i]) / total,
        "layer_sink": sum(abs(signed[h][s]) for s in sinks) / total,
        "layer_others": sum(abs(signed[h][j]) for j in others) / total,
        "layer_signed_self": signed[h][i] / squared,
        "layer_signed_sink": sum(signed[h][s] for s in sinks) / squared,
    }


def exclusions(values: Tensor, full: float, fraction: float, gated: bool) -> dict[str, float]:
    """Exclusion tests of one head: ``values`` [token d_model], the projected values of all tokens but the sinks."""
    rank = int(torch.linalg.matrix_rank(values, rtol=1e-5))
    zero_inside = holds_origin(values.numpy())
    distance = 0.0 if zero_inside else hull_distance(values.numpy())
    return {
        "hull_distance": distance / full,
        "value_rank": float(rank),
        "independent": float(rank == len(values)),
        "zero_excluded": float(not zero_inside),
        "hard_excluded": math.nan if gated else float(not zero_inside and distance / full > fraction),
    }


def holds_origin(points: np.ndarray) -> bool:
    """Whether some weights, not negative and of sum 1, mix the points to 0: a linear program."""
    equations = np.vstack([points.T / np.abs(points).max(), np.ones(len(points))])
    right = np.append(np.zeros(points.shape[1]), 1.0)
    return linprog(np.zeros(len(points)), A_eq=equations, b_eq=right, bounds=(0, None)).status == 0


def hull_distance(points: np.ndarray) -> float:
    """``min ||Σ w_j p_j||`` by a general solver."""
    gram, n = points @ points.T, len(points)
    scale = np.trace(gram) / n
    answer = minimize(
        lambda w: w @ gram @ w / scale, np.full(n, 1 / n), jac=lambda w: 2 * gram @ w / scale, method="SLSQP",
        bounds=[(0, None)] * n, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    return math.sqrt(max(float(answer.fun) * scale, 0.0))


def _lower_median(numbers: Sequence[float]) -> float:
    return sorted(numbers)[(len(numbers) - 1) // 2]


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan

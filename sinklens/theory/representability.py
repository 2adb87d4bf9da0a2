"""Is a sink representable on a sequence's own vectors: margins, the witnesses plugged in, and a verdict with its reason."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import Embeddings
from sinklens.errors import InputError
from sinklens.theory.arrays import as_tensor, checked_positive, checked_rows, in_own_span
from sinklens.theory.feasibility import pattern_feasibility
from sinklens.theory.hulls import ORIGIN_TOLERANCE, HullPoint, nearest_in_hull
from sinklens.theory.patterns import ScorePattern

# Of the vectors' own precision: what the arithmetic of many layers adds up to (7 seen in 30 layers).
SUMS_OF_ROUNDING = 64


@dataclass(frozen=True)
class SinkRepresentation:
    """Whether one form ``W`` lets all queries of a sequence attend to its sink, and how comfortably.

    Margins are of normalised queries, and of key differences in units of their mean length ``mean_j ||x_s - x_j||``, so
    that they have no unit and lie in -1 to 1 (the anti-aligned form's may be below).

    Args:
        query_margin: of the queries' half-space, ``max_a min_i <a, x_i>/||x_i||``; 0: no half-space holds them all.
        key_margin: of the sink's key, ``max_b min_j <b, x_s - x_j> / mean_j ||x_s - x_j||``; 0: not separable.
        witness_margin: what ``W = a bᵀ`` of the two gives when it is plugged in; 0 where there is none.
        witness_norm: the Frobenius norm that ``a bᵀ`` needs for a score margin of 1 on these vectors; NaN where there is none.
        anti_alignment_margin: the same as ``witness_margin`` for ``W = -x_s x_sᵀ / ||x_s||²``; positive: BOS is its own
            witness, opposed to the queries, or, where vectors are not normalised, along them and shorter than the keys.
        representable: the verdict.
        reason: ``witness``, ``keys`` (the sink lies in the hull of keys that one query sees), ``queries`` (0 lies in the
            hull of queries that share a key), or ``solver``.
    """

    query_margin: float
    key_margin: float
    witness_margin: float
    witness_norm: float
    anti_alignment_margin: float
    representable: bool
    reason: str


def sink_representation(X: Embeddings, pattern: ScorePattern) -> SinkRepresentation:
    """Is a sink representable on these vectors (arXiv 2605.08453; the decision without a solver is ours).

    With a half-space for the queries and a separable key the rank-one form ``a bᵀ`` does it. Where one query sees all keys
    and one key beside the sink is seen by all queries, as in causal attention with the sink in front, the converse holds
    too: non-negative combinations of keys or of queries that give 0 rule out every ``W``. Only elsewhere (sliding windows)
    is :func:`~sinklens.theory.pattern_feasibility` asked.

    Args:
        X: ``[token, d_model]``.
        pattern: the constraints; one target, the sink, for all queries that are not free.

    Returns:
        :class:`SinkRepresentation`.

    Raises:
        InputError: no constraint or more than one target, a sequence of another length, NaN.
        ConvergenceError: too close to call and too large for the exact method.

    Example:
        >>> from sinklens.theory import score_pattern
        >>> opposed = torch.tensor([[-1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])
        >>> found = sink_representation(opposed, score_pattern(3))
        >>> found.representable, found.reason, found.anti_alignment_margin > 0
        (True, 'witness', True)
        >>> sink_representation(torch.tensor([[0.0], [1.0], [-1.0]]), score_pattern(3)).reason
        'keys'
    """
    rows = in_own_span(checked_rows(X))
    sink, others = _constraints(rows, pattern)
    queries, keys = others.any(1), others.any(0)
    lengths, differences = np.linalg.norm(rows, axis=1), rows[sink] - rows
    unit = float(np.linalg.norm(differences[keys], axis=1).mean())
    half_space = _half_space(rows[queries], lengths[queries])
    separated = _apart(differences[keys], float(lengths[keys | queries].max()), torch.finfo(X.dtype).eps)
    directions = half_space.direction.numpy(), separated.direction.numpy()
    exists = half_space.distance > 0 and separated.distance > 0
    raw = _least(rows @ directions[0], differences @ directions[1], others) if exists else 0.0
    along = rows[sink] / lengths[sink] if lengths[sink] else rows[sink]
    relative = np.divide(rows, lengths[:, None], out=np.zeros_like(rows), where=lengths[:, None] > 0)
    scale = unit or 1.0
    representable, reason = _verdict(X, pattern, raw > 0, (half_space, separated), others)
    return SinkRepresentation(
        query_margin=half_space.distance,
        key_margin=separated.distance / scale,
        witness_margin=_least(relative @ directions[0], differences @ directions[1], others) / scale if exists else 0.0,
        witness_norm=1 / raw if raw > 0 else float("nan"),
        anti_alignment_margin=_least(-relative @ along, differences @ along, others) / scale,
        representable=representable,
        reason=reason,
    )


def _constraints(rows: np.ndarray, pattern: ScorePattern) -> tuple[int, np.ndarray]:
    others = pattern.others.cpu().numpy()
    targets = pattern.target.cpu().numpy()[others.any(1)]
    if others.shape[0] != len(rows):
        raise InputError(
            f"the pattern is of {others.shape[0]} tokens and X holds {len(rows)}; pass one for this sequence"
        )
    if not targets.size or (targets != targets[0]).any():
        raise InputError(
            "the pattern must constrain at least one query, and all to one sink; use score_pattern(T, 'sink')"
        )
    return int(targets[0]), others


def _half_space(queries: np.ndarray, lengths: np.ndarray) -> HullPoint:
    """A query of norm 0 has equal scores for all keys: as if the hull held the origin."""
    if lengths.all():
        return nearest_in_hull(as_tensor(queries / lengths[:, None]))
    return HullPoint(0.0, as_tensor(0.0 * queries[0]), as_tensor(np.eye(1, len(queries), int(lengths.argmin()))[0]))


def _apart(differences: np.ndarray, longest: float, rounding: float) -> HullPoint:
    """Tokens that are alike differ by rounding, which tells none of them apart."""
    found = nearest_in_hull(as_tensor(differences))
    least = max(ORIGIN_TOLERANCE, SUMS_OF_ROUNDING * rounding) * longest
    return found if found.distance > least else dataclasses.replace(found, distance=0.0)


def _least(along_queries: np.ndarray, along_keys: np.ndarray, others: np.ndarray) -> float:
    """The least constrained score difference of a rank-one form, from what it makes of queries and of key differences."""
    return float(np.outer(along_queries, along_keys)[others].min())


def _verdict(
    X: Tensor, pattern: ScorePattern, works: bool, hulls: tuple[HullPoint, HullPoint], others: np.ndarray
) -> tuple[bool, str]:
    if works:
        return True, "witness"
    queries, keys = np.flatnonzero(others.any(1)), np.flatnonzero(others.any(0))
    carrying, carried = (hull.weights.numpy() > 0 for hull in hulls)
    if hulls[1].distance == 0 and others[:, keys[carried]].all(1).any():
        return False, "keys"
    if hulls[0].distance == 0 and others[queries[carrying]].all(0).any():
        return False, "queries"
    return pattern_feasibility(X, pattern).feasible, "solver"


def massive_activations(
    X: Float[Tensor, "token d_model"], magnitude: float = 100.0, ratio: float = 1000.0
) -> Bool[Tensor, "token d_model"]:
    """Which entries are massive: larger than a magnitude and than so many medians of all magnitudes (Sun et al. 2024).

    Args:
        X: a layer's residual stream of one sequence.
        magnitude: the least size.
        ratio: the least multiple of the median size.

    Returns:
        True on massive entries (strictly larger than both).

    Raises:
        InputError: a threshold is not a positive number; NaN.

    Example:
        >>> massive_activations(torch.tensor([[5000.0, 1.0], [1.0, -2.0], [150.0, 1.0]])).nonzero().tolist()
        [[0, 0]]
    """
    checked_positive("magnitude", magnitude)
    checked_positive("ratio", ratio)
    sizes = np.abs(checked_rows(X))
    return torch.from_numpy((sizes > magnitude) & (sizes > ratio * np.median(sizes)))

"""Convex hulls against the origin: half-spaces, separability of a sink, numerical rank (arXiv 2605.08453, definitions ours)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor

from sinklens.axes import BilinearForm, Direction, Embeddings, HullWeights
from sinklens.errors import ConvergenceError, InputError
from sinklens.theory.arrays import as_tensor, checked_position, checked_rows, in_own_span
from sinklens.theory.least_norm import achieved_margin
from sinklens.theory.patterns import score_pattern

# Relative to the longest point: a hull that comes closer to the origin than this is said to hold it.
ORIGIN_TOLERANCE = 1e-9


@dataclass(frozen=True)
class HullPoint:
    """The point of a convex hull that is nearest to the origin.

    Args:
        distance: its length, in the points' units; 0 where the hull holds the origin (to 1e-9 of the longest point).
        point: ``[d_model]``, ``Σ_j weights_j points_j``. If ``distance > 0``, ``<point, points_j> ≥ distance²`` for every
            ``j``, which proves that all points lie in an open half-space.
        weights: ``[token]``, non-negative, sum 1. If ``distance = 0`` they are the combination that gives the origin: the
            proof that no half-space exists.
    """

    distance: float
    point: Direction
    weights: HullWeights

    @property
    def direction(self) -> Direction:
        """The unit vector along ``point``; NaN where the hull holds the origin."""
        return self.point / self.distance if self.distance > 0 else torch.full_like(self.point, float("nan"))


def _least_combination(points: np.ndarray) -> np.ndarray:
    """Weights of the nearest point, by non-negative least squares (least distance programming, Lawson and Hanson 1974)."""
    rows = np.vstack([points.T, np.ones(len(points))])
    try:
        weights, _ = nnls(rows, np.append(np.zeros(points.shape[1]), 1.0), maxiter=30 * len(points) + 100)
    except RuntimeError as error:
        raise ConvergenceError(
            f"no nearest point was found for a hull of {len(points)} points; pass fewer points"
        ) from error
    return weights / weights.sum()


def nearest_in_hull(points: Embeddings) -> HullPoint:
    """Distance of the origin to the convex hull of points, with the weights that attain it.

    ``min ||Σ_j w_j p_j||  s.t.  w ≥ 0, Σ w = 1``, solved exactly by an active-set method. An attention head whose
    non-sink projected values have a hull away from 0 cannot switch itself off without the sink, whatever its pattern.

    Args:
        points: ``[token, d_model]``.

    Returns:
        A :class:`HullPoint`.

    Raises:
        InputError: no points, NaN.
        ConvergenceError: the active-set method did not end.

    Example:
        >>> nearest = nearest_in_hull(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        >>> round(nearest.distance, 6), [round(weight, 6) for weight in nearest.weights.tolist()]
        (1.414214, [0.5, 0.5])
        >>> nearest_in_hull(torch.tensor([[1.0], [-3.0]])).distance
        0.0
    """
    rows = checked_rows(points, "points")
    longest = np.linalg.norm(rows, axis=1).max()
    if longest == 0:
        return HullPoint(0.0, as_tensor(rows[0]), as_tensor(np.eye(1, len(rows))[0]))
    # Lengths and products of the points are all that counts: at most as many axes as points.
    weights = _least_combination(in_own_span(rows) / longest)
    point = weights @ rows
    distance = float(np.linalg.norm(point))
    return HullPoint(distance if distance > ORIGIN_TOLERANCE * longest else 0.0, as_tensor(point), as_tensor(weights))


def half_space_margin(X: Embeddings) -> HullPoint:
    """How far the tokens' directions are inside an open half-space: the largest ``min_i <a, x_i>/||x_i||`` over unit ``a``.

    It equals the distance of the origin to the convex hull of the normalised tokens, and is attained by ``direction``.

    Args:
        X: ``[token, d_model]``.

    Returns:
        A :class:`HullPoint` of the normalised tokens, ``distance`` in 0 to 1; 0: no open half-space holds them all.

    Raises:
        InputError: a token of norm 0, which has no direction; NaN; no tokens.
        ConvergenceError: the active-set method did not end.

    Example:
        >>> half_space_margin(torch.tensor([[5.0, 0.0], [0.0, 1.0]])).distance
        0.7071067811865476
    """
    rows = checked_rows(X)
    lengths = np.linalg.norm(rows, axis=1)
    if not lengths.all():
        position = int(np.flatnonzero(lengths == 0)[0])
        raise InputError(
            f"every token must have a direction, got norm 0 at position {position}; leave those tokens out"
        )
    return nearest_in_hull(as_tensor(rows / lengths[:, None]))


def key_separability(X: Embeddings, sink: int = 0) -> HullPoint:
    """How far a sink can be told from all other keys by one direction: the largest ``min_j <b, x_s - x_j>`` over unit ``b``.

    It equals the distance of ``x_s`` to the convex hull of the other tokens, and is attained by ``direction``.

    Args:
        X: ``[token, d_model]``, at least two tokens.
        sink: its position.

    Returns:
        A :class:`HullPoint` of ``x_s - x_j``, in units of ``X``; weights over the other tokens in order. 0: the sink is
        not separable.

    Raises:
        InputError: fewer than two tokens, a position out of range, NaN.
        ConvergenceError: the active-set method did not end.

    Example:
        >>> key_separability(torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 0.0]])).distance
        2.0
    """
    rows = checked_rows(X)
    checked_position("sink", sink, len(rows))
    if len(rows) < 2:
        raise InputError("a sink is told from other keys, so X must have at least 2 tokens, got 1")
    return nearest_in_hull(as_tensor(rows[sink] - np.delete(rows, sink, axis=0)))


@dataclass(frozen=True)
class RankOneWitness:
    """Whether ``W = a bᵀ`` realises a sink: its queries in an open half-space along ``a``, its key separable along ``b``.

    Args:
        queries: the half-space of the normalised queries that are constrained.
        keys: separability of the sink's key.
    """

    queries: HullPoint
    keys: HullPoint

    @property
    def exists(self) -> bool:
        """Both margins are positive."""
        return self.queries.distance > 0 and self.keys.distance > 0

    @property
    def W(self) -> BilinearForm:
        """``a bᵀ`` with unit ``a`` and ``b``, ``[d_model, d_model]``; NaN where none exists.

        Its margin is at least the product of the two margins times the shortest query's norm.
        """
        return torch.outer(self.queries.direction, self.keys.direction)


def rank_one_witness(X: Embeddings, sink: int = 0, causal: bool = True) -> RankOneWitness:
    """The rank-one form that makes a sink of one position, if there is one (arXiv 2605.08453).

    Sufficient for a sink and not necessary: :func:`~sinklens.theory.pattern_feasibility` decides in general.

    Args:
        X: ``[token, d_model]``.
        sink: its position.
        causal: only queries from the sink on are constrained (its own where it sees earlier keys); otherwise all.

    Returns:
        A :class:`RankOneWitness`.

    Raises:
        InputError: fewer than two tokens; a constrained query of norm 0; NaN; a position out of range.
        ConvergenceError: the active-set method did not end.

    Example:
        >>> witness = rank_one_witness(torch.tensor([[-1.0, 0.0], [1.0, 1.0], [1.0, -1.0]]))
        >>> witness.exists, [round(entry, 6) + 0.0 for entry in witness.W.flatten().tolist()]
        (True, [-1.0, 0.0, 0.0, 0.0])
    """
    keys = key_separability(X, sink)
    constrained = score_pattern(len(X), "sink", causal, sink).others.any(1)
    return RankOneWitness(half_space_margin(X[constrained.to(X.device)]), keys)


def anti_alignment_margin(X: Embeddings, sink: int = 0, causal: bool = True) -> float:
    """The margin of ``W = -x_s x_sᵀ``, a sink's witness where its token is anti-aligned with the others (arXiv 2605.08453).

    ``min_ij -<x_i, x_s> (||x_s||² - <x_s, x_j>)`` over constrained queries and other keys; positive for normalised tokens
    exactly where ``cos(x_s, x_i) < 0`` for all of them.

    Args:
        X: ``[token, d_model]``.
        sink: its position.
        causal: only queries from the sink on, each with the keys it sees.

    Returns:
        In score units; infinite where nothing is constrained; not positive: this form is no witness. The sink's own
        query is constrained where it sees other keys (``causal=False`` or ``sink > 0``), and is then never positive.

    Raises:
        InputError: a position out of range, NaN.

    Example:
        >>> anti_alignment_margin(torch.tensor([[1.0, 0.0], [-0.6, 0.8], [-0.6, -0.8]])) > 0
        True
    """
    rows = as_tensor(checked_rows(X))
    of_sink = rows[checked_position("sink", sink, len(rows))]
    return achieved_margin(-torch.outer(of_sink, of_sink), rows, score_pattern(len(rows), "sink", causal, sink))


def numerical_rank(matrix: Float[Tensor, "row column"], relative_tolerance: float | None = None) -> int:
    """How many singular values exceed a share of the largest.

    Args:
        matrix: ``[row, column]``, for example the values of a head.
        relative_tolerance: the share; by default rounding, ``max(row, column) · eps`` of the matrix's own dtype.

    Returns:
        The rank; 0 for a matrix of zeros.

    Raises:
        InputError: NaN or infinite entries, no entries, a tolerance outside 0 to 1.

    Example:
        >>> numerical_rank(torch.ones(3, 4)), numerical_rank(torch.diag(torch.tensor([1.0, 0.01])), 0.1)
        (1, 1)
    """
    rows = checked_rows(matrix, "matrix")
    share = max(matrix.shape) * torch.finfo(matrix.dtype).eps if relative_tolerance is None else relative_tolerance
    if not 0 <= share < 1:
        given = (
            f"{matrix.dtype} of this shape cannot tell" if relative_tolerance is None else f"got {relative_tolerance}"
        )
        raise InputError(f"relative_tolerance must be a share from 0 to below 1, {given}; pass one")
    singular = np.linalg.svd(rows, compute_uv=False)
    return int((singular > share * singular[0]).sum())

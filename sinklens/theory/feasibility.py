"""Joint feasibility of a pattern: one bilinear form for all queries and keys at once, or the proof that there is none."""

import math
from dataclasses import dataclass

import numpy as np

from sinklens.axes import BilinearForm, Embeddings, Multipliers
from sinklens.errors import ConvergenceError
from sinklens.theory.arrays import as_tensor, checked_rows
from sinklens.theory.hulls import nearest_in_hull
from sinklens.theory.least_norm import LeastNorm, least_norm
from sinklens.theory.patterns import ScorePattern

FIRST_ORDER_ITERATIONS = 3000
# The exact method holds one flattened form a constraint.
MOST_EXACT_ENTRIES = 20_000_000


@dataclass(frozen=True)
class Feasibility:
    """Whether one ``W`` has ``x_iᵀ W (x_t(i) - x_j) > 0`` for all constraints, with the proof either way (Gordan's theorem).

    Args:
        feasible: there is such a ``W``.
        margin: the largest least margin over ``||W||_F = 1``, in score units; 0 where infeasible. Attained by ``W`` to
            1e-3.
        W: the witness, of Frobenius norm 1; None where infeasible.
            :func:`~sinklens.theory.achieved_margin` plugs it in.
        multipliers: ``y ≥ 0`` ``[query, key]`` with ``Σ y = 1``. Where infeasible, ``Σ y_ij x_i (x_t(i) - x_j)ᵀ = 0``,
            which excludes every ``W`` (:func:`~sinklens.theory.constraint_combination` plugs them in). Where feasible,
            the length of that sum bounds the margin from above.
    """

    feasible: bool
    margin: float
    W: BilinearForm | None
    multipliers: Multipliers


def _of_least_norm(found: LeastNorm) -> Feasibility:
    total = found.multipliers.sum()
    multipliers = found.multipliers / total if total > 0 else found.multipliers
    if found.W is None:
        return Feasibility(False, 0.0, None, multipliers)
    length = found.W.norm()
    return Feasibility(
        True, 1 / found.cost if found.cost else math.inf, found.W / length if length > 0 else found.W, multipliers
    )


def _exact(rows: np.ndarray, pattern: ScorePattern) -> Feasibility:
    """The point of the hull of all ``x_i (x_t(i) - x_j)ᵀ`` nearest to the origin is the witness; no such point is the proof."""
    target, others = pattern.target.cpu().numpy(), pattern.others.cpu().numpy()
    query, key = np.nonzero(others)
    _, singular, basis = np.linalg.svd(rows, full_matrices=False)
    basis = basis[singular > 1e-12 * singular[0]]
    if len(query) * len(basis) ** 2 > MOST_EXACT_ENTRIES:
        raise ConvergenceError(
            f"feasibility of {len(query)} constraints in {len(basis)} dimensions was not decided; pass fewer tokens"
        )
    reduced = rows @ basis.T
    forms = reduced[query][:, :, None] * (reduced[target[query]] - reduced[key])[:, None, :]
    lengths = np.linalg.norm(forms, axis=(1, 2))
    nearest = nearest_in_hull(as_tensor(forms.reshape(len(query), -1) / lengths[:, None]))
    multipliers = np.zeros(others.shape)
    multipliers[query, key] = nearest.weights.numpy() / lengths
    multipliers /= multipliers.sum()
    if nearest.distance == 0:
        return Feasibility(False, 0.0, None, as_tensor(multipliers))
    form = nearest.point.numpy().reshape(len(basis), len(basis))
    form = form / np.linalg.norm(form)
    margin = float(np.einsum("cde,de->c", forms, form).min())
    return Feasibility(True, margin, as_tensor(basis.T @ form @ basis), as_tensor(multipliers))


def pattern_feasibility(X: Embeddings, pattern: ScorePattern) -> Feasibility:
    """Can any ``W`` realise the pattern on these embeddings: joint feasibility with a certificate (arXiv 2605.08453, form ours).

    A first-order method decides clear cases; close ones go to an exact active-set method (which normalises each
    constraint, so that its margin, though attained, need not be the largest).

    Args:
        X: ``[token, d_model]``.
        pattern: for a sink ``score_pattern(len(X), "sink", causal, sink)``.

    Returns:
        A :class:`Feasibility`; without constraints feasible with an infinite margin.

    Raises:
        InputError: shapes disagree, NaN.
        ConvergenceError: too close to call and too large for the exact method.

    Example:
        >>> import torch
        >>> from sinklens.theory import score_pattern
        >>> inside = torch.tensor([[0.0], [1.0], [-1.0]])
        >>> pattern_feasibility(inside, score_pattern(3, "sink")).feasible
        False
        >>> pattern_feasibility(torch.eye(3), score_pattern(3, "sink")).feasible
        True
    """
    try:
        return _of_least_norm(least_norm(X, pattern, tolerance=1e-3, max_iterations=FIRST_ORDER_ITERATIONS))
    except ConvergenceError:
        return _exact(checked_rows(X), pattern)

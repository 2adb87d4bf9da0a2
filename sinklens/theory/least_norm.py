"""The least Frobenius or nuclear norm of a bilinear form that realises a pattern, with a witness and a proof."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from sinklens.axes import BilinearForm, Embeddings, Multipliers
from sinklens.errors import ConvergenceError, InputError
from sinklens.theory.arrays import as_tensor, checked_choice, checked_positive, checked_rows
from sinklens.theory.patterns import ScorePattern
from sinklens.theory.preconditioning import ScaledProblem, precondition
from sinklens.theory.splitting import NORMS, Splitting

# Below this share of the largest, a constraint's length is rounding error.
ZERO_TOLERANCE = 1e-12


@dataclass(frozen=True)
class LeastNorm:
    """The least norm of ``W`` with ``x_iᵀ W (x_t(i) - x_j) ≥ margin`` for all constraints, bracketed from both sides.

    Args:
        cost: the norm of ``W``, never below the least one; infinite where no form meets the constraints.
        lower_bound: proven by ``multipliers``, never above the least norm; infinite likewise.
        W: ``[d_model, d_model]``, meets every constraint; None where none can.
        multipliers: ``y ≥ 0`` ``[query, key]``. With ``G = Σ y_ij x_i (x_t(i) - x_j)ᵀ``, ``margin Σ y = lower_bound`` and
            the dual norm of ``G`` is at most 1. Where the cost is infinite, ``Σ y = 1`` and ``G = 0``: the proof that no
            ``W`` exists.
        iterations: how many were made.
    """

    cost: float
    lower_bound: float
    W: BilinearForm | None
    multipliers: Multipliers
    iterations: int

    @property
    def gap(self) -> float:
        """``(cost - lower_bound) / cost``: how far the cost can be above the least norm; 0 where it is 0 or infinite."""
        return (self.cost - self.lower_bound) / self.cost if 0 < self.cost < math.inf else 0.0


def achieved_margin(W: BilinearForm, X: Embeddings, pattern: ScorePattern) -> float:
    """The least ``x_iᵀ W (x_t(i) - x_j)`` over all constraints: plugs a witness in.

    Args:
        W: ``[d_model, d_model]``.
        X: ``[token, d_model]``.
        pattern: the constraints.

    Returns:
        In score units; infinite where nothing is constrained.

    Example:
        >>> from sinklens.theory import score_pattern
        >>> achieved_margin(torch.eye(3), torch.eye(3), score_pattern(3, "diagonal"))
        1.0
    """
    rows = X.detach().cpu().double()
    scores = rows @ W.detach().cpu().double() @ rows.mT
    own = scores.gather(1, pattern.target.clamp(min=0).unsqueeze(1))
    return torch.where(pattern.others, own - scores, math.inf).min().item()


def constraint_combination(multipliers: Multipliers, X: Embeddings, pattern: ScorePattern) -> BilinearForm:
    """``G = Σ y_ij x_i (x_t(i) - x_j)ᵀ``: plugs multipliers in.

    ``<W, G> = Σ y_ij x_iᵀ W (x_t(i) - x_j)``, so ``G = 0`` with ``y ≥ 0, y ≠ 0`` excludes every ``W`` with a positive
    margin.

    Args:
        multipliers: ``y`` ``[query, key]``; entries without a constraint do not count.
        X: ``[token, d_model]``.
        pattern: the constraints.

    Returns:
        ``[d_model, d_model]``.

    Example:
        >>> from sinklens.theory import score_pattern
        >>> constraint_combination(torch.ones(2, 2), torch.eye(2), score_pattern(2, "sink")).tolist()
        [[0.0, 0.0], [1.0, -1.0]]
    """
    rows = X.detach().cpu().double()
    weight = torch.where(pattern.others, multipliers.double(), 0.0)
    target = rows[pattern.target.clamp(min=0)]
    return rows.mT @ (weight.sum(1, keepdim=True) * target - weight @ rows)


def _vanishing(rows: np.ndarray, target: np.ndarray, others: np.ndarray) -> tuple[int, int] | None:
    """A constraint that reads ``0 ≥ margin``: a query of norm 0, or a key equal to its target."""
    lengths = np.linalg.norm(rows, axis=1)
    distance = np.linalg.norm(rows[target][:, None] - rows[None], axis=2)
    zero = others & (
        (lengths <= ZERO_TOLERANCE * lengths.max())[:, None] | (distance <= ZERO_TOLERANCE * lengths.max())
    )
    found = np.argwhere(zero)
    return (int(found[0, 0]), int(found[0, 1])) if len(found) else None


def _original_multipliers(problem: ScaledProblem, multipliers: np.ndarray | None, shape: tuple[int, int]) -> np.ndarray:
    # The scaled constraint (i, j) is the original one divided by ||x_i|| and the spread, both contained in margin · unit.
    result = np.zeros(shape)
    if multipliers is not None:
        result[problem.rows] = multipliers * (problem.margin * problem.unit)[:, None]
    return result


def _solution(solver: Splitting, margin: float, shape: tuple[int, int]) -> LeastNorm:
    problem, found = solver.problem, solver.best_form
    multipliers = _original_multipliers(problem, solver.multipliers, shape)
    unit = problem.unit * margin
    return LeastNorm(
        cost=solver.best * unit,
        lower_bound=solver.lower * unit,
        W=None if found is None else as_tensor(problem.query_basis.T @ (found * unit) @ problem.key_basis),
        multipliers=as_tensor(multipliers / multipliers.sum() if solver.infeasible else multipliers),
        iterations=solver.iterations,
    )


def least_norm(
    X: Embeddings,
    pattern: ScorePattern,
    norm: str = "frobenius",
    margin: float = 1.0,
    tolerance: float = 1e-4,
    max_iterations: int = 10_000,
) -> LeastNorm:
    """``min ||W|| s.t. x_iᵀ W (x_t(i) - x_j) ≥ margin``: a pattern's cost on given embeddings (arXiv 2605.08453; solver ours).

    The nuclear norm is the least ``(||W_Q||² + ||W_K||²) / 2`` over all factors ``W = W_Q W_Kᵀ`` of any width, so it is
    what weight decay pays. The solver is a first-order method in the span of the embeddings; both bounds are proven, not
    estimated.

    Args:
        X: ``[token, d_model]``, queries and keys alike.
        pattern: the constraints, of as many queries and keys as tokens.
        norm: ``frobenius`` or ``nuclear``.
        margin: in score units, above 0; the cost is proportional to it.
        tolerance: relative gap between the bounds at which to stop.
        max_iterations: at which to give up.

    Returns:
        A :class:`LeastNorm`; cost 0 without constraints, infinite where they contradict each other.

    Raises:
        InputError: shapes disagree, NaN, an unknown norm, a margin or tolerance that is not positive.
        ConvergenceError: the bounds are still apart after ``max_iterations``.

    Example:
        >>> from sinklens.theory import score_pattern
        >>> solution = least_norm(torch.eye(4), score_pattern(4, "diagonal", causal=False), "nuclear")
        >>> round(solution.cost, 3), round(solution.lower_bound, 3)
        (3.0, 3.0)
    """
    rows = checked_rows(X)
    checked_choice("norm", norm, NORMS)
    checked_positive("margin", margin)
    checked_positive("tolerance", tolerance)
    shape = (len(rows), len(rows))
    if pattern.others.shape != shape:
        raise InputError(f"the pattern must have {len(rows)} queries and keys like X, got {list(pattern.others.shape)}")
    target, others = pattern.target.clamp(min=0).cpu().numpy(), pattern.others.cpu().numpy()
    if not others.any():
        return LeastNorm(
            0.0, 0.0, torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64), as_tensor(np.zeros(shape)), 0
        )
    if (vanishing := _vanishing(rows, target, others)) is not None:
        multipliers = np.zeros(shape)
        multipliers[vanishing] = 1.0
        return LeastNorm(math.inf, math.inf, None, as_tensor(multipliers), 0)
    solver = Splitting(precondition(rows, target, others), norm).run(tolerance, max_iterations)
    solution = _solution(solver, margin, shape)
    if not solver.done(tolerance):
        raise ConvergenceError(
            f"the least {norm} norm lies between {solution.lower_bound:.6g} and {solution.cost:.6g} "
            f"after {max_iterations} iterations, wanted a relative gap of {tolerance}; raise max_iterations or tolerance"
        )
    return solution

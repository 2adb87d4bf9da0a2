"""The alternating direction method of multipliers for least-norm score matrices, with proven bounds on both sides."""

from dataclasses import dataclass, field

import numpy as np

from sinklens.theory.preconditioning import ScaledProblem

NORMS = ("frobenius", "nuclear")
CHECK_EVERY = 10
REBALANCE_EVERY = 50
OVER_RELAXATION = 1.6
# A combination of constraints that cancels to this share of its terms proves that no form meets them.
INFEASIBLE_TOLERANCE = 1e-9


def matrix_norm(matrix: np.ndarray, norm: str) -> float:
    """Frobenius or nuclear norm.

    Args:
        matrix: any matrix.
        norm: ``frobenius`` or ``nuclear``.

    Returns:
        The norm.

    Example:
        >>> matrix_norm(np.eye(4), "frobenius"), matrix_norm(np.eye(4), "nuclear")
        (2.0, 4.0)
    """
    return float(np.linalg.norm(matrix, "nuc" if norm == "nuclear" else "fro"))


def dual_norm(matrix: np.ndarray, norm: str) -> float:
    """The dual of :func:`matrix_norm`: Frobenius, or the largest singular value for the nuclear norm.

    Args:
        matrix: any matrix.
        norm: the norm whose dual is wanted.

    Returns:
        The dual norm.

    Example:
        >>> dual_norm(np.eye(4), "frobenius"), dual_norm(np.eye(4), "nuclear")
        (2.0, 1.0)
    """
    return float(np.linalg.norm(matrix, 2 if norm == "nuclear" else "fro"))


def shrink(matrix: np.ndarray, norm: str, threshold: float) -> np.ndarray:
    """The proximal map of ``threshold · ||·||``: shortens the whole matrix (Frobenius) or each singular value (nuclear).

    Args:
        matrix: any matrix.
        norm: ``frobenius`` or ``nuclear``.
        threshold: by how much.

    Returns:
        A matrix of the same shape.

    Example:
        >>> shrink(np.diag([3.0, 0.5]), "nuclear", 1.0).tolist()
        [[2.0, 0.0], [0.0, 0.0]]
    """
    if norm == "nuclear":
        left, singular, right = np.linalg.svd(matrix, full_matrices=False)
        return (left * np.maximum(singular - threshold, 0.0)) @ right
    length = np.linalg.norm(matrix)
    return matrix * (max(0.0, 1 - threshold / length) if length else 0.0)


def project_scores(scaled: np.ndarray, problem: ScaledProblem) -> np.ndarray:
    """The nearest scores that meet the constraints, exactly, one sort a row.

    A row's target rises to the ``τ`` where its pull back equals that of the keys it pushes below ``τ - m``.

    Args:
        scaled: ``w_j D_ij`` ``[query, key]``; distances are measured in these.
        problem: weights, targets and margins.

    Returns:
        ``[query, key]``, scaled alike.

    Example:
        >>> from sinklens.theory.preconditioning import precondition
        >>> problem = precondition(np.eye(2), np.array([0, 0]), np.array([[False, True], [False, False]]))
        >>> scores = project_scores(np.zeros((1, 2)), problem) / problem.key_weight
        >>> round(float((scores[0, 0] - scores[0, 1]) / problem.margin[0]), 6)
        1.0
    """
    rows = np.arange(len(scaled))
    raw, mass = scaled / problem.key_weight, problem.key_weight**2
    rival = np.where(problem.others, raw + problem.margin[:, None], -np.inf)
    order = np.argsort(-rival, axis=1)
    ranked = np.take_along_axis(rival, order, 1)
    weight = np.where(np.isfinite(ranked), mass[order], 0.0)
    own_mass, own = mass[problem.target][:, None], raw[rows, problem.target]
    pulled = np.cumsum(weight * np.where(np.isfinite(ranked), ranked, 0.0), 1)
    level = (own_mass * own[:, None] + pulled) / (own_mass + np.cumsum(weight, 1))
    n_above = (ranked > level).sum(1)
    top = np.where(n_above > 0, level[rows, np.maximum(n_above - 1, 0)], own)
    result = np.where(problem.others, np.minimum(raw, (top - problem.margin)[:, None]), raw)
    result[rows, problem.target] = top
    return result * problem.key_weight


@dataclass
class Splitting:
    """State of the iteration ``min ||W|| + [S feasible] s.t. W = V, S = A V Bᵀ`` (scaled multipliers; Boyd et al. 2011).

    ``best`` is the norm of a feasible form, ``lower`` that of a dual one, so the least norm lies between them.
    """

    problem: ScaledProblem
    norm: str
    penalty: float = 1.0
    best: float = np.inf
    lower: float = 0.0
    best_form: np.ndarray | None = None
    multipliers: np.ndarray | None = None
    infeasible: bool = False
    iterations: int = 0
    form: np.ndarray = field(init=False)
    scores: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        a, b = self.problem.queries, self.problem.keys
        self.form, self.form_dual = np.zeros((2, a.shape[1], b.shape[1]))
        self.scores, self.scores_dual = np.zeros((2, len(a), len(b)))
        # A and B have orthogonal columns, so the normal equations of V are diagonal.
        self._diagonal = 1 + np.outer((a**2).sum(0), (b**2).sum(0))

    def step(self) -> None:
        """One iteration."""
        a, b = self.problem.queries, self.problem.keys
        joint = (self.form - self.form_dual + a.T @ (self.scores - self.scores_dual) @ b) / self._diagonal
        joint_scores = a @ joint @ b.T
        self._last = (joint, joint_scores, self.form, self.scores)
        form = OVER_RELAXATION * joint + (1 - OVER_RELAXATION) * self.form + self.form_dual
        scores = OVER_RELAXATION * joint_scores + (1 - OVER_RELAXATION) * self.scores + self.scores_dual
        self.form = shrink(form, self.norm, 1 / self.penalty)
        self.scores = project_scores(scores, self.problem)
        self.form_dual, self.scores_dual = form - self.form, scores - self.scores
        self.iterations += 1

    def update_bounds(self) -> None:
        """Upper bound from a form scaled to feasibility, lower bound from multipliers scaled to dual feasibility."""
        for form in (self.form, self._last[0]):
            worst = self.problem.worst_margin(form)
            if worst > 0 and (cost := matrix_norm(form, self.norm) / worst) < self.best:
                self.best, self.best_form = cost, form / worst
        multipliers = np.where(self.problem.others, np.maximum(self.scores_dual * self.problem.key_weight, 0.0), 0.0)
        total = float((self.problem.margin * multipliers.sum(1)).sum())
        if total == 0.0:
            return
        length = dual_norm(self.problem.combination(multipliers), self.norm)
        self.infeasible = self.best == np.inf and length <= INFEASIBLE_TOLERANCE * self._term_lengths(multipliers)
        if self.infeasible or total > self.lower * length:
            self.lower = np.inf if self.infeasible else total / length
            self.multipliers = multipliers / (multipliers.sum() if self.infeasible else length)

    def _term_lengths(self, multipliers: np.ndarray) -> float:
        keys = self.problem.keys / self.problem.key_weight[:, None]
        squared = (keys**2).sum(1)
        own = self.problem.target
        distance = np.sqrt(np.maximum(squared[own][:, None] + squared - 2 * keys[own] @ keys.T, 0.0))
        return float((multipliers * distance * np.linalg.norm(self.problem.queries, axis=1)[:, None]).sum())

    def rebalance(self) -> None:
        """Moves the penalty towards equal relative primal and dual residuals."""
        joint, joint_scores, old_form, old_scores = self._last
        primal = np.hypot(np.linalg.norm(self.form - joint), np.linalg.norm(self.scores - joint_scores))
        dual = np.hypot(np.linalg.norm(self.form - old_form), np.linalg.norm(self.scores - old_scores))
        primal /= max(np.hypot(np.linalg.norm(self.form), np.linalg.norm(self.scores)), 1e-12)
        dual /= max(np.hypot(np.linalg.norm(self.form_dual), np.linalg.norm(self.scores_dual)), 1e-12)
        factor = float(np.clip(np.sqrt(primal / max(dual, 1e-15)), 0.1, 10.0))
        if not 0.5 <= factor <= 2.0:
            self.penalty *= factor
            self.form_dual, self.scores_dual = self.form_dual / factor, self.scores_dual / factor

    def done(self, tolerance: float) -> bool:
        """The bounds are within the relative tolerance of each other, or no form can exist."""
        return self.infeasible or (self.best < np.inf and bool(self.best - self.lower <= tolerance * self.best))

    def run(self, tolerance: float, max_iterations: int) -> "Splitting":
        """Iterates until :meth:`done` or the limit; returns itself."""
        while self.iterations < max_iterations:
            self.step()
            if self.iterations % CHECK_EVERY == 0:
                self.update_bounds()
                if self.done(tolerance):
                    break
            # Later changes of the penalty would keep the iteration from settling.
            if self.iterations % REBALANCE_EVERY == 0 and self.iterations < max_iterations / 2:
                self.rebalance()
        return self

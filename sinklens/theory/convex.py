"""The same costs by cvxpy (extra ``theory``), a second opinion that shares no code with the built-in solver."""

import importlib
import math
from typing import Any

import numpy as np

from sinklens.axes import Embeddings
from sinklens.errors import ConvergenceError, InputError
from sinklens.theory.arrays import checked_choice, checked_rows, in_own_span
from sinklens.theory.patterns import ScorePattern
from sinklens.theory.splitting import NORMS


def _cvxpy() -> Any:
    try:
        return importlib.import_module("cvxpy")
    except ImportError as error:
        raise InputError(
            "method='cvxpy' needs cvxpy, which is not installed; pip install 'sinklens[theory]'"
        ) from error


def cvxpy_cost(X: Embeddings, pattern: ScorePattern, norm: str = "frobenius") -> float:
    """``min ||W|| s.t. x_iᵀ W (x_t(i) - x_j) ≥ 1``, by cvxpy and Clarabel, an interior-point solver.

    Args:
        X: ``[token, d_model]``.
        pattern: the constraints.
        norm: ``frobenius`` or ``nuclear``; the nuclear norm is a semidefinite program, slow from about 32 tokens on.

    Returns:
        The cost; 0 without constraints, infinite where they contradict each other.

    Raises:
        InputError: cvxpy is not installed; an unknown norm; NaN.
        ConvergenceError: the solver stopped short.

    Example:
        >>> import torch
        >>> from sinklens.theory import score_pattern
        >>> cvxpy_cost(torch.eye(1), score_pattern(1))
        0.0
    """
    checked_choice("norm", norm, NORMS)
    rows = checked_rows(X)
    # The norms are unitarily invariant: the embeddings' own span is enough.
    reduced = in_own_span(rows)
    target, others = pattern.target.clamp(min=0).cpu().numpy(), pattern.others.cpu().numpy()
    query, key = np.nonzero(others)
    if not query.size:
        return 0.0
    cvxpy = _cvxpy()
    form = cvxpy.Variable((reduced.shape[1],) * 2)
    constraints = [reduced[i] @ form @ (reduced[target[i]] - reduced[key[query == i]]).T >= 1 for i in np.unique(query)]
    objective = cvxpy.normNuc(form) if norm == "nuclear" else cvxpy.norm(form, "fro")
    problem = cvxpy.Problem(cvxpy.Minimize(objective), constraints)
    problem.solve(solver=cvxpy.CLARABEL)
    if problem.status in (cvxpy.INFEASIBLE, cvxpy.INFEASIBLE_INACCURATE):
        return math.inf
    if problem.status != cvxpy.OPTIMAL:
        raise ConvergenceError(f"cvxpy stopped with status {problem.status!r}; use method='solver'")
    return float(problem.value)

"""What a pattern costs: the least norm of the scores' bilinear form, on orthonormal or on given embeddings (arXiv 2605.08453)."""

import math

import torch

from sinklens.axes import Embeddings
from sinklens.errors import InputError
from sinklens.theory.arrays import checked_choice, checked_count, checked_positive
from sinklens.theory.closed_forms import causal_sink_nuclear_cost, frobenius_cost, full_nuclear_cost
from sinklens.theory.convex import cvxpy_cost
from sinklens.theory.least_norm import least_norm
from sinklens.theory.patterns import ScorePattern, score_pattern
from sinklens.theory.splitting import NORMS

METHODS = ("auto", "closed", "solver", "cvxpy")
# One singular value decomposition a step: beyond this a run takes an hour.
MOST_SOLVED_TOKENS = 512


def _closed(
    n_tokens: int, pattern: ScorePattern, norm: str, causal: bool, kind: str, active_share: float, switch: str
) -> float | None:
    if norm == "frobenius":
        return frobenius_cost(pattern)
    if not causal:
        return full_nuclear_cost(n_tokens, kind, active_share, switch)
    return causal_sink_nuclear_cost(n_tokens) if kind == "sink" else None


def _solved(X: Embeddings, pattern: ScorePattern, norm: str, method: str, tolerance: float) -> float:
    if len(X) > MOST_SOLVED_TOKENS:
        raise InputError(
            f"a cost without a closed form is solved for at most {MOST_SOLVED_TOKENS} tokens, got {len(X)}; "
            "take fewer tokens, the Frobenius norm or causal=False"
        )
    if method == "cvxpy":
        return cvxpy_cost(X, pattern, norm)
    return least_norm(X, pattern, norm, tolerance=tolerance).cost


def pattern_cost(
    n_tokens: int,
    kind: str = "sink",
    norm: str = "frobenius",
    causal: bool = True,
    margin: float = 1.0,
    scaled: bool = True,
    active_share: float = 0.5,
    switch: str = "hard",
    method: str = "auto",
    tolerance: float = 1e-4,
) -> float:
    """The least norm of a score matrix that realises a pattern on ``T`` orthonormal embeddings (arXiv 2605.08453).

    ``min ||W||`` with ``S_i,t(i) - S_ij ≥ margin`` for every visible ``j ≠ t(i)``, where ``S = W``, or ``S = W/√T`` if
    ``scaled``. Closed forms, with ``m`` the margin, to be multiplied by ``√T`` if scaled (see
    :mod:`sinklens.theory.closed_forms` for the rest):

        full      sink Frobenius m√(T-1), nuclear m√(T-1)     diagonal Frobenius m√(T-1), nuclear m(T-1)
        causal    sink nuclear m(T-1)/√T                      every pattern's Frobenius norm; other nuclear norms are
        solved for

    So a sink's scaled nuclear cost grows as ``T`` and a diagonal's as ``T^{3/2}``.

    Args:
        n_tokens: ``T``.
        kind: ``sink``, ``diagonal``, ``previous`` or ``backcopy`` (:func:`~sinklens.theory.score_pattern` says what each
            asks for).
        norm: ``frobenius``, or ``nuclear`` = least ``(||W_Q||² + ||W_K||²) / 2``.
        causal: query ``i`` sees keys ``j ≤ i`` only.
        margin: in score units, above 0.
        scaled: scores are divided by ``√d`` with ``d = T``.
        active_share: share of active tokens, for ``backcopy``.
        switch: ``hard`` (dormant tokens attend to the sink) or ``soft`` (to themselves), for ``backcopy``.
        method: ``closed``, ``solver`` (built in), ``cvxpy`` (needs the extra ``theory``), or ``auto``: closed where
            known, else solver.
        tolerance: relative, of the built-in solver.

    Returns:
        The cost; 0 for a single token. From the solver never below the least norm and at most ``tolerance`` above it.

    Raises:
        InputError: an unknown kind, norm, switch or method; a number out of range; ``closed`` where no closed form is
            known; more than 512 tokens for the solver.
        ConvergenceError: the solver did not reach the tolerance.

    Example:
        >>> pattern_cost(17, "sink", "nuclear", causal=False, scaled=False)
        4.0
        >>> pattern_cost(17, "diagonal", "nuclear", causal=False, scaled=False)
        16.0
        >>> round(pattern_cost(4, "sink", "nuclear", scaled=False), 3)
        1.5
    """
    checked_choice("norm", norm, NORMS)
    checked_choice("method", method, METHODS)
    checked_positive("margin", margin)
    pattern = score_pattern(n_tokens, kind, causal, 0, active_share, switch)
    unit = margin * (math.sqrt(n_tokens) if scaled else 1.0)
    if method in ("auto", "closed"):
        closed = _closed(n_tokens, pattern, norm, causal, kind, active_share, switch)
        if closed is not None:
            return unit * closed
        if method == "closed":
            raise InputError(
                f"no closed form is known for the causal nuclear cost of {kind!r}; use method='auto' or 'solver'"
            )
    return unit * _solved(torch.eye(n_tokens, dtype=torch.float64), pattern, norm, method, tolerance)


def embedding_cost(
    X: Embeddings,
    kind: str = "sink",
    norm: str = "frobenius",
    causal: bool = True,
    margin: float = 1.0,
    sink: int = 0,
    d_head: int | None = None,
    active_share: float = 0.5,
    switch: str = "hard",
    method: str = "solver",
    tolerance: float = 1e-3,
) -> float:
    """The least norm of ``W`` whose scores ``x_iᵀ W x_j`` realise a pattern on given embeddings (arXiv 2605.08453; method ours).

    Solved in the span of the embeddings, ``T x T`` at most, since both norms are unitarily invariant: 64 tokens take
    seconds.

    Args:
        X: ``[token, d_model]``, for example what a layer's attention reads.
        kind: ``sink``, ``diagonal``, ``previous`` or ``backcopy``.
        norm: ``frobenius``, or ``nuclear`` = least ``(||W_Q||² + ||W_K||²) / 2``.
        causal: query ``i`` sees keys ``j ≤ i`` only.
        margin: in score units, above 0.
        sink: the sink's position.
        d_head: scores are divided by ``√d_head``, as a model's are; None leaves them as they are.
        active_share: share of active tokens, for ``backcopy``.
        switch: ``hard`` or ``soft``, for ``backcopy``.
        method: ``solver`` (built in) or ``cvxpy`` (needs the extra ``theory``; slow from about 32 tokens on).
        tolerance: relative, of the built-in solver.

    Returns:
        The cost; 0 for a single token, infinite where no ``W`` realises the pattern
        (:func:`~sinklens.theory.pattern_feasibility` has the proof), for example a diagonal on two equal embeddings.

    Raises:
        InputError: NaN, an unknown kind, norm, switch or method, a number out of range, more than 512 tokens.
        ConvergenceError: the solver did not reach the tolerance.

    Example:
        >>> round(embedding_cost(2 * torch.eye(5), "diagonal", "nuclear", causal=False), 3)
        1.0
        >>> embedding_cost(torch.ones(3, 2), "diagonal")
        inf
    """
    checked_choice("norm", norm, NORMS)
    checked_choice("method", method, METHODS[2:])
    checked_positive("margin", margin)
    unit = margin * (1.0 if d_head is None else math.sqrt(checked_count("d_head", d_head, 1)))
    pattern = score_pattern(len(X), kind, causal, sink, active_share, switch)
    return unit * _solved(X, pattern, norm, method, tolerance)

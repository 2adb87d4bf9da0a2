"""A least-norm problem in well-scaled coordinates, without which massive activations stall the solver."""

from dataclasses import dataclass

import numpy as np

# Singular values below this share of the largest are directions that the embeddings do not span.
RANK_TOLERANCE = 1e-11


@dataclass(frozen=True)
class ScaledProblem:
    """``min ||V|| s.t. D_it - D_ij ≥ m_i`` with ``D_ij = (A V Bᵀ)_ij / w_j``: the original problem, scaled and rotated.

    Args:
        queries: ``A`` ``[query, r]``, orthogonal columns.
        keys: ``B`` ``[key, q]``, orthogonal columns.
        key_weight: ``w`` ``[key]``.
        target: ``[query]``.
        others: ``[query, key]``.
        margin: ``m`` ``[query]``, 1 on average.
        query_basis: ``[r, d_model]``, orthonormal rows.
        key_basis: ``[q, d_model]``, orthonormal rows.
        unit: the original form is ``unit · query_basisᵀ V key_basis``.
        query_length: ``[query]``, turns multipliers of this problem into those of the original.
        rows: which of the original queries are here (those with a constraint).
    """

    queries: np.ndarray
    keys: np.ndarray
    key_weight: np.ndarray
    target: np.ndarray
    others: np.ndarray
    margin: np.ndarray
    query_basis: np.ndarray
    key_basis: np.ndarray
    unit: float
    query_length: np.ndarray
    rows: np.ndarray

    def scores(self, form: np.ndarray) -> np.ndarray:
        """``D``, whose differences are constrained, ``[query, key]``."""
        return (self.queries @ form @ self.keys.T) / self.key_weight

    def combination(self, multipliers: np.ndarray) -> np.ndarray:
        """``Σ y_ij a_i (b_t/w_t - b_j/w_j)ᵀ``, the form that non-negative multipliers ``[query, key]`` add up to."""
        signed = -multipliers
        signed[np.arange(len(signed)), self.target] += multipliers.sum(1)
        return self.queries.T @ (signed / self.key_weight) @ self.keys

    def worst_margin(self, form: np.ndarray) -> float:
        """The least of ``(D_it - D_ij) / m_i``: at least 1 where the form is feasible."""
        scores = self.scores(form)
        gaps = scores[np.arange(len(scores)), self.target][:, None] - scores
        return float((np.where(self.others, gaps, np.inf).min(1) / self.margin).min())


def centre(keys: np.ndarray, iterations: int = 50) -> np.ndarray:
    """Keys less their geometric median; constraints see only differences of keys, so any shift leaves the problem as it is.

    The mean would not do: one massive key pulls it away from all others, which then look alike.

    Args:
        keys: ``[key, d_model]``.
        iterations: of Weiszfeld's algorithm.

    Returns:
        ``[key, d_model]``.

    Example:
        >>> centre(np.array([[0.0], [1.0], [100.0]])).round(3).ravel().tolist()
        [-1.0, 0.0, 99.0]
    """
    middle = keys.mean(0)
    floor = 1e-9 * max(np.linalg.norm(keys - middle, axis=1).max(), np.finfo(float).tiny)
    for _ in range(iterations):
        weight = 1 / np.maximum(np.linalg.norm(keys - middle, axis=1), floor)
        middle = (weight @ keys) / weight.sum()
    return keys - middle


def _rotate(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    left, singular, right = np.linalg.svd(rows, full_matrices=False)
    rank = int((singular > RANK_TOLERANCE * singular[0]).sum())
    return left[:, :rank] * singular[:rank], right[:rank]


def precondition(embeddings: np.ndarray, target: np.ndarray, others: np.ndarray) -> ScaledProblem:
    """Drops free queries, centres the keys, gives rows of both sides unit length, and rotates to their own bases.

    The norms are unitarily invariant, so only the span of the embeddings matters: sizes are at most ``T x T``, whatever
    ``d_model``.

    Args:
        embeddings: ``[token, d_model]``; no constrained query of norm 0, no key equal to its target.
        target: ``[query]``.
        others: ``[query, key]``, at least one True.

    Returns:
        A :class:`ScaledProblem` for margin 1.

    Example:
        >>> problem = precondition(np.eye(3), np.zeros(3, int), np.tril(np.ones((3, 3), bool), 0) & (np.arange(3) > 0))
        >>> problem.queries.shape, problem.rows.tolist()
        ((2, 2), [1, 2])
    """
    rows = np.flatnonzero(others.any(1))
    queries, keys = embeddings[rows], centre(embeddings)
    query_length = np.linalg.norm(queries, axis=1)
    key_length = np.linalg.norm(keys, axis=1)
    key_weight = 1 / np.maximum(key_length, 1e-3 * np.median(key_length) + 1e-12 * key_length.max())
    spread = np.sqrt(np.linalg.norm(keys * key_weight[:, None], 2))
    rotated_queries, query_basis = _rotate(queries / query_length[:, None])
    rotated_keys, key_basis = _rotate(keys * key_weight[:, None] / spread)
    needed = 1 / (query_length * spread)
    unit = float(needed.mean())
    return ScaledProblem(
        queries=rotated_queries,
        keys=rotated_keys,
        key_weight=key_weight,
        target=target[rows],
        others=others[rows],
        margin=needed / unit,
        query_basis=query_basis,
        key_basis=key_basis,
        unit=unit,
        query_length=query_length,
        rows=rows,
    )

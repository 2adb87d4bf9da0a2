"""Sink geometry written out literally: cosines one by one, hulls by a general solver, forms plugged in pair by pair."""

import math

import numpy as np
from scipy.optimize import linprog, minimize


def cosines(rows: np.ndarray, sink: int) -> list[float]:
    """Of the sink's vector with every other token's."""
    return [
        float(rows[sink] @ row / math.sqrt(rows[sink] @ rows[sink]) / math.sqrt(row @ row))
        for position, row in enumerate(rows)
        if position != sink
    ]


def hull_distance(points: np.ndarray) -> float:
    """Distance of the origin from a convex hull, by a general solver over the weights."""
    n_points = len(points)
    found = minimize(
        lambda w: 0.5 * float((w @ points) @ (w @ points)),
        np.full(n_points, 1 / n_points),
        jac=lambda w: points @ (w @ points),
        bounds=[(0, 1)] * n_points,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"maxiter": 2000, "ftol": 1e-16},
    )
    return float(np.linalg.norm(found.x @ points))


def constrained(visible: np.ndarray, sink: int, causal: bool) -> list[tuple[int, int]]:
    """(query, key) pairs: queries after the sink (bidirectional: all others) that see it, and the other keys they see."""
    n_tokens = len(visible)
    queries = [i for i in range(n_tokens) if visible[i, sink] and (i > sink if causal else i != sink)]
    return [(i, j) for i in queries for j in range(n_tokens) if visible[i, j] and j != sink]


def least(form: np.ndarray, rows: np.ndarray, sink: int, pairs: list[tuple[int, int]]) -> float:
    """The least ``x_i^T W (x_s - x_j)`` over normalised queries, in units of the mean length of key differences."""
    unit = np.mean([np.linalg.norm(rows[sink] - rows[j]) for j in sorted({j for _, j in pairs})])
    scores = [float(rows[i] / np.linalg.norm(rows[i]) @ form @ (rows[sink] - rows[j]) / unit) for i, j in pairs]
    return min(scores)


def feasible(rows: np.ndarray, sink: int, pairs: list[tuple[int, int]]) -> bool:
    """Is there any ``W`` with every score difference at least 1: one linear program over all its entries."""
    size = rows.shape[1]
    forms = np.array([np.outer(rows[i], rows[sink] - rows[j]).ravel() for i, j in pairs])
    # The bound makes the program bounded; a witness can be scaled down and the margin with it.
    found = linprog(
        np.append(np.zeros(size**2), -1.0),
        A_ub=np.hstack([-forms, np.ones((len(pairs), 1))]),
        b_ub=np.zeros(len(pairs)),
        bounds=[(-1, 1)] * size**2 + [(None, 1)],
    )
    return bool(found.x[-1] > 1e-9)

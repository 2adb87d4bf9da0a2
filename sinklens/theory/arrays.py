"""Tensors in, float64 arrays inside: every solver checks its input here, once, and says what is wrong with it."""

import math

import numpy as np
import torch
from torch import Tensor

from sinklens.errors import InputError


def checked_rows(vectors: Tensor, name: str = "X") -> np.ndarray:
    """The rows as a float64 array, or an error that names the first bad one.

    Args:
        vectors: ``[token, d_model]``, any float type and device.
        name: how messages call it.

    Returns:
        A float64 array ``[token, d_model]``.

    Raises:
        InputError: no rows or no columns, another number of axes, NaN or infinite entries.

    Example:
        >>> checked_rows(torch.ones(1, 2)).tolist()
        [[1.0, 1.0]]
    """
    if vectors.ndim != 2 or 0 in vectors.shape:
        raise InputError(
            f"{name} must be [token, d_model] with at least one of each, got shape {list(vectors.shape)}; pass one sequence"
        )
    rows = vectors.detach().to("cpu", torch.float64).numpy()
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise InputError(
            f"{name} must be finite, got NaN or infinity in row {bad[0]} ({bad.size} rows in all); leave those tokens out"
        )
    return rows


def checked_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The value itself, or an error that lists what it may be.

    Args:
        name: the argument's name.
        value: what was given.
        choices: what is known.

    Returns:
        ``value``.

    Raises:
        InputError: it is none of them.

    Example:
        >>> checked_choice("norm", "nuclear", ("frobenius", "nuclear"))
        'nuclear'
    """
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def checked_positive(name: str, value: float) -> float:
    """The value itself, or an error unless it is a finite number above 0.

    Args:
        name: the argument's name.
        value: what was given.

    Returns:
        ``value``.

    Raises:
        InputError: zero, negative, infinite or NaN.

    Example:
        >>> checked_positive("margin", 2.0)
        2.0
    """
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{name} must be a finite number above 0, got {value}")
    return value


def checked_count(name: str, value: int, least: int) -> int:
    """The number itself, or an error unless it is at least so many.

    Args:
        name: the argument's name.
        value: what was given.
        least: the smallest that has a meaning.

    Returns:
        ``value``.

    Raises:
        InputError: it is smaller.

    Example:
        >>> checked_count("n_tokens", 3, 1)
        3
    """
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")
    return value


def checked_position(name: str, value: int, n_tokens: int) -> int:
    """The position itself, or an error unless it lies in the sequence.

    Args:
        name: the argument's name.
        value: a position, counted from 0.
        n_tokens: length of the sequence.

    Returns:
        ``value``.

    Raises:
        InputError: it lies outside.

    Example:
        >>> checked_position("sink", 1, 4)
        1
    """
    if not 0 <= value < n_tokens:
        raise InputError(f"{name} must be a position from 0 to {n_tokens - 1}, got {value}")
    return value


def in_own_span(rows: np.ndarray) -> np.ndarray:
    """The same vectors in coordinates of their own span: all inner products stay, and there are no more axes than vectors.

    Args:
        rows: ``[token, d_model]``.

    Returns:
        ``[token, min(token, d_model)]``.

    Example:
        >>> np.abs(in_own_span(np.array([[3.0, 4.0]]))).round(6).tolist()
        [[5.0]]
    """
    # PyTorch's, since numpy's threads wait for each other a hundred times longer than this takes where cores are shared.
    return torch.linalg.qr(torch.from_numpy(np.ascontiguousarray(rows.T)), mode="r").R.T.numpy()


def as_tensor(array: np.ndarray) -> Tensor:
    """A float64 tensor that shares nothing with the array.

    Args:
        array: any shape.

    Returns:
        A tensor of the same shape.

    Example:
        >>> as_tensor(np.ones(2)).tolist()
        [1.0, 1.0]
    """
    return torch.tensor(array, dtype=torch.float64)

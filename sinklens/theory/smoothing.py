"""How one attention step smooths tokens, predicted in closed form from four numbers (ours; after arXiv 2605.08453)."""

import math
from dataclasses import dataclass

import torch

from sinklens.axes import BilinearForm, Direction, Embeddings
from sinklens.errors import InputError
from sinklens.theory.arrays import checked_count, checked_rows


@dataclass(frozen=True)
class SmoothingMoments:
    """What the prediction needs to know of the residual ``r`` and the update ``s = W n`` of tokens drawn independently.

    Args:
        mean_square: ``||E r + E s||²``.
        residual_variance: ``tr Cov(r, r)``.
        covariance: ``tr Cov(r, s)``, negative where the update counters the residual.
        update_variance: ``tr Cov(s, s)``.

    Raises:
        InputError: a negative variance, NaN or infinity.
    """

    mean_square: float
    residual_variance: float
    covariance: float
    update_variance: float

    def __post_init__(self) -> None:
        values = (self.mean_square, self.residual_variance, self.covariance, self.update_variance)
        if not all(math.isfinite(value) for value in values):
            raise InputError(f"moments must be finite, got {values}")
        if self.residual_variance < 0 or self.update_variance < 0:
            raise InputError(f"variances must not be negative, got {self.residual_variance} and {self.update_variance}")


def smoothing_moments(residual: Embeddings, update: Embeddings) -> SmoothingMoments:
    """Moments measured on tokens: unbiased covariances, and ``||r̄ + s̄||²`` less its sampling part ``tr Cov(r + s) / n``.

    With these, the numerator and denominator of :func:`predicted_cosine` over the same tokens are exact averages.

    Args:
        residual: ``r`` ``[token, d_model]``, what the residual stream carries past the attention; zeros without one.
        update: ``s`` ``[token, d_model]``, what attention would add if each token attended to itself only: its value
            through the output matrices, ``Σ_h W_O^h W_V^h n``.

    Returns:
        :class:`SmoothingMoments`; ``mean_square`` is an unbiased estimate, which can be slightly negative.

    Raises:
        InputError: other shapes, fewer than two tokens, NaN.

    Example:
        >>> tokens = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> smoothing_moments(tokens, torch.zeros(2, 2))
        SmoothingMoments(mean_square=0.0, residual_variance=2.0, covariance=0.0, update_variance=0.0)
    """
    r, s = checked_rows(residual, "residual"), checked_rows(update, "update")
    if r.shape != s.shape:
        raise InputError(f"residual and update must have the same shape, got {list(r.shape)} and {list(s.shape)}")
    n = checked_count("the number of tokens", len(r), 2)
    mean = r.mean(0) + s.mean(0)
    r, s = r - r.mean(0), s - s.mean(0)
    rr, rs, ss = (float((left * right).sum() / (n - 1)) for left, right in ((r, r), (r, s), (s, s)))
    return SmoothingMoments(float(mean @ mean) - (rr + 2 * rs + ss) / n, rr, rs, ss)


def population_moments(mean: Direction, covariance: BilinearForm, W: BilinearForm) -> SmoothingMoments:
    """Moments of ``r = n = x = μ + ε``, ``s = W x``, from ``μ``, ``Σ`` and ``W``.

    ``||(I + W) μ||²``, ``tr Σ``, ``tr(W Σ)``, ``tr(W Σ Wᵀ)``.

    Args:
        mean: ``μ`` ``[d_model]``.
        covariance: ``Σ`` ``[d_model, d_model]``.
        W: value-output matrix ``[d_model, d_model]``, acting on columns: ``s = W x``.

    Returns:
        :class:`SmoothingMoments`.

    Raises:
        InputError: NaN or infinite entries.

    Example:
        >>> population_moments(torch.ones(2), torch.eye(2), -torch.eye(2))
        SmoothingMoments(mean_square=0.0, residual_variance=2.0, covariance=-2.0, update_variance=2.0)
    """
    mu, sigma, form = mean.double(), covariance.double(), W.double()
    shifted = mu + form @ mu
    spread = form @ sigma
    return SmoothingMoments(
        (shifted @ shifted).item(), sigma.trace().item(), spread.trace().item(), (spread * form).sum().item()
    )


def _check_step(strength: float, n_tokens: int) -> None:
    checked_count("n_tokens", n_tokens, 2)
    if not 0.0 <= strength <= 1.0:
        raise InputError(
            f"strength must lie in 0 (each token attends to itself) to 1 (uniform attention), got {strength}"
        )


def _own_variance(moments: SmoothingMoments, strength: float) -> float:
    """``tr(B Σ Bᵀ)``, the variance of ``r + (1-λ) s``."""
    kept = 1 - strength
    return moments.residual_variance + 2 * kept * moments.covariance + kept**2 * moments.update_variance


def predicted_cosine(moments: SmoothingMoments, strength: float, n_tokens: int, causal: bool = False) -> float:
    """Mean pairwise cosine after ``y_i = r_i + (1-λ) s_i + λ s̄``, the step with attention ``(1-λ) I + λ 1 1ᵀ/T`` (ours).

    A ratio of expectations: good to 0.01 for 256 tokens that spread over hundreds of directions, less where few directions carry
    most of the spread (0.02 seen for a strong ``W`` of rank 8, causal). With ``B = I + (1-λ) W`` for ``r = n = x``:

        num = ||(I+W)μ||² + (2λ/T) tr(BΣWᵀ) + (λ²/T) tr(WΣWᵀ)          cos ≈ num / (num + tr(BΣBᵀ))

    Causal, ``U_ij = 1/i`` for ``j ≤ i`` (``i`` counted from 1), pair by pair and averaged over ``i < j``:

        num_ij = ||(I+W)μ||² + (λ/j) tr((I+W)ΣWᵀ)
        len_i  = ||(I+W)μ||² + tr(BΣBᵀ) + (2λ/i) tr(BΣWᵀ) + (λ²/i) tr(WΣWᵀ)          cos ≈ mean num_ij / √(len_i len_j)

    Args:
        moments: of residual and update.
        strength: ``λ`` in 0 to 1.
        n_tokens: ``T``, at least 2.
        causal: uniform over the keys that a query sees, instead of over all.

    Returns:
        In -1 to 1; NaN where all outputs are zero.

    Raises:
        InputError: a strength out of range, fewer than two tokens.

    Example:
        >>> moments = population_moments(torch.ones(2), torch.eye(2), torch.eye(2))
        >>> predicted_cosine(moments, 0.0, 100)
        0.5
        >>> round(predicted_cosine(moments, 1.0, 100), 3)
        0.801
    """
    _check_step(strength, n_tokens)
    cross = moments.covariance + (1 - strength) * moments.update_variance
    own = _own_variance(moments, strength)
    if causal:
        return _causal_cosine(moments, strength, n_tokens, cross, own)
    shared = moments.mean_square + (2 * strength * cross + strength**2 * moments.update_variance) / n_tokens
    return shared / (shared + own) if shared + own else float("nan")


def _causal_cosine(moments: SmoothingMoments, strength: float, n_tokens: int, cross: float, own: float) -> float:
    position = torch.arange(1, n_tokens + 1, dtype=torch.float64)
    whole = moments.covariance + moments.update_variance
    shared = moments.mean_square + strength * whole / position
    length = moments.mean_square + own + (2 * strength * cross + strength**2 * moments.update_variance) / position
    root = length.clamp(min=0).sqrt()
    root = root.masked_fill(root == 0, float("nan"))
    # The earlier token's length sums over i < j; the later one's factor is its own.
    earlier = torch.cat([torch.zeros(1, dtype=torch.float64), (1 / root).cumsum(0)[:-1]])
    return (shared / root * earlier).sum().item() * 2 / (n_tokens * (n_tokens - 1))


def smoothing_criterion(moments: SmoothingMoments) -> float:
    """``2 tr Cov(r, s) + tr Cov(s, s)``, for ``r = n = x``: ``2 tr(WΣ) + tr(WΣWᵀ)`` (ours; arXiv 2605.08453 for the question).

    For many tokens, uniform attention leaves them more alike than attention to themselves exactly where this is positive:
    averaging removes the update's variance and its covariance with the residual, and nothing else. It is at least ``-tr
    Cov(r, r)``; an update that opposes the residual makes it negative, so residual and values can counter smoothing.

    Args:
        moments: of residual and update.

    Returns:
        In squared units of the residual; positive: dense smooths more; negative: dense smooths less.

    Example:
        >>> mean, covariance = torch.ones(2), torch.eye(2)
        >>> [smoothing_criterion(population_moments(mean, covariance, w * torch.eye(2))) for w in (1.0, -0.5, -3.0)]
        [6.0, -1.5, 6.0]
    """
    return 2 * moments.covariance + moments.update_variance

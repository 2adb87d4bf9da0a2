"""How alike token vectors are: mean pairwise cosine, rank-collapse ratio, cosines to a sink (arXiv 2605.08453)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import Embeddings
from sinklens.errors import InputError
from sinklens.theory.arrays import checked_position, checked_rows


def _counted(X: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    rows = X.double()
    weight = torch.ones(X.shape[:-1], dtype=torch.bool, device=X.device) if mask is None else mask
    # A masked row may hold anything, NaN too: padding and massive tokens are left out before any arithmetic.
    return torch.where(weight.unsqueeze(-1), rows, 0.0), weight


def token_cosine(
    X: Float[Tensor, "*batch token d_model"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean cosine between two different tokens' vectors, the diagonal left out: the measure of oversmoothing (arXiv 2605.08453).

    ``(||Σ_i x̂_i||² - n) / (n (n - 1))`` with unit vectors ``x̂_i``, in time linear in the number of tokens.

    Args:
        X: ``[..., token, d_model]``.
        mask: ``[..., token]``, the tokens that count, for example all but the sink; by default all. Vectors of norm 0
            never count.

    Returns:
        ``[...]`` float64, in ``-1/(n-1)`` to 1; NaN with fewer than two tokens.

    Example:
        >>> round(token_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]])).item(), 4)
        0.3333
        >>> token_cosine(torch.ones(1, 4)).item()
        nan
    """
    rows, weight = _counted(X, mask)
    length = rows.norm(dim=-1, keepdim=True)
    counted = weight.unsqueeze(-1) & (length != 0)
    unit = torch.where(counted, rows / length.masked_fill(length == 0, 1.0), 0.0)
    n = counted.sum((-2, -1)).double()
    return (unit.sum(-2).square().sum(-1) - n) / (n * (n - 1)).masked_fill(n < 2, float("nan"))


def rank_collapse(
    X: Float[Tensor, "*batch token d_model"], mask: Bool[Tensor, "*batch token"] | None = None
) -> Float[Tensor, "*batch"]:
    """Rank-collapse ratio ``||X - 1 x̄ᵀ||_F / ||X||_F``: the share that tokens do not have in common (after Dong et al. 2021).

    Args:
        X: ``[..., token, d_model]``.
        mask: ``[..., token]``, the tokens that count; by default all.

    Returns:
        ``[...]`` float64, in 0 (all tokens equal) to 1 (mean zero); NaN where all are zero or none counts.

    Example:
        >>> rank_collapse(torch.tensor([[1.0], [1.0]])).item(), rank_collapse(torch.tensor([[1.0], [-1.0]])).item()
        (0.0, 1.0)
    """
    rows, weight = _counted(X, mask)
    n = weight.sum(-1)[..., None, None].double()
    mean = rows.sum(-2, keepdim=True) / n.masked_fill(n == 0, float("nan"))
    centred = torch.where(weight.unsqueeze(-1), rows - mean, 0.0)
    whole = rows.flatten(-2).norm(dim=-1)
    return centred.flatten(-2).norm(dim=-1) / whole.masked_fill(whole == 0, float("nan"))


@dataclass(frozen=True)
class SinkCosines:
    """Cosines of a sink's vector with every other token's.

    Args:
        cosines: ``[token]``, the other tokens in order; NaN for a vector of norm 0.
    """

    cosines: Float[Tensor, " token"]

    @property
    def mean(self) -> float:
        """Their mean, NaN left out."""
        return self.cosines.nanmean().item()

    @property
    def max(self) -> float:
        """The largest: not positive means that ``W = -x_s x_sᵀ`` makes a sink of normalised tokens."""
        known = self.cosines[~self.cosines.isnan()]
        return known.max().item() if len(known) else float("nan")

    @property
    def opposed_share(self) -> float:
        """The share that is at most 0: tokens with which the sink is anti-aligned."""
        known = self.cosines[~self.cosines.isnan()]
        return (known <= 0).double().mean().item()


def sink_cosines(X: Embeddings, sink: int = 0) -> SinkCosines:
    """Cosine of the sink's vector with every other token's (arXiv 2605.08453: anti-alignment makes a sink representable).

    Args:
        X: ``[token, d_model]``, on the residual stream or on what attention reads; say which.
        sink: its position.

    Returns:
        :class:`SinkCosines`.

    Raises:
        InputError: fewer than two tokens, a sink of norm 0, a position out of range, NaN.

    Example:
        >>> found = sink_cosines(torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]))
        >>> found.cosines.tolist(), round(found.opposed_share, 3)
        ([-1.0, 0.0, 1.0], 0.667)
    """
    rows = torch.from_numpy(checked_rows(X))
    checked_position("sink", sink, len(rows))
    if len(rows) < 2 or not rows[sink].norm():
        raise InputError(
            f"X must have at least 2 tokens and a sink that is not 0, got {len(rows)} tokens, sink norm {rows[sink].norm():.3g}"
        )
    others = torch.cat([rows[:sink], rows[sink + 1 :]])
    length = others.norm(dim=1) * rows[sink].norm()
    return SinkCosines((others @ rows[sink] / length.masked_fill(length == 0, float("nan"))).clamp(-1, 1))

"""What drives a contribution: attention, value norm or direction (arXiv 2606.07604, section 3.2)."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import QueryMask, SinkPositions, Visible
from sinklens.metrics.values import sink_mask

FACTORS = ("attention", "value_norm", "direction")
GROUPS = ("sink", "tail", "middle")


class Drivers(NamedTuple):
    """Share of the variance of ``log|c|`` and Spearman correlation with ``|c|`` of each factor, and how many pairs."""

    share: Float[Tensor, " factor"]
    spearman: Float[Tensor, " factor"]
    n_pairs: int


def key_groups(
    sink: SinkPositions, visible: Visible, queries: QueryMask, tail: int = 4
) -> Bool[Tensor, "group batch query key"]:
    """Sort the visible (query, key) pairs into sink, tail and middle keys (ours).

    Args:
        sink: ``[batch, sink]``, -1 where absent.
        visible: ``[batch, query, key]``.
        queries: ``[batch, query]``, the queries that count.
        tail: the last ``tail`` keys up to the query itself are its tail, unless they are sinks.

    Returns:
        ``[group, batch, query, key]`` in the order of :data:`GROUPS`; every counted visible pair is in exactly one.

    Example:
        >>> visible = torch.ones(1, 4, 4, dtype=torch.bool).tril()
        >>> groups = key_groups(torch.tensor([[0]]), visible, torch.tensor([[False, False, False, True]]), tail=1)
        >>> groups[:, 0, 3].int().tolist()
        [[1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 0]]
    """
    position = torch.arange(visible.shape[-1], device=visible.device)
    near = (position.unsqueeze(-1) - position).abs() < tail
    counted = visible & queries.unsqueeze(-1)
    is_sink = sink_mask(sink, visible.shape[-1]).unsqueeze(1)
    return torch.stack([counted & is_sink, counted & ~is_sink & near, counted & ~is_sink & ~near])


def _ranks(values: Float[Tensor, "row pair"]) -> Float[Tensor, "row pair"]:
    """Average ranks, so that ties do not depend on the order of the pairs."""
    ordered = values.sort(dim=-1).values
    low = torch.searchsorted(ordered, values.contiguous())
    high = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (low + high).double() / 2


def _covariance_with(target: Float[Tensor, " pair"], rows: Float[Tensor, "row pair"]) -> Float[Tensor, " row"]:
    return ((rows - rows.mean(-1, keepdim=True)) * (target - target.mean())).mean(-1)


def contribution_drivers(
    attention: Float[Tensor, " pair"], ratio: Float[Tensor, " pair"], direction: Float[Tensor, " pair"]
) -> Drivers:
    """The share that each factor of ``c = A · ρ · cos`` has in the spread of ``log|c|`` (arXiv 2606.07604, section 3.2).

    ``share_f = Cov(log f, log|c|) / Var(log|c|)`` with ``log|c| = log A + log ρ + log|cos|``: the three sum to 1, and one
    is negative where a factor works against the others. Beside it the Spearman correlation of each factor with ``|c|``.

    Args:
        attention: ``A`` of the pairs considered.
        ratio: ``ρ = ||ṽ_j|| / ||o_i||``.
        direction: ``cos``.

    Returns:
        :class:`Drivers` over the pairs where all three factors are finite and not 0; NaN where fewer than three are
        left or ``|c|`` does not vary.

    Example:
        >>> drivers = contribution_drivers(torch.tensor([0.1, 0.2, 0.7]), torch.ones(3), torch.ones(3))
        >>> drivers.share.tolist(), drivers.n_pairs
        ([1.0, 0.0, 0.0], 3)
    """
    factors = torch.stack([attention, ratio, direction]).double().abs()
    factors = factors[:, (torch.isfinite(factors) & (factors > 0)).all(0)]
    count = factors.shape[-1]
    if count < 3:
        return Drivers(torch.full((3,), float("nan")), torch.full((3,), float("nan")), count)
    logs = factors.log()
    total = logs.sum(0)
    share = _covariance_with(total, logs) / total.var(correction=0)
    ranks = _ranks(torch.cat([logs, total.unsqueeze(0)]))
    deviation = ranks.std(dim=-1, correction=0)
    spearman = _covariance_with(ranks[-1], ranks[:-1]) / (deviation[:-1] * deviation[-1])
    return Drivers(share.float(), spearman.float(), count)

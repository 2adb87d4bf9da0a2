"""Which keys a query can see: the mask, the causal order, and a sliding window."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.axes import KeyMask, SinkPositions, Visible


def allowed_pairs(
    query: Int[Tensor, " query"], key: Int[Tensor, " key"], causal: bool = True, window: int | None = None
) -> Bool[Tensor, "query key"]:
    """True where a query at one position may look at a key at another, padding aside.

    Args:
        query: positions of the queries.
        key: positions of the keys.
        causal: whether later keys are hidden.
        window: a key at distance ``window`` or more is hidden; None for full attention.

    Returns:
        ``[query, key]``.

    Example:
        >>> allowed_pairs(torch.tensor([2]), torch.arange(4), window=2).tolist()
        [[False, True, True, False]]
    """
    distance = query.unsqueeze(-1) - key
    allowed = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return allowed if window is None else allowed & (distance.abs() < window)


def visible_keys(mask: KeyMask, causal: bool = True, window: int | None = None) -> Visible:
    """True where a query may attend to a key: both are real tokens, the key is not later, and it lies in the window.

    Args:
        mask: ``[batch, key]``, True on real tokens; padding may be on either side.
        causal: whether later keys are hidden.
        window: a key at distance ``window`` or more before the query is hidden; None for full attention.

    Returns:
        ``[batch, query, key]``.

    Example:
        >>> visible_keys(torch.tensor([[True, True, True]]), window=2).int().tolist()
        [[[1, 0, 0], [1, 1, 0], [0, 1, 1]]]
    """
    position = torch.arange(mask.shape[-1], device=mask.device)
    return allowed_pairs(position, position, causal, window) & mask.unsqueeze(-1) & mask.unsqueeze(-2)


def visible_counts(mask: KeyMask, causal: bool = True, window: int | None = None) -> Int[Tensor, "batch query"]:
    """The number of keys that each query sees; 0 on padding. Linear in the number of positions.

    Args:
        mask: ``[batch, key]``; real tokens stand together, padding on either side.
        causal: whether later keys are hidden.
        window: as in :func:`visible_keys`.

    Returns:
        ``[batch, query]``.

    Example:
        >>> visible_counts(torch.tensor([[False, True, True, True]]), window=2).tolist()
        [[0, 1, 2, 2]]
    """
    total = mask.sum(-1, keepdim=True)
    before = mask.cumsum(-1)
    after = torch.zeros_like(before) if causal else total - before
    if window is not None:
        before, after = before.clamp(max=window), after.clamp(max=window - 1)
    return (before + after) * mask


def queries_after(sink: SinkPositions, mask: KeyMask, causal: bool = True, window: int | None = None) -> KeyMask:
    """The queries over which sink statistics are averaged: real tokens after the first sink that see at least one sink.

    Without a causal order there is no "after": every real token that is not itself a sink counts.

    Args:
        sink: sink positions ``[batch, sink]``, -1 where a sequence has fewer sinks than the widest.
        mask: ``[batch, key]``, True on real tokens.
        causal: whether later keys are hidden.
        window: as in :func:`visible_keys`.

    Returns:
        ``[batch, query]``.

    Example:
        >>> queries_after(torch.tensor([[0]]), torch.tensor([[True, True, True, False]])).tolist()
        [[False, True, True, False]]
    """
    position = torch.arange(mask.shape[-1], device=mask.device)
    distance = position.unsqueeze(-1) - sink.unsqueeze(-2)
    allowed = distance > 0 if causal else distance != 0
    if window is not None:
        allowed = allowed & (distance.abs() < window)
    seen = (allowed & (sink >= 0).unsqueeze(-2)).any(-1)
    is_sink = ((distance == 0) & (sink >= 0).unsqueeze(-2)).any(-1)
    return seen & mask & ~is_sink

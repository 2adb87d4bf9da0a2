"""Attention on sinks: received attention, sink mass, and the sink rate in the four conventions that papers use."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import (
    KeyMask,
    Pattern,
    PerHead,
    PerKey,
    QueryMask,
    SinkAttention,
    SinkPositions,
    Visible,
)

SinkRateConvention = Literal["per_sample", "mean_first", "per_query", "mean_mass"]


def received_attention(pattern: Pattern, visible: Visible) -> PerKey:
    """Received attention ``α_k``: the mean of ``A_ik`` over the queries ``i`` that see ``k`` (Gu et al., arXiv 2410.10781).

    The key's own query counts, as in the source.

    Args:
        pattern: ``[batch, head, query, key]``.
        visible: ``[batch, query, key]``, from :func:`~sinklens.metrics.visibility.visible_keys`.

    Returns:
        ``[batch, head, key]`` in 0 to 1; 0 for a key that no query sees.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> received_attention(pattern, torch.tensor([[[True, False], [True, True]]])).flatten().tolist()
        [0.75, 0.5]
    """
    seen = visible.unsqueeze(1)
    return (pattern * seen).sum(-2) / seen.sum(-2).clamp(min=1)


def attention_on(pattern: Pattern, sink: SinkPositions) -> SinkAttention:
    """The attention of every query on each sink, ``A_is``; 0 where a sequence has no such sink.

    Args:
        pattern: ``[batch, head, query, key]``.
        sink: ``[batch, sink]``, -1 where absent.

    Returns:
        ``[batch, head, query, sink]``.

    Example:
        >>> attention_on(torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[1, -1]])).flatten().tolist()
        [0.75, 0.0]
    """
    first = int(sink[0, 0])
    if sink.shape[-1] == 1 and first >= 0 and bool((sink == first).all()):
        return pattern[..., first : first + 1]  # a view, where a gather would copy
    index = sink.clamp(min=0)[:, None, None, :].expand(*pattern.shape[:3], -1)
    return pattern.gather(-1, index) * (sink >= 0)[:, None, None, :]


def sink_mass(attention_on_sink: SinkAttention, queries: QueryMask) -> PerHead:
    """Mean attention on the sinks over ``queries``, usually those after the sink (ours: without the sink's own query).

    Args:
        attention_on_sink: from :func:`attention_on`.
        queries: ``[batch, query]``, the queries to average over
            (:func:`~sinklens.metrics.visibility.queries_after`).

    Returns:
        ``[batch, head]`` in 0 to 1; NaN for a sequence without such a query.

    Example:
        >>> sink_mass(torch.tensor([[[[1.0], [0.5]]]]), torch.tensor([[False, True]])).item()
        0.5
    """
    weight = queries.unsqueeze(1).to(attention_on_sink.dtype)
    return (attention_on_sink.sum(-1) * weight).sum(-1) / weight.sum(-1)


def sink_rate(
    received: Float[Tensor, "sample head"],
    threshold: float = 0.3,
    convention: SinkRateConvention = "per_sample",
    per_query: Float[Tensor, "sample head query"] | None = None,
    queries: Bool[Tensor, "sample query"] | None = None,
) -> Float[Tensor, " head"]:
    """How much of a sink each head is, under a named convention; the mean over heads is the sink rate of the model.

    - ``"per_sample"``: share of samples with received attention ``> threshold`` (Gu et al. 2410.10781, threshold 0.3;
      Barbero et al. 2504.02732 the same with 0.8).
    - ``"mean_first"``: 1 where the mean over samples of the received attention is ``> threshold``, else 0 (ours).
    - ``"per_query"``: share of queries with ``A_is > threshold`` (Baroni et al. 2025).
    - ``"mean_mass"``: mean of ``A_is`` over queries, without a threshold.

    The comparison is strict and made in float32.

    Args:
        received: the sink's received attention per sample, with the sink's own query (:func:`received_attention`).
        threshold: ``ε``.
        convention: one of the four names.
        per_query: ``A_is`` per query, needed by the last two.
        queries: which queries count, needed by the last two.

    Returns:
        ``[head]`` in 0 to 1.

    Raises:
        ValueError: the convention needs ``per_query`` and ``queries`` and they are missing, or it is unknown.

    Example:
        >>> received = torch.tensor([[0.2, 0.9], [0.6, 0.9]])
        >>> sink_rate(received).tolist(), sink_rate(received, convention="mean_first").tolist()
        ([0.5, 1.0], [1.0, 1.0])
    """
    if convention == "per_sample":
        return (received.float() > threshold).float().mean(0)
    if convention == "mean_first":
        return (received.float().mean(0) > threshold).float()
    if convention not in ("per_query", "mean_mass"):
        raise ValueError(f"unknown convention {convention!r}; expected per_sample, mean_first, per_query or mean_mass")
    if per_query is None or queries is None:
        raise ValueError(f"convention {convention!r} needs per_query and queries; pass A_is and the mask of queries")
    attention = per_query.float() if convention == "mean_mass" else (per_query.float() > threshold).float()
    weight = queries.unsqueeze(1).float()
    return (attention * weight).sum((0, 2)) / weight.sum((0, 2))


def detect_sinks(pattern: Pattern, visible: Visible, mask: KeyMask, threshold: float = 0.3) -> SinkPositions:
    """Every position whose mean received attention over later queries exceeds ``threshold`` in at least one head (ours).

    The key's own query does not count: a token that only attends to itself is no sink. Without a causal order the mean
    runs over all other queries. A key seen by fewer than two other queries is never a sink: its mean says nothing.

    Args:
        pattern: ``[batch, head, query, key]``.
        visible: ``[batch, query, key]``.
        mask: ``[batch, key]``, True on real tokens.
        threshold: strict.

    Returns:
        ``[batch, sink]``, ascending, padded with -1; at least one column.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0.8, 0.1, 0.1, 0], [0.7, 0.1, 0.1, 0.1]]]])
        >>> visible = torch.ones(4, 4, dtype=torch.bool).tril().unsqueeze(0)
        >>> detect_sinks(pattern, visible, torch.ones(1, 4, dtype=torch.bool)).tolist()
        [[0]]
    """
    other = visible & ~torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
    enough = other.sum(-2) >= 2
    found = (received_attention(pattern, other) > threshold).any(1) & enough & mask
    return positions_of(found)


def positions_of(found: KeyMask) -> SinkPositions:
    """A mask over keys as ascending positions, padded with -1; at least one column.

    Args:
        found: ``[batch, key]``.

    Returns:
        ``[batch, sink]``.

    Example:
        >>> positions_of(torch.tensor([[True, False, True], [False, True, False]])).tolist()
        [[0, 2], [1, -1]]
    """
    width = max(1, int(found.sum(-1).max()))
    order = (~found).to(torch.int8).argsort(dim=-1, stable=True)[:, :width]
    return torch.where(found.gather(-1, order), order, -1)

"""Semantic drift: how far head outputs leave the cone of the semantic values (arXiv 2606.07604, operational form ours)."""

import torch

from sinklens.axes import HeadOutput, HeadValue, KeyMask, PerHead, PerQuery, QueryMask
from sinklens.metrics.values import cosine, mean_value


def cone_cosine(output: HeadOutput, projected_value: HeadValue, semantic: KeyMask) -> PerQuery:
    """Drift ``cos(o_i, m)``, where the cone's axis ``m`` is the mean of ``ṽ_j`` over the semantic (non-sink) tokens (ours).

    Args:
        output: head outputs in head space ``[batch, query, head, d_head]``, with or without the sink's term.
        projected_value: ``[batch, key, head, d_head]`` in head space.
        semantic: ``[batch, key]``, True on real tokens that are no sink.

    Returns:
        ``[batch, head, query]`` in -1 to 1; NaN for an output of norm 0.

    Example:
        >>> value = torch.tensor([[[[1.0, 0.0]], [[1.0, 0.0]]]])
        >>> cone_cosine(torch.tensor([[[[0.0, 2.0]]]]), value, torch.tensor([[True, True]])).item()
        0.0
    """
    axis = mean_value(projected_value, semantic).unsqueeze(1)
    return cosine(output, axis).transpose(1, 2)


def mean_pairwise_cosine(output: HeadOutput, queries: QueryMask) -> PerHead:
    """Mean cosine between the outputs of two different queries, in time linear in their number.

    ``(||Σ_i ô_i||² - n) / (n (n - 1))`` with unit outputs ``ô_i``. Outputs of norm 0 are left out.

    Args:
        output: ``[batch, query, head, d_head]``.
        queries: ``[batch, query]``, the queries that count.

    Returns:
        ``[batch, head]`` in -1 to 1; NaN with fewer than two outputs.

    Example:
        >>> output = torch.tensor([[[[1.0, 0.0]], [[0.0, 2.0]], [[3.0, 0.0]]]])
        >>> round(mean_pairwise_cosine(output, torch.ones(1, 3) > 0).item(), 4)
        0.3333
    """
    length = output.norm(dim=-1, keepdim=True)
    counted = (length > 0) & queries[:, :, None, None]
    unit = torch.where(counted, output / length.masked_fill(length == 0, 1.0), 0.0)
    n = counted.sum((1, 3)).to(output.dtype)
    return (unit.sum(1).square().sum(-1) - n) / (n * (n - 1)).masked_fill(n < 2, float("nan"))

"""Attention as a switch (arXiv 2605.08453, definitions ours): which queries a head leaves without an output, and what does it.

A *hard switch* is an output near zero, a *soft switch* a token that talks to itself only. An output near zero is carried by
one of :data:`CARRIERS`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.axes import HeadOutput, HeadValue, Pattern, PerHead, PerQuery, QueryMask, SinkPositions
from sinklens.metrics.contributions import inner_products
from sinklens.metrics.patterns import self_attention
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.values import sink_mask

CARRIERS = ("gate", "learned_sink", "sink", "self", "cancellation", "short_values", "mixed")

PerQueryMask = Bool[Tensor, "batch head query"]


def hard_switched(output_norm: PerQuery, scale: PerHead, fraction: float) -> PerQueryMask:
    """Queries whose output is near zero: ``||o_i|| <= fraction · scale`` (ours).

    Not strict, so that an output of exactly 0 is switched off on any scale.

    Args:
        output_norm: ``||o^h_i||`` ``[batch, head, query]``.
        scale: what counts as a full output ``[batch, head]``: :func:`median_norm`, or the mean norm of the values.
        fraction: of the scale.

    Returns:
        ``[batch, head, query]``; False where the scale is NaN.

    Example:
        >>> hard_switched(torch.tensor([[[0.1, 2.0]]]), torch.tensor([[2.0]]), 0.1).flatten().tolist()
        [True, False]
    """
    return output_norm <= fraction * scale.unsqueeze(-1)


def median_norm(output_norm: PerQuery, queries: QueryMask) -> PerHead:
    """The median output norm of each head over the document's own queries; the lower of two middle ones.

    On this scale a head that is off for most queries is never switched off, unless its outputs are exactly 0.

    Args:
        output_norm: ``[batch, head, query]``.
        queries: which queries count ``[batch, query]``.

    Returns:
        ``[batch, head]``; NaN without queries.

    Example:
        >>> median_norm(torch.tensor([[[9.0, 1.0, 2.0, 3.0]]]), torch.tensor([[False, True, True, True]])).item()
        2.0
    """
    return output_norm.masked_fill(~queries.unsqueeze(1), float("nan")).nanmedian(-1).values


def coherence(output_norm: PerQuery, weighted_norms: PerQuery) -> PerQuery:
    """``||Σ_j A_ij ṽ_j|| / Σ_j A_ij ||ṽ_j||``: 1 where all terms point one way, near 0 where they cancel.

    Args:
        output_norm: ``||o_i||`` ``[batch, head, query]``.
        weighted_norms: ``Σ_j A_ij ||ṽ_j||``, the same shape.

    Returns:
        The same shape, 0 to 1; NaN where every value that is attended to has norm 0.

    Example:
        >>> coherence(torch.tensor([[[1.0]]]), torch.tensor([[[4.0]]])).item()
        0.25
    """
    return output_norm / weighted_norms.masked_fill(weighted_norms == 0, float("nan"))


def switch_carrier(
    sink_mass: PerQuery,
    self_mass: PerQuery,
    coherent: PerQuery,
    size: PerQuery,
    learned_mass: PerQuery | None = None,
    open_without_gate: PerQueryMask | None = None,
    *,
    sink_threshold: float = 0.5,
    self_threshold: float = 0.5,
    learned_threshold: float = 0.5,
    cancellation_threshold: float = 0.2,
    short_threshold: float = 0.2,
) -> Int[Tensor, "batch head query"]:
    """What keeps the output of a hard-switched query near zero (ours): the first of :data:`CARRIERS` that applies.

    - ``gate``: without its gate the output would not be near zero.
    - ``learned_sink``: the mass on a learned null key is above its threshold.
    - ``sink``: the mass on the sinks is above its threshold. As the output is short, their value is short or cancels the rest.
    - ``self``: the query's own mass is above its threshold, and its value is short.
    - ``cancellation``: none of these, and the terms cancel: their coherence is below its threshold.
    - ``short_values``: nor that, and the values of the other tokens that it attends to are short: their size is below its
      threshold. They serve as sinks that were not named.
    - ``mixed``: all else.

    Args:
        sink_mass: ``Σ_s A_is`` ``[batch, head, query]``.
        self_mass: ``A_ii``.
        coherent: from :func:`coherence`.
        size: ``Σ_j A_ij ||ṽ_j||`` over the mean norm of the values; the output's norm over the same is ``coherent · size``.
        learned_mass: ``1 - Σ_j A_ij`` where the model has a learned sink, else None.
        open_without_gate: whether the output without the gate is above the limit; None without a gate.
        sink_threshold: strict, as the others.
        self_threshold: of the query's own mass.
        learned_threshold: of the learned sink's mass.
        cancellation_threshold: of the coherence, which must be below it.
        short_threshold: of the size, which must be below it.

    Returns:
        Indices into :data:`CARRIERS` ``[batch, head, query]``; they have a meaning for hard-switched queries only.

    Example:
        >>> masses = [torch.tensor([[row]]) for row in ([0.9, 0.1, 0.1], [0.0, 0.8, 0.1], [0.1, 0.9, 0.1], [1.0, 0.1, 1.0])]
        >>> [CARRIERS[index] for index in switch_carrier(*masses).flatten().tolist()]
        ['sink', 'self', 'cancellation']
    """
    place = {name: torch.tensor(index, device=sink_mass.device) for index, name in enumerate(CARRIERS)}
    carrier = torch.where(size < short_threshold, place["short_values"], place["mixed"])
    carrier = torch.where(coherent < cancellation_threshold, place["cancellation"], carrier)
    carrier = torch.where(self_mass > self_threshold, place["self"], carrier)
    carrier = torch.where(sink_mass > sink_threshold, place["sink"], carrier)
    if learned_mass is not None:
        carrier = torch.where(learned_mass > learned_threshold, place["learned_sink"], carrier)
    return carrier if open_without_gate is None else torch.where(open_without_gate, place["gate"], carrier)


class OutputParts(NamedTuple):
    """Where an output comes from, ``[batch, head, query]`` each, in units of a squared norm: ``<o_i, A_ij ṽ_j>`` summed.

    ``own`` and ``sink`` have a sign; ``own_size``, ``sink_size`` and ``others_size`` are sums of absolute values over the
    query itself, the sinks, and all other keys. Divided by ``||o_i||²`` they are contributions.
    """

    own: PerQuery
    sink: PerQuery
    own_size: PerQuery
    sink_size: PerQuery
    others_size: PerQuery

    @property
    def total_size(self) -> PerQuery:
        """``Σ_j |<o_i, A_ij ṽ_j>|``."""
        return self.own_size + self.sink_size + self.others_size


def output_parts(
    pattern: Pattern, directions: HeadOutput, value: HeadValue, sink: SinkPositions, gate: HeadOutput | None = None
) -> OutputParts:
    """Contributions of the query itself, of the sinks and of all others: communication is the others' part (ours).

    One ``[query, key]`` temporary of the pattern's own size; a query that is itself a sink has its own term in ``sink``.

    Args:
        pattern: ``[batch, head, query, key]``.
        directions: ``u`` of :func:`~sinklens.metrics.intra_directions` or :func:`~sinklens.metrics.inter_directions`.
        value: ``v`` ``[batch, key, head, d_head]``, one per query head.
        sink: ``[batch, sink]``, -1 where absent.
        gate: ``[batch, query, head, d_head]`` of a gated attention.

    Returns:
        :class:`OutputParts`.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.25, 0.25]]]])
        >>> value = torch.tensor([[[[-1.0]], [[4.0]], [[2.0]]]])
        >>> directions = torch.ones(1, 3, 1, 1)
        >>> parts = output_parts(pattern, directions, value, torch.tensor([[0]]))
        >>> [parts.own[0, 0, 2].item(), parts.sink[0, 0, 2].item(), parts.others_size[0, 0, 2].item()]
        [0.5, -0.5, 1.0]
    """
    terms = pattern * inner_products(directions, value, gate)
    at_sinks = attention_on(terms, sink).clone()
    is_sink = sink_mask(sink, pattern.shape[-1])
    terms.masked_fill_(is_sink[:, None, None, :], 0.0)
    own = self_attention(terms).clone()
    self_attention(terms).zero_()
    return OutputParts(own, at_sinks.sum(-1), own.abs(), at_sinks.abs().sum(-1), terms.abs_().sum(-1))

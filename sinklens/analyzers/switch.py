"""Attention as a switch, measured: hard and soft switches, what carries them, whether they need a sink, communication."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sinklens.analyzers.documents import DocumentsAnalyzer
from sinklens.analyzers.run import run
from sinklens.analyzers.sink_terms import sink_term
from sinklens.errors import InputError
from sinklens.metrics.contributions import degenerate, gated_value_norms, inter_directions
from sinklens.metrics.head_space import to_head_space
from sinklens.metrics.patterns import self_attention
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.suppression import DEGENERATE_REST
from sinklens.metrics.switch import (
    CARRIERS,
    OutputParts,
    coherence,
    hard_switched,
    median_norm,
    output_parts,
    switch_carrier,
)
from sinklens.metrics.values import sink_mask
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule
from sinklens.models.tokens import TokenBatch
from sinklens.results.labels import whole_number
from sinklens.results.provenance import Provenance
from sinklens.results.switch import AttentionSwitch, SwitchThresholds
from sinklens.theory.exclusion import zero_exclusion

HULL_DOCUMENTS = 8
_EXCLUSIONS = ("hull_distance", "value_rank", "full_rank", "independent", "zero_excluded", "hard_excluded")


class SwitchAnalyzer(DocumentsAnalyzer):
    """Measures an :class:`~sinklens.AttentionSwitch`.

    Args:
        thresholds: what counts as switched off, and what carries it.
        hull_documents: the exclusion tests are made on the first so many documents, since each is a small program per
            head; None for all, 0 for none.

    Raises:
        InputError: ``hull_documents`` is no such number.

    Example:
        >>> SwitchAnalyzer(hull_documents=0).thresholds.values
        0.1
    """

    kept = AttentionSwitch

    def __init__(self, thresholds: SwitchThresholds | None = None, hull_documents: int | None = HULL_DOCUMENTS):
        number = 0 if hull_documents is None else whole_number(hull_documents)
        if number is None or number < 0:
            raise InputError(f"hull_documents is {hull_documents!r}; expected a number from 0 on, or None for all")
        self.thresholds = _checked(thresholds)
        self.hull_documents = None if hull_documents is None else number

    def begin(self, batch: TokenBatch) -> None:
        """Remember which rows the exclusion tests are made on."""
        super().begin(batch)
        # By the document's own number, so that the choice depends neither on batches nor on lengths.
        self._tested = [self.hull_documents is None or number < self.hull_documents for number in batch.documents]

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        figures = _switches(attention, self.thresholds) | _communication(attention, self.thresholds.soft)
        self.add(attention.index, figures | _exclusions(attention, self._tested, self.thresholds.values))

    def result(self, provenance: Provenance) -> AttentionSwitch:
        """The figures of all batches.

        Raises:
            InputError: no sequence has a sink with a token after it, so that nothing was measured.
        """
        values = self.found("sink_mass", provenance, "token")
        conventions = {**dataclasses.asdict(self.thresholds), "hull_documents": self.hull_documents}
        return AttentionSwitch(values, self.layers, dataclasses.replace(provenance, conventions=conventions))


def _mean(per_query: Tensor, counted: Tensor) -> Tensor:
    """Mean over the queries that count, ``[batch, head]`` float64; NaN where none does."""
    chosen = torch.where(counted, per_query, 0.0).sum(-1, dtype=torch.float64)
    return chosen / counted.expand_as(per_query).sum(-1)


def _value_scale(attention: LayerAttention) -> Tensor:
    """Mean norm of the values of all tokens but the sinks, ``[batch, head]``; ungated, so that a closed gate shows."""
    others = (attention.mask & ~sink_mask(attention.sink, attention.mask.shape[-1])).unsqueeze(1)
    return torch.where(others, attention.value_norm, 0.0).sum(-1) / others.sum(-1)


def _checked(thresholds: Any) -> SwitchThresholds:
    if thresholds is None:
        return SwitchThresholds()
    if not isinstance(thresholds, SwitchThresholds):
        raise InputError(
            f"thresholds are a {type(thresholds).__name__}; expected sinklens.SwitchThresholds, such as "
            "SwitchThresholds(values=0.05)"
        )
    return thresholds


def _switches(attention: LayerAttention, thresholds: SwitchThresholds) -> dict[str, Tensor]:
    rows, norm = attention.queries.unsqueeze(1), attention.head_output.norm(dim=-1).transpose(1, 2)
    on_sink, own = attention_on(attention.pattern, attention.sink), self_attention(attention.pattern)
    mass, term = on_sink.sum(-1), sink_term(attention, on_sink)
    scales = {"median": median_norm(norm, attention.queries), "values": _value_scale(attention)}
    short = hard_switched(term.norm(dim=-1).transpose(1, 2), scales["values"], thresholds.values)
    flags = {"soft_attention": own > thresholds.soft, "on_sink": mass > thresholds.sink}
    flags |= _hard_switches(attention, thresholds, norm, mass, scales)
    flags["hard_values_short_sink"] = flags["hard_values_sink"] & short
    figures = {name: _mean(flag.to(norm.dtype), rows) for name, flag in flags.items()}
    figures["hard_without_sink"] = _without_sink(attention, term, mass, scales["values"], thresholds.values)
    return figures | {"sink_mass": _mean(mass, rows)}


def _hard_switches(
    attention: LayerAttention, thresholds: SwitchThresholds, norm: Tensor, mass: Tensor, scales: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Which queries are hard-switched on each scale, and which of them by which carrier."""
    learned = 1 - attention.pattern.sum(-1) if attention.weights.learned_sink else None
    ungated = None if attention.gate is None else _ungated_norm(attention)
    weighted = _weighted_norms(attention)
    size = weighted / scales["values"].unsqueeze(-1)
    flags: dict[str, Tensor] = {}
    for scale, full in scales.items():
        fraction = getattr(thresholds, scale)
        hard = flags[f"hard_{scale}"] = hard_switched(norm, full, fraction)
        carrier = switch_carrier(
            mass, self_attention(attention.pattern), coherence(norm, weighted), size, learned,
            None if ungated is None else ~hard_switched(ungated, full, fraction),
            sink_threshold=thresholds.sink, self_threshold=thresholds.self_mass,
            learned_threshold=thresholds.learned_sink, cancellation_threshold=thresholds.cancellation,
            short_threshold=thresholds.short_values,
        )  # fmt: skip
        flags |= {f"hard_{scale}_{name}": hard & (carrier == place) for place, name in enumerate(CARRIERS)}
    return flags


def _ungated_norm(attention: LayerAttention) -> Tensor:
    """The norm that each output would have with every gate open."""
    mixed = (attention.pattern @ attention.head_value.transpose(1, 2)).transpose(1, 2)
    return to_head_space(mixed, attention.weights.factor).norm(dim=-1).transpose(1, 2)


def _weighted_norms(attention: LayerAttention) -> Tensor:
    """``Σ_j A_ij ||ṽ_j||`` of the values as each query reads them."""
    if attention.gate is None:
        return (attention.pattern @ attention.value_norm.unsqueeze(-1)).squeeze(-1)
    return (attention.pattern * gated_value_norms(attention.head_value, attention.W_O, attention.gate)).sum(-1)


def _without_sink(attention: LayerAttention, term: Tensor, mass: Tensor, scale: Tensor, fraction: float) -> Tensor:
    """Share of queries that would be hard-switched by the mixture of the other tokens, where there is one."""
    # A learned sink takes part in no mixture: what is left of the row counts as the whole.
    rest = (attention.pattern.sum(-1) if attention.weights.learned_sink else 1) - mass
    others = (attention.head_output - term).norm(dim=-1).transpose(1, 2)
    defined = rest > DEGENERATE_REST
    hard = hard_switched(others / rest.masked_fill(~defined, 1.0), scale, fraction)
    return _mean(hard.to(others.dtype), attention.queries.unsqueeze(1) & defined)


def _communication(attention: LayerAttention, soft: float) -> dict[str, Tensor]:
    """What comes from other tokens than the query and the sink: within each head, and in the layer's output."""
    rows = attention.queries.unsqueeze(1)
    intra = to_head_space(attention.head_output, attention.weights.factor.mT)
    squared = attention.head_output.square().sum(-1).transpose(1, 2)
    parts, defined = _parts(attention, intra), rows & ~degenerate(squared)
    total = parts.total_size.masked_fill(~defined, 1.0)
    own = (parts.own / squared.masked_fill(~defined, 1.0) > soft).to(total.dtype)
    figures = {"communication": _mean(parts.others_size / total, defined), "soft_contribution": _mean(own, defined)}
    inter, squared = inter_directions(attention.output, attention.W_O)
    parts, defined = _parts(attention, inter), rows & ~degenerate(squared)
    total = parts.total_size.sum(1, keepdim=True).masked_fill(~defined, 1.0)
    squared = squared.masked_fill(~defined, 1.0)
    sizes = {"self": parts.own_size, "sink": parts.sink_size, "others": parts.others_size}
    signed = {"self": parts.own, "sink": parts.sink}
    figures |= {f"layer_{name}": _mean(size / total, defined) for name, size in sizes.items()}
    return figures | {f"layer_signed_{name}": _mean(part / squared, defined) for name, part in signed.items()}


def _parts(attention: LayerAttention, directions: Tensor) -> OutputParts:
    return output_parts(attention.pattern, directions, attention.head_value, attention.sink, attention.gate)


def _exclusions(attention: LayerAttention, tested: list[bool], fraction: float) -> dict[str, Tensor]:
    """The exclusion tests of each head on the sequences chosen, on values without a gate.

    A gate that is nowhere 0 cannot move 0 into a hull, but it shortens outputs: how short they can be is then not known.
    """
    others = attention.mask & ~sink_mask(attention.sink, attention.mask.shape[-1])
    found = torch.full((len(_EXCLUSIONS), *attention.pattern.shape[:2]), float("nan"), dtype=torch.float64)
    for row in (row for row, chosen in enumerate(tested) if chosen and bool(attention.queries[row].any())):
        values = attention.projected_value[row, others[row]].detach().cpu()
        for head in range(attention.n_heads):
            one = zero_exclusion(values[:, head])
            hard = float("nan") if attention.gate is not None else one.excluded and one.relative_distance > fraction
            row_of = (one.relative_distance, one.rank, one.full_rank, one.independent, one.excluded, hard)
            found[:, row, head] = torch.tensor(row_of, dtype=torch.float64)
    return dict(zip(_EXCLUSIONS, found, strict=True))


def attention_switch(
    model: Any,
    texts: Any,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    thresholds: SwitchThresholds | None = None,
    hull_documents: int | None = HULL_DOCUMENTS,
    progress: bool = True,
    **tokenization: Any,
) -> AttentionSwitch:
    """Is attention used as a switch? Hard and soft switches of every head, what carries them, and communication.

    The paper (arXiv 2605.08453) calls a *hard switch* a head whose output is near zero for some tokens, a *soft switch* a
    token that attends to itself only; how both are measured is ours (:mod:`sinklens.metrics.switch`):

    - hard: ``||o^h_i||`` at most a fraction of the head's median over the document's own queries, and, on a scale that heads
      have in common, of the mean norm of the projected values without the sink. A head that is always off shows on the
      second only.
    - carriers: the shares of hard-switched queries that the sink, the query itself, cancellation, short values of other tokens,
      a learned sink or a gate account for; the rest is mixed.
    - exclusion: if the convex hull of the projected values of all other tokens keeps away from 0, no pattern gives an
      output of zero without a sink.
    - communication: the share of ``Σ_j |c_ij|`` from keys that are neither the query nor a sink; near 0 the head, or the
      layer, acts as an MLP does, token by token.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes.
        layers: the model's own layer numbers; None for all.
        sink: ``"first"``, ``"token:ID"``, positions, or ``"detect"`` (:func:`sinklens.sink_rule`).
        thresholds: all that decides; recorded in the result's conventions.
        hull_documents: the exclusion tests are made on those of the first so many documents of the text that are not left out
            as too short; None for all, 0 for none.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        An :class:`~sinklens.AttentionSwitch`.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given; values that are NaN.
        HookNotFiredError: a hook did not fire exactly once.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    analyzer = SwitchAnalyzer(thresholds, hull_documents)
    [found] = run(model, texts, [analyzer], layers=layers, sink=sink, progress=progress, **tokenization)
    return found

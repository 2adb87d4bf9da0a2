"""The hooks that take a fraction of an attention layer's terms ``A_ij v_j`` out of the heads' outputs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sinklens.axes import Pattern
from sinklens.errors import HookNotFiredError, InputError, UnsupportedAttentionError
from sinklens.interventions.edited import EditedHeads, edited_heads, keep_edited
from sinklens.interventions.hooks import require_whole_sequences
from sinklens.masking.rule import MaskingRule, check_fractions, check_metrics, check_modes, masking_rule
from sinklens.masking.scores import Metric
from sinklens.metrics.ranking import Mode, Ranks, Terms
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import Hook, LayerReader
from sinklens.models.hook_names import GATE, PATTERN, VALUE, Z
from sinklens.models.layer import LayerAttention, LayerWeights, at_least_float32
from sinklens.models.running import running_sequences
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.verify import layout_failure


class RankMasking(list[Hook]):
    """``(hook_name, function)`` pairs that remove a fraction of terms in every pass; made by :func:`mask_by_metric`.

    They go into ``model.run_with_hooks(tokens, fwd_hooks=...)`` or ``model.hooks``. ``hook_z`` is what is edited, which
    works wherever the pattern comes before it. :meth:`use` tells them which tokens of the next pass are real; without it all are.

    Attributes:
        metric: what ranks the terms.
        fraction: how much of them goes, 0 to 1.
        mode: ``comprehensiveness`` removes the highest, ``sufficiency`` the lowest.
        removed: terms removed so far ``[batch]``, all layers and heads together; since :meth:`use`, or since the batch
            has this size.
        rankable: the terms that could have been ``[batch]``.
        may_change_nothing: of a small fraction of few terms none may go, which is no mistake.
    """

    may_change_nothing = True

    def __init__(
        self, reader: LayerReader, rule: MaskingRule, metric: Metric, fraction: float, mode: Mode,
        weights: Callable[[int, torch.device], LayerWeights] | None = None, places: Mapping[int, Ranks] | None = None,
    ):  # fmt: skip
        self.rule, self.fraction = rule, fraction
        self.metric: Metric = metric
        self.mode: Mode = mode
        self._places = places
        self.tokens: Tensor | None = None
        self.removed = self.rankable = torch.zeros(0)
        layers = LayerHooks.of_all(reader, self._edit, self._given, weights)
        super().__init__(hook for layer in layers for hook in layer.hooks())

    def use(self, tokens: Tensor, mask: Tensor) -> None:
        """Say what the next passes run on, and count from 0.

        Args:
            tokens: ``[batch, position]``.
            mask: True on real tokens.
        """
        self.tokens, self.mask = tokens, mask
        self.removed, self.rankable = torch.zeros(2, len(tokens), dtype=torch.float64)

    def _given(self) -> tuple[Tensor, Tensor] | None:
        return running_sequences() or (None if self.tokens is None else (self.tokens, self.mask))

    def _edit(self, view: LayerAttention, z: Tensor) -> tuple[Tensor, Tensor]:
        rankable = self.rule.rankable(view)
        places = None if self._places is None else self._places[view.layer]
        removed = self.rule.removed(view, self.metric, self.fraction, self.mode, rankable, places)
        if len(self.removed) != len(removed):  # not told of the batch: count from its first layer on
            self.removed, self.rankable = torch.zeros(2, len(removed), dtype=torch.float64)
        self.removed += removed.sum((1, 2, 3)).cpu()
        self.rankable += rankable.sum((1, 2, 3)).cpu()
        kept = kept_pattern(view.pattern, removed, self.rule.renormalize)
        return without_terms(view, z, kept), kept

    def __repr__(self) -> str:
        end = "highest" if self.mode == "comprehensiveness" else "lowest"
        return f"RankMasking(the {end} {self.fraction:.3g} by {self.metric}, per {self.rule.granularity}; {len(self)} hooks)"


def kept_pattern(pattern: Pattern, removed: Terms, renormalize: bool = False) -> Pattern:
    """The pattern without the removed terms ``[batch, head, query, key]``.

    Args:
        pattern: ``[batch, head, query, key]``.
        removed: True on terms that go, in the same shape.
        renormalize: scale what is left of a row to the row's former sum; a row of which nothing is left is 0.

    Example:
        >>> kept_pattern(torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[[[True, False]]]]), renormalize=True).tolist()
        [[[[0.0, 1.0]]]]
    """
    kept = pattern.masked_fill(removed, 0.0)
    if not renormalize:
        return kept
    left, whole = kept.sum(-1, keepdim=True), pattern.sum(-1, keepdim=True)
    return kept * torch.where(left > 0, whole / left.clamp(min=torch.finfo(left.dtype).tiny), 0.0)


def without_terms(view: LayerAttention, z: Tensor, kept: Pattern) -> Tensor:
    """The heads' outputs ``z_i + γ_i ⊙ Σ_j (kept_ij - A_ij) v_j``; where nothing changes, the very same numbers.

    A difference, so that what another edit has made of the outputs stays.

    Args:
        view: the layer's tensors.
        z: the outputs as they came ``[batch, query, head, d_head]``.
        kept: the pattern without the removed terms ``[batch, head, query, key]``.

    Returns:
        In the shape and dtype of ``z``.
    """
    gone = kept - view.pattern
    change = (gone @ view.head_value.transpose(1, 2)).transpose(1, 2)
    change = change if view.gate is None else change * view.gate
    touched = (gone != 0).any(-1).transpose(1, 2).unsqueeze(-1)
    return torch.where(touched.to(z.device), (at_least_float32(z) + change.to(z.device)).to(z.dtype), z)


class LayerHooks:
    """Looks at a layer's pattern, values and gate as they come, and hands its view to a function at ``hook_z``.

    What the function returns replaces ``z``, and the pattern for the edits that follow in the pass; None leaves both.
    """

    def __init__(
        self, reader: LayerReader, index: int, layer: int,
        receive: Callable[[LayerAttention, Tensor], tuple[Tensor, Tensor] | None],
        given: Callable[[], tuple[Tensor, Tensor] | None],
        weights: Callable[[int, torch.device], LayerWeights] | None = None,
    ):  # fmt: skip
        self.reader, self.index, self.layer, self.receive, self.given = reader, index, layer, receive, given
        self.weights = weights or reader.weights
        attention = reader.attention
        self.watched = [PATTERN, VALUE, *([GATE] if attention.is_gated else [])]
        self.names = {template: attention.hook(template, layer) for template in (*self.watched, Z)}
        self.seen: dict[str, Tensor] = {}

    @classmethod
    def of_all(cls, reader: LayerReader, *arguments: Any) -> "list[LayerHooks]":
        """One for each layer of the reader."""
        return [cls(reader, index, layer, *arguments) for index, layer in enumerate(reader.attention.layers)]

    def hooks(self) -> list[Hook]:
        """What goes onto the model.

        Raises:
            HookNotFiredError: the layer lacks a hook.
        """
        for template, name in self.names.items():
            if name is None:
                raise HookNotFiredError(
                    f"layer {self.layer} has no hook {template!r}; leave the layer out with layers=[...]"
                )
        return [*((str(self.names[template]), self._watch(template)) for template in self.watched),
                (str(self.names[Z]), self._at_z)]  # fmt: skip

    def _watch(self, template: str) -> Callable[..., None]:
        def keep(tensor: Tensor, hook: Any) -> None:
            self.seen[template] = tensor

        return keep

    def _at_z(self, z: Tensor, hook: Any) -> Tensor | None:
        seen, self.seen = self.seen, {}
        missing = [template for template in self.watched if template not in seen]
        attention = self.reader.attention
        if missing:
            # Some adapters (OPT, GPT-J, BERT) let the wrapped module compute attention, and show its pattern afterwards.
            raise UnsupportedAttentionError(
                f"{attention.name}, layer {self.layer}: {missing[0].format(layer=self.layer)!r} did not fire before the head "
                f"outputs, so no term can be taken out of them: pass all hooks of a masking together; if they were, "
                f"{attention.backend} computes this attention inside the wrapped module, and the model has to be loaded "
                "as a HookedTransformer (TransformerLens 3)"
            )
        apart = attention.heads_apart(Z, self.layer, z)
        view = self._view(seen, apart.detach())
        edited = self.receive(view, apart)
        if edited is None:
            return None
        keep_edited(seen[VALUE], EditedHeads(edited[1], view.head_value))
        return attention.as_hooked(Z, self.layer, edited[0], z)

    def _view(self, seen: Mapping[str, Tensor], z: Tensor) -> LayerAttention:
        found = edited_heads(seen[VALUE])
        value = self.reader.attention.heads_apart(VALUE, self.layer, seen[VALUE]) if found is None else found.value
        pattern = seen[PATTERN] if found is None else found.pattern
        weights = self.weights(self.layer, pattern.device)
        self.reader.require(self.layer, layout_failure(pattern, value, z, weights.W_O))
        require_whole_sequences(pattern, "maskings")
        tokens, mask = self._tokens(len(pattern), pattern.shape[-1])
        tensors = {**seen, PATTERN: pattern, VALUE: value, Z: z}
        apart = {template: tensor.detach() for template, tensor in tensors.items()}
        return self.reader.view(self.index, self.layer, apart, tokens, mask, weights)

    def _tokens(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        given = self.given()
        if given is None:
            # All real; the row's number in place of its tokens, so that each row has random scores of its own.
            return torch.arange(batch).unsqueeze(-1).expand(batch, length), torch.ones(batch, length, dtype=torch.bool)
        if given[0].shape != (batch, length):
            raise InputError(
                f"the pass runs on {batch} sequences of {length} tokens, the masking was told of "
                f"{tuple(given[0].shape)}; call use(tokens, mask) before the pass"
            )
        return given


def mask_by_metric(
    model: Any,
    metric: str,
    fraction: float,
    *,
    mode: str = "comprehensiveness",
    granularity: str = "pair",
    ranking: str = "signed",
    layers: Iterable[int] | None = None,
    exempt: str | Iterable[str] = (),
    sink: Sink | SinkRule = "first",
    renormalize: bool = False,
    seed: int = 0,
) -> RankMasking:
    """Hooks that remove the terms ``A_ij v_j`` that a metric ranks highest, or lowest, in each layer of the pass that runs.

    Scores come from the layer's own tensors in that pass, in which the layers before are masked already. Of ``n``
    rankable terms of a row ``floor(fraction · n)`` go; only keys that a query sees are ranked (arXiv 2606.07604; details ours).

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        metric: ``attention``, ``value_weighted``, ``output_normalized``, ``intra``, ``inter`` or ``random``.
        fraction: 0 to 1.
        mode: ``"comprehensiveness"`` removes the highest, ``"sufficiency"`` the lowest.
        granularity: ``"pair"`` ranks per query over (head, key), ``"edge"`` per (head, query) over keys, ``"token"`` per
            sequence over keys by the mean over heads and the queries that see them.
        ranking: ``"signed"`` or ``"absolute"`` contributions.
        layers: the model's own layer numbers; None for all.
        exempt: ``"sink"`` and ``"self"`` terms are neither ranked nor removed.
        sink: which positions are sinks, for ``exempt``.
        renormalize: whether what is left of a row is scaled to the row's former sum.
        seed: of the random metric.

    Returns:
        A :class:`RankMasking`: a list for ``model.run_with_hooks(tokens, fwd_hooks=...)``.

    Raises:
        InputError: an argument is out of place.
        UnsupportedAttentionError: the model has no attention that can be read; in a pass, its pattern comes too late.
    """
    rule = masking_rule(granularity, ranking, exempt, renormalize, seed)
    [name], [part], [how] = check_metrics(metric), check_fractions(fraction), check_modes(mode)
    return RankMasking(LayerReader(ModelAttention(model, layers), sink_rule(sink)), rule, name, part, how)

"""The view of one layer's attention on one batch: what every metric reads, the same for all models."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.axes import (
    Factor,
    HeadOutput,
    HeadValue,
    KeyMask,
    LayerInput,
    LayerOutput,
    OutputWeight,
    Pattern,
    PerKey,
    QueryMask,
    SinkPositions,
    Value,
    Visible,
)
from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.metrics.contributions import layer_output
from sinklens.metrics.head_space import expand_kv_heads, to_head_space
from sinklens.metrics.visibility import queries_after, visible_counts, visible_keys
from sinklens.models.hook_names import ATTENTION_INPUT
from sinklens.models.sinks import SinkRule


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself, or its float32 copy where the model runs in half precision."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True)
class LayerWeights:
    """What a layer's attention has whatever the text is.

    Attributes:
        W_O: output weights ``[head, d_head, d_model]``, in float32 at least.
        b_O: output bias ``[d_model]``, or None.
        factor: ``F`` with ``F Fᵀ = W_O W_Oᵀ`` per head (:func:`~sinklens.metrics.head_space.head_factor`).
        causal: whether later keys are hidden.
        window: how many keys back a query sees, its own included; None for all.
        learned_sink: whether a learned logit takes part in the softmax without being a key.
    """

    W_O: OutputWeight
    b_O: Float[Tensor, " d_model"] | None
    factor: Factor
    causal: bool
    window: int | None
    learned_sink: bool


@dataclass
class LayerAttention:
    """One layer's attention on one batch, in float32 at least; what is derived from it is computed once, when asked for.

    An analyzer gets one of these per layer and batch. Under ``mask`` False stands padding, which no statistic may count.

    Attributes:
        layer: the model's own number of the layer.
        index: its row in results.
        pattern: ``A`` ``[batch, head, query, key]``.
        value: ``v`` with its bias ``[batch, key, kv_head, d_head]``.
        z: head outputs before ``W_O``, after a gate ``[batch, query, head, d_head]``.
        gate: ``γ`` ``[batch, query, head, d_head]`` of a gated attention, else None.
        weights: ``W_O``, ``b_O`` and the visibility rule.
        mask: True on real tokens ``[batch, key]``.
        tokens: token ids ``[batch, position]``.
        sink_rule: how sinks are chosen.
        captured: the tensors of the hooks that analyzers asked for, by template.
        input_failure: why attention's input is not known, where an analyzer asked for it in vain.
    """

    layer: int
    index: int
    pattern: Pattern
    value: Value
    z: HeadOutput
    gate: HeadOutput | None
    weights: LayerWeights
    mask: KeyMask
    tokens: Int[Tensor, "batch position"]
    sink_rule: SinkRule
    module_output: LayerOutput | None = None
    captured: Mapping[str, Tensor] = field(default_factory=dict)
    input_failure: str | None = None

    @property
    def W_O(self) -> OutputWeight:
        """Output weights ``[head, d_head, d_model]``."""
        return self.weights.W_O

    @property
    def n_heads(self) -> int:
        """The number of query heads."""
        return self.pattern.shape[1]

    @property
    def attention_input(self) -> LayerInput:
        """What ``W_Q``, ``W_K`` and ``W_V`` multiply ``[batch, position, d_model]``: after the norm, where one comes before.

        An analyzer that reads it names ``hook_names.ATTENTION_INPUT`` among its ``hooks``.

        Raises:
            UnsupportedAttentionError: it could not be established for this layer (``input_failure`` says why).
            InputError: no analyzer asked for it.
        """
        if self.input_failure is not None:
            raise UnsupportedAttentionError(f"layer {self.layer}: {self.input_failure}; leave the layer out")
        if ATTENTION_INPUT not in self.captured:
            raise InputError(
                "attention's input was not captured; name sinklens.models.hook_names.ATTENTION_INPUT in the analyzer's hooks"
            )
        return self.captured[ATTENTION_INPUT]

    @cached_property
    def head_value(self) -> HeadValue:
        """The values as each query head reads them ``[batch, key, head, d_head]``."""
        return expand_kv_heads(self.value, self.n_heads)

    @cached_property
    def projected_value(self) -> HeadValue:
        """The projected values in head space, without a gate ``[batch, key, head, d_head]``."""
        return to_head_space(self.head_value, self.weights.factor)

    @cached_property
    def value_norm(self) -> PerKey:
        """``||ṽ_j||`` without a gate ``[batch, head, key]``."""
        return self.projected_value.norm(dim=-1).transpose(1, 2)

    @cached_property
    def head_output(self) -> HeadOutput:
        """The heads' outputs ``o^h_i`` in head space ``[batch, query, head, d_head]``."""
        return to_head_space(self.z, self.weights.factor)

    @cached_property
    def output(self) -> LayerOutput:
        """The layer's output ``o_i`` without ``b_O`` ``[batch, query, d_model]``."""
        if self.module_output is None:
            return layer_output(self.z, self.W_O)
        return self.module_output if self.weights.b_O is None else self.module_output - self.weights.b_O

    @cached_property
    def visible(self) -> Visible:
        """Which keys each query sees ``[batch, query, key]``; quadratic in the length."""
        return visible_keys(self.mask, self.weights.causal, self.weights.window)

    @cached_property
    def visible_count(self) -> Int[Tensor, "batch query"]:
        """How many keys each query sees ``[batch, query]``; linear in the length."""
        return visible_counts(self.mask, self.weights.causal, self.weights.window)

    @cached_property
    def sink(self) -> SinkPositions:
        """Sink positions ``[batch, sink]``, -1 where absent; a rule that detects them may choose others in each layer."""
        return self.sink_rule.positions(self.tokens, self.mask, lambda: (self.pattern, self.visible))

    @cached_property
    def queries(self) -> QueryMask:
        """The queries over which statistics are averaged: real, after the sink, able to see it ``[batch, query]``."""
        return queries_after(self.sink, self.mask, self.weights.causal, self.weights.window)

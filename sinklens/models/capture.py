"""One forward pass that hands over each layer's attention as soon as it is complete, and keeps none of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import HookNotFiredError
from sinklens.metrics.head_space import head_factor
from sinklens.models.attention import ModelAttention
from sinklens.models.hook_names import PATTERN, VALUE, Z
from sinklens.models.layer import LayerAttention, LayerWeights, at_least_float32
from sinklens.models.sinks import SinkRule
from sinklens.models.verify import Identities, compare

Hook = tuple[str, Callable[..., Any]]


@contextmanager
def hooked(model: Any, hooks: Sequence[Hook]) -> Iterator[Callable[..., Any]]:
    """Add hooks for one block of code; gives a function that runs the model once and checks that each hook fired once.

    The hooks are removed afterwards whatever happens; hooks that the user put on the model stay and fire.

    Raises:
        HookNotFiredError: the model has no hook of that name, or it did not fire exactly once in a forward pass.
    """
    missing = [name for name, _ in hooks if name not in model.hook_dict]
    if missing:
        raise HookNotFiredError(f"the model has no hook {missing[0]!r}; see model.hook_dict for the names it has")
    fired: Counter[int] = Counter()

    def counted(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: Tensor, hook: Any) -> Any:
            fired[number] += 1
            return function(tensor, hook=hook)

        return call

    def forward(tokens: Tensor, **arguments: Any) -> Any:
        fired.clear()
        logits = model(tokens, **arguments)
        _require_once(hooks, fired)
        return logits

    with model.hooks(fwd_hooks=[(name, counted(i, function)) for i, (name, function) in enumerate(hooks)]):
        yield forward


def _require_once(hooks: Sequence[Hook], fired: Counter[int]) -> None:
    for number, (name, _) in enumerate(hooks):
        if fired[number] != 1:
            raise HookNotFiredError(
                f"the hook {name!r} fired {fired[number]} times in a forward pass; expected once. "
                "The attention is not run eagerly, or the layer is skipped: load the model with eager attention"
            )


class LayerReader:
    """Runs batches through a model and gives each layer's attention to a function while the pass goes on.

    One layer is in memory at a time. On the first batch each layer's decomposition is verified, and the hook that holds
    its output is found (:mod:`sinklens.models.verify`).
    """

    def __init__(self, attention: ModelAttention, sink: SinkRule, extra_hooks: Sequence[str] = ()):
        self.attention = attention
        self.sink = sink
        self.extra_hooks = tuple(dict.fromkeys(extra_hooks))
        self.identities: dict[int, Identities] = {}
        self._factors: dict[int, Tensor] = {}

    def read(self, tokens: Tensor, mask: Tensor, receive: Callable[[LayerAttention], object]) -> None:
        """Run one batch; ``receive`` is called once per layer, in the order in which layers complete.

        Args:
            tokens: ``[batch, position]``.
            mask: True on real tokens; padding on the right.
            receive: gets each layer's attention. What it raises ends the pass.

        Raises:
            HookNotFiredError: a hook that was asked for did not fire once.
            UnsupportedAttentionError: a layer does not decompose.
        """
        device = self.attention.device
        pending = [_PendingLayer(self, index, layer, tokens, mask, receive) for index, layer in enumerate(self.attention.layers)]
        hooks = [hook for layer in pending for hook in layer.hooks()]
        # Causal attention never looks at padding on the right; a mask would only make the pass slower.
        arguments = {} if self.attention.is_causal or bool(mask.all()) else {"attention_mask": mask.long().to(device)}
        with torch.no_grad(), hooked(self.attention.model, hooks) as forward:
            forward(tokens.to(device), return_type=None, **arguments)

    def weights(self, layer: int, device: torch.device) -> LayerWeights:
        """The layer's weights on a device. Only the head factor is kept: float32 copies of every layer would fill memory."""
        attention = self.attention
        W_O, b_O = (None if weight is None else weight.to(device) for weight in attention.output_weights(layer))
        assert W_O is not None
        if layer not in self._factors:
            self._factors[layer] = head_factor(W_O)
        return LayerWeights(
            W_O, b_O, self._factors[layer], attention.is_causal, attention.window(layer), attention.has_learned_sink(layer)
        )

    def output_hooks(self, layer: int) -> list[str]:
        """All candidates on the first batch, then the one that was found; none where heads must be summed instead."""
        if layer not in self.identities:
            return self.attention.output_hooks(layer)
        found = self.identities[layer].output_hook
        # A norm in between, or a half-precision output that is rounded more coarsely than the sum of contributions.
        usable = found in self.attention.output_hooks(layer) and self.attention.dtype in ("float32", "float64")
        return [found] if found is not None and usable else []

    def verify(self, view: LayerAttention, outputs: dict[str, Tensor]) -> None:
        """Compare a layer's tensors with the identities, and remember the result.

        Raises:
            UnsupportedAttentionError: a layer does not decompose.
        """
        gain = post_norm_gain(self.attention, view.layer)
        identities = compare(view, outputs, self.attention.dtype, gain)
        identities.require(self.attention.name)
        self.identities[view.layer] = identities


def post_norm_gain(attention: ModelAttention, layer: int) -> Tensor | None:
    """The gain of a HookedTransformer's norm after attention (Gemma-2), beyond which its output hook lies."""
    block = attention.model.blocks[layer]
    if getattr(attention.model.cfg, "use_normalization_after", False) and hasattr(block, "ln1_post"):
        return getattr(block.ln1_post, "w", None)
    return None


class _PendingLayer:
    """Collects one layer's tensors during a pass and hands them over, then forgets them, when the last one has come."""

    def __init__(
        self, reader: LayerReader, index: int, layer: int, tokens: Tensor, mask: Tensor,
        receive: Callable[[LayerAttention], object],
    ):  # fmt: skip
        self.reader, self.index, self.layer = reader, index, layer
        self.tokens, self.mask, self.receive = tokens, mask, receive
        attention = reader.attention
        self.outputs = reader.output_hooks(layer)
        self.gate = attention.gate_hook(layer)
        self.names = {name: attention.hook(name, layer) for name in (PATTERN, VALUE, Z, *reader.extra_hooks)}
        self.tensors: dict[str, Tensor] = {}

    def hooks(self) -> list[Hook]:
        """The hooks this layer needs, each name once."""
        for template, name in self.names.items():
            if name is None:
                raise HookNotFiredError(
                    f"layer {self.layer} has no hook {template!r}; expected a template such as "
                    "'blocks.{layer}.hook_resid_pre' that is in model.hook_dict"
                )
        wanted = [*(name for name in self.names.values() if name), *self.outputs, *([self.gate] if self.gate else [])]
        self.expected = tuple(dict.fromkeys(wanted))
        return [(name, self._keep(name)) for name in self.expected]

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(tensor: Tensor, hook: Any) -> None:
            self.tensors[name] = tensor.detach()
            if len(self.tensors) == len(self.expected):
                self._hand_over()

        return keep

    def _hand_over(self) -> None:
        taken, self.tensors = self.tensors, {}
        outputs = {name: taken[name] for name in self.outputs}
        view = self._view(taken)
        if self.layer not in self.reader.identities:
            self.reader.verify(view, outputs)
            chosen = self.reader.output_hooks(self.layer)
        else:
            chosen = self.outputs
        view.module_output = at_least_float32(outputs[chosen[0]]).to(view.z.device) if chosen else None
        self.receive(view)

    def _view(self, taken: dict[str, Tensor]) -> LayerAttention:
        pattern = at_least_float32(taken[str(self.names[PATTERN])])
        value, z = (at_least_float32(taken[str(self.names[name])]).to(pattern.device) for name in (VALUE, Z))
        gate = torch.sigmoid(at_least_float32(taken[self.gate])).view_as(z) if self.gate else None
        return LayerAttention(
            layer=self.layer, index=self.index, pattern=pattern, value=value, z=z, gate=gate,
            weights=self.reader.weights(self.layer, pattern.device), mask=self.mask.to(pattern.device),
            tokens=self.tokens.to(pattern.device), sink_rule=self.reader.sink,
            captured={name: taken[str(self.names[name])] for name in self.reader.extra_hooks},
        )  # fmt: skip

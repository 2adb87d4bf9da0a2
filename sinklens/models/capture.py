"""One forward pass that hands over each layer's attention as soon as it is complete, and keeps none of it."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import HookNotFiredError, InputError, UnsupportedAttentionError
from sinklens.metrics.contributions import layer_output
from sinklens.metrics.head_space import head_factor
from sinklens.models.attention import ModelAttention
from sinklens.models.environment import one_line
from sinklens.models.factors import cached_head_factor
from sinklens.models.hook_names import ADDED, ATTENTION_INPUT, GATE, NORMED_VALUE, PATTERN, VALUE, Z, at_layer
from sinklens.models.inputs import AttentionInputs, InputSource
from sinklens.models.layer import LayerAttention, LayerWeights, at_least_float32
from sinklens.models.residual import require_frame, residual_gain
from sinklens.models.sinks import SinkRule
from sinklens.models.verify import SAMPLED_QUERIES, Identities, compare, layout_failure

Hook = tuple[str, Callable[..., Any]]


@contextmanager
def hooked(model: Any, hooks: Sequence[Hook]) -> Iterator[Callable[..., Any]]:
    """Add hooks for one block of code; gives a function that runs the model once and checks that each hook fired once.

    The hooks are removed afterwards whatever happens; hooks that the user put on the model stay and fire.

    Raises:
        HookNotFiredError: the model has no hook of that name, or it did not fire exactly once in a forward pass.
    """
    known = model.hook_dict
    missing = [name for name, _ in hooks if name not in known]
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

    attached = [(name, counted(i, function)) for i, (name, function) in enumerate(hooks)]
    with ExitStack() as stack:
        try:
            stack.enter_context(model.hooks(fwd_hooks=attached))
        except (AssertionError, ValueError) as error:  # a hook behind a flag that is off
            raise HookNotFiredError(f"a hook cannot fire: {one_line(error)}") from error
        yield forward


def _require_once(hooks: Sequence[Hook], fired: Counter[int]) -> None:
    for number, (name, _) in enumerate(hooks):
        if fired[number] != 1:
            raise HookNotFiredError(
                f"the hook {name!r} fired {fired[number]} times in a forward pass; expected once. "
                "The attention is not run eagerly (load the model with eager attention), or a flag turns the hook off"
            )


class LayerReader:
    """Runs batches through a model and gives each layer's attention to a function while the pass goes on.

    One layer is in memory at a time. ``extra_hooks`` are templates of further hooks to capture. A layer that does not
    decompose raises, or is told to ``on_failure`` where that is given. On the first batch each layer's decomposition is
    verified, and the hook that holds its output is found (:mod:`sinklens.models.verify`).
    """

    def __init__(
        self,
        attention: ModelAttention,
        sink: SinkRule,
        extra_hooks: Sequence[str] = (),
        on_failure: Callable[[int, str], object] | None = None,
        sampled: int | None = SAMPLED_QUERIES,
        frame: str = "attention",
    ):
        self.attention = attention
        self.frame = require_frame(frame)
        self.residual_weights: dict[int, LayerWeights | None] = {}
        self.on_failure = on_failure
        self.sampled = sampled
        self.sink = sink
        self.inputs = AttentionInputs(attention) if ATTENTION_INPUT in extra_hooks else None
        self.extra_hooks = tuple(name for name in dict.fromkeys(extra_hooks) if name != ATTENTION_INPUT)
        self.identities: dict[int, Identities] = {}

    def read(
        self, tokens: Tensor, mask: Tensor, receive: Callable[[LayerAttention], object], pixels: Tensor | None = None
    ) -> None:
        """Run one batch; ``receive`` is called once per layer, in the order in which layers complete.

        Args:
            tokens: ``[batch, position]``.
            mask: True on real tokens; padding on the right.
            receive: gets each layer's attention. What it raises ends the pass.
            pixels: ``[batch, channel, row, column]``, which a model of images is given in place of the tokens.

        Raises:
            HookNotFiredError: a hook that was asked for did not fire once.
            UnsupportedAttentionError: a layer does not decompose.
        """
        pending = [
            _PendingLayer(self, index, layer, tokens, mask, receive)
            for index, layer in enumerate(self.attention.layers)
        ]
        hooks = [hook for layer in pending for hook in layer.hooks()]
        arguments = self.attention.mask_arguments(mask)
        with torch.no_grad(), hooked(self.attention.model, hooks) as forward:
            given = tokens if pixels is None else pixels
            forward(given.to(self.attention.device), return_type=None, **arguments)

    def replay(
        self,
        index: int,
        layer: int,
        tokens: Tensor,
        cache: Any,
        receive: Callable[[LayerAttention], object],
    ) -> None:
        """Give one layer of a cache to ``receive`` as :meth:`read` would; hooks may be cached under any of their names.

        Args:
            index: the layer's row in results.
            layer: the model's own number.
            tokens: ``[1, position]``, all real.
            cache: activations of one prompt by hook name, with or without the batch axis; ``ActivationCache`` is no ``Mapping``.
            receive: gets the layer's attention.

        Raises:
            InputError: the cache lacks an activation, or holds more than one prompt.
            UnsupportedAttentionError: the layer does not decompose.
        """
        pending = _PendingLayer(self, index, layer, tokens, torch.ones_like(tokens, dtype=torch.bool), receive)
        pending.hand_over(pending.from_cache(cache))

    def input_sources(self, layer: int) -> tuple[InputSource, ...]:
        """The hooks that hold attention's input, or may; none where no analyzer asked for it."""
        return () if self.inputs is None else self.inputs.sources(layer)

    def templates(self, layer: int) -> tuple[str, ...]:
        """The hooks that a layer needs, beside those that may hold its output."""
        gate = (GATE,) if self.attention.is_gated else ()
        inputs = (source.template for source in self.input_sources(layer))
        return PATTERN, VALUE, Z, *gate, *self.extra_hooks, *inputs

    def view(
        self, index: int, layer: int, seen: Mapping[str, Tensor], tokens: Tensor, mask: Tensor,
        weights: LayerWeights | None = None, captured: Mapping[str, Tensor] | None = None,
    ) -> LayerAttention:  # fmt: skip
        """The view of a layer, in float32 at least and on the pattern's device.

        Args:
            index: the layer's row in results.
            layer: the model's own number.
            seen: pattern, value, z and, in a gated attention, gate by hook template; heads apart.
            tokens: ``[batch, position]``.
            mask: True on real tokens.
            weights: of the layer, where they are known already.
            captured: tensors of further hooks, as they came.
        """
        pattern, value, z = (at_least_float32(seen[template]) for template in (PATTERN, VALUE, Z))
        device = pattern.device
        gate = torch.sigmoid(at_least_float32(seen[GATE])).view_as(z).to(device) if GATE in seen else None
        return LayerAttention(
            layer=layer, index=index, pattern=pattern, value=value.to(device), z=z.to(device), gate=gate,
            weights=weights or self.weights(layer, device), mask=mask.to(device), tokens=tokens.to(device),
            sink_rule=self.sink, captured=captured or {},
        )  # fmt: skip

    def weights(self, layer: int, device: torch.device) -> LayerWeights:
        """The layer's weights on a device."""
        attention = self.attention
        W_O, b_O = attention.output_weights(layer)
        W_O = W_O.to(device)
        return LayerWeights(
            W_O,
            None if b_O is None else b_O.to(device),
            cached_head_factor(attention.module(layer), W_O),
            attention.is_causal,
            attention.window(layer),
            attention.has_learned_sink(layer),
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
        identities = compare(view, outputs, self.attention.dtype, gain, self.sampled)
        self.identities[view.layer] = identities
        self.require(view.layer, identities.failure)

    @property
    def frame_name(self) -> str:
        """The frame of the weights, and that contributions are to the residual stream where that makes a difference."""
        changed = any(weights is not None for weights in self.residual_weights.values())
        return f"{self.attention.frame}, to the residual stream" if changed else self.attention.frame

    def in_frame(self, view: LayerAttention, outputs: dict[str, Tensor]) -> LayerAttention:
        """The view as it is, or with the output weights that write what is really added to the residual stream.

        Raises:
            UnsupportedAttentionError: that is not linear in what the keys bring, or there is no hook of it.
        """
        if self.frame == "attention":
            return view
        if view.layer not in self.residual_weights:
            self.residual_weights[view.layer] = self._find_residual_weights(view, outputs)
        weights = self.residual_weights[view.layer]
        return view if weights is None else dataclasses.replace(view, weights=weights, module_output=None)

    def _find_residual_weights(self, view: LayerAttention, outputs: dict[str, Tensor]) -> LayerWeights | None:
        rows, raw = view.mask[0], view.weights
        added = outputs.get(str(self.attention.hook(ADDED, view.layer)))
        if added is None:
            self.require(view.layer, "no hook holds what is added to the residual stream; take frame='attention'")
            return None
        output = layer_output(view.z[:1, rows], raw.W_O)[0] + (0 if raw.b_O is None else raw.b_O)
        added = at_least_float32(added[0].to(output.device))[rows]
        tolerance = self.identities[view.layer].tolerance
        gain, failure = residual_gain(self.attention.model.blocks[view.layer], output, added, tolerance)
        self.require(view.layer, failure)
        if gain is None:
            return None
        W_O, b_O = raw.W_O * gain, None if raw.b_O is None else raw.b_O * gain
        return dataclasses.replace(raw, W_O=W_O, b_O=b_O, factor=head_factor(W_O))

    def require(self, layer: int, failure: str | None) -> None:
        """Raise, or tell ``on_failure``, where a layer cannot be used.

        Raises:
            UnsupportedAttentionError: naming the layer and the reason.
        """
        if failure is not None and self.on_failure is not None:
            self.on_failure(layer, failure)
        elif failure is not None:
            raise UnsupportedAttentionError(
                f"{self.attention.name}, layer {layer}: {failure}; leave the layer out with layers=[...], "
                "or see sinklens.check_model(model)"
            )


def post_norm_gain(attention: ModelAttention, layer: int) -> Tensor | None:
    """The gain of a HookedTransformer's norm after attention (Gemma-2, OLMo-2), beyond which its output hook lies."""
    block, cfg = attention.model.blocks[layer], attention.model.cfg
    if getattr(cfg, "use_normalization_before_and_after", False):
        return getattr(getattr(block, "ln1_post", None), "w", None)
    if getattr(cfg, "original_architecture", None) in ("Olmo2ForCausalLM", "Olmo3ForCausalLM"):
        return getattr(getattr(block, "ln1", None), "w", None)
    return None


class _PendingLayer:
    """Collects one layer's tensors during a pass and hands them over, then forgets them, when the last one has come."""

    def __init__(
        self, reader: LayerReader, index: int, layer: int, tokens: Tensor, mask: Tensor,
        receive: Callable[[LayerAttention], object],
    ):  # fmt: skip
        self.reader, self.index, self.layer = reader, index, layer
        self.tokens, self.mask, self.receive = tokens, mask, receive
        self.outputs = reader.output_hooks(layer)
        self.sources = reader.input_sources(layer)
        self.names = {name: reader.attention.hook(name, layer) for name in reader.templates(layer)}
        self.tensors: dict[str, Tensor] = {}

    def hooks(self) -> list[Hook]:
        """The hooks this layer needs, each name once."""
        for template, name in self.names.items():
            if name is None:
                raise HookNotFiredError(
                    f"layer {self.layer} has no hook {template!r}; expected a template such as "
                    "'blocks.{layer}.hook_resid_pre' that is in model.hook_dict"
                )
        wanted = [*(name for name in self.names.values() if name), *self.outputs]
        self.expected = tuple(dict.fromkeys(wanted))
        return [(name, self._keep(name)) for name in self.expected]

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(tensor: Tensor, hook: Any) -> None:
            self.tensors[name] = tensor.detach()
            if len(self.tensors) == len(self.expected):
                taken, self.tensors = self.tensors, {}
                self.hand_over(taken)

        return keep

    def from_cache(self, cache: Any) -> dict[str, Tensor]:
        """The layer's tensors from a cache, by canonical hook name; outputs that it lacks are done without."""
        # Values behind a norm have no other name: those before it are not what attention reads.
        normed = at_layer(NORMED_VALUE, self.layer)
        spellings = {
            str(name): {str(name)} if name == normed else {str(name), at_layer(template, self.layer)}
            for template, name in self.names.items()
        }
        known = self.reader.attention.output_hooks(self.layer)
        self.outputs = [name for name in known if name in cache]
        taken: dict[str, Tensor] = {name: cache[name] for name in self.outputs}
        for name, spelled in spellings.items():
            found = [spelling for spelling in spelled if spelling in cache]
            if not found:
                raise InputError(f"the cache has no {sorted(spelled)[0]!r}; cache it too (names_filter, or none)")
            taken[name] = cache[found[0]]
        return self._with_batch_axis(taken)

    def _with_batch_axis(self, taken: dict[str, Tensor]) -> dict[str, Tensor]:
        pattern = taken[str(self.names[PATTERN])]
        if pattern.ndim == 3:
            return {name: tensor.unsqueeze(0) for name, tensor in taken.items()}
        if len(pattern) != 1:
            raise InputError(f"the cache holds {len(pattern)} prompts; maps are of one. Cache one prompt at a time")
        return taken

    def hand_over(self, taken: dict[str, Tensor]) -> None:
        """Build the view of the layer, verify it where this has not been done yet, and pass it on."""
        for name in (VALUE, Z):
            hook = str(self.names[name])
            taken[hook] = self.reader.attention.heads_apart(name, self.layer, taken[hook])
        failure = self._layout_failure(taken)
        if failure is not None:
            self.reader.require(self.layer, failure)
            return
        view = self._view(taken)
        chosen = self.outputs
        if self.layer not in self.reader.identities:
            self.reader.verify(view, {name: taken[name] for name in self.outputs})
            chosen = [name for name in self.reader.output_hooks(self.layer) if name in taken]
        view.module_output = at_least_float32(taken[chosen[0]]).to(view.z.device) if chosen else None
        self.receive(self.reader.in_frame(view, {name: taken[name] for name in self.outputs}))

    def _layout_failure(self, taken: dict[str, Tensor]) -> str | None:
        pattern, value, z = (taken[str(self.names[name])] for name in (PATTERN, VALUE, Z))
        return layout_failure(pattern, value, z, self.reader.attention.output_weights(self.layer)[0])

    def _view(self, taken: dict[str, Tensor]) -> LayerAttention:
        seen = {template: taken[str(name)] for template, name in self.names.items()}
        captured = {template: seen[template] for template in self.reader.extra_hooks}
        view = self.reader.view(self.index, self.layer, seen, self.tokens, self.mask, captured=captured)
        if self.reader.inputs is not None:
            found = self.reader.inputs.read(view, [(source, seen[source.template]) for source in self.sources])
            view.captured = captured if found is None else captured | {ATTENTION_INPUT: found}
            view.input_failure = self.reader.inputs.failures.get(self.layer)
        return view

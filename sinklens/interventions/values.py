"""Interventions on the sink's value: zeroed, scaled, or set to a mean, for single query heads or whole key/value heads."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from sinklens.errors import InputError
from sinklens.interventions.edits import value_change
from sinklens.interventions.hooks import (
    HeadOutputEdit,
    Hook,
    Intervention,
    Memory,
    Observer,
    ValueEdit,
    change_of_sink_values,
    observers,
    random_direction,
)
from sinklens.interventions.positions import SinkChoice, sink_choice
from sinklens.interventions.recipe import Number, Recipe, heads_of, require_finite
from sinklens.interventions.targets import (
    Heads,
    Layers,
    LayerTarget,
    choose,
    described,
    require_editable,
    require_plain_values,
)
from sinklens.models.hook_names import PATTERN, VALUE, Z
from sinklens.models.sinks import Sink, SinkRule


def zero_sink_values(
    model: Any,
    *,
    heads: Heads = None,
    layers: Layers = None,
    level: str = "head",
    sink: Sink | SinkRule | Tensor | SinkChoice = "first",
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Take the sink's value away, ``ṽ_s := 0``, and leave the attention pattern as it is (arXiv 2606.07604).

    The arguments, and what is raised, are those of :func:`scale_sink_values`, of which this is the factor 0.

    Returns:
        ``(hook_name, function)`` pairs: ``model.run_with_hooks(tokens, fwd_hooks=zero_sink_values(model, heads=[(12, 3)]))``.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, sink, tokens, attention_mask)
    return _change_values(targets, choice, _level(level), "zero_sink_values", 0.0)


def scale_sink_values(
    model: Any,
    factor: Number,
    *,
    heads: Heads = None,
    layers: Layers = None,
    level: str = "head",
    sink: Sink | SinkRule | Tensor | SinkChoice = "first",
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Multiply the sink's value by a factor, ``ṽ_s := f ṽ_s``, and leave the attention pattern as it is (arXiv 2606.07604).

    ``level="head"`` moves exactly the query heads that are named: it adds ``(f - 1) A_is v_s`` to their outputs at
    ``hook_z`` (under a gate ``γ_i ⊙`` that), or edits ``hook_v`` where all heads that read the value are named. ``level="kv"``
    edits ``hook_v`` and so moves every query head of the group, also those that were not named; the repr says which.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        factor: ``f``, any finite number; 1 changes nothing, bitwise.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead; neither means all heads of all layers.
        level: ``"head"`` or ``"kv"``.
        sink: ``"first"`` (the first real token), positions counted from it, ``"token:ID"``, ``"detect"``, or an int tensor
            of absolute positions ``[batch, sink]``, -1 where a sequence has fewer.
        tokens: ids of the sequences that will be run; needed by ``"token:ID"`` only.
        attention_mask: non-zero on their real tokens ``[batch, position]``; needed with padding on the left. Without it
            every position is real.

    Returns:
        ``(hook_name, function)`` pairs, which go straight into ``model.run_with_hooks(tokens, fwd_hooks=...)``,
        ``model.hooks(fwd_hooks=...)`` and :func:`sinklens.intervene`.

    Raises:
        InputError: no such head, layer, level or position; a factor that is not finite; ``"detect"`` at level ``"kv"``.
        UnsupportedAttentionError: the layer's values or patterns cannot be used for it.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, sink, tokens, attention_mask)
    factor = require_finite(factor, "factor")
    return _change_values(targets, choice, _level(level), f"scale_sink_values {factor:g}", factor)


def mean_sink_values(
    model: Any,
    means: Mapping[int, Tensor],
    *,
    heads: Heads = None,
    layers: Layers = None,
    level: str = "head",
    sink: Sink | SinkRule | Tensor | SinkChoice = "first",
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Set the sink's value to a mean instead of to zero, ``v_s := v̄`` (ours): zero can hurt where a mean does not.

    The mean comes from outside (:func:`sinklens.value_means`): a document's own would let a query see later tokens.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        means: by layer, ``[kv_head, d_head]``.
        heads: as in :func:`scale_sink_values`, and so are all arguments that follow.
        layers: whole layers instead.
        level: ``"head"`` or ``"kv"``.
        sink: which positions are sinks.
        tokens: ids of the sequences that will be run.
        attention_mask: non-zero on their real tokens.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: a layer's mean is missing, not finite or of another shape, and what :func:`scale_sink_values` raises.
        UnsupportedAttentionError: as in :func:`scale_sink_values`.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, sink, tokens, attention_mask)
    for target in targets:
        expected = (target.n_kv_heads, target.d_head)
        if target.layer not in means or tuple(means[target.layer].shape) != expected:
            got = tuple(means[target.layer].shape) if target.layer in means else "none"
            raise InputError(
                f"means of layer {target.layer}: got {got}; expected a tensor [kv_head, d_head] of shape {expected}; "
                "take sinklens.value_means(model, texts)"
            )
        if not bool(means[target.layer].isfinite().all()):
            raise InputError(
                f"means of layer {target.layer} are not all finite; look for the text that gives such values, and take "
                "sinklens.value_means(model, texts) without it"
            )
    return _change_values(targets, choice, _level(level), "mean_sink_values", 0.0, means)


def _level(level: str) -> str:
    if level not in ("head", "kv"):
        raise InputError(f"level is {level!r}; expected 'head' (exact for single query heads) or 'kv'")
    return level


def _change_values(
    targets: list[LayerTarget], choice: SinkChoice, level: str, title: str, factor: float,
    means: Mapping[int, Tensor] | None = None, seed: int | None = None,
) -> Intervention:  # fmt: skip
    if level == "kv" and choice.needs_pattern:
        raise InputError(
            "sink='detect' needs attention patterns, which come after the values; choose level='head', "
            "or sinks by position or token"
        )
    require_plain_values(targets)
    # Where every reader of a value is meant, editing the value is exact, cheaper, and needs no pattern.
    at_values = [
        level == "kv" or (target.moved_by_kv == target.heads and not choice.needs_pattern) for target in targets
    ]
    by_output = [target for target, here in zip(targets, at_values, strict=True) if not here]
    require_editable(by_output, "choose level='kv', and sinks by position or token")
    hooks: list[Hook] = []
    for target, here in zip(targets, at_values, strict=True):
        mean = None if means is None else means[target.layer]
        make = _at_values if here else _at_outputs
        hooks += make(target, choice, partial(value_change, factor=factor), mean, seed, factor == 1 and mean is None)
    if level == "kv":
        targets = [dataclasses.replace(target, heads=target.moved_by_kv) for target in targets]
    heads = heads_of(targets)
    moves = f" of key/value heads, moves {described(heads, targets[0].n_heads)}" if level == "kv" else ""
    where = moves or f", {described(heads, targets[0].n_heads)}"
    direction = "" if seed is None else f" in a random direction, seed {seed}"
    recipe = Recipe(
        lambda other, turn: _change_values(targets, _given(other), level, title, factor, means, turn), choice
    )
    return Intervention(hooks, f"{title}{where}, at {choice.in_words()}{direction}", heads, recipe)


def _given(choice: SinkChoice | None) -> SinkChoice:
    assert choice is not None
    return choice


Change = Callable[..., Tensor]


def _at_values(
    target: LayerTarget, choice: SinkChoice, change: Change, mean: Tensor | None, seed: int | None, identity: bool
) -> list[Hook]:
    kv_heads = list(target.kv_heads)
    plain = partial(change, offset=None if mean is None else mean[kv_heads])
    turned = plain if seed is None else _then(plain, random_direction(target, kv_heads, True, seed))
    edit = ValueEdit(target, choice, turned, identity)
    return [(target.hook(VALUE), edit), (target.hook(PATTERN), Observer(None, PATTERN))]


def _at_outputs(
    target: LayerTarget, choice: SinkChoice, change: Change, mean: Tensor | None, seed: int | None, identity: bool
) -> list[Hook]:
    offset = None if mean is None else mean[[head // target.group_size for head in target.heads]]
    plain = partial(change, offset=offset)
    turned = plain if seed is None else _then(plain, random_direction(target, target.heads, False, seed))
    memory = Memory()
    edit = HeadOutputEdit(target, memory, change_of_sink_values(target, choice, turned), identity=identity)
    return [*observers(target, memory), (target.hook(Z), edit)]


def _then(first: Change, second: Change) -> Change:
    return lambda value: second(first(value))

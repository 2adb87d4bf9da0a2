"""Interventions on the attention pattern: the sink's mass, dense and diagonal attention, masked contributions."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import InputError
from sinklens.interventions.edits import densified, diagonalized, masked, with_sink_mass, without_sinks
from sinklens.interventions.hooks import (
    HeadOutputEdit,
    Hook,
    Intervention,
    Memory,
    PatternEdit,
    change_of_pattern,
    observers,
    random_direction,
    sink_keys,
)
from sinklens.interventions.positions import SinkChoice, sink_choice
from sinklens.interventions.recipe import Number, Recipe, heads_of, require_fraction
from sinklens.interventions.targets import Heads, Layers, LayerTarget, choose, described, require_editable
from sinklens.models.hook_names import PATTERN, Z
from sinklens.models.sinks import Sink, SinkRule

# From a layer and its sinks: what becomes of the chosen heads' pattern, given also that of all heads.
PatternMaker = Callable[[LayerTarget, SinkChoice], Callable[[Tensor, Tensor], Tensor]]
REMEDY = "use interventions on values (zero_sink_values, scale_sink_values), or load the model as a HookedTransformer"


def set_sink_mass(
    model: Any,
    mass: Number | Mapping[int, Tensor],
    *,
    heads: Heads = None,
    layers: Layers = None,
    sink: Sink | SinkRule | Tensor | SinkChoice = "first",
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Set the attention on the sink, ``A_is := α``, the rest of the row rescaled to ``1 - α`` (arXiv 2606.07604, form ours).

    Several sinks share ``α`` in their present proportion. A learned sink logit is part of the rest. Queries that see no
    sink, or nothing else than sinks (the first token), keep their row.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        mass: ``α`` in 0 to 1; or by layer a tensor that broadcasts to ``[batch, chosen head, query]``.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead; neither means all heads of all layers.
        sink: ``"first"``, positions, ``"token:ID"``, ``"detect"``, or a tensor of positions, as in
            :func:`scale_sink_values`.
        tokens: ids of the sequences that will be run; needed by ``"token:ID"`` only.
        attention_mask: non-zero on their real tokens; needed with padding.

    Returns:
        ``(hook_name, function)`` pairs for ``model.run_with_hooks``, ``model.hooks`` and :func:`sinklens.intervene`.

    Raises:
        InputError: no such head, layer or position; a mass outside 0 to 1 or of another shape.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, sink, tokens, attention_mask)
    masses = _masses(targets, mass)

    def make(target: LayerTarget, sinks: SinkChoice) -> Callable[[Tensor, Tensor], Tensor]:
        def edit(pattern: Tensor, whole: Tensor) -> Tensor:
            wanted = masses[target.layer]
            wanted = _fitting_mass(wanted, pattern) if isinstance(wanted, Tensor) else wanted
            is_sink, visible = sink_keys(target, sinks, whole), visible_pairs(target, sinks, pattern)
            return with_sink_mass(pattern, is_sink, visible, wanted, target.attention.has_learned_sink(target.layer))

        return edit

    amount = "given" if isinstance(mass, Mapping) else f"{float(mass):g}"
    return edit_pattern(targets, choice, f"set_sink_mass {amount}", make)


def remove_sink_attention(
    model: Any,
    *,
    renormalize: bool = True,
    heads: Heads = None,
    layers: Layers = None,
    sink: Sink | SinkRule | Tensor | SinkChoice = "first",
    tokens: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Take the attention on the sink away, with or without rescaling the rest of the row to 1.

    Renormalised it is :func:`set_sink_mass` 0. Not renormalised, ``A_is := 0``, it is the same to the head's output as
    :func:`zero_sink_values`, the sink's own query included. All other arguments and errors are those of :func:`set_sink_mass`.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        renormalize: whether the rest of the row is rescaled.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead.
        sink: which positions are sinks.
        tokens: ids of the sequences that will be run.
        attention_mask: non-zero on their real tokens.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: no such head, layer or position.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    if renormalize:
        return set_sink_mass(
            model, 0.0, heads=heads, layers=layers, sink=sink, tokens=tokens, attention_mask=attention_mask
        )
    targets, choice = choose(model, heads, layers), sink_choice(model, sink, tokens, attention_mask)

    def make(target: LayerTarget, sinks: SinkChoice) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda pattern, whole: without_sinks(pattern, sink_keys(target, sinks, whole))

    return edit_pattern(targets, choice, "remove_sink_attention", make)


def densify_attention(
    model: Any,
    strength: Number,
    *,
    base: str = "attention",
    heads: Heads = None,
    layers: Layers = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Make attention dense: ``(1-λ) A + λ U``, or ``(1-λ) I + λ U``, with ``U`` uniform over visible keys (arXiv 2605.08453).

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        strength: ``λ`` in 0 to 1.
        base: ``"attention"`` starts from ``A``, ``"identity"`` from ``I``.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead; neither means all heads of all layers.
        attention_mask: non-zero on real tokens ``[batch, position]``; needed with padding. Rows of padding stay.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: no such head, layer or base; a strength outside 0 to 1.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, "first", None, attention_mask)
    strength = require_fraction(strength, "strength")
    if base not in ("attention", "identity"):
        raise InputError(f"base is {base!r}; expected 'attention' or 'identity'")

    def make(target: LayerTarget, sinks: SinkChoice) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda pattern, _: densified(pattern, visible_pairs(target, sinks, pattern), strength, base)

    title, identity = f"densify_attention {strength:g}, base {base}", strength == 0 and base == "attention"
    return edit_pattern(targets, choice, title, make, identity, has_sinks=False)


def diagonalize_attention(
    model: Any,
    strength: Number,
    *,
    heads: Heads = None,
    layers: Layers = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Move a share of the attention to the query's own token: ``(1-λ) A + λ I`` (arXiv 2605.08453).

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        strength: ``λ`` in 0 to 1.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead; neither means all heads of all layers.
        attention_mask: non-zero on real tokens ``[batch, position]``; needed with padding. Rows of padding stay.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: no such head or layer; a strength outside 0 to 1.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, "first", None, attention_mask)
    strength = require_fraction(strength, "strength")

    def make(target: LayerTarget, sinks: SinkChoice) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda pattern, _: diagonalized(pattern, visible_pairs(target, sinks, pattern), strength)

    return edit_pattern(targets, choice, f"diagonalize_attention {strength:g}", make, strength == 0, has_sinks=False)


def mask_contributions(model: Any, removed: Mapping[int, Tensor], *, renormalize: bool = False) -> Intervention:
    """Take (query, head, key) contributions out of ``A v``: ``A_ij := 0`` where removed (arXiv 2606.07604).

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        removed: by layer, booleans that broadcast to ``[batch, head, query, key]``, True on what is taken out.
        renormalize: rescale what is left of a row to the row's former sum; by default nothing is rescaled.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: no such layer, or a mask that is not boolean or has another number of heads.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    targets = choose(model, None, list(removed))
    for target in targets:
        _require_mask(target, removed[target.layer])

    def make(target: LayerTarget, _: SinkChoice) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda pattern, _: masked(pattern, _fitting(removed[target.layer], pattern), renormalize)

    title = "mask_contributions" + (", renormalised" if renormalize else "")
    empty = not any(bool(mask.any()) for mask in removed.values())
    return edit_pattern(targets, SinkChoice(), title, make, empty, has_sinks=False)


def _masses(targets: list[LayerTarget], mass: Any) -> dict[int, float | Tensor]:
    if not isinstance(mass, Mapping):
        return {target.layer: require_fraction(mass, "mass") for target in targets}
    for target in targets:
        wanted = mass.get(target.layer)
        if wanted is None:
            raise InputError(f"mass has no layer {target.layer}; give a tensor for every chosen layer, or a number")
        if not isinstance(wanted, Tensor):
            raise InputError(
                f"mass of layer {target.layer} is a {type(wanted).__name__}; expected a tensor, or one number for all layers"
            )
        if wanted.ndim > 3 or (wanted.ndim > 1 and wanted.shape[-2] not in (1, len(target.heads))):
            raise InputError(
                f"mass of layer {target.layer} has shape {tuple(wanted.shape)}; expected one that broadcasts to "
                f"[batch, {len(target.heads)} heads, query]"
            )
        if not bool(((wanted >= 0) & (wanted <= 1)).all()):
            raise InputError(
                f"mass of layer {target.layer} reaches from {wanted.min():g} to {wanted.max():g}; expected 0 to 1"
            )
    return {target.layer: mass[target.layer] for target in targets}


def _fitting_mass(mass: Tensor, pattern: Tensor) -> Tensor:
    try:
        return mass.to(pattern).expand(pattern.shape[:-1])
    except RuntimeError as error:
        raise InputError(
            f"a mass has shape {tuple(mass.shape)}, the rows that are run {tuple(pattern.shape[:-1])}; "
            "expected a mass that broadcasts to [batch, chosen head, query]"
        ) from error


def _require_mask(target: LayerTarget, mask: Tensor) -> None:
    heads = mask.shape[-3] if mask.ndim > 2 else 1
    if mask.dtype != torch.bool or not 1 <= mask.ndim <= 4 or heads not in (1, target.n_heads):
        raise InputError(
            f"the mask of layer {target.layer} is {mask.dtype} of shape {tuple(mask.shape)}; expected booleans that "
            f"broadcast to [batch, {target.n_heads} heads, query, key]"
        )


def _fitting(mask: Tensor, pattern: Tensor) -> Tensor:
    try:
        return mask.to(pattern.device).expand_as(pattern)
    except RuntimeError as error:
        raise InputError(
            f"a mask has shape {tuple(mask.shape)}, the pattern that is run {tuple(pattern.shape)}; "
            "expected a mask that broadcasts to [batch, head, query, key]"
        ) from error


def visible_pairs(target: LayerTarget, choice: SinkChoice, pattern: Tensor) -> Tensor:
    """Which keys each query of the sequences that are run sees ``[batch, query, key]``."""
    return target.visible(choice.real((pattern.shape[0], pattern.shape[-1]), pattern.device))


def edit_pattern(
    targets: list[LayerTarget], choice: SinkChoice, title: str, make: PatternMaker, identity: bool = False,
    has_sinks: bool = True, seed: int | None = None,
) -> Intervention:  # fmt: skip
    """An intervention on the pattern of every target, that can be made again elsewhere or in a random direction.

    Args:
        targets: layers and heads.
        choice: the sinks.
        title: what is done, in words.
        make: gives the edit of a layer.
        identity: whether it changes nothing by construction.
        has_sinks: whether the edit is made at sinks, so that it has a control at other positions.
        seed: of a random direction; None for the edit itself.
    """
    require_editable(targets, REMEDY)
    hooks: list[Hook] = []
    for target in targets:
        edit = make(target, choice)
        hooks += (
            [(target.hook(PATTERN), PatternEdit(target, edit, identity))]
            if seed is None
            else _turned(target, edit, seed)
        )
    heads = heads_of(targets)
    where = f", {described(heads, targets[0].n_heads)}" + (f", at {choice.in_words()}" if has_sinks else "")
    direction = "" if seed is None else f" in a random direction, seed {seed}"
    recipe = Recipe(
        lambda other, turn: edit_pattern(
            targets, choice if other is None else other, title, make, identity, has_sinks, turn
        ),
        choice if has_sinks else None,
    )
    return Intervention(hooks, f"{title}{where}{direction}", heads, recipe)


def _turned(target: LayerTarget, edit: Callable[[Tensor, Tensor], Tensor], seed: int) -> list[Hook]:
    memory = Memory()
    turn = random_direction(target, target.heads, False, seed)
    output = HeadOutputEdit(target, memory, change_of_pattern(edit), turn)
    return [*observers(target, memory), (target.hook(Z), output)]

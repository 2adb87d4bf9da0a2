"""Interventions on a learned sink (gpt-oss): a logit that takes part in the softmax of every row without being a key."""

from typing import Any

import torch
from torch import Tensor

from sinklens.axes import Pattern
from sinklens.errors import InputError
from sinklens.interventions.hooks import Intervention
from sinklens.interventions.patterns import edit_pattern, visible_pairs
from sinklens.interventions.positions import SinkChoice, sink_choice
from sinklens.interventions.recipe import require_finite
from sinklens.interventions.targets import Heads, Layers, LayerTarget, choose
from sinklens.results.labels import describe_numbers


def scale_learned_sink(
    model: Any,
    scale: float,
    *,
    heads: Heads = None,
    layers: Layers = None,
    attention_mask: Tensor | None = None,
) -> Intervention:
    """Multiply the weight of a learned sink, ``exp(logit) := f exp(logit)``, and take the softmax again (ours).

    Exactly what the model does with ``log f`` added to the logit: with mass ``m`` on the null key, a row becomes
    ``A_ij / (1 - m + f m)`` and the null key's mass ``f m / (1 - m + f m)``. 0 removes the sink, so that rows sum to 1;
    1 changes nothing, bitwise. The sink token (``sink="first"``) is a key like any other here; its mass is
    :func:`set_sink_mass`'s.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        scale: ``f``, a finite number, 0 or more.
        heads: ``(layer, query head)`` pairs.
        layers: whole layers instead; neither means all heads of all layers.
        attention_mask: non-zero on real tokens ``[batch, position]``; with it, rows of padding stay.

    Returns:
        ``(hook_name, function)`` pairs for ``model.run_with_hooks``, ``model.hooks`` and :func:`sinklens.intervene`. There
        is no position that :func:`sinklens.placebo` could move; its control is ``"direction"``.

    Raises:
        InputError: a layer has no learned sink; no such head or layer; a scale that is negative or not finite.
        UnsupportedAttentionError: the back end throws an edit of this pattern away.
    """
    targets, choice = choose(model, heads, layers), sink_choice(model, "first", None, attention_mask)
    if require_finite(scale, "scale") < 0:
        raise InputError(f"scale is {scale!r}; expected 0 (no learned sink) or more, with 1 for no change")
    _require_learned_sink(targets)

    def make(target: LayerTarget, sinks: SinkChoice) -> Any:
        def edit(pattern: Tensor, whole: Tensor) -> Tensor:
            real = visible_pairs(target, sinks, pattern).any(-1)[:, None, :, None]
            return torch.where(real, with_scaled_null_key(pattern, scale), pattern)

        return edit

    return edit_pattern(targets, choice, f"scale_learned_sink {scale:g}", make, scale == 1, has_sinks=False)


def with_scaled_null_key(pattern: Pattern, scale: float) -> Pattern:
    """Rows ``A_ij / (1 - m + f m)`` where ``m = 1 - Σ_j A_ij`` lies on a null key; a row without any attention stays.

    Args:
        pattern: ``[batch, head, query, key]``, rows that sum to at most 1.
        scale: ``f``.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> pattern = torch.tensor([[[[0.25, 0.25]]]])
        >>> with_scaled_null_key(pattern, 0.0).flatten().tolist(), with_scaled_null_key(pattern, 3.0).flatten().tolist()
        ([0.5, 0.5], [0.125, 0.125])
    """
    if scale == 1:
        return pattern
    kept = pattern.sum(-1, keepdim=True)
    return torch.where(kept > 0, pattern / (kept + scale * (1 - kept).clamp(min=0)), pattern)


def _require_learned_sink(targets: list[LayerTarget]) -> None:
    missing = [target.layer for target in targets if not target.attention.has_learned_sink(target.layer)]
    if missing:
        raise InputError(
            f"{targets[0].attention.name}, layer {describe_numbers(missing)}: no learned sink takes part in this softmax; "
            "expected a model with sink logits (gpt-oss). For a sink token use set_sink_mass or remove_sink_attention"
        )

"""A head's two bilinear maps, ``W_QK`` and ``W_VO``, as factors; each compared with the real queries, keys and scores first."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import UnsupportedAttentionError
from sinklens.metrics.costs import Tall, exact
from sinklens.models.attention import ModelAttention
from sinklens.models.environment import one_line
from sinklens.models.hook_names import (
    ATTENTION_INPUT,
    KEY,
    NORMED_VALUE,
    QUERY,
    RESIDUAL_BEFORE,
    SCORES,
    VALUE,
    at_layer,
)
from sinklens.models.layer import LayerAttention, at_least_float32
from sinklens.models.placement import materialized
from sinklens.models.residual import possible_gains
from sinklens.models.verify import TOLERANCE, relative_gap

# What a layer's view must have captured for its maps to be established.
CAPTURED = (ATTENTION_INPUT, QUERY, KEY, SCORES, RESIDUAL_BEFORE)
_FEWEST_POSITIONS = 6  # a fit must leave something over


@dataclass
class BilinearMaps:
    """The factors of a layer's maps, and what could not be established.

    Attributes:
        W_Q: ``[head, d_model, d_head]``, float32 at least; None where ``qk`` is refused.
        W_K: the same, each group's keys repeated for its query heads.
        W_V: the same; None where ``vo`` is refused.
        W_O: the same, transposed.
        gain: of the norm before attention ``[d_model]``, ones where there is none; None where it is not known.
        scale: by which the model multiplies ``q · k``; NaN where ``qk`` is refused.
        refused: reasons by ``qk``, ``vo``, ``effective``.
    """

    W_Q: Tall | None = None
    W_K: Tall | None = None
    W_V: Tall | None = None
    W_O: Tall | None = None
    gain: Float[Tensor, " d_model"] | None = None
    scale: float = float("nan")
    refused: dict[str, str] = field(default_factory=dict)


def bilinear_maps(attention: ModelAttention, view: LayerAttention) -> BilinearMaps:
    """The factors of a layer's maps, verified on the sequence at hand.

    ``W_Q`` and ``W_K`` count where ``n W_Q + b_Q`` are the hooked queries, ``n W_K + b_K`` the keys, and the diagonal of
    the scores, where rotary positions cancel, is one number times ``q_i · k_i`` (up to a bias linear in the position): a
    norm of queries and keys in between is seen there. ``W_V`` and ``W_O`` were verified with the view.

    Args:
        attention: the model's layers.
        view: the layer on a sequence, with :data:`CAPTURED`.

    Returns:
        What holds; nothing raises.
    """
    maps = BilinearMaps()
    if view.input_failure is not None:
        maps.refused = dict.fromkeys(("qk", "vo", "effective"), view.input_failure)
        return maps
    with materialized(attention.module(view.layer)):
        _attempt(maps, "qk", lambda: _establish_scores(maps, attention, view))
        _attempt(maps, "vo", lambda: _establish_values(maps, attention, view))
        _attempt(maps, "effective", lambda: _establish_gain(maps, attention, view))
    return maps


def _attempt(maps: BilinearMaps, what: str, establish: Callable[[], None]) -> None:
    try:
        establish()
    except UnsupportedAttentionError as error:
        maps.refused[what] = one_line(error)
    except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
        maps.refused[what] = f"its weights cannot be read per head: {one_line(error)}"


def _weights(attention: ModelAttention, view: LayerAttention, name: str) -> tuple[Tensor, Tensor | None]:
    """A projection's ``[head, d_model, d_head]`` and bias, groups as they are stored, float32 at least."""
    module, device = attention.module(view.layer), view.value.device
    if attention.latent_width(view.layer) is not None:
        raise UnsupportedAttentionError(
            "latent attention (MLA): a norm of the compressed vector stands inside the map, which is not linear"
        )
    weight, bias = getattr(module, f"W_{name}"), getattr(module, f"b_{name}", None)
    weight = at_least_float32(weight.detach()).to(device)
    bias = at_least_float32(bias.detach()).to(device) if isinstance(bias, Tensor) else None
    return weight, bias


def _projected(view: LayerAttention, weight: Tensor, bias: Tensor | None) -> Tensor:
    found = torch.einsum("pm,hmd->phd", view.attention_input[0].to(weight.dtype), weight)
    return found if bias is None else found + bias


def _per_query_head(tensor: Tensor, n_heads: int, axis: int) -> Tensor:
    """Keys are repeated for the query heads of their group, in order."""
    return tensor.repeat_interleave(n_heads // tensor.shape[axis], axis)


def _establish_scores(maps: BilinearMaps, attention: ModelAttention, view: LayerAttention) -> None:
    tolerance, n_heads = TOLERANCE.get(attention.dtype, TOLERANCE["float32"]), view.n_heads
    if attention.is_gated:
        raise UnsupportedAttentionError(
            "its query projection carries a gate beside the queries, which is not taken apart here"
        )
    vectors: dict[str, Tensor] = {}
    factors: dict[str, Tensor] = {}
    for name, template, words in (("Q", QUERY, "queries"), ("K", KEY, "keys")):
        weight, bias = _weights(attention, view, name)
        computed = _per_query_head(_projected(view, weight, bias), n_heads, 1)
        hooked = _per_query_head(at_least_float32(view.captured[template][0]).to(computed.device), n_heads, 1)
        if not (gap := relative_gap(computed, hooked)) <= tolerance:
            raise UnsupportedAttentionError(f"n W_{name} + b_{name} are not its {words} (relative gap {gap:.2g})")
        vectors[name], factors[name] = computed, _per_query_head(weight, n_heads, 0)
    products = exact(torch.einsum("qhd,khd->hqk", vectors["Q"], vectors["K"]))
    maps.scale = _scale(attention, view, products, tolerance)
    maps.W_Q, maps.W_K = factors["Q"], factors["K"]


def _scale(
    attention: ModelAttention, view: LayerAttention, products: Float[Tensor, "head query key"], tolerance: float
) -> float:
    """``c`` with scores ``c q_i · k_j`` as far as positions allow to see it.

    Raises:
        UnsupportedAttentionError: there is none.
    """
    if products.shape[-1] < _FEWEST_POSITIONS:
        raise UnsupportedAttentionError(
            f"scores cannot be compared on {products.shape[-1]} positions; expected {_FEWEST_POSITIONS} or more"
        )
    scores, pattern = (tensor[0].to(products) for tensor in (view.captured[SCORES], view.pattern))
    visible = view.visible[0].to(products.device)
    if relative_gap(scores.masked_fill(~visible, 0.0), pattern) <= tolerance:
        # An attention that TransformerBridge leaves to the model has no other hook; logarithms of weights are scores up to
        # a constant a query, from which only rotary positions could not be told.
        return _fitted(*_centred_rows(products, pattern, visible), tolerance)
    return _fitted(*_diagonals(products, _uncapped(attention, view.layer, scores)), tolerance)


def _uncapped(attention: ModelAttention, layer: int, scores: Tensor) -> Tensor:
    """Scores before a soft cap ``c tanh(s / c)`` (Gemma-2), which keeps their order."""
    original = getattr(attention.module(layer), "original_component", None)
    named = (
        (attention.model.cfg, "attn_scores_soft_cap"),
        (getattr(original, "config", None), "attn_logit_softcapping"),
    )
    cap = next((cap for owner, name in named if (cap := getattr(owner, name, None)) and cap > 0), None)
    return scores if cap is None else cap * torch.atanh(scores / cap)


def _diagonals(products: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Of products and scores, where rotary positions cancel, less what is linear in the position (ALiBi)."""
    both = [tensor.diagonal(dim1=-2, dim2=-1) for tensor in (products, scores)]
    position = torch.linspace(-1, 1, products.shape[-1], dtype=products.dtype, device=products.device)
    frame = torch.linalg.qr(torch.stack([torch.ones_like(position), position], -1)).Q
    return both[0] - both[0] @ frame @ frame.T, both[1] - both[1] @ frame @ frame.T


def _centred_rows(products: Tensor, pattern: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Products and logarithms of weights, less their means over the keys of each query that count."""
    counted = visible & (pattern > torch.finfo(torch.float32).tiny)
    found = []
    for tensor in (products, pattern.clamp(min=torch.finfo(torch.float32).tiny).log()):
        mean = (tensor * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True).clamp(min=1)
        found.append(((tensor - mean) * counted).flatten(1))
    return found[0], found[1]


def _fitted(products: Float[Tensor, "head pair"], scores: Float[Tensor, "head pair"], tolerance: float) -> float:
    """The one number by which all heads' products are multiplied.

    Raises:
        UnsupportedAttentionError: there is none.
    """
    scale = ((products * scores).sum() / products.square().sum()).item()
    gap = relative_gap(scale * products, scores)
    if not (gap <= 10 * tolerance and scale > 0):
        raise UnsupportedAttentionError(
            f"its scores are no multiple of q · k (relative gap {gap:.2g}): a norm of queries and keys, a cap on scores, or "
            "positions that cannot be told apart stand in between, so that one matrix does not give them"
        )
    return scale


def _establish_values(maps: BilinearMaps, attention: ModelAttention, view: LayerAttention) -> None:
    if view.gate is not None:
        raise UnsupportedAttentionError("a gate of the query acts between W_V and W_O, which is not one map")
    weight, _ = _weights(attention, view, "V")
    if attention.hook(VALUE, view.layer) == at_layer(NORMED_VALUE, view.layer):
        raise UnsupportedAttentionError("a norm of the values acts between W_V and W_O, which is not one map")
    maps.W_V, maps.W_O = _per_query_head(weight, view.n_heads, 0), view.W_O.mT


def _establish_gain(maps: BilinearMaps, attention: ModelAttention, view: LayerAttention) -> None:
    """The gain ``g`` with ``n = g ⊙ normalised stream + bias``, looked for among the block's vectors."""
    found, stream = view.attention_input[0], at_least_float32(view.captured[RESIDUAL_BEFORE][0])
    stream = stream.to(found.device)
    # Not float64's: the number that the norm adds under its root is left out, and is no rounding error.
    tolerance = max(TOLERANCE["float32"], TOLERANCE.get(attention.dtype, 0.0))
    if relative_gap(stream, found) <= tolerance:
        maps.gain = torch.ones_like(found[0])  # no norm before attention
        return
    block = attention.model.blocks[view.layer]
    gaps = [
        (_unexplained(found, normalised * gain), gain)
        for normalised in _normalised(stream)
        for gain in possible_gains(block, found)
    ]
    gap, gain = min(gaps, key=lambda pair: pair[0])
    if not gap <= 10 * tolerance:
        raise UnsupportedAttentionError(
            f"what attention reads is not its norm of the residual stream times a gain (relative gap {gap:.2g})"
        )
    maps.gain = gain


def _normalised(stream: Float[Tensor, "position d_model"]) -> list[Tensor]:
    centred = stream - stream.mean(-1, keepdim=True)
    return [rows / rows.square().mean(-1, keepdim=True).sqrt() for rows in (stream, centred)]


def _unexplained(found: Tensor, explained: Tensor) -> float:
    """What differs from token to token, and so is no bias, relative to what there is."""
    rest = found - explained
    return ((rest - rest.mean(0)).norm() / (found - found.mean(0)).norm()).item()


def unestablished(reason: Any) -> BilinearMaps:
    """Maps of a layer that could not be read at all."""
    return BilinearMaps(refused=dict.fromkeys(("qk", "vo", "effective"), str(reason)))

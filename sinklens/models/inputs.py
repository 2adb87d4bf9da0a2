"""Attention's real input: the vectors that W_Q, W_K and W_V multiply. Found by comparison with the values, never by a name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from torch import Tensor

from sinklens.axes import LayerInput, Value
from sinklens.models.attention import ModelAttention
from sinklens.models.hook_names import MODULE_INPUT, NORMED_VALUE, RESIDUAL_BEFORE, VALUE, at_layer
from sinklens.models.latent import own_width
from sinklens.models.layer import LayerAttention, at_least_float32
from sinklens.models.placement import materialized
from sinklens.models.verify import SAMPLED_QUERIES, TOLERANCE, relative_gap, spread_rows


@dataclass(frozen=True)
class InputSource:
    """A hook that may hold attention's input, or what a norm makes it from.

    Attributes:
        template: of the hook.
        norm: a norm that is still to be applied (HookedTransformer calls it once for each of q, k and v, so that its own
            hooks fire thrice and cannot be read), or None.
        centred: whether that norm takes the mean away first.
    """

    template: str
    norm: Any = None
    centred: bool = False

    def read(self, tensor: Tensor, device: torch.device) -> LayerInput:
        """The input, from what the hook holds, in float32 at least."""
        found = at_least_float32(tensor).to(device)
        if self.norm is None:
            return found
        found = found - found.mean(-1, keepdim=True) if self.centred else found
        found = found / (found.square().mean(-1, keepdim=True) + self.norm.eps).sqrt()
        gain, bias = (getattr(self.norm, name, None) for name in ("w", "b"))
        found = found * at_least_float32(gain.detach()).to(device) if isinstance(gain, Tensor) else found
        return found + at_least_float32(bias.detach()).to(device) if isinstance(bias, Tensor) else found


class AttentionInputs:
    """Finds each layer's attention input on the first batch and reads it from then on.

    The rule: ``n_j W_V + b_V`` must be the values ``v_j`` that the layer's own hook holds. Where a norm lies between the
    two (Gemma-4's values, latent attention's compressed vector), they must agree up to a positive number per head or token.

    Args:
        attention: the model's layers.
    """

    def __init__(self, attention: ModelAttention):
        self.attention = attention
        self.found: dict[int, InputSource] = {}
        self.failures: dict[int, str] = {}

    def sources(self, layer: int) -> tuple[InputSource, ...]:
        """The hooks that may hold the layer's input: all candidates, then the one that was found."""
        if layer in self.failures:
            return ()
        if layer in self.found:
            return (self.found[layer],)
        if self._has(MODULE_INPUT, layer):  # TransformerBridge, whatever norm comes before
            return (InputSource(MODULE_INPUT),)
        if not self._has(RESIDUAL_BEFORE, layer):
            return ()
        norm = getattr(self.attention.model.blocks[layer], "ln1", None)
        normed = [InputSource(RESIDUAL_BEFORE, norm, centred) for centred in (False, True) if hasattr(norm, "eps")]
        return (*normed, InputSource(RESIDUAL_BEFORE))

    def _has(self, template: str, layer: int) -> bool:
        return self.attention.hook(template, layer) is not None

    def read(self, view: LayerAttention, tensors: Sequence[tuple[InputSource, Tensor]]) -> LayerInput | None:
        """The layer's input on a batch, verified on the first one; None where it cannot be established.

        Args:
            view: the layer on the batch, in the attention frame.
            tensors: what the hooks of :meth:`sources` hold.
        """
        device = view.value.device
        if view.layer not in self.found and view.layer not in self.failures:
            self._establish(view, [(source, source.read(tensor, device)) for source, tensor in tensors])
        found = self.found.get(view.layer)
        return next((source.read(tensor, device) for source, tensor in tensors if source == found), None)

    def _establish(self, view: LayerAttention, inputs: list[tuple[InputSource, LayerInput]]) -> None:
        rows = spread_rows(view.mask[0], SAMPLED_QUERIES)
        tolerance = TOLERANCE.get(self.attention.dtype, TOLERANCE["float32"])
        gaps = {source: self._gap(view, candidate[:1, rows], rows) for source, candidate in inputs}
        for source, gap in gaps.items():
            if gap <= tolerance:
                self.found[view.layer] = source
                return
        self.failures[view.layer] = (
            f"attention's input is not known: no hook holds vectors n with n W_V + b_V = v (relative gap "
            f"{min(gaps.values(), default=float('inf')):.2g}); weights of another layout, or a hook of yours edits values"
        )

    def _gap(self, view: LayerAttention, candidate: LayerInput, rows: Tensor) -> float:
        value = view.value[:1, rows]
        try:
            expected, loose = value_map(self.attention, view.layer, candidate)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError):  # weights of an unknown layout
            return float("inf")
        if expected.shape != value.shape:
            return float("inf")
        return relative_gap(*(_directions(tensor, loose) for tensor in (expected, value)))


def _directions(vectors: Tensor, axes: tuple[int, ...]) -> Tensor:
    if not axes:
        return vectors
    return vectors / vectors.norm(dim=axes, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)


def value_map(attention: ModelAttention, layer: int, inputs: LayerInput) -> tuple[Value, tuple[int, ...]]:
    """The values that inputs would have, and the axes over which they are known up to a positive number only.

    Args:
        attention: the model's layers.
        layer: the model's own number.
        inputs: ``n`` ``[batch, position, d_model]``.

    Returns:
        ``n W_V + b_V`` ``[batch, key, kv_head, d_head]``; and the axes, empty where there is no norm in between.
    """
    module = attention.module(layer)
    n_kv_heads, width = attention.n_kv_heads(layer), attention.latent_width(layer)
    with materialized(module):
        if width is not None:
            return _latent_values(module, width, n_kv_heads, inputs), (-2, -1)
        weight, bias = _value_weights(module, attention, n_kv_heads)
        value = torch.einsum("bpd,gdh->bpgh", inputs, at_least_float32(weight.detach()).to(inputs.device))
        value = value if bias is None else value + at_least_float32(bias.detach()).to(inputs.device)
    normed = attention.hook(VALUE, layer) == at_layer(NORMED_VALUE, layer)
    return value, (-1,) if normed else ()


def _value_weights(module: Any, attention: ModelAttention, n_kv_heads: int) -> tuple[Tensor, Tensor | None]:
    """``W_V`` ``[kv_head, d_model, d_head]`` and ``b_V`` ``[kv_head, d_head]``."""
    if own_width(module, attention.model.cfg) is not None:
        # Gemma-4's full attention may have no values but its keys.
        linear = getattr(module, "v", None) or module.k
        return rearrange(linear.weight, "(group d_head) d_model -> group d_model d_head", group=n_kv_heads), None
    weight, bias = module.W_V, getattr(module, "b_V", None)
    repeated = len(weight) // n_kv_heads  # HookedTransformer gives each query head its copy
    return weight[::repeated], bias.reshape(len(weight), -1)[::repeated] if isinstance(bias, Tensor) else None


def _latent_values(module: Any, width: int, n_heads: int, inputs: LayerInput) -> Value:
    """Latent attention's values up to its norm's scale: down to the compressed vector, the norm's gain, up to the heads."""
    down, up, norm = module.kv_a_proj_with_mqa, module.kv_b_proj, module.kv_a_layernorm
    rank = up.weight.shape[-1]
    matrices = (down.weight[:rank].T * norm.weight, rearrange(up.weight, "(head w) r -> r head w", head=n_heads))
    into, out = (at_least_float32(matrix.detach()).to(inputs.device) for matrix in matrices)
    latent = inputs @ into
    bias = getattr(down, "bias", None)
    if isinstance(bias, Tensor):
        latent = latent + at_least_float32((bias[:rank] * norm.weight).detach()).to(inputs.device)
    return torch.einsum("bpr,rhw->bphw", latent, out[..., -width:])

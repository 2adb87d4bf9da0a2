"""Latent attention (MLA, DeepSeek-V2 and V3): its values and head outputs per head, which TransformerBridge lays out otherwise.

Keys and values are made from one compressed vector per token, but every head has a value of its own in the end: ``A v``,
``z`` and ``W_O`` are what they are elsewhere, with ``v_head_dim`` numbers per head where the model's configuration names
another ``d_head``. TransformerBridge gives values as ``[batch, head, key, d_head]``, and cuts ``z`` into heads of the wrong size.
"""

from typing import Any

from einops import rearrange
from torch import Tensor

from sinklens.models.hook_names import VALUE, Z


def value_width(module: Any) -> int | None:
    """How many numbers a head's value has in latent attention; None for any other attention.

    Args:
        module: an attention module of a TransformerBridge or HookedTransformer.

    Example:
        >>> value_width(object()) is None
        True
    """
    original = getattr(module, "original_component", None)
    width, rank = (getattr(original, name, None) for name in ("v_head_dim", "kv_lora_rank"))
    return width if isinstance(width, int) and isinstance(rank, int) else None


def own_width(module: Any, cfg: Any) -> int | None:
    """How many numbers a head has in a layer that is unlike the model's configuration (Gemma-4's full attention), else None.

    Example:
        >>> own_width(object(), object()) is None
        True
    """
    width = getattr(getattr(module, "original_component", None), "head_dim", None)
    return width if isinstance(width, int) and width != getattr(cfg, "d_head", width) else None


def heads_apart(template: str, tensor: Tensor, width: int) -> Tensor:
    """A value or head output as every other attention has it, ``[batch, position, head, d_head]``; other tensors as they are.

    Args:
        template: of the hook that holds the tensor.
        tensor: as latent attention lays it out.
        width: of :func:`value_width`.

    Example:
        >>> import torch
        >>> heads_apart(Z, torch.zeros(1, 5, 3, 8), width=12).shape
        torch.Size([1, 5, 2, 12])
        >>> heads_apart(VALUE, torch.zeros(1, 2, 5, 12), width=12).shape
        torch.Size([1, 5, 2, 12])
    """
    if template == VALUE:
        return tensor.transpose(1, 2)
    return tensor.flatten(2).unflatten(-1, (-1, width)) if template == Z else tensor


def as_laid_out(template: str, tensor: Tensor, like: Tensor) -> Tensor:
    """What :func:`heads_apart` gives, back in the layout of the hook's own tensor.

    Args:
        template: of the hook.
        tensor: ``[batch, position, head, d_head]``.
        like: the hook's tensor.

    Example:
        >>> import torch
        >>> hooked = torch.arange(60.0).reshape(1, 5, 3, 4)
        >>> torch.equal(as_laid_out(Z, heads_apart(Z, hooked, 6), hooked), hooked)
        True
    """
    return tensor.transpose(1, 2) if template == VALUE else tensor.reshape(like.shape)


def output_weight(module: Any, width: int) -> tuple[Tensor, Tensor | None]:
    """``W_O`` ``[head, d_head, d_model]`` for heads of a width, and ``b_O``; packed weights as they are stored."""
    weight, bias = module.o.weight, getattr(module.o, "bias", None)
    if not weight.is_floating_point() or weight.ndim != 2:
        return weight, bias
    return rearrange(weight, "d_model (head d_head) -> head d_head d_model", d_head=width), bias

"""Recognising weights that were folded or centred, which changes value norms and contributions."""

import warnings
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import FrameWarning
from sinklens.models.placement import materialized

_WARNED: set[str] = set()
# Folding a norm's gain moves it from one factor of the values to the other; the values stay what they were.
_HARMLESS = ("raw", "folded layer norm")
# Families with an output bias but no value bias: HookedTransformer gives them a b_V of zeros, as folding does.
_NO_VALUE_BIAS = ("GPTNeoForCausalLM",)


def describe_frame(model: Any, first_attention: Any, W_O: Tensor) -> str:
    """What was done to the weights, in words: ``raw`` or for example ``folded layer norm, centred writing weights``.

    HookedTransformer's default ``from_pretrained`` and TransformerBridge's compatibility mode fold and centre. What can
    be seen on the weights is read off them: centred ``W_O`` has rows of mean 0; folded value biases leave ``b_V = 0``
    beside ``b_O != 0``.

    Args:
        model: the model.
        first_attention: its first attention module.
        W_O: that module's output weights.
    """
    found: list[str] = []
    if str(getattr(model.cfg, "normalization_type", "") or "").endswith("Pre"):
        found.append("folded layer norm")
    if _is_centred(W_O):
        found.append("centred writing weights")
    if getattr(model.cfg, "original_architecture", None) not in _NO_VALUE_BIAS and _value_bias_folded(first_attention):
        found.append("folded value biases")
    return ", ".join(found) or "raw"


def _is_centred(W_O: Tensor) -> bool:
    weight = W_O.float()
    return bool(weight.mean(-1).abs().max() < 1e-3 * weight.std() / weight.shape[-1] ** 0.5)


def _value_bias_folded(attention: Any) -> bool:
    with materialized(attention):
        try:
            value_bias, output_bias = (getattr(attention, name, None) for name in ("b_V", "b_O"))
        except NotImplementedError:  # latent attention has no value bias to read
            return False
        if not isinstance(value_bias, Tensor) or not isinstance(output_bias, Tensor):
            return False
        return not bool(torch.count_nonzero(value_bias)) and bool(torch.count_nonzero(output_bias))


def warn_once(model_name: str, frame: str) -> None:
    """Say once per model that its numbers are not those of the raw weights.

    Example:
        >>> warn_once("tiny", "raw")
    """
    if frame in _HARMLESS or model_name in _WARNED:
        return
    _WARNED.add(model_name)
    warnings.warn(
        f"{model_name}: {frame}; value norms and contributions differ from the raw model's. "
        "Load it without processing (sinklens.load_model, from_pretrained_no_processing) for the raw frame",
        FrameWarning,
        stacklevel=2,
    )

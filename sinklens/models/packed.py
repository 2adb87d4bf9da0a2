"""Packed quantised weights: integers that stand for several numbers each, which no matrix product of ours can read."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# How libraries call what replaces a linear layer: bitsandbytes, GPTQ, AWQ, HQQ, AQLM, EETQ, FP8, BitNet, ...
_PACKED_LAYERS = (
    "4bit",
    "8bit",
    "8bitlt",
    "quant",
    "wqlinear",
    "hqq",
    "aqlm",
    "eetq",
    "fp8",
    "bitlinear",
    "vptq",
    "spqr",
    "higgs",
)
_PACKED_BUFFERS = ("qweight", "weight_packed", "W_q", "codes", "weight")
_QUANTISING_LIBRARIES = ("bitsandbytes", "torchao", "hqq", "gptqmodel", "auto_gptq", "awq", "optimum", "quanto")


def packed_fault(name: str, attention: Any) -> str | None:
    """Why the weights of an attention module cannot be read, naming the module, the kind and the dtype; or None.

    Args:
        name: what to call the module.
        attention: an attention module of a TransformerBridge or HookedTransformer.

    Example:
        >>> packed_fault("layer 0", torch.nn.Linear(2, 2)) is None
        True
        >>> layer = torch.nn.Module()
        >>> layer.qweight = torch.nn.Buffer(torch.zeros(2, 2, dtype=torch.int32))
        >>> packed_fault("layer 0", layer)
        "layer 0: the attention's weights are packed (Module, torch.int32), so values and W_O cannot be read; load ..."
    """
    found = next(_packed(attention), None)
    if found is None:
        return None
    return (
        f"{name}: the attention's weights are packed ({found}), so values and W_O cannot be read; "
        "load an unquantised copy in float32, float16 or bfloat16"
    )


def _packed(attention: Any) -> Iterator[str]:
    for part in attention.modules():
        kind = type(part).__name__
        for weight in _weights(part):
            if _is_packed(weight) or any(word in kind.lower() for word in _PACKED_LAYERS):
                yield f"{kind}, {weight.dtype}"


def _weights(part: torch.nn.Module) -> Iterator[Tensor]:
    yield from part.parameters(recurse=False)
    for name, buffer in part.named_buffers(recurse=False):
        if name in _PACKED_BUFFERS:
            yield buffer


def _is_packed(weight: Tensor) -> bool:
    library = type(weight).__module__.partition(".")[0]
    # Floats of one byte need a scale that is kept beside them.
    return not weight.is_floating_point() or weight.dtype.itemsize < 2 or library in _QUANTISING_LIBRARIES

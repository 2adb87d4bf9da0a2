"""Packed quantised weights are refused by one clear error, before the model runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sinklens as sl
from sinklens.models.packed import packed_fault
from tests.captured import BACKENDS, load, new

TEXTS = ["The cat sat on the mat"]


class Linear4bit(nn.Linear):
    """As bitsandbytes has it: a column of bytes for a matrix."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)


class Linear8bitLt(nn.Linear):
    """As bitsandbytes has it: a wrapper that other code may still find floats in."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)


class QuantLinear(nn.Module):
    """As GPTQ has it: integers in buffers, and no weight at all."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(1, 4, dtype=torch.int32))
        self.register_buffer("scales", torch.ones(1, 4))


class FloatOfOneByte(nn.Linear):
    """As FP8 checkpoints have it."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.float8_e4m3fn), requires_grad=False)


class AffineQuantizedTensor(Tensor):
    """As torchao has it: a tensor that says it is float32."""


AffineQuantizedTensor.__module__ = "torchao.dtypes"


class PlainLookingLinear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        packed = torch.zeros(4, 4).as_subclass(AffineQuantizedTensor)
        self.weight = nn.Parameter(packed, requires_grad=False)


PACKED: dict[Callable[[], nn.Module], str] = {
    Linear4bit: "Linear4bit, torch.uint8",
    Linear8bitLt: "Linear8bitLt, torch.float32",
    QuantLinear: "QuantLinear, torch.int32",
    FloatOfOneByte: "FloatOfOneByte, torch.float8_e4m3fn",
    PlainLookingLinear: "PlainLookingLinear, torch.float32",
}


@pytest.mark.parametrize("kind", PACKED)
def test_packed_layers_are_recognised_by_weights_or_name(kind: Callable[[], nn.Module]) -> None:
    attention = nn.ModuleDict({"q": nn.Linear(4, 4), "o": kind()})
    message = packed_fault("layer 3", attention)
    assert message is not None
    assert message.startswith(f"layer 3: the attention's weights are packed ({PACKED[kind]})")
    assert "load an unquantised copy in float32, float16 or bfloat16" in message


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_plain_layers_are_not(dtype: torch.dtype) -> None:
    attention = nn.Linear(4, 4, dtype=dtype)
    attention.register_buffer("mask", torch.ones(4, 4, dtype=torch.bool))
    attention.register_buffer("position_ids", torch.arange(4))
    assert packed_fault("layer 0", attention) is None


CALLS: dict[str, Callable[[Any], Any]] = {
    "check": sl.check_model,
    "maps": lambda model: sl.attention_maps(model, TEXTS[0]),
    "profile": lambda model: sl.head_profile(model, TEXTS, context_length=32, progress=False),
    "ablation": lambda model: sl.ablate_sinks(model, TEXTS, "all", context_length=32, progress=False),
    "hooks": lambda model: sl.zero_sink_values(model, heads=[(0, 1)]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_integer_weights_are_one_clear_error_before_the_model_runs(backend: str, call: str) -> None:
    """The forward pass of such a fake would only say that its matrices are of two kinds."""
    model, passes = new(backend, "llama"), []
    attention = model.blocks[1].attn
    owner, name = (attention.o.original_component, "weight") if backend == "bridge" else (attention, "W_O")
    setattr(owner, name, nn.Parameter(getattr(owner, name).detach().round().to(torch.int8), requires_grad=False))
    model.blocks[0].attn.hook_pattern.add_hook(lambda tensor, hook: passes.append(1))
    with pytest.raises(sl.UnsupportedAttentionError) as caught:
        CALLS[call](model)
    message = str(caught.value)
    assert "layer 1: the attention's weights are packed (" in message
    assert "torch.int8" in message
    assert "\n" not in message
    assert not passes


def test_packed_layers_of_another_part_are_let_be() -> None:
    """gpt-oss: the experts are packed, attention is not."""
    model = new("bridge", "llama")
    model.blocks[0].mlp.register_buffer("qweight", torch.zeros(1, dtype=torch.int32))
    assert sl.check_model(model).passed
    assert sl.check_model(load("bridge", "gpt_oss")).passed

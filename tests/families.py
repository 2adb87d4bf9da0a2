"""Tiny random models of every attention family, built offline from a ``transformers`` configuration.

Every model has 2 layers, width 64 and 4 query heads (``llama_3x5``: 3, 60 and 5), grouped-query families 2
distinct key/value heads, random non-zero biases and random norm gains, so that a bias counted twice, a head
repeated in the wrong order or a norm left out changes the numbers. Weights depend on family and seed only.
"""

import functools
import math
import zlib
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from tests.family_table import FAMILIES, HOOKED_FAMILIES, SUPPORTED, WINDOW, Family
from tests.tiny_tokenizer import tiny_tokenizer

__all__ = [
    "FAMILIES",
    "HOOKED_FAMILIES",
    "PROMPT",
    "SUPPORTED",
    "WINDOW",
    "Family",
    "bridge",
    "hf_model",
    "hooked",
    "inputs",
    "new_bridge",
    "new_hf_model",
]

PROMPT = "The cat sat on the mat, and the dog sat"
"""13 tokens with the tiny tokenizer, BOS included: longer than ``WINDOW``."""


def new_hf_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A fresh Hugging Face model of the family in eval mode; the same weights for the same name and seed."""
    family = FAMILIES[name]
    weights_seed = zlib.crc32(f"{name}/{seed}".encode())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(weights_seed)  # some initial values, which `randomize` only shifts, are random too
        model = getattr(transformers, family.model_class)(family.make_config())
    model.config.architectures = [family.model_class]
    randomize(model, weights_seed)
    scale_queries(model, family.query_scale)
    return model.eval().requires_grad_(False)


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Draw every parameter from a seeded normal law, none of them zero.

    Vectors (biases, norm gains, sink logits) are shifted by 0.3 N(0, 1) from their initial value, which
    serves gains stored as ``w`` and as ``1 + w``. Matrices have variance 1/fan-in, embeddings 1/16.
    """
    generator = torch.Generator().manual_seed(seed)
    for parameter_name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if parameter.ndim < 2 or parameter_name.endswith("bias"):
            parameter.add_(0.3 * noise)
        elif "embed" in parameter_name or "wte" in parameter_name or "wpe" in parameter_name:
            parameter.copy_(0.25 * noise)
        else:
            parameter.copy_(noise / math.sqrt(min(parameter.shape[-2:])))


@torch.no_grad()
def scale_queries(model: torch.nn.Module, scale: float) -> None:
    """Multiply what queries are made with: the gain of their norm, else their projection."""
    named = dict(model.named_parameters())
    normed = [weight for name, weight in named.items() if "q_norm" in name]
    for weight in normed or [weight for name, weight in named.items() if "q_proj" in name]:
        weight.mul_(scale)


@functools.cache
def hf_model(name: str, seed: int = 0) -> PreTrainedModel:
    """The family's Hugging Face model, one per process: do not change it."""
    return new_hf_model(name, seed)


def new_bridge(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A fresh ``TransformerBridge`` in eval mode on the CPU, for a test that changes the model."""
    from transformer_lens.model_bridge import TransformerBridge

    source: Any = new_hf_model(name, seed)  # the stub of its `to` takes no dtype
    model = TransformerBridge.boot_transformers(
        "tiny-" + name,
        hf_model=source.to(dtype),
        tokenizer=tiny_tokenizer() if FAMILIES[name].text else None,
        device="cpu",
        dtype=dtype,
    )
    return model.eval().requires_grad_(False)


@functools.cache
def bridge(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """The family's ``TransformerBridge`` with raw weights, one per process."""
    return new_bridge(name, dtype, seed)


@functools.cache
def hooked(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """The family's ``HookedTransformer`` (TransformerLens 3.x) with raw weights, one per process."""
    from tests.hooked_families import new_hooked

    return new_hooked(name, dtype, seed)


def inputs(name: str) -> torch.Tensor:
    """One prompt for the family: token ids [1, position], or pixels [1, 3, 16, 16] for a vision model."""
    if not FAMILIES[name].text:
        return torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    return torch.tensor([tiny_tokenizer().encode(PROMPT)])

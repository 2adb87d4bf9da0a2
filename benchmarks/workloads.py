"""What is compared: the plain forward pass, sinklens, and the textbook way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sinklens as sl

# The textbook way holds [query, key, d_model] of one head: beyond this it does not fit.
TEXTBOOK_LENGTH = 128
# Maps of all 30 layers of SmolLM2-135M take 4 T² bytes a head: 0.3 GB at 512, 4.5 GB at 2048.
MAPS_LENGTH = 512
MASKED_LENGTH = 512
STUDY_LENGTH = 128
FRACTIONS = (0.01, 0.05, 0.1, 0.5)


def tokens_of(model: Any, length: int) -> Tensor:
    """Batches of about 1024 tokens, so that every length does the same amount of work a pass."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(5, model.cfg.d_vocab, (rows_of(length), length), generator=generator)


def rows_of(length: int) -> int:
    """Sequences per batch."""
    return max(1, 1024 // length)


def workloads(model: Any, length: int) -> dict[str, Callable[[], object]]:
    """Name to function, the plain forward pass first."""
    tokens = tokens_of(model, length)
    found: dict[str, Callable[[], object]] = {
        "forward": lambda: forward(model, tokens),
        "head_profile": lambda: profile(model, tokens),
    }
    if length <= MAPS_LENGTH:
        found["forward of one"] = lambda: forward(model, tokens[:1])
        found["attention_maps"] = lambda: sl.attention_maps(model, tokens[0])
        found["maps and contributions"] = lambda: contributions(model, tokens[0])
    if length <= STUDY_LENGTH:
        whole: dict[str, Any] = {"context_length": None, "batch_size": len(tokens), "progress": False}
        found["sink_geometry"] = lambda: sl.sink_geometry(model, tokens, **whole)
        found["oversmoothing, layers"] = lambda: sl.oversmoothing(model, tokens, depth=False, **whole)
        found["attention_switch, no hulls"] = lambda: sl.attention_switch(model, tokens, hull_documents=0, **whole)
    if length <= MASKED_LENGTH:
        found["masked pass"] = lambda: masked(model, tokens)
    if length <= TEXTBOOK_LENGTH:
        found["textbook"] = lambda: textbook(model, tokens[:1])
    return found


def forward(model: Any, tokens: Tensor) -> None:
    """The plain eager forward pass."""
    with torch.no_grad():
        model(tokens, return_type=None)


def profile(model: Any, tokens: Tensor) -> None:
    """Every statistic of every head."""
    sl.head_profile(model, tokens, context_length=None, batch_size=len(tokens), progress=False)


def contributions(model: Any, tokens: Tensor) -> None:
    """Maps of one prompt, and both contribution weights of every layer, which maps compute when they are asked for."""
    maps = sl.attention_maps(model, tokens)
    for layer in maps.layers:
        one = maps.layer(layer)
        _ = one.intra, one.inter


def masked(model: Any, tokens: Tensor) -> None:
    """One clean pass and one masked pass for each fraction."""
    sl.faithfulness(
        model, tokens, "inter", FRACTIONS, modes="comprehensiveness", n_bootstrap=1, context_length=None,
        batch_size=len(tokens), progress=False,
    )  # fmt: skip


def textbook(model: Any, tokens: Tensor) -> None:
    """Intra-head contributions of all layers with an explicit [query, key, d_model] tensor a head."""
    with torch.no_grad():
        _, cache = model.run_with_cache(
            tokens, names_filter=lambda name: "hook_pattern" in name or "attn.v.hook_out" in name
        )
        for layer in range(model.cfg.n_layers):
            _textbook_layer(model.blocks[layer].attn.W_O, cache, layer)


def _textbook_layer(W_O: Tensor, cache: Any, layer: int) -> None:
    pattern = cache["pattern", layer][0]
    value = cache[f"blocks.{layer}.attn.v.hook_out"][0]
    value = value.repeat_interleave(pattern.shape[0] // value.shape[1], dim=1)
    for head in range(pattern.shape[0]):
        summands = pattern[head].unsqueeze(-1) * (value[:, head] @ W_O[head])
        output = summands.sum(1)
        _ = (summands @ output.unsqueeze(-1)).squeeze(-1) / output.square().sum(-1, keepdim=True)

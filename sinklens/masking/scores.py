"""The metrics by which terms ``A_ij v_j`` are ranked, from one layer's tensors in the pass that runs."""

import zlib
from typing import Literal

import torch
from torch import Tensor

from sinklens.axes import HeadOutput, Pattern, PerKey
from sinklens.metrics.contributions import (
    degenerate,
    gated_value_norms,
    inner_products,
    inter_directions,
    output_normalized,
    value_weighted,
)
from sinklens.metrics.head_space import to_head_space
from sinklens.models.layer import LayerAttention

Metric = Literal["attention", "value_weighted", "output_normalized", "intra", "inter", "random"]
METRICS: tuple[Metric, ...] = ("attention", "value_weighted", "output_normalized", "intra", "inter", "random")


def metric_scores(view: LayerAttention, metric: Metric, seed: int = 0) -> Pattern:
    """A metric of every term of a layer ``[batch, head, query, key]``; NaN where an output is degenerate.

    Args:
        view: the layer's tensors.
        metric: ``attention`` (``A``), ``value_weighted`` (``A ||ṽ||``), ``output_normalized`` (``A ||ṽ|| / ||o^h||``, the
            head's output), ``intra`` and ``inter`` (contribution weights within the head and within the layer), or ``random``.
        seed: of ``random``, whose scores depend on it, the layer and the sequence's own tokens, and on nothing else.
    """
    if metric == "attention":
        return view.pattern
    if metric == "value_weighted":
        return value_weighted(view.pattern, _value_norms(view))
    if metric == "output_normalized":
        return output_normalized(view.pattern, _value_norms(view), view.head_output.norm(dim=-1).transpose(1, 2))
    if metric == "random":
        return random_scores(view, seed)
    directions, squared = _inter(view) if metric == "inter" else _intra(view)
    safe = squared.masked_fill(degenerate(squared), torch.nan)
    # Divided before the product: a vector per query, not a number per pair.
    scaled = directions / safe.transpose(1, 2).unsqueeze(-1)
    return inner_products(scaled, view.head_value, view.gate) * view.pattern


def _value_norms(view: LayerAttention) -> PerKey | Pattern:
    return view.value_norm if view.gate is None else gated_value_norms(view.head_value, view.W_O, view.gate)


def _intra(view: LayerAttention) -> tuple[HeadOutput, Tensor]:
    output = view.head_output
    return to_head_space(output, view.weights.factor.mT), output.square().sum(-1).transpose(1, 2)


def _inter(view: LayerAttention) -> tuple[HeadOutput, Tensor]:
    return inter_directions(view.output, view.W_O)


def random_scores(view: LayerAttention, seed: int) -> Pattern:
    """Uniform numbers; the same for a sequence in whatever batch it comes, and however it is padded."""
    scores = torch.zeros_like(view.pattern)
    for row, (tokens, real) in enumerate(zip(view.tokens.cpu(), view.mask.cpu(), strict=True)):
        own = tokens[real].contiguous()
        name = f"{seed}/{view.layer}/".encode() + own.numpy().tobytes()
        generator = torch.Generator().manual_seed(zlib.crc32(name))
        drawn = torch.rand(view.n_heads, len(own), len(own), generator=generator)
        first = int(real.int().argmax())
        scores[row, :, first : first + len(own), first : first + len(own)] = drawn.to(scores)
    return scores

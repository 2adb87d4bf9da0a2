"""Does a layer's attention decompose? Compared on real tensors, never assumed from the model's name."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sinklens.metrics.contributions import layer_output
from sinklens.metrics.visibility import allowed_pairs
from sinklens.models.layer import LayerAttention, at_least_float32

# Rows that are compared on the first batch; all of them in check_model. Enough to see any fault, too few to cost time.
SAMPLED_QUERIES = 32
TOLERANCE = {"float32": 1e-4, "float64": 1e-6, "float16": 2e-2, "bfloat16": 6e-2}


@dataclass(frozen=True)
class Identities:
    """How well one layer decomposes; gaps are relative to the largest entry of what is compared with.

    Attributes:
        layer: the model's own number.
        head_gap: ``max|z - A v| / max|z|``, after the gate.
        leak: the largest attention on a key that should be invisible.
        row_gap: ``max|1 - Σ_j A_ij|``.
        output_gaps: ``max|Σ_h z W_O + b_O - hook| / max|hook|`` for every hook that may hold the layer's output; empty
            where none was at hand (a cache without them).
        tolerance: what a gap may be for the model's dtype.
    """

    layer: int
    head_gap: float
    leak: float
    row_gap: float
    output_gaps: Mapping[str, float]
    tolerance: float

    @property
    def output_hook(self) -> str | None:
        """The first hook that holds the layer's output, or None."""
        return next((name for name, gap in self.output_gaps.items() if gap <= self.tolerance), None)

    @property
    def output_gap(self) -> float:
        """The gap of the best hook."""
        return min(self.output_gaps.values(), default=float("inf"))

    @property
    def failure(self) -> str | None:
        """Why the layer cannot be used, or None."""
        if math.isnan(self.head_gap):
            return (
                "its head outputs are not A v (relative gap nan): its weights or what it was given hold NaN or infinity"
            )
        if not self.head_gap <= self.tolerance:
            return (
                f"its head outputs are not A v (relative gap {self.head_gap:.2g}): values of another layout, "
                "or a hook of yours edits hook_z"
            )
        if not self.leak <= self.tolerance:
            return f"attention {self.leak:.2g} stands on keys that should be invisible: an unknown attention mask"
        if self.output_gaps and self.output_hook is None:
            return (
                f"its heads do not add up to the attention's output (relative gap {self.output_gap:.2g}): "
                "W_O of another layout, or a hook of yours edits the output"
            )
        return None


def layout_failure(pattern: Tensor, value: Tensor, z: Tensor, W_O: Tensor) -> str | None:
    """Why tensors of these shapes cannot be pattern, values, head outputs and output weights of one layer, or None.

    Example:
        >>> one = torch.zeros(1, 1, 1, 1)
        >>> layout_failure(one, one, one, torch.zeros(1, 1, 4)) is None
        True
    """
    if not all(tensor.ndim == 4 for tensor in (pattern, value, z)):
        return f"pattern, value and z have {pattern.ndim}, {value.ndim} and {z.ndim} axes; expected 4 each, with heads apart"
    n_heads, d_head = z.shape[2:]
    if pattern.shape[1] != n_heads or tuple(W_O.shape[:2]) != (n_heads, d_head):
        return (
            f"the pattern has {pattern.shape[1]} heads, z has {n_heads} heads of {d_head}, "
            f"W_O has {W_O.shape[0]} heads of {W_O.shape[1]}; "
            "expected the same heads in all: a layout that sinklens does not read (latent attention, MLA)"
        )
    if n_heads % value.shape[2] or value.shape[3] != d_head:
        return (
            f"values come as {value.shape[2]} heads of {value.shape[3]}, z as {n_heads} heads of {d_head}: "
            "a layout of values that sinklens does not read (latent attention, MLA)"
        )
    return None


def compare(
    attention: LayerAttention, outputs: Mapping[str, Tensor], dtype: str, post_norm: Tensor | None = None,
    sampled: int | None = SAMPLED_QUERIES,
) -> Identities:  # fmt: skip
    """Compare the first sequence's head outputs with ``A v`` and its layer output with each hook that may hold it.

    Args:
        attention: the layer on one batch.
        outputs: the tensors of the hooks that may hold the layer's output, with ``b_O``.
        dtype: the model's, which sets the tolerance.
        post_norm: gain of a norm that acts before the hook: then only the direction can be compared.
        sampled: how many queries to compare, spread over the sequence; None for all.
    """
    rows = spread_rows(attention.mask[0], sampled)
    pattern = attention.pattern[:1, :, rows]
    expected = (pattern @ attention.head_value[:1].transpose(1, 2)).transpose(1, 2)
    z = attention.z[:1, rows]
    expected = expected if attention.gate is None else expected * attention.gate[:1, rows]
    hidden = ~_visible_rows(attention, rows)
    return Identities(
        layer=attention.layer,
        head_gap=relative_gap(expected, z),
        leak=(pattern * hidden.unsqueeze(1)).max().item(),
        row_gap=(1 - pattern.sum(-1)).abs().max().item(),
        output_gaps=_output_gaps(attention, rows, outputs, post_norm),
        tolerance=TOLERANCE.get(dtype, TOLERANCE["float32"]),
    )


def spread_rows(mask: Tensor, sampled: int | None) -> Tensor:
    """The positions of a sequence that are compared: real ones, at most ``sampled`` of them, spread over it.

    Example:
        >>> spread_rows(torch.tensor([True, True, True, False]), 2).tolist()
        [0, 2]
    """
    rows = mask.nonzero()[:, 0]
    if sampled is None or len(rows) <= sampled:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, sampled, device=rows.device).long()]


def _output_gaps(
    attention: LayerAttention, rows: Tensor, outputs: Mapping[str, Tensor], post_norm: Tensor | None
) -> dict[str, float]:
    computed = layer_output(attention.z[:1, rows], attention.W_O)
    if attention.weights.b_O is not None:
        computed = computed + attention.weights.b_O
    found = {name: at_least_float32(tensor[:1].to(computed.device)[:, rows]) for name, tensor in outputs.items()}
    gaps = {name: relative_gap(computed, tensor) for name, tensor in found.items() if tensor.shape == computed.shape}
    if post_norm is not None:
        gain = at_least_float32(post_norm.to(computed.device))
        angles = {n: torch.cosine_similarity(computed, tensor / gain, dim=-1) for n, tensor in found.items()}
        gaps |= {f"{name} before its norm": (1 - angle).max().item() for name, angle in angles.items()}
    return gaps


def _visible_rows(attention: LayerAttention, rows: Tensor) -> Tensor:
    position = torch.arange(attention.mask.shape[-1], device=rows.device)
    weights = attention.weights
    return (allowed_pairs(rows, position, weights.causal, weights.window) & attention.mask[0]).unsqueeze(0)


def relative_gap(expected: Tensor, actual: Tensor) -> float:
    """``max|expected - actual| / max|actual|``; infinite where the shapes differ.

    Example:
        >>> relative_gap(torch.ones(2), torch.tensor([1.0, 2.0]))
        0.5
    """
    if expected.shape != actual.shape:
        return float("inf")
    scale = actual.abs().max().clamp(min=torch.finfo(actual.dtype).tiny)
    return ((expected - actual).abs().max() / scale).item()

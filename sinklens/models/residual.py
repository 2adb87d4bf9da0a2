"""What attention really adds to the residual stream: its output, or that after a norm's gain (Gemma-2 and 3, OLMo-2 and 3).

A norm after attention divides a query's whole output by one number and multiplies each direction of the residual stream
with a gain ``g``: ``r_i = s_i g ⊙ (o_i + b_O)``. Given the scale ``s_i`` that is linear in what each key brings, and ``s_i``
cancels in contributions and angles, so that everything holds with ``W_O diag(g)`` in place of ``W_O``.
"""

from typing import Any

import torch
from torch import Tensor

from sinklens.errors import InputError
from sinklens.models.layer import at_least_float32
from sinklens.models.placement import materialized

FRAMES = ("attention", "residual")


def require_frame(frame: str) -> str:
    """The name itself.

    Raises:
        InputError: there is no such frame.

    Example:
        >>> require_frame("residual")
        'residual'
    """
    if frame not in FRAMES:
        raise InputError(
            f"frame is {frame!r}; expected 'attention' (what the heads write) or 'residual' (what is added to the stream)"
        )
    return frame


def residual_gain(block: Any, output: Tensor, added: Tensor, tolerance: float) -> tuple[Tensor | None, str | None]:
    """The gain between a layer's output and what is added to the residual stream, found by comparison.

    Args:
        block: the layer's block, among whose weights the gain is looked for.
        output: ``o_i + b_O`` ``[query, d_model]``.
        added: what is added ``[query, d_model]``.
        tolerance: of relative gaps.

    Returns:
        ``g`` ``[d_model]``, or None where the output itself is added, up to one number for all queries; and why neither
        holds, or None.

    Example:
        >>> output = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        >>> residual_gain(torch.nn.Module(), output, 0.3 * output, 1e-4)
        (None, None)
        >>> norm = torch.nn.LayerNorm(2)
        >>> norm.weight.data = torch.tensor([1.0, 2.0])
        >>> residual_gain(norm, output, output * norm.weight / output.norm(dim=-1, keepdim=True), 1e-4)[0].tolist()
        [1.0, 2.0]
    """
    multiplier = (output * added).sum() / output.square().sum()
    if bool((multiplier * output - added).abs().max() <= tolerance * added.abs().max()):
        return None, None
    for gain in possible_gains(block, output):
        if bool((_unit(output * gain) - _unit(added)).abs().max() <= tolerance):
            return gain, None
    return None, (
        "what its attention adds to the residual stream is not its output times a norm's gain; "
        "take frame='attention' for the output before it"
    )


def possible_gains(block: Any, like: Tensor) -> list[Tensor]:
    """Every vector of the block that may be a norm's gain, stored as ``g`` or as ``g - 1`` (Gemma); ones among them.

    Args:
        block: the layer's block.
        like: ``[..., d_model]``, whose device and width gains have.

    Example:
        >>> [gain.tolist() for gain in possible_gains(torch.nn.RMSNorm(1), torch.zeros(1, 1))]
        [[1.0], [1.0], [2.0]]
    """
    with materialized(block):
        found = [weight.detach() for weight in block.parameters() if weight.shape == like.shape[-1:]]
        # Copies: what accelerate brought is taken away again after this.
        stored = [at_least_float32(weight).to(like.device).clone() for weight in found if weight.is_floating_point()]
    return [torch.ones_like(like[0]), *stored, *(1 + weight for weight in stored)]


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)

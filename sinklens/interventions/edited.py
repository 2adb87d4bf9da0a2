"""What edits of head outputs have made of a layer's pattern and values in the pass that runs: the next edit starts from there."""

from typing import Any, NamedTuple

from torch import Tensor

# On the memory of the values itself: it ends with the pass, and is the same for every view that a back end shows to hooks.
_ATTRIBUTE = "sinklens_edited_heads"


class EditedHeads(NamedTuple):
    """Pattern and values as each query head reads them, after edits that only ``hook_z`` shows.

    Attributes:
        pattern: ``[batch, head, query, key]``.
        value: ``[batch, key, head, d_head]``, one per query head.
    """

    pattern: Tensor
    value: Tensor


def edited_heads(value: Tensor) -> EditedHeads | None:
    """What was kept with the values that a hook saw; None before the first edit."""
    found: Any = getattr(value.untyped_storage(), _ATTRIBUTE, None)
    return found


def keep_edited(value: Tensor, edited: EditedHeads) -> None:
    """Keep it with the values that a hook saw, for the edits that follow in this pass."""
    setattr(value.untyped_storage(), _ATTRIBUTE, edited)

"""Checkpoints of an encoder without the head for its pretraining task, such as sentence encoders: attention is all there."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from sinklens.errors import ModelLoadError
from sinklens.models.encoding import is_bidirectional

_MISSING = re.compile(r"^(?:\x1b\[[\d;]*m)*([\w.]+)(?:\x1b\[[\d;]*m)*\s*\|.*MISSING", re.MULTILINE)
_WRAPPER = "_original_component."


def settle_missing_weights(name: str, model: Any, messages: Sequence[str]) -> None:
    """Accept a checkpoint that lacks only an encoder's head, whose logits then are NaN; refuse any other that lacks weights.

    Args:
        name: of the model, for the message.
        model: a TransformerBridge or HookedTransformer, as loaded: what the checkpoint lacks is random in it.
        messages: what transformers said while it loaded.

    Raises:
        ModelLoadError: weights of the body are missing, or those of a decoder.
    """
    reports = [message for message in messages if "MISSING" in message]
    if not reports:
        return
    missing = [key for report in reports for key in _MISSING.findall(report)]
    original = getattr(model, "original_model", None)
    body = f"{getattr(original, 'base_model_prefix', '')}."
    is_head = bool(missing) and body != "." and not any(key.startswith(body) for key in missing)
    heads = _named(original, missing) if is_head and original is not None and is_bidirectional(model) else None
    if not heads:
        lacking = f" ({missing[0]} and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise ModelLoadError(
            f"{name}: the checkpoint lacks weights that the architecture needs{lacking}, so they would be random. "
            "Get a complete copy."
        )
    with torch.no_grad():
        for weight in heads:
            weight.fill_(torch.nan)
    warnings.warn(
        f"{name}: the checkpoint has no head ({missing[0].partition('.')[0]}); its attention is complete, its logits are NaN",
        stacklevel=3,
    )


def _named(model: torch.nn.Module, keys: Sequence[str]) -> list[torch.nn.Parameter] | None:
    """The parameters of these names in the checkpoint, or None unless all of them are there to be written."""
    named = model.named_parameters(remove_duplicate=False)  # one that is tied to another has several names
    own = {name.replace(_WRAPPER, ""): weight for name, weight in named}
    found = [own[key] for key in keys if key in own and not own[key].is_meta]
    return found if len(found) == len(keys) else None

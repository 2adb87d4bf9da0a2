"""Models that TransformerLens itself runs wrongly, so that every number of them would be of another function."""

from typing import Any

import torch
from torch import Tensor


def fused_split_fault(model: Any, module: Any) -> str | None:
    """Why a layer's fused query/key/value weights were taken apart wrongly, or None.

    Falcon's newer architecture (Falcon-40B, 180B, Falcon2) stores for each key/value head its queries, its key and its
    value together; TransformerBridge reads all queries, then all keys, then all values. Compared on the weights, so that
    a version that mends it is taken.

    Args:
        model: a TransformerBridge or HookedTransformer.
        module: one of its attention modules.

    Example:
        >>> fused_split_fault(object(), object()) is None
        True
    """
    fused = getattr(getattr(module, "original_component", None), "query_key_value", None)
    is_grouped = bool(getattr(getattr(model, "cfg", None), "new_decoder_architecture", False))
    if fused is None or not is_grouped:
        return None
    expected, taken = _value_rows(fused.weight, model.cfg), module.v.weight
    if expected is not None and expected.shape == taken.shape and torch.equal(expected, taken):
        return None
    return (
        "TransformerLens takes this Falcon's fused query, key and value weights apart in the wrong order, so that it runs "
        "another function than the model; expected a Falcon with multi_query (7B), or another model"
    )


def _value_rows(weight: Tensor, cfg: Any) -> Tensor | None:
    n_kv_heads = getattr(cfg, "n_key_value_heads", None) or cfg.n_heads
    d_head, rest = divmod(weight.shape[0], cfg.n_heads + 2 * n_kv_heads)
    if rest:
        return None
    groups = weight.reshape(n_kv_heads, cfg.n_heads // n_kv_heads + 2, d_head, -1)
    return groups[:, -1].flatten(0, 1)

"""Head factors, kept for as long as the model lives: on a short prompt they would cost as much as the maps."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sinklens.axes import Factor, OutputWeight
from sinklens.errors import UnsupportedAttentionError
from sinklens.metrics.head_space import head_factor

# By attention module. Small beside the weights: d_head numbers for every d_model of them.
_FACTORS: WeakKeyDictionary[Any, Tensor] = WeakKeyDictionary()
_PROBE_TOLERANCE = 1e-4


def cached_head_factor(module: Any, W_O: OutputWeight) -> Factor:
    """:func:`~sinklens.metrics.head_space.head_factor` of a module's ``W_O``, computed again when the weights have changed.

    Weights can change behind PyTorch's version counter (``.data``), so what is kept is compared with the weights at hand:
    along fixed random directions ``p``, ``||p F||`` must equal ``||p W_O||``. Whatever keeps all norms keeps the factor.

    Args:
        module: whose weights they are.
        W_O: ``[head, d_head, d_model]``.

    Returns:
        ``[head, d_head, d_head]``.

    Raises:
        UnsupportedAttentionError: the weights are not finite.
    """
    kept = _FACTORS.get(module)
    if kept is None or kept.shape[:2] != W_O.shape[:2] or kept.device != W_O.device or not _still_fits(kept, W_O):
        if not bool(torch.isfinite(W_O).all()):
            raise UnsupportedAttentionError(
                "W_O holds numbers that are not finite; load the model again or mend its weights"
            )
        kept = head_factor(W_O)
        _FACTORS[module] = kept
    return kept


def _still_fits(factor: Factor, W_O: OutputWeight) -> bool:
    n_heads, d_head, _ = W_O.shape
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(n_heads, 2, d_head, generator=generator).to(W_O)
    expected, found = ((probes @ matrix).norm(dim=-1) for matrix in (W_O, factor.to(W_O)))
    return bool(torch.allclose(found, expected, rtol=_PROBE_TOLERANCE))

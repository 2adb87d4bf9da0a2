"""The geometry of the sink's value against the values of the other tokens: its size (drain) and its direction (alignment)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import HeadValue, KeyMask, PerHead, PerKey, SinkPositions


def sink_mask(sink: SinkPositions, n_keys: int) -> Bool[Tensor, "batch key"]:
    """True on the sinks: positions to a mask over keys.

    Args:
        sink: ``[batch, sink]``, -1 where absent.
        n_keys: the length of a sequence.

    Returns:
        ``[batch, key]``.

    Example:
        >>> sink_mask(torch.tensor([[0, 2], [1, -1]]), 3).int().tolist()
        [[1, 0, 1], [0, 1, 0]]
    """
    return (torch.arange(n_keys, device=sink.device) == sink.unsqueeze(-1)).any(1)


def _masked_mean(per_key: PerKey, keys: KeyMask) -> PerHead:
    weight = keys.unsqueeze(1).to(per_key.dtype)
    return (per_key * weight).sum(-1) / weight.sum(-1)


def value_drain(value_norm: PerKey, is_sink: KeyMask, mask: KeyMask) -> PerHead:
    """Value drain: ``mean ||ṽ_s|| / mean ||ṽ_j||`` over the sinks ``s`` and the other real tokens ``j`` (ours, after 2410.13835).

    Args:
        value_norm: ``||ṽ||`` ``[batch, head, key]``.
        is_sink: ``[batch, key]``.
        mask: ``[batch, key]``, True on real tokens.

    Returns:
        ``[batch, head]``, not negative; below 1 the sink's value is the shorter. NaN where there is no sink or no other token.

    Example:
        >>> value_drain(torch.tensor([[[1.0, 4.0, 6.0]]]), torch.tensor([[True, False, False]]), torch.ones(1, 3) > 0).item()
        0.20000000298023224
    """
    return _masked_mean(value_norm, is_sink & mask) / _masked_mean(value_norm, mask & ~is_sink)


def mean_value(value: HeadValue, keys: KeyMask) -> Float[Tensor, "batch head d_head"]:
    """The mean value vector over the keys of a mask.

    Args:
        value: ``[batch, key, head, d_head]``, in any frame: the mean is linear.
        keys: ``[batch, key]``, at least one True a row, or the row is NaN.

    Returns:
        ``[batch, head, d_head]``.

    Example:
        >>> mean_value(torch.tensor([[[[1.0]], [[3.0]]]]), torch.tensor([[True, True]])).item()
        2.0
    """
    weight = keys.to(value.dtype)
    return (value * weight[:, :, None, None]).sum(1) / weight.sum(-1)[:, None, None]


def cosine(left: Tensor, right: Tensor) -> Tensor:
    """Cosine over the last axis; NaN where either vector has norm 0, which has no direction.

    Args:
        left: ``[..., d]``.
        right: ``[..., d]``, broadcastable.

    Returns:
        ``[...]`` in -1 to 1.

    Example:
        >>> cosine(torch.tensor([1.0, 0.0]), torch.tensor([-2.0, 0.0])).item()
        -1.0
    """
    length = left.norm(dim=-1) * right.norm(dim=-1)
    return ((left * right).sum(-1) / length.masked_fill(length == 0, float("nan"))).clamp(-1, 1)


def sink_alignment(projected_value: HeadValue, is_sink: KeyMask, mask: KeyMask) -> PerHead:
    """Alignment ``cos(ṽ_s, mean_j ṽ_j)`` of the sink's value with the mean of the others' (arXiv 2606.07604, form ours).

    Negative: the sink opposes the semantic tokens. Several sinks enter by their mean value.

    Args:
        projected_value: ``[batch, key, head, d_head]`` in head space (:func:`~sinklens.metrics.head_space.to_head_space`).
        is_sink: ``[batch, key]``.
        mask: ``[batch, key]``, True on real tokens.

    Returns:
        ``[batch, head]`` in -1 to 1.

    Example:
        >>> value = torch.tensor([[[[-1.0]], [[2.0]], [[4.0]]]])
        >>> sink_alignment(value, torch.tensor([[True, False, False]]), torch.ones(1, 3) > 0).item()
        -1.0
    """
    return cosine(mean_value(projected_value, is_sink & mask), mean_value(projected_value, mask & ~is_sink))


def mean_sink_cosine(projected_value: HeadValue, is_sink: KeyMask, mask: KeyMask) -> PerHead:
    """Mean over the other tokens of ``cos(ṽ_s, ṽ_j)``: every direction counts once, whatever its length (ours).

    Args:
        projected_value: ``[batch, key, head, d_head]`` in head space.
        is_sink: ``[batch, key]``.
        mask: ``[batch, key]``, True on real tokens.

    Returns:
        ``[batch, head]`` in -1 to 1.

    Example:
        >>> value = torch.tensor([[[[-1.0]], [[2.0]], [[-4.0]]]])
        >>> mean_sink_cosine(value, torch.tensor([[True, False, False]]), torch.ones(1, 3) > 0).item()
        0.0
    """
    of_sink = mean_value(projected_value, is_sink & mask).unsqueeze(1)
    angles = cosine(projected_value, of_sink).transpose(1, 2)
    others = mask & ~is_sink
    return _masked_mean(torch.where(others.unsqueeze(1), angles, 0.0), others)

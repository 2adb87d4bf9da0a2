"""What comes from the sinks, and the values as queries read them: shared by the analyzers."""

import torch
from torch import Tensor

from sinklens.metrics.head_space import to_head_space
from sinklens.metrics.values import mean_value
from sinklens.models.layer import LayerAttention


def values_as_read(attention: LayerAttention) -> Tensor:
    """Projected values in head space; under a gate at its mean over the scored queries of the document (ours)."""
    if attention.gate is None:
        return attention.projected_value
    mean_gate = mean_value(attention.gate, attention.queries).unsqueeze(1)
    return to_head_space(attention.head_value * mean_gate, attention.weights.factor)


def at_sinks(vectors: Tensor, sink: Tensor) -> Tensor:
    """Vectors ``[batch, key, head, d]`` at the sinks ``[batch, sink, head, d]``; an absent sink's is never read, as ``A = 0``."""
    index = sink.clamp(min=0)[:, :, None, None].expand(-1, -1, *vectors.shape[2:])
    return vectors.gather(1, index)


def _mixed(on_sink: Tensor, at_sinks: Tensor) -> Tensor:
    """``Σ_s A_is x_s`` ``[batch, query, head, d]``, contiguous over heads first."""
    return torch.matmul(on_sink, at_sinks.transpose(1, 2)).transpose(1, 2)


def sink_term(attention: LayerAttention, on_sink: Tensor) -> Tensor:
    """The part of each head's output that comes from the sinks, in head space ``[batch, query, head, d_head]``."""
    if attention.gate is None:
        return _mixed(on_sink, at_sinks(attention.projected_value, attention.sink))
    raw = _mixed(on_sink, at_sinks(attention.head_value, attention.sink))
    return to_head_space(raw * attention.gate, attention.weights.factor)


def own_value(attention: LayerAttention) -> Tensor:
    """Each query's own projected value in head space ``[batch, query, head, d_head]``."""
    if attention.gate is None:
        return attention.projected_value
    return to_head_space(attention.head_value * attention.gate, attention.weights.factor)

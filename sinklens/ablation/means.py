"""Mean values of the tokens that are no sinks: what a sink's value is set to instead of zero."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.analyzers.run import run
from sinklens.metrics.values import sink_mask
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule
from sinklens.results.provenance import Provenance


class ValueMeans(Analyzer):
    """Measures the mean value of the real tokens that are no sinks, by layer ``[kv_head, d_head]``.

    Example:
        >>> ValueMeans().hooks
        ()
    """

    def start(self, setup: Setup) -> None:
        """Start from nothing."""
        self.sums: dict[int, Tensor] = {}
        self.counts: dict[int, int] = dict.fromkeys(setup.layers, 0)

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        others = attention.mask & ~sink_mask(attention.sink, attention.mask.shape[-1])
        summed = attention.value[others].double().sum(0).cpu()
        self.sums[attention.layer] = self.sums.get(attention.layer, torch.zeros_like(summed)) + summed
        self.counts[attention.layer] += int(others.sum())

    def result(self, provenance: Provenance) -> dict[int, Tensor]:
        """The means in float32."""
        return {layer: (total / max(self.counts[layer], 1)).float() for layer, total in self.sums.items()}


def value_means(
    model: Any,
    texts: Any,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    progress: bool = True,
    **tokenization: Any,
) -> dict[int, Tensor]:
    """The mean value ``v̄`` over the tokens of a text that are no sinks, for :func:`sinklens.mean_sink_values` (ours).

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes; better other text than the one that is edited afterwards.
        layers: the model's own layer numbers; None for all.
        sink: which positions are sinks and left out.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        By layer, ``[kv_head, d_head]`` in the units of ``hook_v``.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    # run refuses a model in training mode with dropout, whose means would be random.
    [means] = run(model, texts, [ValueMeans()], layers=layers, sink=sink, progress=progress, **tokenization)
    return means

"""What analyzers share that average per head: sums and counts, added up layer by layer."""

from typing import ClassVar

import torch
from torch import Tensor

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.results.head_means import HeadMeans

# Quantities of one layer and batch: per query ``[batch, head, query]``, or per document ``[batch, head]``.
Quantities = dict[str, Tensor]


class MeansAnalyzer(Analyzer):
    """An analyzer whose result is a :class:`~sinklens.results.head_means.HeadMeans`; ``kept`` says which.

    Example:
        >>> MeansAnalyzer.kept.__name__
        'HeadMeans'
    """

    kept: ClassVar[type[HeadMeans]] = HeadMeans

    def start(self, setup: Setup) -> None:
        """Start from zero sums."""
        self.layers = setup.layers
        self.sums, self.counts = self.kept.empty(len(setup.layers), setup.n_heads)

    def add(self, index: int, quantities: Quantities, counted: dict[str, Tensor]) -> None:
        """Add one layer of one batch: each quantity summed where it counts.

        One stack, one sum and one transfer a layer: on short texts it is operations that cost, not numbers.

        Args:
            index: the layer's row.
            quantities: by name, ``[batch, head, query]`` or ``[batch, head]``; NaN is allowed where nothing counts.
            counted: by count name, booleans that broadcast to the quantities' shape.
        """
        stacked = torch.stack(list(quantities.values()))
        masks = {name: mask.expand(stacked.shape[1:]) for name, mask in counted.items()}
        selected = torch.stack([masks[self.kept.COUNT_OF[name]] for name in quantities])
        over = [axis for axis in range(1, stacked.ndim) if axis != 2]
        sums = torch.where(selected, stacked, 0.0).double().sum(over).cpu()
        counts = torch.stack(list(masks.values())).sum(over).double().cpu()
        for name, value in zip(quantities, sums, strict=True):
            self.sums[name][index] += value
        for name, value in zip(masks, counts, strict=True):
            self.counts[name][index] += value

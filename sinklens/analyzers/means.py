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
        names = list(self.kept.COUNT_OF)
        self._row = {name: row for row, name in enumerate(names)}
        self._count_row = {name: row for row, name in enumerate(dict.fromkeys(self.kept.COUNT_OF.values()))}
        shape = (len(setup.layers), setup.n_heads)
        self._sums = torch.zeros(len(self._row), *shape, dtype=torch.float64)
        self._counts = torch.zeros(len(self._count_row), *shape, dtype=torch.float64)

    @property
    def sums(self) -> dict[str, Tensor]:
        """Sum of each quantity so far, ``[layer, head]``."""
        return {name: self._sums[row].clone() for name, row in self._row.items()}

    @property
    def counts(self) -> dict[str, Tensor]:
        """How many queries or documents each sum has so far, ``[layer, head]``."""
        return {name: self._counts[row].clone() for name, row in self._count_row.items()}

    def add(self, index: int, quantities: Quantities, counted: dict[str, Tensor]) -> None:
        """Add one layer of one batch: each quantity summed where it counts.

        One stack, one sum and one transfer a layer: on short texts it is operations that cost, not numbers.

        Args:
            index: the layer's row.
            quantities: by name, ``[batch, head, query]`` or ``[batch, head]``; NaN is allowed where nothing counts.
            counted: by count name, booleans that broadcast to the quantities' shape.
        """
        stacked = torch.stack(list(quantities.values()))
        masks = torch.stack([mask.expand(stacked.shape[1:]) for mask in counted.values()])
        position = {name: i for i, name in enumerate(counted)}
        selected = masks[[position[self.kept.COUNT_OF[name]] for name in quantities]]
        over = [axis for axis in range(1, stacked.ndim) if axis != 2]
        sums = torch.where(selected, stacked, 0.0).sum(over, dtype=torch.float64)
        self._sums[[self._row[name] for name in quantities], index] += sums.cpu()
        self._counts[[self._count_row[name] for name in counted], index] += masks.sum(over).cpu()

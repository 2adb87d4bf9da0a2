"""Attention and contributions that each key receives, without a contribution map in memory."""

import torch
from torch import Tensor

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.metrics.contributions import contributions_per_key, inter_directions
from sinklens.metrics.head_space import to_head_space
from sinklens.models.layer import LayerAttention
from sinklens.results.key_contributions import QUANTITIES, KeyContributions
from sinklens.results.provenance import Provenance


class KeysAnalyzer(Analyzer):
    """Measures :class:`KeyContributions`. Costs two products of a pattern's size a head, without a temporary of that size.

    Example:
        >>> KeysAnalyzer().hooks
        ()
    """

    def start(self, setup: Setup) -> None:
        """Start without a position; positions are added as longer sequences come."""
        self.layers, self.n_heads = setup.layers, setup.n_heads
        shape = (len(setup.layers), setup.n_heads, 0)
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name in QUANTITIES}
        self.documents = torch.zeros(len(setup.layers), 0, dtype=torch.float64)
        self.readers = torch.zeros(len(setup.layers), 0, dtype=torch.float64)

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        index, length = attention.index, attention.pattern.shape[-1]
        self._grow(length)
        real = attention.mask.unsqueeze(1)
        for name, tensor in _received(attention).items():
            self.sums[name][index, :, :length] += torch.where(real, tensor, 0.0).double().sum(0).cpu()
        self.documents[index, :length] += attention.mask.double().sum(0).cpu()
        self.readers[index, :length] += attention.visible.double().sum((0, 1)).cpu()

    def _grow(self, length: int) -> None:
        missing = max(0, length - self.documents.shape[-1])
        self.sums = {name: torch.nn.functional.pad(value, (0, missing)) for name, value in self.sums.items()}
        self.documents = torch.nn.functional.pad(self.documents, (0, missing))
        self.readers = torch.nn.functional.pad(self.readers, (0, missing))

    def result(self, provenance: Provenance) -> KeyContributions:
        """The sums of all batches."""
        return KeyContributions(self.sums, self.documents[0], self.readers, self.layers, provenance)


def _received(attention: LayerAttention) -> dict[str, Tensor]:
    """Per key sums over the real queries; a padded query's row is given an output of norm 0, which contributes nothing."""
    real = attention.mask.unsqueeze(1)
    head_output = attention.head_output
    squared = head_output.square().sum(-1).transpose(1, 2) * real
    along_head = to_head_space(head_output, attention.weights.factor.mT)
    along_layer, layer_squared = inter_directions(attention.output, attention.W_O)
    arguments = attention.pattern, attention.head_value
    return {
        "attention": (attention.pattern * real.unsqueeze(-1)).sum(-2),
        "intra": contributions_per_key(*arguments, along_head, squared, attention.gate),
        "inter": contributions_per_key(*arguments, along_layer, layer_squared * real, attention.gate),
    }

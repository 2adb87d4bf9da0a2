"""What drives contributions: attention, value norm or direction, for sink, tail and middle tokens."""

import dataclasses

import torch
from torch import Tensor

from sinklens.analyzers.maps import head_vectors
from sinklens.analyzers.means import MeansAnalyzer
from sinklens.metrics.contributions import contribution_factors, inner_products
from sinklens.metrics.drivers import FACTORS, GROUPS, contribution_drivers, key_groups
from sinklens.models.layer import LayerAttention
from sinklens.results.driver_profile import STATISTICS, DriverProfile
from sinklens.results.provenance import Provenance


class DriversAnalyzer(MeansAnalyzer):
    """Measures a :class:`DriverProfile` of the intra-head contributions. Sorts every pair: slower than a profile.

    Args:
        tail: the last ``tail`` keys up to the query itself are its tail.

    Example:
        >>> DriversAnalyzer(tail=2).tail
        2
    """

    kept = DriverProfile

    def __init__(self, tail: int = 4):
        self.tail = tail

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch, a document and a head at a time."""
        groups = key_groups(attention.sink, attention.visible, attention.queries, self.tail)
        maps = head_vectors(attention)
        products = inner_products(maps["direction"], maps["value"])
        _, ratio, cosine = contribution_factors(attention.pattern, products, maps["value_norm"], maps["output_norm"])
        for row in range(len(attention.tokens)):
            factors = (attention.pattern[row], ratio[row].expand_as(cosine[row]), cosine[row])
            for number, group in enumerate(GROUPS):
                self._add_group(attention.index, group, groups[number, row], factors)

    def _add_group(self, index: int, group: str, selected: Tensor, factors: tuple[Tensor, Tensor, Tensor]) -> None:
        n_heads = factors[0].shape[0]
        found = [
            contribution_drivers(*(factor[head].expand_as(selected)[selected] for factor in factors))
            for head in range(n_heads)
        ]
        for name in STATISTICS:
            values = torch.stack([getattr(drivers, name) for drivers in found]).T.unsqueeze(1).cpu()
            quantities = {f"{name}.{group}.{factor}": value for factor, value in zip(FACTORS, values, strict=True)}
            self.add(index, quantities, {f"{name}.{group}": ~values.isnan().any(0)})

    def result(self, provenance: Provenance) -> DriverProfile:
        """The drivers over all batches."""
        provenance = dataclasses.replace(provenance, conventions={"tail": self.tail})
        return DriverProfile(self.sums, self.counts, self.layers, provenance)

"""What drives contributions: attention, value norm or direction, for sink, tail and middle tokens."""

from dataclasses import dataclass
from typing import ClassVar

from sinklens.metrics.drivers import FACTORS, GROUPS
from sinklens.results.head_means import HeadMeans

STATISTICS = ("share", "spearman")


@dataclass(frozen=True, repr=False)
class DriverProfile(HeadMeans):
    """Share of each factor in the spread of ``log|c|`` and its rank correlation with ``|c|`` (arXiv 2606.07604, section 3.2).

    Quantities are named ``share.sink.attention``: statistic (share, spearman), group of keys (sink, tail, middle), factor
    (attention, value_norm, direction). They are means over documents, each document weighing the same (ours).
    """

    COUNT_OF: ClassVar = {
        f"{statistic}.{group}.{factor}": f"{statistic}.{group}"
        for statistic in STATISTICS
        for group in GROUPS
        for factor in FACTORS
    }

    def __repr__(self) -> str:
        shares = {f: self.mean(f"share.middle.{f}").nanmean().item() for f in FACTORS}
        parts = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
        return f"DriverProfile({self.provenance.model_name}: spread of log|c| over middle tokens: {parts})"

"""Semantic drift of head outputs, with the sink's term and with it removed."""

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from sinklens.results.head_means import HeadMeans


@dataclass(frozen=True, repr=False)
class DriftProfile(HeadMeans):
    """Drift of every head (arXiv 2606.07604, operational form ours): ``cos(o_i, m)`` with the axis ``m`` of the semantic values.

    Quantities, each ``[layer, head]``: ``cone_with`` and ``cone_without`` the sink's term, ``pairwise_with`` and
    ``pairwise_without`` (mean cosine between the outputs of two queries), ``output_norm``.
    """

    COUNT_OF: ClassVar = {
        "cone_with": "cone_with_queries",
        "cone_without": "cone_without_queries",
        "output_norm": "queries",
        "pairwise_with": "documents",
        "pairwise_without": "documents",
    }

    def by_norm_quartile(self) -> pd.DataFrame:
        """Means over the heads of each quartile of the output norm, shortest first."""
        table = self.to_dataframe()
        rank = table["output_norm"].rank(method="first").to_numpy()
        quartile = pd.Series(((rank - 1) * 4 // len(rank)).astype(int) + 1, name="quartile")
        means = table.drop(columns=["layer", "head"]).groupby(quartile).mean()
        return pd.DataFrame(means).reset_index()

    def __repr__(self) -> str:
        falls = self.mean("cone_without") - self.mean("cone_with")
        return (
            f"DriftProfile({self.provenance.model_name}: without the sink's term the outputs' cosine with the semantic axis "
            f"changes by {falls.nanmean().item():+.3f} on average, and rises in {(falls > 0).float().mean().item():.0%} of heads)"
        )

"""The head profile: every head's sink, contribution and suppression statistics over any amount of text."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
from torch import Tensor

from sinklens.axes import LayerHead
from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS, pattern_kind
from sinklens.metrics.suppression import alpha_star, norm_curve
from sinklens.results.head_means import HeadMeans
from sinklens.results.labels import check_head, layer_index

# What each mean is a mean over. Means are kept as a sum and a count, so that parts of a measurement can be added.
COUNT_OF: dict[str, str] = {
    **dict.fromkeys(("sink_mass", "query_rate", "self_mass", "previous_mass", "entropy"), "queries"),
    **dict.fromkeys(("output_norm", "learned_sink_mass"), "queries"),
    **dict.fromkeys(("received", "sample_rate"), "documents"),
    **dict.fromkeys(("sink_value_ratio", "sink_alignment", "sink_cosine", "value_norm", "sink_value_norm"), "geometry"),
    **dict.fromkeys(("sink_intra", "self_intra"), "intra_queries"),
    **dict.fromkeys(("sink_inter",), "inter_queries"),
    **dict.fromkeys(("alpha_star", "interior_fraction", "suppression", "other_norm"), "mixtures"),
    **dict.fromkeys(("sink_squared", "inner", "other_squared"), "mixtures"),
}
QUANTITIES = (
    "sink_mass", "sink_rate", "sink_value_ratio", "sink_alignment", "sink_cosine", "sink_intra", "sink_inter",
    "self_mass", "self_intra", "previous_mass", "entropy", "learned_sink_mass",
    "value_norm", "sink_value_norm", "output_norm", "other_norm", "alpha_star", "interior_fraction", "suppression",
)  # fmt: skip


@dataclass(frozen=True)
class KindThresholds:
    """Above which mean mass a head is of a kind (:func:`~sinklens.metrics.patterns.pattern_kind`).

    Raises:
        InputError: a threshold is no number from 0 to 1.
    """

    sink_threshold: float = 0.3
    self_threshold: float = 0.3
    previous_threshold: float = 0.3
    dense_threshold: float = 0.7
    learned_sink_threshold: float = 0.3

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if not 0 <= value <= 1:  # NaN compares as False too
                raise InputError(f"{name} is {value!r}; expected a number from 0 to 1")


@dataclass(frozen=True, repr=False)
class HeadProfile(HeadMeans):
    """Statistics of every head over a text; each property is ``[layer, head]``. Made by :func:`sinklens.head_profile`.

    Means over queries run over the real tokens after the sink that can see it; means over documents run over sequences.
    A quantity that no query or document defines is NaN. ``sums`` and ``counts`` hold the running sums in float64.

    Attributes:
        sums: sum of each quantity, ``[layer, head]``.
        counts: how many queries or documents each sum has, ``[layer, head]``.
        layers: the model's own numbers of the layers that were measured.
        provenance: model, text, versions, conventions.
        eps: the threshold of the sink rate.
        thresholds: of the pattern kinds.
    """

    eps: float = 0.3
    thresholds: KindThresholds = dataclasses.field(default_factory=KindThresholds)

    COUNT_OF: ClassVar = COUNT_OF

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the per-head properties."""
        return QUANTITIES

    @property
    def sink_mass(self) -> LayerHead:
        """Mean attention on the sink over the queries after it, 0 to 1."""
        return self.mean("sink_mass")

    @property
    def sink_rate(self) -> LayerHead:
        """Share of documents whose received attention on the sink, own query included, is ``> eps`` (Gu et al. 2410.10781)."""
        return self.mean("sample_rate")

    @property
    def sink_value_ratio(self) -> LayerHead:
        """Value drain ``||ṽ_s|| / mean ||ṽ_j||``: below 1 the sink's value is shorter than the others'."""
        return self.mean("sink_value_ratio")

    @property
    def sink_alignment(self) -> LayerHead:
        """``cos(ṽ_s, mean_j ṽ_j)``; negative where the sink opposes the semantic tokens."""
        return self.mean("sink_alignment")

    @property
    def sink_cosine(self) -> LayerHead:
        """Mean over the other tokens of ``cos(ṽ_s, ṽ_j)``."""
        return self.mean("sink_cosine")

    @property
    def sink_intra(self) -> LayerHead:
        """Mean intra-head contribution of the sink to the head's output; negative where it works against it."""
        return self.mean("sink_intra")

    @property
    def sink_inter(self) -> LayerHead:
        """Mean inter-head contribution of the sink, through this head, to the layer's output."""
        return self.mean("sink_inter")

    @property
    def self_mass(self) -> LayerHead:
        """Mean attention of a query on itself, 0 to 1."""
        return self.mean("self_mass")

    @property
    def self_intra(self) -> LayerHead:
        """Mean intra-head contribution of the query's own token."""
        return self.mean("self_intra")

    @property
    def previous_mass(self) -> LayerHead:
        """Mean attention of a query on the token before it, 0 to 1; for the first query after the sink that is the sink."""
        return self.mean("previous_mass")

    @property
    def entropy(self) -> LayerHead:
        """Mean row entropy over ``log(#visible)``, 0 to 1; collision entropy unless the conventions say Shannon."""
        return self.mean("entropy")

    @property
    def learned_sink_mass(self) -> LayerHead:
        """Mean mass on a learned null key (gpt-oss): what the row lacks to 1. 0 for models without one."""
        return self.mean("learned_sink_mass")

    @property
    def value_norm(self) -> LayerHead:
        """Mean norm of the projected values of the other tokens, ``mean_j ||ṽ_j||``."""
        return self.mean("value_norm")

    @property
    def sink_value_norm(self) -> LayerHead:
        """Mean norm of the sink's projected value ``||ṽ_s||``."""
        return self.mean("sink_value_norm")

    @property
    def output_norm(self) -> LayerHead:
        """Mean norm of the head's output ``||o_i||``."""
        return self.mean("output_norm")

    @property
    def other_norm(self) -> LayerHead:
        """Mean norm of the mixture of the other tokens ``||ō_i||``: what the head would say without its sink."""
        return self.mean("other_norm")

    @property
    def alpha_star(self) -> LayerHead:
        """Mean over queries of the sink mass ``α*`` at which the output is shortest."""
        return self.mean("alpha_star")

    @property
    def interior_fraction(self) -> LayerHead:
        """Share of queries for which ``α*`` lies strictly between 0 and 1."""
        return self.mean("interior_fraction")

    @property
    def suppression(self) -> LayerHead:
        """Mean ``||o_i|| / ||ō_i||``: below 1 the sink shortens the output."""
        return self.mean("suppression")

    @property
    def kind(self) -> list[list[str]]:
        """Pattern kind of every head, ``[layer][head]``: sink, learned sink, diagonal, previous, dense or mixed (ours)."""
        scores = (self.sink_mass, self.self_mass, self.previous_mass, self.entropy)
        thresholds = dataclasses.asdict(self.thresholds)
        indices = pattern_kind(*scores, **thresholds, learned_sink_mass=self.learned_sink_mass)
        return [[KINDS[kind] for kind in row] for row in indices.tolist()]

    @property
    def pooled_alpha_star(self) -> LayerHead:
        """``α*`` of :meth:`norm_curve`: the one mass that would make the root mean square output shortest."""
        return alpha_star(self.mean("sink_squared"), self.mean("inner"), self.mean("other_squared"))

    def norm_curve(self, layer: int, head: int, mass: Tensor) -> Tensor:
        """Root mean square over queries of ``||α ṽ_s + (1-α) ō_i||`` on a grid of sink masses ``α``.

        Args:
            layer: the model's own number.
            head: query head.
            mass: ``[mass]``.

        Returns:
            ``[mass]``, in units of the residual stream.
        """
        row, column = layer_index(self.layers, layer), check_head(self.n_heads, head)
        terms = (self.mean(name)[row, column] for name in ("sink_squared", "inner", "other_squared"))
        return norm_curve(mass, *terms)

    def sink_rates(self, eps: float | None = None) -> dict[str, float]:
        """The sink rate of the model in the four conventions of :func:`~sinklens.metrics.sinks.sink_rate`, means over heads.

        Args:
            eps: threshold for ``mean_first``; the profile's own by default. The other thresholded conventions need the
                text again and always use the profile's own.

        Returns:
            ``per_sample``, ``mean_first``, ``per_query`` and ``mean_mass``, each in 0 to 1.
        """
        received = self.mean("received")
        defined = ~received.isnan()
        above = (received > (self.eps if eps is None else eps))[defined].float()
        means = {"per_sample": "sample_rate", "per_query": "query_rate", "mean_mass": "sink_mass"}
        rates = {name: self.mean(quantity).nanmean().item() for name, quantity in means.items()}
        return {"mean_first": above.mean().item(), **rates}

    @property
    def opposing_share(self) -> float:
        """Share of heads whose sink opposes the semantic tokens, ``sink_alignment < 0``."""
        alignment = self.sink_alignment
        return (alignment[~alignment.isnan()] < 0).float().mean().item()

    @property
    def n_degenerate(self) -> dict[str, int]:
        """Rows (query and head) left out of averages, by what they had no value for."""
        queries = self.counts["queries"].sum()
        names = {"intra": "intra_queries", "inter": "inter_queries", "suppression": "mixtures"}
        return {name: int(queries - self.counts[count].sum()) for name, count in names.items()}

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: ``layer``, ``head``, every quantity of the profile, ``kind``."""
        return super().to_dataframe().assign(kind=[kind for row in self.kind for kind in row])

    def _column(self, name: str) -> LayerHead:
        return getattr(self, name)

    @classmethod
    def _restore(cls, settings: dict[str, Any]) -> dict[str, Any]:
        return {**settings, "thresholds": KindThresholds(**settings["thresholds"])}

    def summary(self) -> dict[str, Any]:
        """The figures of the whole model: sink rates, opposing heads, kinds, degenerate rows."""
        kinds = [kind for row in self.kind for kind in row]
        return {
            "sink_rate": self.sink_rates(),
            "opposing_share": self.opposing_share,
            "kinds": {kind: kinds.count(kind) for kind in KINDS},
            "degenerate_rows": self.n_degenerate,
        }

    def __repr__(self) -> str:
        source = self.provenance
        return (
            f"HeadProfile({source.model_name}: {len(self.layers)} layers x {self.n_heads} heads, "
            f"{source.n_documents} documents, {source.n_tokens} tokens; "
            f"sink rate {self.sink_rates()['mean_first']:.2f} (mean first > {self.eps:g}), "
            f"sink opposes the others in {self.opposing_share:.0%} of heads)"
        )

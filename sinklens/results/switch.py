"""Attention as a switch: how often a head is off, what switches it off, and how much attention talks between tokens."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.metrics.switch import CARRIERS
from sinklens.results.bootstrap import percentile_interval
from sinklens.results.per_document import PerDocument, interval_of_mean

SCALES = ("median", "values")
# Parts of a layer's output: a layer has the sum over its heads, not the mean.
LAYER_PARTS = ("layer_self", "layer_sink", "layer_others", "layer_signed_self", "layer_signed_sink")
_BY = ("model", "layer", "head")


@dataclass(frozen=True)
class SwitchThresholds:
    """What counts as switched off, and what carries it; all ours, and recorded in the result's conventions.

    Args:
        median: a query is hard-switched where ``||o_i||`` is at most this share of the head's median over the document.
        values: the same on a scale that heads have in common, the mean norm of the projected values.
        soft: a query is soft-switched where its own attention (or contribution) is above this.
        sink: mass on the sinks above which they carry a hard switch.
        self_mass: the query's own mass above which it does.
        learned_sink: mass on a learned null key above which that does.
        cancellation: coherence ``||Σ A ṽ|| / Σ A ||ṽ||`` below which cancellation does.
        short_values: mean norm of the values attended to, over that of all values, below which short values do.

    Raises:
        InputError: a threshold is no number from 0 to 1, or that of a mass is below 0.5, where two could carry at once.

    Example:
        >>> SwitchThresholds(values=0.2).values
        0.2
    """

    median: float = 0.1
    values: float = 0.1
    soft: float = 0.5
    sink: float = 0.5
    self_mass: float = 0.5
    learned_sink: float = 0.5
    cancellation: float = 0.2
    short_values: float = 0.2

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = 0.5 if name in ("sink", "self_mass", "learned_sink") else 0
            if not least <= value <= 1:  # NaN compares as False too
                raise InputError(f"{name} is {value!r}; expected a number from {least:g} to 1")


@dataclass(frozen=True, repr=False)
class AttentionSwitch(PerDocument):
    """Hard and soft switches of every head, each figure ``[layer, head, document]``. Made by :func:`sinklens.attention_switch`.

    Means over queries run over the real tokens after the sink that can see it. Shares of queries, 0 to 1:
    ``hard_median``, ``hard_values`` (hard-switched on either scale), ``hard_without_sink`` (would be on the values' scale if
    the sinks were taken away and the rest of the row scaled up), ``soft_attention``, ``soft_contribution``, ``on_sink``
    (mass on the sink above the carrier's threshold, switched or not), and ``hard_SCALE_CARRIER``, which add up to
    ``hard_SCALE``; ``hard_values_short_sink`` is the part of ``hard_values_sink`` whose own term ``A_is ṽ_s`` is near zero
    too: in the rest the sink's value cancels the others'.

    ``sink_mass`` is the mean attention on the sink. ``communication`` is ``Σ|c_ij|`` over keys that are neither the query
    nor a sink, against all keys (intra-head). ``layer_self``, ``layer_sink`` and ``layer_others`` are this head's parts of
    the same for the layer (inter-head, absolute): over the heads of a layer the three sum to 1; ``layer_signed_self`` and
    ``layer_signed_sink`` keep the sign.

    Of the values of all tokens but the sink, on a sample of documents: ``hull_distance`` of the origin from their convex hull
    in units of their mean norm, ``value_rank``, and as 0 or 1 ``full_rank``, ``independent``, ``zero_excluded`` (no output
    of 0 without a sink) and ``hard_excluded`` (no hard switch on the values' scale without a sink; NaN under a gate).

    Attributes:
        values: by quantity ``[layer, head, document]``.
        layers: the model's own numbers of the layers that were measured.
        provenance: model, text, versions; its conventions hold the thresholds.

    Example:
        >>> from sinklens.results import Provenance
        >>> shares = torch.tensor([[[0.25, 0.75]]], dtype=torch.float64)
        >>> result = AttentionSwitch({"sink_mass": shares, "hard_values": shares}, (0,), Provenance("tiny"))
        >>> result.overall("hard_values")[0]
        0.5
    """

    AXES: ClassVar[tuple[str, ...]] = ("layer", "head")

    @property
    def thresholds(self) -> SwitchThresholds:
        """The thresholds that the figures depend on."""
        known = {field.name for field in dataclasses.fields(SwitchThresholds)}
        return SwitchThresholds(**{name: value for name, value in self.provenance.conventions.items() if name in known})

    @property
    def n_heads(self) -> int:
        """The number of query heads of a layer."""
        return self.documents("sink_mass").shape[1]

    @property
    def n_hull_documents(self) -> int:
        """How many documents the exclusion tests were made on."""
        return int((~self.documents("hull_distance").isnan()).flatten(0, 1).any(0).sum())

    def layer_documents(self, name: str) -> Float[Tensor, "layer document"]:
        """A quantity of each layer: the mean over its heads; for ``layer_…``, parts of the layer's output, their sum.

        Raises:
            InputError: there is no such quantity.
        """
        values = self.documents(name)
        return values.sum(1) if name in LAYER_PARTS else values.nanmean(1)

    def overall(self, name: str) -> tuple[float, float, float]:
        """A quantity of the whole model, the mean over its layers, with its 95 % interval over documents.

        Raises:
            InputError: there is no such quantity.
        """
        values = self.layer_documents(name).nanmean(0)
        low, high = interval_of_mean(values, self.weights).tolist()
        return values.nanmean().item(), low, high

    def carriers(self, scale: str = "values", by: str = "model") -> pd.DataFrame:
        """What carries the hard switches: shares of the hard-switched queries, which sum to 1, with 95 % intervals.

        Queries are pooled over the heads and documents in question; NaN where none is hard-switched.

        Args:
            scale: ``median`` or ``values``.
            by: ``model``, ``layer`` or ``head``.

        Returns:
            A row per carrier (of each layer, or head): ``carrier``, ``share``, ``low``, ``high``.

        Raises:
            InputError: there is no such scale or level.
        """
        if scale not in SCALES or by not in _BY:
            raise InputError(f"scale is {scale!r}, by is {by!r}; expected one of {', '.join(SCALES)}; {', '.join(_BY)}")
        carried = torch.stack([self.documents(f"hard_{scale}_{carrier}") for carrier in CARRIERS], 2).nan_to_num()
        pooled = {"model": carried.sum((0, 1)), "layer": carried.sum(1), "head": carried}[by]
        resampled = pooled @ self.weights.T
        shares = pooled.sum(-1) / pooled.sum((-2, -1)).unsqueeze(-1)
        low, high = percentile_interval(resampled / resampled.sum(-2, keepdim=True), self.n_documents).flatten(0, -2).T
        axes = {"model": [], "layer": [self.layers], "head": [self.layers, range(self.n_heads)]}[by]
        index = pd.MultiIndex.from_product([*axes, CARRIERS], names=[*("layer", "head")[: len(axes)], "carrier"])
        columns = {"share": shares.flatten().numpy(), "low": low.numpy(), "high": high.numpy()}
        return index.to_frame(index=False).assign(**columns)

    def by_layer(self) -> pd.DataFrame:
        """One row per layer: every quantity (:meth:`layer_documents`) with ``_low`` and ``_high`` of its interval."""
        columns: dict[str, Any] = {"layer": list(self.layers)}
        for name in self.quantities:
            values = self.layer_documents(name)
            low, high = interval_of_mean(values, self.weights).T
            ends = {f"{name}_low": low.numpy(), f"{name}_high": high.numpy()}
            columns |= {name: values.nanmean(-1).numpy(), **ends}
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        shares = {name: self.overall(name)[0] for name in ("hard_values", "soft_attention", "layer_others")}
        carried = self.carriers().dropna(subset="share").nlargest(1, "share")
        by = "".join(
            f" ({share:.0%} of them by {name})"
            for name, share in zip(carried["carrier"], carried["share"], strict=True)
        )
        excluded = self.overall("zero_excluded")[0]
        tests = "no exclusion test was made" if np.isnan(excluded) else (
            f"a zero output without a sink is excluded in {excluded:.0%} of heads"
        )  # fmt: skip
        return (
            f"AttentionSwitch({self.provenance.model_name}: {shares['hard_values']:.1%} of queries hard-switched{by}; "
            f"{shares['soft_attention']:.1%} soft-switched; communication is "
            f"{shares['layer_others']:.0%} of layer outputs; {tests})"
        )

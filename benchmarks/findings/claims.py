"""The papers' claims as figures with intervals and verdicts; a verdict follows from the interval and from nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from benchmarks.findings.measure import LAYERS
from sinklens.results.bootstrap import percentile_interval, resample_weights

SINK_HEAD = 0.3  # mean attention on the sink above which a head is called a sink head (eps of the sink rate)
RESAMPLES = 2000
LOSS_CLAIMS = (
    ("zero", "Zeroed sinks raise the loss"),
    ("mean", "So do sinks whose value is set to the other tokens' mean"),
)
CONTROLS = (
    ("position", "of the same edit at a random other position"),
    ("direction", "of an equal norm in a random direction"),
)
SWEEPS = (
    ("layer sweep", f"mass set in one layer at a time, layers {', '.join(map(str, LAYERS))}"),
    ("sweep", "mass set in all layers at once"),
)
ROUNDING = 1e-4  # of a curve's largest norm: a second difference above minus this counts as not negative
DRIFTS = (
    ("cone_without", "sink's term taken away in arithmetic"),
    ("cone_ablated", "sinks zeroed in all layers by intervention"),
)
# One metric, the one that it is said to beat, and whether "as much" is enough.
ORDER = (
    ("value_weighted", "attention", False),
    ("output_normalized", "value_weighted", True),
    ("inter", "output_normalized", False),
    ("inter", "attention", False),
)


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        claim: what is said.
        figure: what was measured, in words.
        value: the number.
        low: of the 95 % interval over documents.
        high: of the interval.
        boundary: the claim says that the number lies on one side of this.
        above: which side.
        weak: whether the claim holds where the interval contains the boundary ("not more than").
    """

    claim: str
    figure: str
    value: float
    low: float
    high: float
    boundary: float = 0.0
    above: bool = True
    weak: bool = False

    @property
    def verdict(self) -> str:
        """``holds``, ``does not hold`` or ``undecided``: where the whole interval lies."""
        if self.low > self.boundary:
            return "holds" if self.above else "does not hold"
        if self.high < self.boundary:
            return "does not hold" if self.above else "holds"
        return "holds (no difference seen)" if self.weak else "undecided"


def findings(measured: dict[str, Any]) -> list[Finding]:
    """All lines, in the order in which the papers make the claims."""
    found = [*_loss(measured["ablation"]), *_suppression(measured["heads"]), *_convexity(measured["heads"])]
    for name, words in SWEEPS:
        found += _sweep(measured[name], words)
    found += [*_drift(measured["drift"]), *_order(measured["signed"])]
    return [*found, *_absolute(measured["signed"], measured["absolute"])]


def over_documents(table: pd.Series, seed: int = 0) -> tuple[float, float, float]:
    """Mean of one figure per document, and the 95 % percentile bootstrap interval."""
    values = torch.tensor(table.to_numpy(), dtype=torch.float64)
    resampled = resample_weights(len(values), RESAMPLES, seed) @ values / len(values)
    low, high = percentile_interval(resampled, len(values)).tolist()
    return values.mean().item(), low, high


def _loss(ablation: Any) -> Iterator[Finding]:
    table, controls = ablation.to_dataframe(), ablation.against_controls()
    for edit, claim in LOSS_CLAIMS:
        row = table[(table.edit == edit) & (table["where"] == "sink")].iloc[0]
        yield Finding(claim, "Δ loss", row.delta_loss, row.delta_loss_low, row.delta_loss_high)
        for control, words in CONTROLS:
            row = controls[(controls.edit == edit) & (controls.control == control)].iloc[0]
            yield Finding("… more than the control", f"Δ loss minus that {words}", row.difference, row.low, row.high)


def _suppression(heads: pd.DataFrame) -> Iterator[Finding]:
    sinks = heads[heads.sink_mass > SINK_HEAD]
    claim = "Sinks shorten the head's output"
    yield Finding(
        claim, "mean `‖o‖/‖ō‖` of sink heads", *over_documents(sinks.groupby("document").suppression.mean()),
        boundary=1.0, above=False,
    )  # fmt: skip
    shorter = (heads.suppression < 1).groupby(heads.document).mean()
    yield Finding("… in most heads", "share of all heads with `‖o‖/‖ō‖` < 1", *over_documents(shorter), boundary=0.5)


def _convexity(heads: pd.DataFrame) -> Iterator[Finding]:
    inside = heads.interior_fraction.groupby(heads.document).mean()
    claim = "The output norm has its minimum at an interior sink mass"
    yield Finding(claim, "share of queries with 0 < α* < 1, mean over heads", *over_documents(inside), boundary=0.5)


def _sweep(sweep: Any, words: str) -> Iterator[Finding]:
    """Convexity of the measured curve; intervals are over heads, since a sweep pools documents."""
    curves = sweep.norms().pivot_table(index=["layer", "head"], columns="value", values="measured")
    second = curves.T.diff().diff().dropna().T
    convex = (second >= -ROUNDING * curves.max(axis=1).to_numpy()[:, None]).all(axis=1).astype(float)
    lowest = curves.columns.to_numpy()[curves.to_numpy().argmin(1)]
    inside = pd.Series(((lowest > 0) & (lowest < 1)).astype(float))
    figure = f"share of heads, {words} (interval over heads)"
    yield Finding("The measured norm is convex in the mass", figure, *over_documents(convex), boundary=0.5)
    yield Finding("… with its least value inside", figure, *over_documents(inside), boundary=0.5)


def _drift(drift: pd.DataFrame) -> Iterator[Finding]:
    """The change of the cosine with the semantic axis, by arithmetic and by intervention."""
    for column, words in DRIFTS:
        change = (drift[column] - drift.cone_with).groupby(drift.document).mean()
        claim = "Without the sink head outputs fall into the semantic cone"
        yield Finding(claim, f"change of `cos(o, m)`, {words}", *over_documents(change))


def _order(signed: Any) -> Iterator[Finding]:
    for mode, better in (("comprehensiveness", "more"), ("sufficiency", "less")):
        for one, other, weak in ORDER:
            value, low, high = _difference(signed, mode, one, other)
            claim = f"{mode.capitalize()}: removing by {one} costs {better} than by {other}" + (
                ", or as much" if weak else ""
            )
            figure = f"AOPC({one}) − AOPC({other})"
            yield Finding(claim, figure, value, low, high, above=mode == "comprehensiveness", weak=weak)


def _difference(signed: Any, mode: str, one: str, other: str) -> tuple[float, float, float]:
    table = signed.differences(other, aopc=True)
    row = table[(table.metric == one) & (table["mode"] == mode)].iloc[0]
    return row.difference, row.low, row.high


def _absolute(signed: Any, absolute: Any) -> Iterator[Finding]:
    """The same with contributions ranked by size: documents are the same, so losses are paired."""
    reference = signed.metrics.index("attention")
    for column, mode in enumerate(signed.modes):
        per_document = (absolute.loss[0, column] - signed.loss[reference, column]).mean(0) / signed.count
        value = over_documents(pd.Series(per_document.numpy()))
        claim = f"{mode.capitalize()}, contributions ranked by size: better than attention"
        yield Finding(claim, "AOPC(|inter|) − AOPC(attention)", *value, above=mode == "comprehensiveness")

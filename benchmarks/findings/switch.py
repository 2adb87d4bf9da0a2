"""What the second paper says of attention as a switch (arXiv 2605.08453): measured on one corpus, and as lines of the table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

import sinklens as sl
from benchmarks.findings.claims import Finding, over_documents
from benchmarks.findings.measure import BATCH, kept
from benchmarks.findings.texts import joined_rows
from sinklens.results.head_ranks import rank_correlations

ENOUGH = 1.5  # times d_head: fewer values than dimensions are independent, and exclude zero whatever they are
EXCLUSION_ROWS = 16


def measure_switch(model: Any, tokens: Tensor, folder: Path) -> dict[str, Any]:
    """Switches on every document, and exclusion tests on rows with more tokens than a head has dimensions."""
    long = joined_rows(tokens, int(ENOUGH * model.cfg.d_head), EXCLUSION_ROWS, model.cfg.n_ctx)

    def measured(rows: Tensor, hull_documents: int | None) -> sl.AttentionSwitch:
        return sl.attention_switch(model, rows, hull_documents=hull_documents, context_length=None, batch_size=BATCH)

    return {
        "switch": kept(folder / "switch.safetensors", sl.AttentionSwitch, lambda: measured(tokens, 0)),
        "exclusion": kept(folder / "switch_exclusion.safetensors", sl.AttentionSwitch, lambda: measured(long, None)),
    }


def switch_findings(measured: dict[str, Any]) -> list[Finding]:
    """The lines, in the order of the argument: are heads off, what switches them off, do they need it, what is left."""
    switch, exclusion = measured["switch"], measured["exclusion"]
    return [*_hard(switch), *_carried(switch), *_excluded(exclusion), *_like_an_mlp(switch)]


def _hard(switch: Any) -> Iterator[Finding]:
    limits = switch.thresholds
    often = (switch.documents("hard_values") > 0).double().mean((0, 1))
    yield Finding(
        "Most heads are hard-switched somewhere", f"share of heads with a query at `‖o‖` ≤ {limits.values:g} of the mean `‖ṽ‖`",
        *_over(often), boundary=0.5,
    )  # fmt: skip
    claim = "Sinks switch tokens off more often than they are left to themselves"
    yield Finding(
        claim, f"share of queries with A > {limits.sink:g} on the sink minus that with A > {limits.soft:g} on themselves",
        *_over(_mean(switch, "on_sink") - _mean(switch, "soft_attention")),
    )  # fmt: skip


def _carried(switch: Any) -> Iterator[Finding]:
    carriers = switch.carriers().set_index("carrier")
    row = carriers.loc["sink"]
    yield Finding(
        "Hard switches are carried by the sink", "share of the hard-switched queries with most attention on it",
        row["share"], row["low"], row["high"], boundary=0.5,
    )  # fmt: skip
    gap = _mean(switch, "hard_without_sink") - _mean(switch, "hard_values")
    claim = "… and would not be without it"
    yield Finding(claim, "share of hard-switched queries, other tokens alone minus as it is", *_over(gap), above=False)
    pairs = zip(_heads(switch, "sink_mass"), _heads(switch, "hard_values"), strict=True)
    ranked = pd.Series([rank_correlations(mass, hard, None, 1, 0)["spearman"] for mass, hard in pairs]).dropna()
    if len(ranked):  # a document without a hard switch has no correlation
        figure = "Spearman correlation over heads"
        yield Finding("Heads with more sink mass are off more often", figure, *over_documents(ranked))


def _excluded(exclusion: Any) -> Iterator[Finding]:
    tokens = round(exclusion.provenance.n_tokens / exclusion.provenance.n_sequences)
    for name, claim in (
        ("full_rank", "Value matrices have full rank"),
        ("zero_excluded", "Values other than the sink's lie in an open half-space: a zero output needs the sink"),
        ("hard_excluded", "… and far enough from 0 that every hard switch does"),
    ):
        figure = f"share of heads, rows of {tokens} tokens"
        yield Finding(claim, figure, *_over(_mean(exclusion, name)), boundary=0.5)


def _like_an_mlp(switch: Any) -> Iterator[Finding]:
    quiet = 1 - switch.layer_documents("layer_others")
    figure = "share of the layer's output from the sink and the token itself, mean over layers"
    yield Finding("Attention layers act like MLPs", figure, *_over(quiet.mean(0)), boundary=0.5)
    figure = "share of layers in which that is more than half"
    yield Finding("… in most layers", figure, *_over((quiet > 0.5).double().mean(0)), boundary=0.5)


def _mean(result: Any, name: str) -> Tensor:
    """Mean over heads and layers, document by document."""
    return result.layer_documents(name).nanmean(0)


def _heads(result: Any, name: str) -> np.ndarray:
    return result.documents(name).flatten(0, 1).T.numpy()


def _over(values: Tensor) -> tuple[float, float, float]:
    return over_documents(pd.Series(values.numpy()))

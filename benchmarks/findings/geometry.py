"""What the second paper says of a sink's geometry (arXiv 2605.08453): measured on one corpus, and as lines of the table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

import sinklens as sl
from benchmarks.findings.claims import Finding, over_documents
from benchmarks.findings.measure import BATCH, kept
from benchmarks.findings.texts import joined_rows
from sinklens.results.geometry import ATTENTION_INPUT, RESIDUAL, space_index

SPACES = {RESIDUAL: "residual stream", ATTENTION_INPUT: "attention's input, behind the norm"}
ENOUGH = 1.2  # times d_model: fewer tokens than dimensions are independent, and every pattern is representable
LONG_ROWS = 4


def measure_geometry(model: Any, tokens: Tensor, folder: Path) -> dict[str, Any]:
    """The geometry of every document, and of rows with more tokens than the model has dimensions."""
    long = joined_rows(tokens, int(ENOUGH * model.cfg.d_model), LONG_ROWS, model.cfg.n_ctx)

    def measured(rows: Tensor, batch_size: int) -> sl.SinkGeometry:
        return sl.sink_geometry(model, rows, context_length=None, batch_size=batch_size)

    return {
        "geometry": kept(folder / "geometry.safetensors", sl.SinkGeometry, lambda: measured(tokens, BATCH)),
        "long": kept(folder / "geometry_long.safetensors", sl.SinkGeometry, lambda: measured(long, 1)),
    }


def geometry_findings(measured: dict[str, Any]) -> list[Finding]:
    """The lines, in the order of the argument: is BOS opposed, where, what hides it, and is a sink representable."""
    return [*_opposed(measured["geometry"]), *_representable(measured["geometry"], measured["long"])]


def _opposed(found: Any) -> Iterator[Finding]:
    for space, words in SPACES.items():
        figure = f"mean `cos(x_s, x_j)`, {words}, mean over layers"
        yield Finding(
            "BOS is anti-aligned with the other tokens", figure, *_over(found, "cosine_mean", space), above=False
        )
        figure = f"share of these cosines that are at most 0, {words}"
        yield Finding("… with most of them", figure, *_over(found, "opposed_share", space), boundary=0.5)
    massive = massive_rows(found)
    if massive:
        low, high = found.layers[massive[0]], found.layers[massive[-1]]
        yield from _where_massive(
            found, massive, f"the {len(massive)} layers with massive activations, {low} to {high}"
        )
    gap = _mean(found, "cosine_mean", ATTENTION_INPUT) - _mean(found, "cosine_mean", RESIDUAL)
    figure = "mean cosine behind the norm minus that before it"
    yield Finding("The norm turns BOS away from the others", figure, *over_documents(pd.Series(gap)), above=False)
    figure = "share of layers in which `W = −x_s x_sᵀ` makes a sink, behind the norm"
    yield Finding(
        "BOS's own direction is a witness", figure, *_over(found, "anti_aligned", ATTENTION_INPUT), boundary=0.5
    )


def _where_massive(found: Any, rows: list[int], where: str) -> Iterator[Finding]:
    yield Finding(
        "Massive activations stand on the sink", f"share of them at BOS, residual stream, {where}",
        *_over(found, "massive_on_sink", RESIDUAL, rows), boundary=0.5,
    )  # fmt: skip
    for space, words in SPACES.items():
        for name, which in (("cosine_mean", "all dimensions"), ("cosine_mean_without", "without the massive ones")):
            figure = f"mean `cos(x_s, x_j)`, {words}, {which}, {where}"
            yield Finding("… and there BOS is anti-aligned", figure, *_over(found, name, space, rows), above=False)


def _representable(found: Any, long: Any) -> Iterator[Finding]:
    claims = ("A sink is representable on each document's own tokens", "… and on documents joined behind one BOS")
    for result, claim in zip((found, long), claims, strict=True):
        tokens = round(result.provenance.n_tokens / result.provenance.n_sequences)
        rank = _mean(result, "rank_share", ATTENTION_INPUT).mean()
        for space, words in SPACES.items():
            figure = f"share of layers, {words}, {tokens} tokens (rank {rank:.2f} of the tokens)"
            yield Finding(claim, figure, *_over(result, "representable", space), boundary=0.5)
    figure = "margin of the rank-one form behind the norm minus before it, mean over layers"
    gap = _mean(long, "witness_margin", ATTENTION_INPUT) - _mean(long, "witness_margin", RESIDUAL)
    yield Finding("The norm makes it easier", figure, *over_documents(pd.Series(gap)))


def massive_rows(found: Any) -> list[int]:
    """The rows of layers that have massive activations in most documents."""
    table = found.massive_dimensions()
    layers = sorted(set(table.loc[table["share"] > 0.5, "layer"]))
    return [found.layers.index(layer) for layer in layers]


def _mean(found: Any, name: str, space: str, rows: list[int] | None = None) -> Any:
    """Each document's mean over layers."""
    figures = found.documents(name)[:, space_index(space)]
    return (figures if rows is None else figures[rows]).nanmean(0).numpy()


def _over(found: Any, name: str, space: str, rows: list[int] | None = None) -> tuple[float, float, float]:
    return over_documents(pd.Series(_mean(found, name, space, rows)))

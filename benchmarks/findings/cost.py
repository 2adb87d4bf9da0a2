"""What patterns and heads cost: the second paper's claims on cost, by theory, on own embeddings and over heads."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sinklens as sl
from benchmarks.findings.claims import Finding
from benchmarks.findings.measure import BATCH, kept
from sinklens.theory import ScalingFit, cost_scaling

# Each takes some seconds a layer; intervals over so many are narrow enough.
EMBEDDING_DOCUMENTS = 16
FULL_LENGTHS = (256, 512, 1024, 2048, 4096)
CAUSAL_LENGTHS = (8, 16, 32, 64)


def measure_cost(model: Any, tokens: Any, folder: Path) -> sl.HeadCosts:
    """Costs of all heads, from a file where they were measured before."""
    arguments: dict[str, Any] = {"context_length": None, "batch_size": BATCH}
    return kept(
        folder / "head_costs.safetensors", sl.HeadCosts,
        lambda: sl.head_costs(model, tokens, embedding_documents=EMBEDDING_DOCUMENTS, **arguments),
    )  # fmt: skip


def cost_findings(measured: sl.HeadCosts) -> list[Finding]:
    """The lines of one corpus."""
    return [*_own_embeddings(measured), *_kinds(measured), *_correlations(measured)]


def scaling_findings() -> list[Finding]:
    """Exponents on orthonormal embeddings; their intervals are of the fit, since costs have no noise."""
    found = []
    for causal, lengths, words in (
        (False, FULL_LENGTHS, "full, closed form"),
        (True, CAUSAL_LENGTHS, "causal, solver"),
    ):
        sink, diagonal = (cost_scaling(lengths, kind, causal=causal) for kind in ("sink", "diagonal"))
        where = f"nuclear norm over T = {lengths[0]} to {lengths[-1]}, {words}"
        line = Finding(
            "A sink's cost grows more slowly than a diagonal's",
            f"exponent {_exponent(diagonal)} of a diagonal minus {_exponent(sink)} of a sink, {where} (interval of the fit)",
            diagonal.exponent - sink.exponent,
            diagonal.low - sink.high,
            diagonal.high - sink.low,
        )
        found.append(line)
    return found


def _exponent(fit: ScalingFit) -> str:
    return f"{fit.exponent:.3f} [{fit.low:.3f}, {fit.high:.3f}]"


def _own_embeddings(measured: sl.HeadCosts) -> Iterator[Finding]:
    least = measured.least
    if least is None:
        return
    layers = ", ".join(map(str, least.layers))
    for norm in ("nuclear", "Frobenius"):
        yield Finding(
            "A sink costs less than a diagonal on what the layer's attention reads",
            f"least cost of a sink over that of a diagonal, {norm} norm, mean over layers {layers}; 0 where there is no "
            f"diagonal ({least.n_documents} documents)",
            *least.sink_over_diagonal(norm.lower()),
            boundary=1.0,
            above=False,
        )


def _kinds(measured: sl.HeadCosts) -> Iterator[Finding]:
    table: Any = measured.sink_against_diagonal(["qk_nuclear", "vo_nuclear"])
    for row, name in zip(table.itertuples(), ("W_QK", "W_VO"), strict=True):
        yield Finding(
            "Sink heads cost less than diagonal heads",
            f"median nuclear norm of {name} of {row.n_sink} sink heads minus that of {row.n_diagonal} diagonal heads "
            "(interval over heads)",
            row.difference, row.low, row.high, above=False,
        )  # fmt: skip


def _correlations(measured: sl.HeadCosts) -> Iterator[Finding]:
    for cost, name in (("qk_nuclear", "W_QK"), ("vo_nuclear", "W_VO")):
        for within, words in ((False, "over all heads"), (True, "within layers")):
            row: Any = measured.correlations([cost], ["sink_mass"], within_layers=within).iloc[0]
            figure = f"rank correlation of the nuclear norm of {name} with the sink mass, {words} (interval over heads)"
            claim = "The more a head attends to the sink, the less it costs"
            yield Finding(claim, figure, row.spearman, row.low, row.high, above=False)

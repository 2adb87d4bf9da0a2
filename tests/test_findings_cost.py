"""The lines on cost: measured once, read off the result, with verdicts from the intervals."""

from pathlib import Path

import pytest
import torch

import sinklens as sl
from benchmarks.findings import cost
from tests.families import bridge

TOKENS = torch.tensor([[0, 5, 6, 7, 8, 9, 4], [0, 9, 3, 4, 5, 8, 7]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("findings")


def test_lines_are_read_off_the_kept_result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = cost.measure_cost(bridge("llama_3x5"), TOKENS, folder)
    monkeypatch.setattr(sl, "head_costs", lambda *_, **__: pytest.fail("measured twice"))
    again = cost.measure_cost(bridge("llama_3x5"), TOKENS, folder)
    assert again.to_dataframe().equals(measured.to_dataframe())
    lines = cost.cost_findings(again)
    assert len(lines) == 8
    embeddings, correlations = lines[:2], lines[4:]
    assert measured.least is not None
    assert (embeddings[0].value, embeddings[0].low, embeddings[0].high) == measured.least.sink_over_diagonal("nuclear")
    assert (embeddings[0].boundary, embeddings[0].above) == (1.0, False)
    row = measured.correlations(["vo_nuclear"], ["sink_mass"], within_layers=True).iloc[0]
    assert (correlations[3].value, correlations[3].low, correlations[3].high) == (row.spearman, row.low, row.high)


def test_without_a_diagonal_head_nothing_is_decided(folder: Path) -> None:
    measured = cost.measure_cost(bridge("llama_3x5"), TOKENS, folder)
    row = measured.sink_against_diagonal(["qk_nuclear"]).iloc[0]
    line = cost.cost_findings(measured)[2]
    assert f"{row.n_diagonal} diagonal heads" in line.figure
    assert (line.verdict == "undecided") == (not (row.low > 0 or row.high < 0))


def test_exponents_need_no_text() -> None:
    full, causal = cost.scaling_findings()
    assert (full.verdict, causal.verdict) == ("holds", "holds")
    assert full.value == pytest.approx(0.5, abs=0.01)

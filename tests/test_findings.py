"""The table of findings: verdicts follow from intervals, and the whole of it can be made for any model."""

import argparse
from pathlib import Path

import pandas as pd
import pytest
import torch

from benchmarks.findings import measure as measure_module
from benchmarks.findings.claims import Finding, findings, over_documents
from benchmarks.findings.page import page
from benchmarks.findings.parts import with_part
from benchmarks.findings.patterns import TOPICS, measure_patterns, patterns_findings, patterns_page
from benchmarks.findings.texts import joined_rows
from tests.captured import load


@pytest.mark.parametrize(("low", "high", "above", "weak", "verdict"), [
    (0.1, 0.3, True, False, "holds"),
    (0.1, 0.3, False, False, "does not hold"),
    (-0.3, -0.1, True, False, "does not hold"),
    (-0.3, -0.1, True, True, "does not hold"),
    (-0.3, -0.1, False, False, "holds"),
    (-0.1, 0.1, True, False, "undecided"),
    (-0.1, 0.1, False, True, "holds (no difference seen)"),
])  # fmt: skip
def test_a_verdict_is_where_the_whole_interval_lies(
    low: float, high: float, above: bool, weak: bool, verdict: str
) -> None:
    for shift in (0.0, 0.5):
        one = Finding("", "", shift, low + shift, high + shift, boundary=shift, above=above, weak=weak)
        assert one.verdict == verdict


def test_intervals_hold_the_mean_of_documents() -> None:
    mean, low, high = over_documents(pd.Series([1.0, 2.0, 3.0, 6.0]))
    assert mean == 3.0
    assert 1.0 < low < 3.0 < high < 6.0


def test_findings_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "LAYERS", (0, 1))
    monkeypatch.setattr(measure_module, "BATCH", 2)
    tokens = torch.randint(5, 300, (3, 16), generator=torch.Generator().manual_seed(0))
    model = load("bridge", "llama")
    measured = measure_module.measure(model, tokens, tmp_path)
    lines = findings(measured)
    [norms] = [
        line for line in lines if line.claim.endswith("convex in the mass") and "one layer at a time" in line.figure
    ]
    assert norms.value == 1.0  # a theorem, where no other layer is edited
    again = findings(measure_module.measure(model, tokens, tmp_path))
    assert [(line.value, line.verdict) for line in again] == [(line.value, line.verdict) for line in lines]
    arguments = argparse.Namespace(documents=3, length=16, model="tiny")
    written = page({"GSM8K": lines}, {"GSM8K": measured}, arguments)
    assert all(written.count(f"| {line.claim} |") >= 1 for line in lines)
    table = [line for line in written.splitlines() if line.startswith("| Zeroed")]
    assert [row.split(" | ")[-1].rstrip(" |") for row in table] == [lines[0].verdict]


def test_long_rows_hold_documents_behind_one_bos() -> None:
    tokens = torch.arange(40).reshape(4, 10)
    two = joined_rows(tokens, 15, 8, longest=100)
    assert two.tolist() == [[*range(10), *range(11, 20)], [*range(20, 30), *range(31, 40)]]
    assert joined_rows(tokens, 15, 1, longest=100).shape == (1, 19)
    assert joined_rows(tokens, 15, 8, longest=18).tolist() == tokens.tolist()  # two documents would be too long
    assert joined_rows(tokens, 1000, 8, longest=1000).shape == (2, 19)  # two rows at least


def test_a_part_is_written_anew_without_the_others() -> None:
    page = with_part(with_part("", "patterns", "second"), "contributions", "first")
    assert page.index("first") < page.index("second")
    again = with_part(page, "contributions", "other")
    assert again == page.replace("first", "other")


def test_the_second_papers_part_has_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toys = {"toys": {}, "edited": None}
    monkeypatch.setattr("benchmarks.findings.patterns.measure_toys", lambda folder: toys)
    monkeypatch.setattr(
        "benchmarks.findings.patterns.toy_findings", lambda found: [Finding("A toy", "x", 1.0, 0.5, 2.0)]
    )
    monkeypatch.setattr(measure_module, "BATCH", 2)
    tokens = torch.randint(5, 300, (4, 16), generator=torch.Generator().manual_seed(0))
    measured = {"GSM8K": measure_patterns(load("bridge", "llama"), tokens, tmp_path)}
    lines = {name: patterns_findings(one) for name, one in measured.items()}
    assert set(lines["GSM8K"]) == set(TOPICS)
    arguments = argparse.Namespace(documents=4, length=16, model="tiny", work=tmp_path)
    written = patterns_page(lines, measured, arguments)
    for found in lines["GSM8K"].values():
        assert all(f"| {line.claim} |" in written for line in found)
        assert len(found) > 5
    assert "| A toy | x | +1.000 | +0.500 to +2.000 | holds |" in written

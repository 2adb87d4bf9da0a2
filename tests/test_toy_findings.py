"""Findings on toys: lines follow from histories over seeds, and an edit of the packaged toy."""

from pathlib import Path

import pytest
import torch
from scipy import stats

from benchmarks.findings import toy as findings
from tests.captured import MAJOR


def test_an_interval_over_seeds_is_students() -> None:
    values = torch.tensor([1.0, 2.0, 4.0]).double()
    expected = stats.ttest_1samp(values.numpy(), 0).confidence_interval(0.95)
    assert findings.over_seeds(values) == pytest.approx((7 / 3, expected.low, expected.high))
    assert findings.over_seeds(values[:1])[1] != findings.over_seeds(values[:1])[1]  # NaN


def test_the_sink_of_the_packaged_toy_carries_its_switch() -> None:
    table = findings.edited_losses()
    lines = {line.claim: line for line in findings._edited(table)}
    assert len(table) == 2 * findings.DOCUMENTS
    assert lines["The sink carries the switch: without it dormant outputs grow"].value > 2
    assert all(line.verdict == "holds" for line in lines.values())


@pytest.mark.skipif(MAJOR < 4, reason="the gated toy needs TransformerLens 4")
def test_findings_are_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "edited_losses", lambda: None)
    monkeypatch.setattr(findings, "_edited", lambda _: iter(()))
    measured = findings.measure_toys(tmp_path, seeds=(0, 1), steps=2)
    lines = findings.toy_findings(measured)
    assert len(list(tmp_path.iterdir())) == 2 * len(findings.TOYS)
    monkeypatch.setattr(findings, "train_toy", lambda **_: pytest.fail("trained again"))
    again = findings.toy_findings(findings.measure_toys(tmp_path, seeds=(0, 1), steps=2))
    assert [(line.value, line.verdict) for line in again] == [(line.value, line.verdict) for line in lines]
    drain = next(line for line in lines if "drained" in line.claim)
    assert drain.value == measured["toys"]["bos", 0.01].final("value_drain").mean().item()

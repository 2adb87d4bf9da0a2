"""The second paper's claims on a sink's geometry: lines follow from the figures, kept files give the same ones."""

import dataclasses
from pathlib import Path

import pytest
import torch

import sinklens as sl
from benchmarks.findings import geometry as findings
from tests.captured import load


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(5, 300, (6, 10), generator=torch.Generator().manual_seed(0))


def test_findings_of_a_tiny_model(tmp_path: Path, tokens: torch.Tensor) -> None:
    model = load("bridge", "llama")
    measured = findings.measure_geometry(model, tokens, tmp_path)
    lines = findings.geometry_findings(measured)
    again = findings.geometry_findings(findings.measure_geometry(model, tokens, tmp_path))
    assert [(line.value, line.verdict) for line in lines] == [(line.value, line.verdict) for line in again]
    expected = measured["geometry"].documents("cosine_mean")[:, 0].mean().item()
    assert lines[0].value == pytest.approx(expected)
    assert lines[0].verdict == ("holds" if lines[0].high < 0 else "does not hold" if lines[0].low > 0 else "undecided")
    assert not [line for line in lines if "massive" in line.figure]


def test_massive_layers_have_lines_of_their_own(tokens: torch.Tensor) -> None:
    found = sl.sink_geometry(
        load("bridge", "llama"), tokens, massive_magnitude=0.1, massive_ratio=2.0, context_length=None, progress=False
    )
    rows = findings.massive_rows(found)
    assert rows
    lines = findings.geometry_findings({"geometry": found, "long": found})
    assert sum("massive activations" in line.figure for line in lines) == 5
    fewer = dataclasses.replace(found, values={n: v for n, v in found.values.items() if not n.startswith("dimension.")})
    assert findings.massive_rows(fewer) == []

"""``sinklens cost``: the numbers are those of Python, mistakes are one line before the model, the theory needs no model."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import sinklens as sl
from sinklens.models import loading
from sinklens.theory import pattern_cost
from tests.commands import OUTPUTS, Run, expect_one_line, runner, texts_beside
from tests.families import bridge

COMMON = ("--context-length", 32, "--quiet", "--embedding-layers", "1", "--embedding-documents", 2)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return texts_beside(tmp_path, monkeypatch)


def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> None:
        pytest.fail("a model was loaded")

    monkeypatch.setattr(loading, "load_model", load)


def test_files_hold_what_python_gives(run: Run, data: Path) -> None:
    result = run("cost", "--data", data, *COMMON, *OUTPUTS)
    assert result.exit_code == 0, result.output
    assert "rank correlation with the sink mass" in result.stdout
    expected = sl.head_costs(
        bridge("llama_3x5"), data, context_length=32, embedding_layers=[1], embedding_documents=2, progress=False
    )
    table = pd.read_csv("table.csv")
    pd.testing.assert_frame_equal(table, expected.to_dataframe(), check_dtype=False, rtol=1e-6)
    found = json.loads(Path("all.json").read_text())
    assert found["correlations"][0]["spearman"] == pytest.approx(expected.correlations()["spearman"][0])
    assert [row["layer"] for row in found["least_costs"]] == [1] * 4
    assert sl.HeadCosts.load("result.safetensors").kind == expected.kind
    assert "What do the heads of tiny-llama_3x5 cost?" in Path("page.html").read_text()


def test_json_alone_on_standard_output(run: Run, data: Path) -> None:
    found = json.loads(run("cost", "--weights", "--json", "-", "--quiet").stdout)
    assert len(found["heads"]) == 15
    assert "sink_mass" not in found["heads"][0]
    assert "correlations" not in found


def test_what_is_refused_is_said(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    result = runner(monkeypatch, "qwen3")("cost", "--data", data, *COMMON)
    assert result.exit_code == 0, result.output
    assert "W_QK of layer 0, 1 is left out: its scores are no multiple of q · k" in result.stdout


def test_the_theory_needs_no_model(monkeypatch: pytest.MonkeyPatch, run: Run, data: Path) -> None:
    no_model(monkeypatch)
    result = run("cost", "--theory", "--lengths", "4,6,8", "--unscaled", "--json", "-")
    found = json.loads(result.stdout)
    costs = {(row["norm"], row["pattern"], row["tokens"]): row["cost"] for row in found["costs"]}
    assert costs["nuclear", "sink", 4] == pytest.approx(1.5)
    assert costs["nuclear", "diagonal", 6] == pytest.approx(pattern_cost(6, "diagonal", "nuclear", scaled=False))
    assert found["setting"] == "causal, unscaled"
    shown = run("cost", "--theory", "--full", "--lengths", "256,1024,4096").stdout
    assert "1.001 " in shown.splitlines()[6]  # of a sink, nuclear
    assert "1.501 " in shown.splitlines()[7]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--margin", 0), "--margin must be a finite number above 0"),
        (("--embedding-tokens", 0), "--embedding-tokens must be at least 1"),
        (("--embedding-layers", "x"), "--embedding-layers is 'x'"),
        (("--sink", "middle"), "sink"),
        (("--save", "costs.csv"), "its suffix is '.csv'"),
        (("--data", "missing.jsonl"), "missing.jsonl"),
        (("--theory", "--lengths", "4,8"), "three or more"),
        (("--theory", "--lengths", "four"), "--lengths is 'four'"),
        (("--theory", "--out", "page.html"), "--out is of a model's costs"),
    ],
)
def test_mistakes_are_one_line_before_the_model(
    monkeypatch: pytest.MonkeyPatch, run: Run, data: Path, options: tuple[Any, ...], words: str
) -> None:
    no_model(monkeypatch)
    expect_one_line(run("cost", *options), words)
    assert list(Path().iterdir()) == []

"""``sinklens geometry``, its figures and its page: what Python measures, said as it is."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sinklens as sl
from sinklens.models.smollm2 import packaged_weights
from sinklens.reports.geometry import geometry_headlines, geometry_sections, geometry_table, render_geometry
from sinklens.results.geometry import DIMENSION, SPACES
from sinklens.results.provenance import Provenance
from tests.commands import OUTPUTS, Run, expect_one_line, forbid_passes, runner, texts_beside
from tests.families import bridge

GSM8K = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return texts_beside(tmp_path, monkeypatch)


def drawn(figure: Any) -> Any:
    """The traces; plotly's own types know no attributes."""
    return figure.data


def planted(**figures: list[list[float]]) -> sl.SinkGeometry:
    """Two layers, two spaces, four documents that agree; figures are [layer][space]."""
    names = (
        "cosine_mean", "cosine_max", "opposed_share", "cosine_mean_without", "query_margin", "key_margin",
        "witness_margin", "anti_alignment_margin", "representable", "anti_aligned", "rank_share", "massive_on_sink",
        "largest_ratio",
    )  # fmt: skip
    values = {name: torch.zeros(2, 2, 4, dtype=torch.float64) for name in names}
    for name, figure in figures.items():
        values[name] = torch.tensor(figure, dtype=torch.float64)[..., None].expand(2, 2, 4).clone()
    conventions = {"massive_magnitude": 100.0, "massive_ratio": 1000.0}
    return sl.SinkGeometry(values, (3, 7), Provenance("tiny", conventions=conventions))


def test_the_command_prints_and_writes_what_python_measures(run: Run, data: Path) -> None:
    result = run("geometry", "--data", data, "--layers", "0,2", "--context-length", 32, "--quiet", *OUTPUTS)
    assert result.exit_code == 0, result.output
    python = sl.sink_geometry(bridge("llama_3x5"), data, layers=[0, 2], context_length=32, progress=False)
    table = pd.read_csv("table.csv")
    assert table["key_margin"].to_numpy() == pytest.approx(python.to_dataframe()["key_margin"].to_numpy(), rel=1e-6)
    loaded = sl.SinkGeometry.load("result.safetensors")
    assert all(
        torch.equal(loaded.values[name].nan_to_num(-9), python.values[name].nan_to_num(-9)) for name in python.values
    )
    written = json.loads(Path("all.json").read_text())
    assert [row["answer"] for row in written["representable"]["residual"]] == python.representable("residual")[
        "answer"
    ].to_list()
    assert "Is a sink representable in" in Path("page.html").read_text()
    assert "layers can represent a sink in every document" in result.stdout
    assert sum(line[:7].strip() in ("0", "2") for line in result.stdout.splitlines()) == 4
    printed = json.loads(
        run("geometry", "-d", data, "--layers", "0,2", "--context-length", 32, "-q", "--json", "-").stdout
    )
    assert printed["layers"] == written["layers"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--massive-ratio", "0"], ["--massive-ratio must be a finite number above 0"]),
        (["--massive-magnitude", "nan"], ["--massive-magnitude"]),
        (["--sink", "nowhere"], ["nowhere"]),
        (["--layers", "x"], ["--layers"]),
        (["--batch-size", "0"], ["--batch-size is 0"]),
        (["--out", "page.txt"], ["page.txt"]),
        (["--data", "none.txt"], ["none.txt"]),
    ],
)
def test_a_mistake_is_one_line_before_a_model_is_loaded(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: list[str]
) -> None:
    from sinklens.models import loading

    forbid_passes(monkeypatch)
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("the model was loaded first"))
    expect_one_line(run("geometry", "--data", data, *arguments), *words)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_show_the_means_and_their_intervals(theme: Any) -> None:
    found = planted(cosine_mean=[[0.4, -0.2], [0.5, -0.1]], witness_margin=[[0.1, 0.2], [0.3, 0.4]])
    lines = [trace for trace in drawn(sl.viz.geometry_cosines(found, theme=theme)) if trace.mode == "lines+markers"]
    assert [list(line.y) for line in lines[:4:3]] == [[0.4, 0.5], [-0.2, -0.1]]
    assert [list(line.x) for line in lines] == [[3, 7]] * 6
    alike = drawn(sl.viz.geometry_cosines(planted(), theme=theme))
    assert not [trace for trace in alike if trace.name and "without" in trace.name]
    one = drawn(sl.viz.geometry_margins(found, space="attention_input", theme=theme))
    assert [list(trace.y) for trace in one if trace.name == "a bᵀ plugged in"] == [[0.2, 0.4]]
    figure: Any = sl.viz.massive_lines(planted(largest_ratio=[[10.0, 20.0], [5000.0, 30.0]]), theme=theme)
    assert list(figure.data[1].y) == [10.0, 5000.0]
    assert figure.layout.shapes[0].y0 == 1000.0


def test_bands_hold_documents_apart() -> None:
    found = planted()
    found.documents("cosine_mean")[:, 0] = torch.tensor([0.0, 0.2, 0.4, 0.6])
    band, line = drawn(sl.viz.geometry_cosines(found, space="residual"))[:2]
    assert np.allclose(line.y, 0.3)
    assert 0.0 < min(band.y) < 0.3 < max(band.y) < 0.6


@pytest.mark.parametrize(
    ("cosines", "answers"),
    [
        ([[0.4, -0.2], [0.5, -0.1]], ("No", "Yes")),
        ([[-0.4, 0.2], [-0.5, 0.1]], ("Yes", "No")),
        ([[-0.4, 0.2], [0.4, -0.2]], ("Not decided", "Not decided")),
    ],
)
def test_headlines_say_yes_or_no_as_measured(cosines: list[list[float]], answers: tuple[str, str]) -> None:
    lines = geometry_headlines(planted(cosine_mean=cosines))
    assert [f"? {answer}:" in line.detail for answer, line in zip(answers, lines[1:3], strict=True)] == [True, True]


def test_documents_that_disagree_decide_nothing() -> None:
    found = planted()
    found.documents("cosine_mean")[...] = torch.tensor([-0.9, 0.3, 0.2, 0.1])
    assert found.mean("cosine_mean").max() < 0
    assert all("? Not decided:" in line.detail for line in geometry_headlines(found)[1:3])


def test_the_page_says_where_and_which_dimensions() -> None:
    found = planted(
        representable=[[1.0, 1.0], [1.0, 0.5]], rank_share=[[1.0, 1.0], [1.0, 0.5]], massive_on_sink=[[1.0, 1.0]] * 2
    )
    massive = torch.zeros(2, 2, 4, dtype=torch.float64)
    massive[1, 0] = 1.0
    found = dataclasses.replace(found, values={**found.values, f"{DIMENSION}507": massive})
    headlines = geometry_headlines(found)
    assert headlines[0].value == "1 of 2"
    assert "on the residual stream 2" in headlines[0].detail
    assert "In 1 of them the tokens are linearly independent" in headlines[0].detail
    assert (headlines[3].value, "Dimensions 507; 100 % of them at the sink" in headlines[3].detail) == ("1 of 2", True)
    assert [row[1] for row in geometry_table(found).rows] == ["yes", "in 50 %"]
    sections = geometry_sections(found)
    names = [chart.name for section in sections for chart in section.charts]
    assert len(set(names)) == len(names) == 5
    assert sections[-1].tables[0].rows == (("7", "507 (100 %)", "1"),)
    page = render_geometry(found, title="A <title>", text_name="text")
    assert "A &lt;title&gt;" in page


def test_nothing_massive_is_said_so() -> None:
    assert geometry_headlines(planted())[3].value == "none"
    assert not geometry_sections(planted())[-1].tables


@pytest.mark.slow
@pytest.mark.skipif(packaged_weights() is None or not GSM8K.exists(), reason="SmolLM2-135M or GSM8K is not there")
def test_smollm2_is_aligned_before_the_norm_and_opposed_behind_it() -> None:
    """Raw cosines of BOS were +0.41 to +0.58 in layers 3 to 27 elsewhere; dimension 507 makes them, and the norm undoes it."""
    found = sl.sink_geometry(
        sl.load_model("smollm2-135m"), GSM8K, fields=("question", "answer"), layers=[3, 18, 20], context_length=128,
        min_length=128, overflow="cut", max_documents=4, progress=False,
    )  # fmt: skip
    mean = found.mean("cosine_mean")
    assert ((mean[:, 0] > 0.35) & (mean[:, 0] < 0.6)).all()
    assert (mean[1:, 1] < -0.15).all()
    assert (found.mean("cosine_mean_without")[1:, 0] < -0.4).all()
    assert found.massive_dimensions()[["layer", "dimension"]].to_numpy().tolist() == [[18, 507], [20, 507]]
    assert all(found.representable(space)["answer"].to_list() == ["yes"] * 3 for space in SPACES)
    assert math.isclose(found.mean("massive_on_sink")[1, 0], 1.0)

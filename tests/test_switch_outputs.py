"""The attention switch's figures, page, command and findings: they show the result's numbers, and mistakes are one line."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sinklens as sl
from benchmarks.findings.switch import measure_switch, switch_findings
from sinklens import viz
from sinklens.analyzers.switch import _checked
from sinklens.metrics.switch import CARRIERS
from sinklens.reports.switch import carrier_table, head_table, layer_table, render_switch, switch_headlines
from sinklens.results.switch import SCALES
from tests.captured import load
from tests.commands import TEXTS, Run, expect_one_line, runner, write_texts
from tests.pages import Page

SHARES = (
    "hard_median",
    "hard_without_sink",
    "soft_attention",
    "soft_contribution",
    "on_sink",
    "sink_mass",
    "communication",
)
CASES = {"hard": 0.6, "never": 0.0}


def made(
    hard: float = 0.6, layers: tuple[int, ...] = (4, 8, 20), n_heads: int = 5, hulls: bool = True
) -> sl.AttentionSwitch:
    """Random figures of 3 layers with 5 heads over 12 documents; a share ``hard`` of the queries is switched at most."""
    generator = torch.Generator().manual_seed(0)
    shape = (len(layers), n_heads, 12)

    def random(*more: int) -> torch.Tensor:
        return torch.rand(*shape, *more, generator=generator, dtype=torch.float64)

    values = {name: random() for name in SHARES}
    for scale in SCALES:
        whole, parts = hard * random(), random(len(CARRIERS))
        parts /= parts.sum(-1, keepdim=True)
        values[f"hard_{scale}"] = whole
        values |= {f"hard_{scale}_{name}": whole * parts[..., place] for place, name in enumerate(CARRIERS)}
    values["hard_values_short_sink"] = values["hard_values_sink"] / 2
    parts = random(3)
    parts /= parts.sum((1, -1), keepdim=True)
    values |= {f"layer_{name}": parts[..., place] for place, name in enumerate(("self", "sink", "others"))}
    values |= {f"layer_signed_{name}": values[f"layer_{name}"] - 0.01 for name in ("self", "sink")}
    tests = ("hull_distance", "value_rank", "full_rank", "independent", "zero_excluded", "hard_excluded")
    values |= {
        name: random().round() if hulls else torch.full(shape, float("nan"), dtype=torch.float64) for name in tests
    }
    return sl.AttentionSwitch(values, layers, sl.Provenance("tiny <i>", n_documents=12, n_sequences=12, n_tokens=120))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("hard", CASES.values())
def test_every_figure_is_drawn(theme: Any, hard: float) -> None:
    for draw in (viz.switch_maps, viz.switch_carriers, viz.communication_lines, viz.switch_scatter):
        figure: Any = draw(made(hard), theme=theme)
        assert figure.layout.template == viz.template(theme)
        assert figure.layout.title.text or figure.layout.annotations


def test_maps_have_each_head_s_mean_and_interval_in_its_cell() -> None:
    result = made()
    figure: Any = viz.switch_maps(result, ("hard_values", "hull_distance"))
    for trace, name in zip(figure.data, ("hard_values", "hull_distance"), strict=True):
        np.testing.assert_allclose(trace.z, result.mean(name), rtol=1e-6)
        np.testing.assert_allclose(trace.customdata[..., 1:], result.interval(name), rtol=1e-6)
        assert trace.customdata[:, 0, 0].tolist() == [4, 8, 20]
    assert list(figure.layout.yaxis.ticktext) == ["4", "8", "20"]
    with pytest.raises(sl.InputError, match="no quantities"):
        viz.switch_maps(result, ())
    with pytest.raises(sl.InputError, match="no quantity 'heat'"):
        viz.switch_maps(result, ("heat",))


@pytest.mark.parametrize("scale", SCALES)
def test_stacks_are_as_high_as_the_layer_s_share(scale: str) -> None:
    result = made()
    figure: Any = viz.switch_carriers(result, scale)
    assert {trace.name for trace in figure.data} == {name.replace("_", " ") for name in CARRIERS}
    total = sum(np.asarray(trace.y) for trace in figure.data)
    np.testing.assert_allclose(total, result.layer_documents(f"hard_{scale}").mean(-1), rtol=1e-5)
    shares = sum(np.asarray(trace.customdata)[:, 0] for trace in figure.data)
    np.testing.assert_allclose(shares, 1.0, rtol=1e-5)
    with pytest.raises(sl.InputError, match="scale is 'mean'"):
        viz.switch_carriers(result, "mean")


def test_a_result_without_hard_switches_says_so() -> None:
    assert "0.0% of queries hard-switched; " in repr(made(0.0))
    figure: Any = viz.switch_carriers(made(0.0))
    assert [note.text for note in figure.layout.annotations] == ["No query is hard-switched"]
    scatter: Any = viz.switch_scatter(made(0.0))
    assert [trace.name for trace in scatter.data] == ["never hard-switched"]


def test_lines_sum_to_one_and_the_scatter_holds_every_head() -> None:
    result = made()
    lines: Any = viz.communication_lines(result)
    np.testing.assert_allclose(sum(np.asarray(trace.y) for trace in lines.data[1::2]), 1.0, rtol=1e-5)
    scatter: Any = viz.switch_scatter(result)
    points = np.concatenate([np.column_stack([t.customdata, t.x, t.y]) for t in scatter.data])
    table = result.to_dataframe()[["layer", "head", "sink_mass", "hard_values"]].to_numpy()
    np.testing.assert_allclose(points[np.lexsort(points.T[1::-1])], table, rtol=1e-5)


@pytest.mark.parametrize("hulls", [True, False])
@pytest.mark.parametrize("hard", CASES.values())
def test_a_page_has_every_chart_and_says_what_was_measured(hard: float, hulls: bool) -> None:
    result = made(hard, hulls=hulls)
    page = Page(render_switch(result, text_name="stories"))
    figures = page.data["figures"]
    assert ("switch-exclusion" in figures) == hulls
    assert {"switch-maps", "switch-carriers", "switch-scatter", "switch-communication"} <= set(figures)
    text = " ".join(page.text.split())
    assert "What switches the heads of tiny <i> off?" in text
    assert "stories" in text
    assert ("Exclusion tests" in text) == hulls
    assert ("Are most?" in text) == (hard > 0)


def test_a_verdict_on_the_sink_follows_from_its_interval() -> None:
    result = made()
    values = dict(result.values)
    for name in CARRIERS:
        values[f"hard_values_{name}"] = values["hard_values"] * (name == "sink")
    by_sink = sl.AttentionSwitch(values, result.layers, result.provenance)
    values = values | {"hard_values_sink": values["hard_values_self"], "hard_values_self": values["hard_values_sink"]}
    by_self = sl.AttentionSwitch(values, result.layers, result.provenance)
    assert ["Yes" in line.detail for line in switch_headlines(by_sink)] == [False, True, False, False]
    assert ["No:" in line.detail for line in switch_headlines(by_self)] == [False, True, False, False]


def test_tables_have_a_row_for_what_they_name() -> None:
    result = made()
    assert [row[0] for row in carrier_table(result).rows] == [name.replace("_", " ") for name in CARRIERS]
    hard = result.to_dataframe().nlargest(3, "hard_values")
    assert [row[0] for row in head_table(result, 3).rows] == [f"{a}.{b}" for a, b in hard[["layer", "head"]].to_numpy()]
    assert [row[0] for row in layer_table(result).rows] == ["4", "8", "20"]


def test_shares_of_carriers_pool_queries_and_have_intervals() -> None:
    result = made()
    table: Any = result.carriers(by="head").set_index(["layer", "head", "carrier"])
    sink, whole = result.documents("hard_values_sink")[1, 3], result.documents("hard_values")[1, 3]
    row = table.loc[8, 3, "sink"]
    assert row["share"] == pytest.approx((sink.sum() / whole.sum()).item())
    resampled = (result.weights @ sink) / (result.weights @ whole)
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-3)
    with pytest.raises(sl.InputError, match="by is 'token'"):
        result.carriers(by="token")
    assert np.isnan(made(0.0).carriers()["share"].to_numpy()).all()
    assert "AttentionSwitch(tiny <i>:" in repr(made(0.0))


# The command.


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_texts(tmp_path / "texts.jsonl")


def test_the_command_prints_and_writes_what_python_measures(run: Run, data: Path) -> None:
    files = ("--out", "page.html", "--table", "table.csv", "--json", "all.json", "--save", "switch.safetensors")
    shown = run("switch", "--data", data, "--values", 0.7, "--hull-documents", "all", "--quiet", *files)
    assert shown.exit_code == 0, shown.output
    thresholds = sl.SwitchThresholds(values=0.7)
    expected = sl.attention_switch(
        load("bridge", "llama_3x5"), TEXTS, thresholds=thresholds, hull_documents=None, progress=False
    )
    assert switch_headlines(expected)[0].detail in shown.stdout
    saved = sl.AttentionSwitch.load("switch.safetensors")
    assert saved.thresholds == thresholds
    for name in expected.quantities:
        assert torch.equal(saved.documents(name).nan_to_num(-1), expected.documents(name).nan_to_num(-1))
    pd.testing.assert_frame_equal(pd.read_csv("table.csv"), expected.to_dataframe(), check_dtype=False)
    found = json.loads(Path("all.json").read_text())
    assert len(found["heads"]) == 15
    assert found["thresholds"]["values"] == 0.7
    assert Path("page.html").read_text().startswith("<!doctype html>")


def test_json_takes_the_place_of_the_tables(run: Run, data: Path) -> None:
    shown = run("switch", "--data", data, "--layers", "1", "--hull-documents", 0, "--quiet", "--json", "-")
    assert {row["layer"] for row in json.loads(shown.stdout)["layers"]} == {1}


@pytest.mark.parametrize(("options", "words"), [
    (["--values", "1.5"], ["--values is 1.5", "0 to 1"]),
    (["--soft", "nan"], ["--soft is nan"]),
    (["--sink-threshold", "0.3"], ["--sink-threshold is 0.3", "0.5 to 1"]),
    (["--self-threshold", "0.3"], ["--self-threshold is 0.3"]),
    (["--learned-sink-threshold", "2"], ["--learned-sink-threshold is 2"]),
    (["--short-values", "-1"], ["--short-values is -1"]),
    (["--hull-documents", "few"], ["--hull-documents is 'few'", "or all"]),
    (["--hull-documents", "-1"], ["--hull-documents"]),
    (["--sink", "last"], ["sink", "last"]),
    (["--layers", "0-"], ["--layers"]),
    (["--out", "page.pdf"], ["page.pdf", ".html"]),
    (["--json", "same.json", "--table", "same.json"], ["same file"]),
])  # fmt: skip
def test_a_mistake_is_one_line_before_the_model_is_loaded(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], words: list[str]
) -> None:
    from sinklens.models import loading

    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    expect_one_line(run("switch", "--data", data, *options), *words)


def test_findings_of_a_tiny_model(tmp_path: Path) -> None:
    tokens = torch.randint(5, 300, (6, 16), generator=torch.Generator().manual_seed(0))
    model = load("bridge", "llama")
    measured = measure_switch(model, tokens, tmp_path)
    lines = switch_findings(measured)
    again = switch_findings(measure_switch(model, tokens, tmp_path))
    assert [line.claim for line in again] == [line.claim for line in lines]
    # Rows of the exclusion tests have more values than the head has dimensions, where independence decides nothing.
    exclusion = measured["exclusion"]
    assert exclusion.documents("independent").sum() == 0
    assert exclusion.provenance.n_tokens // exclusion.provenance.n_sequences > model.cfg.d_head + 1
    [mlp] = [line for line in lines if line.claim == "Attention layers act like MLPs"]
    assert mlp.value == pytest.approx(1 - measured["switch"].overall("layer_others")[0])
    assert all(re.search(r"holds|does not hold|undecided", line.verdict) for line in lines)


def test_thresholds_of_another_kind_are_refused() -> None:
    with pytest.raises(sl.InputError, match=r"thresholds are a dict; expected sinklens\.SwitchThresholds"):
        _checked({"values": 0.1})
    assert _checked(None) == sl.SwitchThresholds()


def test_without_exclusion_tests_the_summary_says_so() -> None:
    untested = sl.attention_switch(load("bridge", "llama"), [[5, 6, 7, 8, 9]], hull_documents=0, progress=False)
    assert "no exclusion test was made" in repr(untested)
    tested = sl.attention_switch(load("bridge", "llama"), [[5, 6, 7, 8, 9]], progress=False)
    assert "is excluded in 100% of heads" in repr(tested)

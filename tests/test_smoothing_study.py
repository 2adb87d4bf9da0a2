"""The result of an oversmoothing study, its figures, page and command, and input that is degenerate or wrong."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import sinklens as sl
from benchmarks.findings.smoothing import measure_smoothing, smoothing_findings
from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.reports.smoothing import counter_table, difference_table, render_smoothing, smoothing_sections
from sinklens.results import Provenance
from sinklens.results.smoothing import PATHS
from sinklens.viz.smoothing import layers_shown
from tests.captured import load, new
from tests.commands import OUTPUTS, Run, expect_one_line, runner, write_texts
from tests.gaps import prompt
from tests.pages import Page

STRENGTHS = (0.0, 0.5, 1.0)
N_DOCUMENTS = 6


def made(n_layers: int = 3, depth: bool = True, **replaced: Tensor) -> sl.SmoothingResult:
    """A result of drawn numbers ``[layer, path, strength, document]``."""
    generator = torch.Generator().manual_seed(0)
    names = ["before_cosine", "after_cosine", "predicted_cosine", "criterion", "largest_token_share"]
    names += ["update_only_cosine", "own_direction_cosine", *(["depth_cosine"] if depth else [])]
    shape = (n_layers, len(PATHS), len(STRENGTHS), N_DOCUMENTS)
    values = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name in names}
    return sl.SmoothingResult(
        values | replaced, tuple(range(n_layers)), Provenance("tiny", n_documents=N_DOCUMENTS), STRENGTHS
    )


def stepped(at_zero: list[float], at_one: list[float]) -> Tensor:
    """A quantity with the same value in every document, at the ends of the path; halfway between."""
    ends = torch.tensor([at_zero, at_one], dtype=torch.float64)
    rows = torch.stack([ends[0], ends.mean(0), ends[1]], -1)
    return rows[:, None, :, None].repeat(1, len(PATHS), 1, N_DOCUMENTS)


def test_dense_minus_diagonal_is_paired_and_has_a_verdict() -> None:
    spread = 0.3 * torch.linspace(-1, 1, N_DOCUMENTS).double()
    # Documents differ by far more than the step does, in the same way before and after it.
    after = stepped([0.5, 0.5, 0.5], [0.6, 0.4, 0.5]) + spread
    noise = torch.tensor([1.0, -1, 1, -1, 1, -1]).double() * 0.01
    after[2, 0, 2] += noise
    result = made(after_cosine=after, criterion=stepped([1.0, -1.0, math.nan], [1.0, -1.0, math.nan]))
    table = result.dense_minus_diagonal()
    assert table["difference"].tolist() == pytest.approx([0.1, -0.1, 0.0])
    assert table["verdict"].tolist() == ["more", "less", "undecided"]
    assert table["agrees"].tolist() == [True, True, None]
    assert table.loc[0, "low"] == pytest.approx(0.1)
    wrong = made(after_cosine=after, criterion=stepped([-1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]))
    assert wrong.dense_minus_diagonal()["agrees"].tolist()[:2] == [False, True]
    assert "dense smooths more in 1, less in 1 of 3 layers" in repr(result)


def test_rounding_decides_nothing() -> None:
    after = stepped([0.5, 0.5, 1.0], [0.5 + 1e-7, 0.5 - 1e-7, 1.0])
    table = made(after_cosine=after).dense_minus_diagonal()
    assert (table["low"][0] > 0, table["high"][1] < 0) == (True, True)
    assert table["verdict"].tolist() == ["undecided"] * 3


def test_counters_are_the_difference_without_a_part_minus_the_whole() -> None:
    result = made(
        2,
        after_cosine=stepped([0.5, 0.5], [0.6, 0.6]),
        update_only_cosine=stepped([0.1, 0.1], [0.9, 0.1]),
        own_direction_cosine=stepped([0.5, 0.5], [0.8, 0.55]),
    )
    table: Any = result.counters()
    assert list(table["part"]) == ["residual"] * 2 + ["value-output"] * 2
    assert table["countered"].tolist() == pytest.approx([0.7, -0.1, 0.2, -0.05])
    assert table["verdict"].tolist() == ["counters", "adds to it", "counters", "adds to it"]
    assert table["without"].tolist() == pytest.approx([0.8, 0.0, 0.3, 0.05])


def test_the_prediction_s_error_is_stated() -> None:
    after = stepped([0.5, 0.5, 0.5], [0.6, 0.6, 0.6])
    predicted = stepped([0.52, 0.5, math.nan], [0.6, 0.3, math.nan])
    predicted[0, 0, 2, 0] += 0.06
    result = made(after_cosine=after, predicted_cosine=predicted)
    table = result.prediction_error()
    assert table["layer"].tolist() == [0, 1]
    assert table["largest"].tolist() == pytest.approx([0.02, 0.3])
    assert table["largest_document"].tolist() == pytest.approx([0.06, 0.3])
    assert table["mean"].tolist() == pytest.approx([(0.02 + 0.01 + 0.01) / 3, -0.15])
    assert "at most 0.300 (layer 1)" in repr(result)
    none = made(predicted_cosine=torch.full_like(after, math.nan))
    assert none.prediction_error().empty
    assert "no layer has a closed form" in repr(none)


def test_a_result_saves_merges_and_becomes_a_table(tmp_path: Path) -> None:
    model = load("bridge", "llama_3x5")
    texts = ["The cat sat on the mat, and the dog sat.", "A dog ran; the cat did not.", "The dog sat on the mat."]
    whole = sl.oversmoothing(model, texts, STRENGTHS, progress=False)
    parts = [sl.oversmoothing(model, texts[i : i + 1], STRENGTHS, progress=False) for i in range(3)]
    merged = parts[0].merge(parts[1]).merge(parts[2])
    for name in whole.quantities:
        torch.testing.assert_close(merged.documents(name), whole.documents(name), atol=1e-6, rtol=1e-5, equal_nan=True)
    loaded = sl.SmoothingResult.load(whole.save(tmp_path / "one.safetensors"))
    assert loaded.strengths == STRENGTHS
    assert loaded.dense_minus_diagonal().equals(whole.dense_minus_diagonal())
    table = whole.to_dataframe()
    assert len(table) == 3 * 2 * 3
    row: Any = table[(table["layer"] == 2) & (table["path"] == "own") & (table["strength"] == 0.5)].iloc[0]
    assert row["after_cosine"] == pytest.approx(whole.mean("after_cosine")[2, 1, 1].item())
    curve = whole.curve("after_cosine", 2, "own")
    assert curve["mean"].tolist() == whole.mean("after_cosine")[2, 1].tolist()
    other = sl.oversmoothing(model, texts[:1], (0.0, 1.0), progress=False)
    with pytest.raises(InputError, match="other layers or settings"):
        whole.merge(other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda result: result.curve("after_cosine", 7), "layer 7 was not measured; there are 0, 1, 2"),
        (lambda result: result.curve("after_cosine", 1, "sparse"), "path is 'sparse'; expected 'diagonal' or 'own'"),
        (lambda result: result.dense_minus("cosine"), "no quantity 'cosine' here"),
        (lambda result: sl.viz.smoothing_curves(result, []), "no layers to show"),
        (lambda result: sl.viz.smoothing_curves(result, [9]), "layer 9 was not measured"),
        (lambda _: sl.viz.smoothing_depth(made(depth=False)), "the depth was not measured; measure with depth=True"),
    ],
)
def test_what_is_not_there_is_named(call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(made())


@pytest.mark.parametrize(
    ("strengths", "message"),
    [
        ((0.0, 0.5), "strengths are 0, 0.5; 0 and 1 must be among them"),
        ((), "strengths are empty"),
        ((0.0, 1.5, 1.0), "a strength is 1.5; expected a number from 0 to 1"),
        ((0.0, math.nan, 1.0), "a strength is nan; expected a number from 0 to 1"),
        (np.array([0.5, 1.0]), "strengths are 0.5, 1; 0 and 1 must be among them"),
    ],
)
def test_strengths_without_sense_are_refused(strengths: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sl.oversmoothing(load("bridge", "llama"), prompt("llama"), strengths, progress=False)


def test_too_few_tokens_have_no_cosine() -> None:
    model = load("bridge", "llama")
    with pytest.raises(InputError, match="no sequence has two tokens"):
        sl.oversmoothing(model, torch.tensor([[5, 6]]), progress=False)
    three = sl.oversmoothing(model, torch.tensor([[5, 6, 7]]), progress=False)
    assert three.mean("after_cosine").isfinite().all()
    assert three.interval("after_cosine").isnan().all()


def test_equal_tokens_are_as_alike_as_can_be() -> None:
    tokens = torch.full((1, 8), 17)
    result = sl.oversmoothing(load("bridge", "llama"), tokens, STRENGTHS, layers=[0], progress=False)
    for name in ("before_cosine", "after_cosine", "update_only_cosine", "own_direction_cosine"):
        torch.testing.assert_close(result.mean(name), torch.ones(1, 2, 3).double(), atol=1e-6, rtol=0)
    assert result.mean("before_rank_collapse").max() < 1e-6
    # Nothing is spread, so there is nothing that attention could average.
    assert not result.mean("criterion").abs().max() > 1e-3


def test_attention_that_adds_nothing_changes_nothing() -> None:
    model = new("bridge", "llama_wide_head")
    with torch.no_grad():
        model.blocks[1].attn.o.original_component.weight.zero_()
    result = sl.oversmoothing(model, prompt("llama_wide_head"), STRENGTHS, layers=[1], depth=False, progress=False)
    for end in ("cosine", "cosine_with_sink", "rank_collapse"):
        torch.testing.assert_close(result.documents(f"after_{end}"), result.documents(f"before_{end}"))
    assert result.documents("update_only_cosine").isnan().all()
    assert result.documents("criterion").abs().max() == 0
    table = result.dense_minus_diagonal()
    assert table["difference"].tolist() == [0.0]
    assert result.counters()["countered"].isna().tolist() == [True, False]


def test_numbers_that_are_none_are_refused() -> None:
    model = new("bridge", "llama")
    with torch.no_grad():
        model.blocks[1].attn.v.original_component.weight[0, 0] = math.nan
    with pytest.raises(UnsupportedAttentionError, match=r"layer 1: its head outputs are not A v \(relative gap nan\)"):
        sl.oversmoothing(model, prompt("llama"), depth=False, progress=False)
    with pytest.raises(UnsupportedAttentionError, match="layer 1: its head outputs hold NaN; look at its weights"):
        sl.oversmoothing(model, prompt("llama"), progress=False)
    with torch.no_grad():
        model.blocks[1].attn.v.original_component.weight[0, 0] = 0.0
    assert sl.oversmoothing(model, prompt("llama"), progress=False).has_depth


def test_images_are_refused_as_such() -> None:
    pixels = torch.zeros(1, 3, 16, 16)
    with pytest.raises(sl.InputError, match="reads images, and this is measured on text"):
        sl.oversmoothing(load("bridge", "vit"), pixels, progress=False)


def test_sinks_are_left_out_as_tokens_only() -> None:
    tokens = prompt("llama")
    model = load("bridge", "llama")
    first, second = (
        sl.oversmoothing(model, tokens, STRENGTHS, sink=sink, depth=False, progress=False) for sink in ("first", "0,3")
    )
    for name in ("before_cosine_with_sink", "after_cosine_with_sink"):
        assert torch.equal(first.documents(name), second.documents(name))
    assert (first.documents("after_cosine") - second.documents("after_cosine")).abs().min() > 1e-4


def test_figures_say_what_is_seen() -> None:
    result = made(30)
    curves: Any = sl.viz.smoothing_curves(result, [0, 12])
    measured = [trace for trace in curves.data if trace.name == "layer 12"]
    assert [list(trace.y) for trace in measured] == result.mean("after_cosine")[12].tolist()
    dashed = [list(trace.y) for trace in curves.data if trace.line.dash == "dash" and len(trace.y) > 1]
    assert dashed == result.mean("predicted_cosine")[[0, 12], 0].tolist()
    by_layer: Any = sl.viz.dense_minus_diagonal(result)
    table: Any = result.dense_minus_diagonal()
    shown = {trace.name: np.asarray(trace.y) for trace in by_layer.data}
    for name, column in (("measured", "difference"), ("predicted", "predicted"), ("criterion", "criterion")):
        np.testing.assert_array_equal(shown[name], table[column].to_numpy())
    more = int((table["verdict"] == "more").sum())
    assert f"in {more} of 30 layers" in by_layer.layout.title.text
    counters: Any = sl.viz.smoothing_counters(result)
    assert np.asarray(counters.data[2].y).tolist() == result.dense_minus("update_only_cosine").mean(-1).tolist()
    depth: Any = sl.viz.smoothing_depth(result)
    own = [list(trace.y) for trace in depth.data if trace.name == "λ 0.5"][1]
    assert own == result.mean("depth_cosine")[:, 1, 1].tolist()
    assert layers_shown(made(2)) == (0, 1)
    for theme in ("light", "dark"):
        for draw in (
            sl.viz.smoothing_curves,
            sl.viz.dense_minus_diagonal,
            sl.viz.smoothing_counters,
            sl.viz.smoothing_depth,
        ):
            assert draw(result, theme=theme).layout.template is not None  # type: ignore[attr-defined]


def test_a_page_states_the_yes_or_no_the_error_and_the_depth() -> None:
    result = made(
        2, after_cosine=stepped([0.5, 0.5], [0.6, 0.7]), criterion=stepped([1.0, -1.0], [1.0, -1.0]),
        predicted_cosine=stepped([0.5, 0.5], [0.6, 0.8]), depth_cosine=stepped([0.3, 0.3], [0.5, 0.7]),
    )  # fmt: skip
    page = Page(render_smoothing(result, text_name="six documents"))
    assert "six documents" in page.text
    assert "+0.150" in page.text
    assert "Yes, it smooths more" in page.text
    assert "The criterion has the measured sign in 1 of 2 layers" in page.text
    assert "At most 0.100, in layer 1" in page.text
    assert "+0.300" in page.text  # depth: the mean of 0.2 and 0.4
    sections = smoothing_sections(result)
    assert [len(section.charts) for section in sections] == [1, 1, 1, 1]
    assert len(smoothing_sections(made(depth=False))) == 3
    assert len(difference_table(result).rows) == 2
    assert len(counter_table(result).rows) == 4
    single = sl.SmoothingResult(
        {name: value[..., :1] for name, value in result.values.items()}, result.layers, Provenance("tiny"), STRENGTHS
    )
    assert "One document gives no verdict" in render_smoothing(single)


def test_findings_of_a_tiny_model_are_measured_once(tmp_path: Path) -> None:
    tokens = torch.randint(5, 300, (3, 16), generator=torch.Generator().manual_seed(0))
    measured = measure_smoothing(load("bridge", "llama_3x5"), tokens, tmp_path)
    assert measure_smoothing(None, tokens, tmp_path).dense_minus_diagonal().equals(measured.dense_minus_diagonal())
    lines = {line.claim: line for line in smoothing_findings(measured)}
    whole = lines["Dense attention smooths more than attention to oneself"]
    assert whole.value == pytest.approx(measured.dense_minus_diagonal()["difference"].mean())
    countered: Any = measured.counters().groupby("part")["countered"].mean()
    assert lines["The residual counters smoothing"].value == pytest.approx(countered["residual"])
    assert lines["The value-output matrices counter smoothing"].value == pytest.approx(countered["value-output"])
    agrees = lines["The sign of `2 tr(WΣ) + tr(WΣWᵀ)` tells which smooths more"]
    signs = (measured.documents("criterion")[:, 0, 0] > 0) == (measured.dense_minus() > 0)
    assert agrees.value == pytest.approx(signs.double().mean().item())
    assert all(line.low <= line.value <= line.high for line in lines.values())


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


def test_the_command_gives_what_python_measures(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = write_texts(tmp_path / "data.jsonl")
    result = run("smoothing", "-d", data, "--strengths", "0,0.5,1", "--layers", "0,2", "--quiet", *OUTPUTS)
    assert result.exit_code == 0, result.output
    python = sl.oversmoothing(load("bridge", "llama_3x5"), data, STRENGTHS, layers=[0, 2], progress=False)
    saved = sl.SmoothingResult.load("result.safetensors")
    for name in python.quantities:
        torch.testing.assert_close(saved.documents(name), python.documents(name), equal_nan=True)
    pd.testing.assert_frame_equal(
        pd.read_csv("table.csv"), python.to_dataframe(), check_dtype=False, rtol=1e-6, atol=1e-12
    )
    figures = json.loads(Path("all.json").read_text())
    assert figures["dense_minus_diagonal"][1]["difference"] == pytest.approx(
        python.dense_minus_diagonal()["difference"].iloc[1]
    )
    assert "dense smooths" in result.stdout
    assert "Through the whole model" in Path("page.html").read_text()
    printed = run("smoothing", "-d", data, "--strengths", "0,1", "--no-depth", "--json", "-", "--quiet")
    assert "depth_cosine" not in json.loads(printed.stdout)["cells"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strengths", "0,0.5"), ("--strengths", "0 and 1 must be among them")),
        (("--strengths", "0,x,1"), ("--strengths is '0,x,1'", "numbers with commas")),
        (("--sink", "last"), ("sink",)),
        (("--layers", "a"), ("--layers is 'a'",)),
        (("--out", "page.txt"), ("page.txt", ".html")),
        (("-d", "nowhere.jsonl"), ("nowhere.jsonl",)),
    ],
)
def test_a_mistake_is_named_before_the_model_is_loaded(
    options: tuple[str, ...], words: tuple[str, ...], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def loaded(*_: Any, **__: Any) -> None:
        pytest.fail("the model was loaded before the mistake was found")

    monkeypatch.setattr("sinklens.models.loading.load_model", loaded)
    expect_one_line(run("smoothing", *options), *words)
    assert not list(tmp_path.iterdir())

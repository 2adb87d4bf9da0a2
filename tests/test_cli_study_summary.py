"""What the commands of a study have in common: the measured yes or no before the tables, counts checked before the model."""

from pathlib import Path

import pytest

import sinklens as sl
from sinklens.models import loading
from sinklens.reports.facts import Headline
from sinklens.reports.geometry import geometry_headlines
from sinklens.reports.head_costs import _difference, _difference_interval, cost_headlines
from sinklens.reports.smoothing import smoothing_headlines
from sinklens.reports.switch import switch_headlines
from tests.commands import TEXTS, Run, expect_one_line, runner, write_texts
from tests.families import bridge

HEADLINES = {
    "geometry": lambda model: geometry_headlines(sl.sink_geometry(model, TEXTS, progress=False)),
    "smoothing": lambda model: smoothing_headlines(sl.oversmoothing(model, TEXTS, progress=False)),
    "switch": lambda model: switch_headlines(sl.attention_switch(model, TEXTS, progress=False)),
    "cost": lambda model: cost_headlines(sl.head_costs(model, TEXTS, progress=False)),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.mark.parametrize("command", HEADLINES)
def test_the_answers_stand_before_the_tables(run: Run, tmp_path: Path, command: str) -> None:
    shown = run(command, "--data", write_texts(tmp_path / "texts.jsonl"), "--quiet")
    assert shown.exit_code == 0, shown.output
    found: list[Headline] = HEADLINES[command](bridge("llama_3x5"))
    source, answers, table, *_ = shown.stdout.split("\n\n")
    assert source.startswith("tiny-llama_3x5: 3 documents, ")
    expected = [f"{each.value}  {each.label}. {each.detail}".replace("−", "-") for each in found]
    assert answers.splitlines() == expected
    assert len(table.splitlines()) > 2


@pytest.mark.parametrize("option", ["--batch-size", "--min-length", "--context-length", "--documents"])
@pytest.mark.parametrize("command", HEADLINES)
def test_counts_are_checked_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, command: str, option: str
) -> None:
    run = runner(monkeypatch)
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    expect_one_line(run(command, option, 0), f"{option} is 0", "from 1 on")


def test_a_fit_over_too_few_lengths_names_the_option(run: Run) -> None:
    expect_one_line(run("cost", "--theory", "--lengths", "4"), "--lengths", "three or more")


@pytest.mark.parametrize(
    ("value", "text"),
    [(-249.592, "−250"), (1155.3, "+1,155"), (0.05544, "+0.0554"), (-0.0, "+0"), (float("nan"), "n/a")],
)
def test_differences_of_costs_have_three_digits(value: float, text: str) -> None:
    assert _difference(value) == text


def test_an_interval_of_costs_has_the_digits_of_its_ends() -> None:
    assert _difference_interval(-1155.31, 220.04) == "[−1,155, +220]"
    assert _difference_interval(float("nan"), float("nan")) == "n/a"

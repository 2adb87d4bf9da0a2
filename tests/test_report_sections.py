"""Further sections of a report: measured on the same texts, on the same page, refused before anything runs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import sinklens as sl
from sinklens.cli import app
from sinklens.reports.sections import EXTRAS, check_sections, measured_sections
from tests.captured import load
from tests.commands import expect_one_line, runner
from tests.pages import Page


@pytest.fixture(scope="module")
def toy() -> Any:
    return sl.toy.load_toy()


@pytest.fixture(scope="module")
def tokens(toy: Any) -> torch.Tensor:
    return toy.task.sample(3, 1)[:, :20]


def test_every_section_is_on_the_page_with_its_charts_and_terms(toy: Any, tokens: torch.Tensor, tmp_path: Path) -> None:
    path = sl.report(toy.model, tokens, tmp_path / "report.html", sections=list(EXTRAS), progress=False)
    page = Page(path.read_text(encoding="utf-8"))
    names = [attributes["id"] for tag, attributes in page.tags if tag == "section" and attributes.get("id")]
    assert len(names) == len(set(names))
    drawn = [figure for _, attributes in page.tags if (figure := attributes.get("data-figure"))]
    assert sorted(drawn) == sorted(page.data["figures"])
    assert len(drawn) == len(set(drawn))
    linked = {attributes["href"] for tag, attributes in page.tags if tag == "a"}
    for name, extra in EXTRAS.items():
        result = extra.measure(toy.model, tokens, progress=False)
        expected = extra.sections(result)
        assert expected, name
        for section in expected:
            assert section.name in names
            assert f"#{section.name}" in linked
            assert {chart.name for chart in section.charts} <= set(drawn)
        assert all(term in page.text for term, _ in extra.definitions(result))


def test_options_of_the_text_reach_every_measurement(
    toy: Any, tokens: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def measure(model: Any, texts: Any, **options: Any) -> Any:
        seen.update(options)
        return sl.sink_geometry(model, texts, **options)

    monkeypatch.setitem(EXTRAS, "geometry", dataclasses.replace(EXTRAS["geometry"], measure=measure))
    own = {"layers": [0], "sink": (1,), "batch_size": 2, "context_length": 20, "progress": False}
    sl.report(toy.model, tokens, tmp_path / "report.html", sections=["geometry"], eps=0.2, **own)
    assert seen == own | {"layers": (0,)}


def test_sections_come_in_the_order_of_the_page() -> None:
    assert check_sections(("cost", "geometry")) == ("geometry", "cost")
    assert check_sections(()) == ()


@pytest.mark.parametrize("sections", [["geometri"], "geometry"])
def test_an_unknown_section_is_refused_before_anything_runs(
    toy: Any, tokens: torch.Tensor, sections: Any, tmp_path: Path
) -> None:
    with pytest.raises(sl.InputError, match="geometry, smoothing, switch, cost, toy"):
        sl.report(toy.model, tokens, tmp_path / "report.html", sections=sections)
    assert not list(tmp_path.iterdir())


def test_only_the_packaged_toy_has_a_training_to_show(toy: Any, tokens: torch.Tensor) -> None:
    other = sl.toy.load_toy().model
    other.cfg.model_name = "mine"
    with pytest.raises(sl.InputError, match="the model is mine; load it with"):
        measured_sections(["toy"], other, tokens)
    found = measured_sections(["toy"], toy.model, tokens)
    assert found.sections[-1].tables[0].rows


def test_the_command_line_knows_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = runner(monkeypatch), tmp_path / "a.html"
    words = "no section 'geometri'; there are geometry, smoothing, switch, cost, toy"
    expect_one_line(run("report", "--sections", "geometri", "--out", out), words)
    expect_one_line(run("report", "--sections", "toy", "--out", out), "sinklens.load_model('toy')")
    assert not out.exists()


def test_without_a_text_the_toy_reads_its_own_task(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    result = CliRunner().invoke(app, ["profile", "--model", "toy", "--documents", "4", "--quiet", "--out", str(out)])
    assert result.exit_code == 0, result.stderr
    own = sl.head_profile(sl.load_model("toy"), sl.toy.held_out(sl.toy.load_toy().task)[:4], progress=False)
    assert json.loads(out.read_text())[0]["sink_mass"] == pytest.approx(own.sink_mass.item(), abs=1e-6)


def test_a_tokenizer_of_its_own_words_is_checked_on_plain_ids(toy: Any) -> None:
    check = sl.check_model(toy.model)
    assert check.passed
    with pytest.raises(sl.InputError, match="does not know"):
        sl.check_model(toy.model, "An English sentence.")


def test_a_model_whose_pattern_cannot_be_edited_is_smoothed_layer_by_layer() -> None:
    found = measured_sections(["smoothing"], load("bridge", "bert"), [[5, 6, 7, 8, 9]], progress=False)
    assert "smoothing-layers" in [section.name for section in found.sections]
    assert "smoothing-depth" not in [section.name for section in found.sections]

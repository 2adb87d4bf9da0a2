"""The pages of studies: self-contained, with the result's numbers, a sentence under every chart, and drawn in a browser."""

import base64
import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plotly.offline import get_plotlyjs

from sinklens.errors import InputError
from sinklens.reports import render_ablation, render_faithfulness, write_report
from sinklens.reports.tables import ablation_table, difference_table, faithfulness_table
from sinklens.results import Provenance
from sinklens.results.ablation import AblationCell, AblationResult, SweepResult
from sinklens.results.faithfulness import FaithfulnessResult
from tests.pages import Page, chromium, undrawn

N_DOCUMENTS = 4
SOURCE = Provenance(
    "tiny-random", backend="TransformerBridge", context_length=32, n_documents=N_DOCUMENTS, n_sequences=4, n_tokens=100,
    prepended_bos=True, seed=0, conventions={"granularity": "pair", "ranking": "signed", "scores": "running", "exempt": ["self"]},
)  # fmt: skip
CONTROLS = ("sink", "position", "direction")
COUNT = torch.tensor([10.0, 20.0, 30.0, 40.0], dtype=torch.float64)


def rates(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, N_DOCUMENTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_ablation(groups: dict[str, tuple[tuple[int, int], ...]], edits: tuple[str, ...] = ("zero",)) -> AblationResult:
    cells = tuple(
        AblationCell(name, heads, edit, math.nan, where)
        for name, heads in groups.items()
        for edit in edits
        for where in CONTROLS
    )
    losses = (2 + rates(len(cells))) * COUNT
    changed = (True,) * len(cells)
    return AblationResult(cells, losses, rates(len(cells)) * COUNT, 2 * COUNT, COUNT, changed, SOURCE, n_bootstrap=50)


def make_sweep(n_groups: int = 1) -> SweepResult:
    cells = tuple(
        AblationCell(f"layer {layer}", ((layer, 0), (layer, 1)), "mass", value, where)
        for layer in range(n_groups)
        for value in (0.0, 0.5, 1.0)
        for where in CONTROLS[:2]
    )
    norms = 1 + torch.rand(2, len(cells), n_groups, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ones = torch.ones(n_groups, 2, dtype=torch.float64)
    losses = (2 + rates(len(cells))) * COUNT
    return SweepResult(
        cells, losses, rates(len(cells)) * COUNT, 2 * COUNT, COUNT, (True,) * len(cells), SOURCE, 50,
        tuple(range(n_groups)), norms[0], norms[1], ones, ones, ones / 2,
    )  # fmt: skip


def make_faithfulness(
    metrics: tuple[str, ...] = ("attention", "inter", "random"), fractions: tuple[float, ...] = (0.1, 0.5)
) -> FaithfulnessResult:
    found = rates(len(metrics), 2, len(fractions))
    modes = ("comprehensiveness", "sufficiency")
    ones = torch.ones_like(found)
    return FaithfulnessResult(metrics, modes, fractions, (2 + found) * COUNT, found, ones, 2 * COUNT, COUNT, SOURCE, 50)


LAYERS = {f"layer {layer}": ((layer, 0), (layer, 1)) for layer in range(12)}
HEADS = {f"head {layer}.{head}": ((layer, head),) for layer in (3, 7) for head in range(4)}
MANY = {f"head {layer}.{head}": ((layer, head),) for layer in range(10) for head in range(7)}
PAGES: dict[str, tuple[Callable[[], str], int]] = {
    "one group": (lambda: render_ablation(make_ablation({"all layers": ((0, 0),)}, ("zero", "remove"))), 2),
    "layers": (lambda: render_ablation(make_ablation(LAYERS)), 2),
    "heads": (lambda: render_ablation(make_ablation(HEADS), "delta_perplexity"), 5),
    "many heads": (lambda: render_ablation(make_ablation(MANY), "divergence"), 5),
    "sweep": (lambda: render_ablation(make_sweep()), 3),
    "sweep of layers": (lambda: render_ablation(make_sweep(9)), 3),
    "faithfulness": (lambda: render_faithfulness(make_faithfulness()), 4),
    "faithfulness from nothing": (lambda: render_faithfulness(make_faithfulness(fractions=(0.0, 0.5))), 4),
    "one metric": (lambda: render_faithfulness(make_faithfulness(("inter",)), reference="inter"), 2),
}


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> tuple[str, int]:
    render, charts = PAGES[request.param]
    return render(), charts


def test_a_page_loads_nothing_and_holds_plotly_once(page: tuple[str, int]) -> None:
    html, _ = page
    assert html.count(get_plotlyjs()) == 1
    own = html.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|@import|url\(|mathjax|<link[^>]+stylesheet", own, re.IGNORECASE)
    assert "default-src 'none'" in own
    assert [tag for tag, _ in Page(html).tags].count("script") == 4


def test_every_chart_has_a_sentence_and_every_name_is_its_own(page: tuple[str, int]) -> None:
    html, charts = page
    captions = re.findall(r"<figcaption>(.+?)</figcaption>", html, re.DOTALL)
    assert html.count('class="plot"') == len(captions) == charts
    assert all(len(caption) > 40 and caption.strip().endswith(".") for caption in captions)
    names = [attributes["id"] for _, attributes in Page(html).tags if "id" in attributes]
    assert len(names) == len(set(names))
    anchors = re.findall(r'<a href="#([^"]+)"', html)
    assert set(anchors) <= set(names)


def test_a_page_says_what_was_measured_on_what(page: tuple[str, int]) -> None:
    text = Page(page[0]).text
    for words in ("tiny-random", "TransformerBridge", "raw", "float32", "100 tokens in 4 documents", "BOS", "Seed", "torch",
                  "Resamples of documents", "Measured on 4 documents only", "2.000", "7.389"):  # fmt: skip
        assert words in text


def numbers(values: Any) -> list[float]:
    """Of a trace: a list, or as plotly packs arrays."""
    if isinstance(values, list):
        return values
    return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"]).tolist()


def test_charts_hold_the_result_s_numbers() -> None:
    result = make_ablation(LAYERS)
    figures = Page(render_ablation(result)).data["figures"]
    for name in ("delta_loss", "divergence"):
        drawn = [numbers(trace["y"]) for trace in figures[f"effects-{name}"]["data"]]
        assert torch.tensor(drawn).T.flatten().tolist() == pytest.approx(result.effect(name).tolist())
    faith = make_faithfulness()
    figures = Page(render_faithfulness(faith, reference="inter")).data["figures"]
    lines = [trace for trace in figures["curves-sufficiency"]["data"] if trace["mode"] == "lines+markers"]
    assert [numbers(line["y"]) for line in lines] == [pytest.approx(row) for row in faith.effect()[:, 1].tolist()]
    table = faith.differences("inter", aopc=True)
    expected = table[table["mode"] == "comprehensiveness"]["difference"].tolist()
    assert numbers(figures["differences-comprehensiveness"]["data"][0]["y"]) == pytest.approx(expected)


def test_the_head_of_an_ablation_page_sets_the_effect_beside_its_controls() -> None:
    result = make_ablation(HEADS)
    text = Page(render_ablation(result)).text
    largest = max(range(0, len(result.cells), 3), key=lambda row: result.effect()[row].item())
    assert f"+{result.effect()[largest]:.3f}" in text
    table: Any = result.against_controls()
    rows = table[table["group"] == result.cells[largest].group]
    for difference in rows["difference"]:
        assert f"{difference:+.3f}".replace("-", "−").rstrip("0") in text
    assert "at the control: random position" in text


def test_many_groups_are_cut_to_the_largest_and_it_is_said() -> None:
    result = make_ablation(MANY)
    html = render_ablation(result)
    assert "The 40 of 70 groups with the largest effect" in html
    shown = Page(html).data["figures"]["effects-delta_loss"]["data"][0]["x"]
    effects = result.effect()[::3]
    order = effects.abs().argsort(descending=True)[:40].tolist()
    assert shown == [result.cells[3 * place].group for place in order]
    assert "The 60 largest of 70 effects" in html


def test_both_maps_have_one_colour_range() -> None:
    result = make_ablation(HEADS)
    figures = Page(render_ablation(result)).data["figures"]
    ends = {figures[name]["layout"]["coloraxis"]["cmax"] for name in figures if name.startswith("map-")}
    assert ends == {result.effect().abs().max().item()}


def test_random_terms_do_not_press_the_others_flat() -> None:
    result = make_faithfulness()
    loss = result.loss.clone()
    loss[2, 1] = (2 + 50.0) * COUNT
    towering = dataclasses.replace(result, loss=loss)
    data = Page(render_faithfulness(towering)).data["figures"]
    assert max(data["curves-sufficiency"]["layout"]["yaxis"]["range"]) < 3
    assert "range" not in data["curves-comprehensiveness"]["layout"]["yaxis"]
    assert data["differences-sufficiency"]["data"][0]["x"] == ["contribution within the layer"]
    assert "leaves the frame" in render_faithfulness(towering)
    assert "leaves the frame" not in render_faithfulness(result)


def test_names_cannot_become_markup() -> None:
    attack = "</script><script>alert(1)</script>"
    groups = {attack: ((0, 0),)}
    result = dataclasses.replace(make_ablation(groups), provenance=dataclasses.replace(SOURCE, model_name=attack))
    html = render_ablation(result, title=attack, text_name=attack)
    assert attack not in html
    assert "<" not in Page(html).scripts[0]


def test_what_a_reader_must_know_is_a_note_at_the_top() -> None:
    def notes(result: AblationResult) -> str:
        return " ".join(re.findall(r'class="warning" role="note"><b>Note.</b>(.*?)</p>', render_ablation(result)))

    result = make_ablation({"all layers": ((0, 0),)})
    assert "An edit changed nothing" not in notes(result)
    assert "An edit changed nothing" in notes(dataclasses.replace(result, changed=(True, False, True)))
    bare = dataclasses.replace(
        result, cells=result.cells[:1], loss=result.loss[:1], divergence=result.divergence[:1], changed=(True,)
    )
    assert "No control was measured" in notes(bare)
    folded = dataclasses.replace(SOURCE, frame="folded layer norm", n_documents=64)
    assert "folded layer norm" in notes(dataclasses.replace(result, provenance=folded))
    assert "documents only" not in notes(dataclasses.replace(result, provenance=folded))


def test_an_effect_or_a_metric_that_there_is_not_is_an_error() -> None:
    with pytest.raises(InputError, match="no effect 'accuracy'"):
        render_ablation(make_ablation(LAYERS), "accuracy")
    with pytest.raises(InputError, match="no metric 'intra'"):
        render_faithfulness(make_faithfulness(), reference="intra")


# Tables.


def test_tables_hold_effects_intervals_and_controls() -> None:
    result = make_ablation(LAYERS, ("zero", "mean"))
    table = ablation_table(result, "divergence")
    assert len(table.rows) == 24
    row = table.rows[5]
    assert row[:2] == ("layer 2", "mean")
    effects = [result.effect("divergence")[15 + place].item() for place in range(3)]
    assert [float(row[2]), float(row[4]), float(row[5])] == pytest.approx(effects, abs=1e-3)
    low, high = result.interval("divergence")[15].tolist()
    assert row[3] == f"[{low:+.3f}, {high:+.3f}]"


def test_a_table_of_the_largest_has_them_first() -> None:
    result = make_ablation(MANY)
    shown = [float(row[2]) for row in ablation_table(result, n=5).rows]
    assert shown == pytest.approx(sorted(result.effect()[::3].tolist(), reverse=True)[:5], abs=1e-3)


def test_faithfulness_tables_are_those_of_their_mode() -> None:
    result = make_faithfulness()
    table = faithfulness_table(result, "sufficiency")
    effects = result.effect()[1, 1]
    assert [float(text) for text in table.rows[1][1:4]] == pytest.approx(
        [*effects.tolist(), effects.mean().item()], abs=1e-3
    )
    differences = difference_table(result, "attention")
    assert differences is not None
    assert [row[:2] for row in differences.rows] == [
        (mode, metric) for mode in result.modes for metric in ("inter", "random")
    ]  # fmt: skip
    expected = result.differences("attention", aopc=True).sort_values("mode", kind="stable")["difference"]
    assert [float(row[2]) for row in differences.rows] == pytest.approx(expected.tolist(), abs=1e-3)


def test_better_depends_on_the_mode() -> None:
    result = make_faithfulness(("attention", "inter"))
    loss = result.loss.clone()
    loss[1] = loss[0] + COUNT
    table = difference_table(dataclasses.replace(result, loss=loss), "attention")
    assert table is not None
    assert [row[-1] for row in table.rows] == ["better", "worse"]


# In a browser.


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.mark.browser
@pytest.mark.parametrize("width", [1300, 500])
def test_every_chart_is_drawn_in_both_themes_without_a_request(
    browser: Any, page: tuple[str, int], tmp_path: Path, width: int
) -> None:
    browser.set_window_size(width, 900)
    browser.get(write_report(tmp_path / "page.html", page[0]).as_uri())
    script = browser.execute_script
    assert undrawn(script) == []
    colour = "return [...document.querySelectorAll('.plot')].map((chart) => chart._fullLayout.paper_bgcolor)"
    before = script(colour)
    script("document.getElementById('theme').click()")
    after = script(colour)
    assert {*before} | {*after} == {"#ffffff", "#14171c"}
    assert len({*before}) == len({*after}) == 1
    script("document.getElementById('theme').click()")
    assert script("return performance.getEntriesByType('resource').length") == 0
    assert script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.browser
def test_whiskers_are_seen_in_both_themes(browser: Any, tmp_path: Path) -> None:
    browser.set_window_size(1300, 900)
    browser.get(write_report(tmp_path / "page.html", render_faithfulness(make_faithfulness())).as_uri())
    script = browser.execute_script
    colour = "return document.querySelector('[data-figure^=differences]').data[0].error_y.color"
    undrawn(script)
    script("sinklens.setTheme('dark')")
    dark = script(colour)
    script("sinklens.setTheme('light')")
    assert (dark, script(colour)) == ("#e7eaef", "#1c2026")

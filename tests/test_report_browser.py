"""The report in a browser: every chart is drawn, and every control does what it says."""

import base64
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sinklens.reports import render_report, write_report
from sinklens.reports.encoding import METRICS_SHOWN
from sinklens.results import AttentionMaps, HeadProfile
from sinklens.viz import head_scatter
from sinklens.viz.theme import KIND_COLOURS
from tests.pages import chromium, undrawn
from tests.synthetic import SMALL_TOKENS, make_maps, make_profile


@pytest.fixture(scope="module")
def profile() -> HeadProfile:
    return make_profile(3, 5, len(SMALL_TOKENS))


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    return make_maps(3, 5, SMALL_TOKENS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


@pytest.fixture
def opened(browser: Any, profile: HeadProfile, maps: AttentionMaps, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def page(chosen: AttentionMaps | None = maps) -> Any:
        path = write_report(tmp_path / "report.html", render_report(profile, chosen))
        browser.get(path.as_uri())
        return browser.execute_script

    yield page
    assert [entry["message"] for entry in browser.get_log("browser")] == []


@pytest.mark.browser
def test_every_chart_is_drawn_without_a_request(opened: Callable[..., Any]) -> None:
    script = opened()
    assert undrawn(script) == []
    assert script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


@pytest.mark.browser
def test_charts_wait_until_they_are_near(opened: Callable[..., Any]) -> None:
    script = opened()
    assert script("return document.querySelectorAll('.plot').length") == 13
    assert script("return document.querySelectorAll('#picker-bars .main-svg').length") == 0


@pytest.mark.browser
def test_the_picker_shows_the_chosen_head(opened: Callable[..., Any], maps: AttentionMaps) -> None:
    script = opened()
    undrawn(script)
    script(
        "for (const [name, value] of [['layer', '2'], ['head', '4']]) {"
        "  const choice = document.getElementById(`picker-${name}`);"
        "  choice.value = value; choice.dispatchEvent(new Event('change')); }"
    )
    rows = script("return document.getElementById('picker-maps').data.map((trace) => trace.z.map((row) => [...row]))")
    for metric, values in zip(METRICS_SHOWN, rows, strict=True):
        shown = torch.tensor([[float("nan") if value is None else value for value in row] for row in values])
        expected = maps.metric(metric)[2, 4].masked_fill(~maps.visible[2], float("nan"))
        assert torch.allclose(shown, expected, equal_nan=True)
    assert script("return document.getElementById('picker-title').textContent") == "Layer 2 · head 4"


@pytest.mark.browser
def test_a_learned_sink_is_a_column_that_completes_the_rows(opened: Callable[..., Any], maps: AttentionMaps) -> None:
    halved = dataclasses.replace(maps, attention=maps.attention / 2, learned_sink=True)
    script = opened(halved)
    undrawn(script)
    rest = "(document.getElementById('picker-maps').data.find((trace) => trace.x[0] === -1.5).z.map((row) => row[0]))"
    np.testing.assert_allclose(script(f"return {rest}"), np.full(len(SMALL_TOKENS), 0.5), atol=1e-6)
    assert script("return document.querySelector('#picker-maps .xaxislayer-above').textContent").startswith(
        "learned sink"
    )
    [x, attention, intra] = script(
        "const [attention, intra] = document.getElementById('picker-bars').data;"
        "return [attention.x[0], attention.y, intra.y[0]];"
    )
    assert (x, intra) == (-1.5, 0)
    assert sum(attention) == pytest.approx(1, abs=1e-6)
    script = opened(maps)
    undrawn(script)
    assert script("return document.getElementById('picker-bars').data[0].x[0]") == 0


@pytest.mark.browser
def test_previous_next_and_arrow_keys_move_the_head(opened: Callable[..., Any]) -> None:
    script = opened()
    undrawn(script)
    script("sinklens.select(1, 4)")
    at = "return [sinklens.state.layer, sinklens.state.head]"
    script("document.getElementById('picker-next').click()")
    assert script(at) == [2, 0]
    script("document.getElementById('picker-previous').click()")
    assert script(at) == [1, 4]
    for key, expected in (("ArrowDown", [2, 4]), ("ArrowLeft", [2, 3]), ("ArrowUp", [1, 3]), ("ArrowRight", [1, 4])):
        press = "new KeyboardEvent('keydown', {key: arguments[0], bubbles: true})"
        script(f"document.getElementById('picker-maps').dispatchEvent({press})", key)
        assert script(at) == expected


def click(browser: Any, script: Any, name: str, x: float, y: float) -> None:
    """Click with the mouse where a chart shows the point (x, y)."""
    place = """
        const chart = document.querySelector(arguments[0]);
        chart.scrollIntoView({block: 'center', behavior: 'instant'});
        const {xaxis, yaxis} = chart._fullLayout;
        const {left, top} = chart.getBoundingClientRect();
        return [left + xaxis._offset + xaxis.c2p(arguments[1]), top + yaxis._offset + yaxis.c2p(arguments[2])];
    """
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    left, top = script(place, name, x, y)
    actions = ActionBuilder(browser)
    actions.pointer_action.move_to_location(int(left) - 3, int(top)).move_to_location(int(left), int(top)).pause(
        0.3
    ).click()
    actions.perform()


@pytest.mark.browser
def test_a_click_on_a_cell_or_a_point_selects_its_head(
    browser: Any, opened: Callable[..., Any], profile: HeadProfile
) -> None:
    script = opened()
    undrawn(script)
    at = "return [sinklens.state.layer, sinklens.state.head]"
    click(browser, script, "[data-figure=map-sink_mass]", x=4, y=2)
    assert script(at) == [2, 4]
    assert script("return document.getElementById('picker-head').value") == "4"
    click(browser, script, "#scatter", profile.sink_mass[1, 3].item(), profile.sink_intra[1, 3].item())
    assert script(at) == [1, 3]
    assert "Layer 1 · head 3" in script("return document.getElementById('readout').textContent")
    click(browser, script, "#picker-maps", x=1, y=4)
    assert script("return document.getElementById('picker-query').value") == "4"
    assert script("return document.getElementById('picker-bars').data[0].x.length") == 5


@pytest.mark.browser
def test_the_menus_of_the_notebook_s_scatter_work_without_a_kernel(
    browser: Any, opened: Callable[..., Any], profile: HeadProfile
) -> None:
    script = opened()
    figure = json.loads(head_scatter(profile, selectors=True).to_json() or "")
    script(
        "const chart = document.createElement('div'); chart.id = 'notebook'; document.body.append(chart);"
        "Plotly.newPlot(chart, arguments[0].data, arguments[0].layout)",
        figure,
    )
    x, _, color = figure["layout"]["updatemenus"]
    for menu, label in ((x, "Row entropy"), (color, "Alignment of the sink")):
        button = next(button for button in menu["buttons"] if button["label"] == label)
        script("Plotly.update(document.getElementById('notebook'), ...arguments[0])", button["args"])
    points = "const [{x, marker}] = document.getElementById('notebook')._fullData;"
    shown = script(f"{points} return {{x: [...x], color: [...marker.color]}}")
    assert shown["x"] == pytest.approx(profile.entropy.flatten().tolist())
    assert shown["color"] == pytest.approx(profile.sink_alignment.flatten().tolist())
    assert script("return document.getElementById('notebook')._fullLayout.showlegend") is False
    back = next(button for button in color["buttons"] if button["label"] == "Pattern kind")
    script("Plotly.update(document.getElementById('notebook'), ...arguments[0])", back["args"])
    kinds = [KIND_COLOURS[kind] for row in profile.kind for kind in row]
    assert script("return [...document.getElementById('notebook')._fullData[0].marker.color]") == kinds


@pytest.mark.browser
def test_the_scatter_shows_the_chosen_quantities(opened: Callable[..., Any], profile: HeadProfile) -> None:
    script = opened()
    undrawn(script)
    for name, value in (("x", "entropy"), ("y", "suppression"), ("color", "sink_value_ratio")):
        script(
            "const choice = document.getElementById(`scatter-${arguments[0]}`);"
            "choice.value = arguments[1]; choice.dispatchEvent(new Event('change'));",
            name,
            value,
        )
    trace = script("const [trace] = document.getElementById('scatter').data; return {x: [...trace.x], y: [...trace.y]}")
    assert trace["x"] == pytest.approx(profile.entropy.flatten().tolist())
    assert trace["y"] == pytest.approx(profile.suppression.flatten().tolist())
    assert script("return document.getElementById('scatter').layout.xaxis.title.text") == "Row entropy"


@pytest.mark.browser
def test_leaving_the_sink_out_changes_the_colour_range(opened: Callable[..., Any], maps: AttentionMaps) -> None:
    script = opened()
    undrawn(script)
    script("sinklens.select(2, 4)")
    high = "return document.getElementById('picker-maps').layout.coloraxis.cmax"
    assert script(high) == pytest.approx(maps.attention[2, 4, :, 1:].max().item())
    script("document.getElementById('picker-range').click()")
    assert script(high) == pytest.approx(maps.attention[2, 4].max().item())


@pytest.mark.browser
def test_half_precision_and_bytes_are_read_as_they_were_written(browser: Any, opened: Callable[..., Any]) -> None:
    script = opened()
    values = np.array([0.0, 1.0, -2.5, 6e-8, 6.1e-5, 65504.0, 0.1, np.nan], dtype="<f2")
    read = script(
        "return [...sinklens.halves(arguments[0])].map((x) => Number.isNaN(x) ? 'nan' : x)",
        base64.b64encode(values.tobytes()).decode(),
    )
    assert read[-1] == "nan"
    assert read[:-1] == values[:-1].astype(float).tolist()
    levels = script(
        "return [...sinklens.levels(arguments[0], -1, 0.5)].map((x) => Number.isNaN(x) ? 'nan' : x)",
        base64.b64encode(bytes([0, 4, 255])).decode(),
    )
    assert levels == [-1, 1, "nan"]


@pytest.mark.browser
def test_both_themes_and_a_page_without_maps(opened: Callable[..., Any]) -> None:
    script = opened(None)
    assert undrawn(script) == []
    background = "return document.querySelector('[data-figure=curves]')._fullLayout.paper_bgcolor"
    before = script(background)
    script("document.getElementById('theme').click()")
    assert {before, script(background)} == {"#ffffff", "#14171c"}
    script("document.getElementById('theme').click()")
    assert script(background) == before


@pytest.mark.browser
def test_nothing_is_wider_than_a_narrow_screen(browser: Any, opened: Callable[..., Any]) -> None:
    size = browser.get_window_size()
    browser.set_window_size(500, 900)
    try:
        script = opened()
        assert undrawn(script) == []
        assert script("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        browser.set_window_size(size["width"], size["height"])

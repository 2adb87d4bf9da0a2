"""The report is one page that loads nothing, holds the result's numbers, and works in a browser."""

import base64
import dataclasses
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plotly.offline import get_plotlyjs

from sinklens.errors import ResultFileError
from sinklens.reports import render_report, write_report
from sinklens.reports.encoding import METRICS_SHOWN, encode_maps
from sinklens.results import QUANTITIES, AttentionMaps, HeadProfile
from sinklens.viz import head_scatter
from sinklens.viz.theme import KIND_COLOURS
from tests.synthetic import LARGE_TOKENS, SMALL_TOKENS, make_maps, make_profile

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="module")
def profile() -> HeadProfile:
    return make_profile(3, 5, len(SMALL_TOKENS))


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    return make_maps(3, 5, SMALL_TOKENS)


@pytest.fixture(scope="module")
def large() -> tuple[HeadProfile, AttentionMaps]:
    return make_profile(30, 9, len(LARGE_TOKENS)), make_maps(30, 9, LARGE_TOKENS)


class Page(HTMLParser):
    """Every start tag with its attributes, and the text of the page outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        return json.loads(self.scripts[0])


def decode(entry: dict[str, Any], dtype: str) -> np.ndarray:
    raw = np.frombuffer(base64.b64decode(entry["data"]), dtype=np.dtype(dtype).newbyteorder("<"))
    if dtype != "u1":
        return raw.astype(np.float32)
    return np.where(raw == 255, np.nan, entry["low"] + raw * entry["step"])


def test_plotly_is_inside_exactly_once_and_nothing_is_loaded(profile: HeadProfile, maps: AttentionMaps) -> None:
    html = render_report(profile, maps)
    assert html.count(get_plotlyjs()) == 1
    page = Page(html)
    loading = [
        (tag, name, value)
        for tag, attributes in page.tags
        for name, value in attributes.items()
        if name in ("src", "href", "srcset", "data", "action") and not (value or "").startswith(("#", "data:,"))
    ]
    assert loading == []
    own = html.replace(get_plotlyjs(), "")
    assert not re.search(r"https?://|@import|url\(|mathjax", own, re.IGNORECASE)
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert (policy or "").startswith("default-src 'none'")


def test_a_page_of_thirty_layers_and_sixty_tokens_keeps_to_its_budget(
    large: tuple[HeadProfile, AttentionMaps],
) -> None:
    html = render_report(*large)
    assert len(html.encode()) < 12_000_000
    assert len(Page(html).data["maps"]["maps"]) == 270
    assert "16-bit" in Page(html).text


@pytest.mark.parametrize(
    ("budget", "dtype", "rtol"), [(200_000, "f4", 0.0), (120_000, "f2", 1e-3), (60_000, "u1", 0.0)]
)
def test_encoded_maps_are_the_maps_of_their_layer_and_head(budget: int, dtype: str, rtol: float) -> None:
    length = 40
    maps, profile = make_maps(3, 5, ("token",) * length), make_profile(3, 5, length)
    payload = encode_maps(maps, profile, budget).payload
    assert payload["dtype"] == dtype
    visible = maps.visible[2].numpy()
    for metric, entry in zip(METRICS_SHOWN, payload["maps"]["2.4"], strict=True):
        expected = maps.metric(metric)[2, 4].numpy()[visible]
        step = entry.get("step", 0.0)
        np.testing.assert_allclose(
            decode(entry, dtype), expected, rtol=rtol, atol=step / 2 * 1.001 + 6e-8 * (dtype == "f2")
        )


def test_degenerate_values_survive_every_encoding(maps: AttentionMaps, profile: HeadProfile) -> None:
    norm = maps.output_norm.clone()
    norm[2, 4, 3] = 0.0
    broken = dataclasses.replace(maps, output_norm=norm)
    visible = maps.visible[2].numpy()
    row = np.nonzero(visible)[0]
    for budget in (10**9, 1500, 900):
        payload = encode_maps(broken, profile, budget).payload
        if "2.4" in payload["maps"]:
            intra = decode(payload["maps"]["2.4"][1], payload["dtype"])
            assert np.array_equal(np.isnan(intra), row == 3)
    assert {encode_maps(broken, profile, budget).payload["dtype"] for budget in (10**9, 2600, 1500)} == {
        "f4",
        "f2",
        "u1",
    }


def test_large_models_keep_their_most_interesting_heads_and_say_so(profile: HeadProfile, maps: AttentionMaps) -> None:
    encoded = encode_maps(maps, profile, budget=300)
    strongest = profile.sink_mass.flatten().argmax().item()
    assert 0 < len(encoded.payload["maps"]) < 15
    assert f"{strongest // 5}.{strongest % 5}" in encoded.payload["maps"]
    assert f"{len(encoded.payload['maps'])} of 15 heads" in encoded.note


def test_different_masks_are_kept_apart(maps: AttentionMaps, profile: HeadProfile) -> None:
    visible = maps.visible.clone()
    visible[1, 5, 0] = False
    payload = encode_maps(dataclasses.replace(maps, visible=visible), profile).payload
    assert payload["maskOfLayer"] == [0, 1, 0]
    bits = np.unpackbits(np.frombuffer(base64.b64decode(payload["masks"][1]), dtype=np.uint8))[:36].reshape(6, 6)
    assert np.array_equal(bits.astype(bool), visible[1].numpy())


def test_the_page_holds_every_head_s_quantities(profile: HeadProfile) -> None:
    heads = Page(render_report(profile)).data["heads"]
    assert set(heads["values"]) == set(QUANTITIES)
    for name in QUANTITIES:
        values = np.frombuffer(base64.b64decode(heads["values"][name]), dtype="<f4")
        assert np.array_equal(values, getattr(profile, name).flatten().numpy())


def test_tokens_and_names_cannot_become_markup(profile: HeadProfile) -> None:
    attack = "</script><script>alert(1)</script>"
    maps = make_maps(3, 5, (attack, "<img src=x onerror=alert(1)>", "&", "<!--"))
    html = render_report(profile, maps, title=attack, text_name=attack, warnings=[attack])
    page = Page(html)
    assert attack not in html
    assert [tag for tag, _ in page.tags].count("script") == 7
    assert "<" not in page.scripts[0]  # not even "<!--", which changes how a script element ends
    assert not any("onerror" in attributes for _, attributes in page.tags)
    assert page.data["maps"]["tokens"][0] == attack


def test_the_page_says_what_was_measured_on_what(profile: HeadProfile, maps: AttentionMaps) -> None:
    text = Page(render_report(profile, maps, text_name="stories.txt")).text
    for words in (
        "tiny-random",
        "3 × 5",
        "TransformerBridge",
        "raw",
        "float32",
        "stories.txt",
        "put in front of each sequence",
        "first",
        "0.3",
        "Degenerate rows left out",
        "torch",
        f"{profile.sink_rates()['mean_first']:.2f}",
        f"{100 * profile.opposing_share:.0f} %",
        "averaged over documents first",
    ):
        assert words in text  # fmt: skip
    for count, kind in ((sum(row.count(kind) for row in profile.kind), kind) for kind in ("sink", "mixed")):
        assert re.search(rf"{kind} {count}\b", text)


def test_a_folded_frame_is_a_warning_at_the_top(profile: HeadProfile) -> None:
    def warnings(frame: str) -> list[str]:
        source = dataclasses.replace(profile.provenance, frame=frame)
        html = render_report(dataclasses.replace(profile, provenance=source), warnings=["Layer 3 was skipped."])
        return re.findall(r'class="warning" role="note"', html)

    assert len(warnings("raw")) == 1
    assert len(warnings("folded layer norm")) == 2


def test_every_chart_has_a_sentence_that_says_how_to_read_it(profile: HeadProfile, maps: AttentionMaps) -> None:
    html = render_report(profile, maps)
    charts, captions = html.count('class="plot"'), re.findall(r"<figcaption>(.+?)</figcaption>", html, re.DOTALL)
    assert charts == len(captions) == 13
    assert all(len(caption) > 40 and "." in caption for caption in captions)


def test_every_control_has_a_label_and_every_plot_a_description(profile: HeadProfile, maps: AttentionMaps) -> None:
    html = render_report(profile, maps)
    for control in re.findall(r"<(?:select|input)[^>]*id=\"([^\"]+)\"", html):
        assert re.search(rf"<label[^>]*>[^<]*<(?:select|input)[^>]*id=\"{control}\"", html), control
    plots = [attributes for _, attributes in Page(html).tags if attributes.get("class") == "plot"]
    assert all(plot["role"] in ("img", "group") and plot["aria-label"] for plot in plots)
    names = [attributes["id"] for _, attributes in Page(html).tags if "id" in attributes]
    assert len(names) == len(set(names))


def test_without_maps_the_page_says_so_and_has_no_picker(profile: HeadProfile) -> None:
    html = render_report(profile)
    assert "No prompt was measured" in html
    assert 'id="picker"' not in html
    assert Page(html).data["maps"] is None


def test_reports_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_report(tmp_path / "new" / "report.html", "<p>ü</p>")
    assert path.read_text(encoding="utf-8") == "<p>ü</p>"
    with pytest.raises(ResultFileError, match="it is a folder"):
        write_report(tmp_path, "")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


# ---- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or CHROMEDRIVER is None:
        pytest.skip("needs chromium and chromedriver")
    with tempfile.TemporaryDirectory() as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "no-first-run")
        for flag in (*flags, f"user-data-dir={folder}", "window-size=1300,900"):
            options.add_argument(f"--{flag}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
        yield driver
        driver.quit()


@pytest.fixture
def opened(browser: Any, profile: HeadProfile, maps: AttentionMaps, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    def page(chosen: AttentionMaps | None = maps) -> Any:
        path = write_report(tmp_path / "report.html", render_report(profile, chosen))
        browser.get(path.as_uri())
        return browser.execute_script

    yield page
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def drawn(script: Any) -> list[str]:
    script("sinklens.drawAll()")
    return script(
        "return [...document.querySelectorAll('.plot')].filter((e) => !e.querySelector('.main-svg')).map((e) => e.outerHTML)"
    )


@pytest.mark.browser
def test_every_chart_is_drawn_without_a_request(opened: Callable[..., Any]) -> None:
    script = opened()
    assert drawn(script) == []
    assert script("return performance.getEntriesByType('resource').map((entry) => entry.name)") == []


@pytest.mark.browser
def test_charts_wait_until_they_are_near(opened: Callable[..., Any]) -> None:
    script = opened()
    assert script("return document.querySelectorAll('.plot').length") == 13
    assert script("return document.querySelectorAll('#picker-bars .main-svg').length") == 0


@pytest.mark.browser
def test_the_picker_shows_the_chosen_head(opened: Callable[..., Any], maps: AttentionMaps) -> None:
    script = opened()
    drawn(script)
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
def test_previous_next_and_arrow_keys_move_the_head(opened: Callable[..., Any]) -> None:
    script = opened()
    drawn(script)
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
    drawn(script)
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
    drawn(script)
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
    drawn(script)
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
    assert drawn(script) == []
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
        assert drawn(script) == []
        assert script("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        browser.set_window_size(size["width"], size["height"])

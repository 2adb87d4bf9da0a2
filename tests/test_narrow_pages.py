"""Pages of studies on a narrow screen: panels side by side stand one under the other, tables show all that they hold."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from sinklens.reports.page import _minus
from sinklens.reports.switch import render_switch
from tests.pages import chromium, undrawn
from tests.test_switch_outputs import made

PANELS = """
const { layout, _fullLayout } = document.querySelector('[data-figure="switch-maps"]');
return Object.keys(layout).filter((key) => /^yaxis\\d*$/.test(key)).map((key) => ({
  domain: _fullLayout[key].domain, ticks: _fullLayout[key].showticklabels,
  across: _fullLayout[key.replace("y", "x")].domain,
})).concat([{ titles: layout.annotations.map(({ x, y }) => [x, y]), wide: document.documentElement.scrollWidth }]);
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as driver:
        yield driver


def opened(browser: Any, folder: Path, width: int) -> list[dict[str, Any]]:
    """The panels of the page's maps from left to right or from top to bottom, then the titles."""
    page = folder / "page.html"
    page.write_text(render_switch(made()), encoding="utf-8")
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    assert undrawn(browser.execute_script) == []
    return browser.execute_script(PANELS)


@pytest.mark.browser
def test_panels_stand_one_under_the_other_on_a_narrow_screen(browser: Any, tmp_path: Path) -> None:
    *panels, page = opened(browser, tmp_path, 420)
    assert len(panels) == 3
    assert page["wide"] <= 420
    for above, below in pairwise(panels):
        assert above["domain"][0] > below["domain"][1]  # with room for ticks and a title between them
        assert above["across"] == below["across"]
    assert all(panel["ticks"] for panel in panels)
    assert page["titles"] == [[0, pytest.approx(panel["domain"][1])] for panel in panels]


@pytest.mark.browser
def test_panels_share_a_row_where_there_is_room(browser: Any, tmp_path: Path) -> None:
    *panels, page = opened(browser, tmp_path, 1200)
    assert [panel["domain"] for panel in panels] == [[0, 1]] * 3
    assert all(left["across"][1] < right["across"][0] for left, right in pairwise(panels))
    assert {y for _, y in page["titles"]} == {1}


@pytest.mark.browser
def test_titles_of_panels_are_not_under_the_buttons(browser: Any, tmp_path: Path) -> None:
    opened(browser, tmp_path, 1200)
    low, high = browser.execute_script("""
        const plot = document.querySelector('[data-figure="switch-maps"]');
        const titles = [...plot.querySelectorAll('.annotation')].map((each) => each.getBoundingClientRect().top);
        return [plot.querySelector('.modebar').getBoundingClientRect().bottom, Math.min(...titles)];
    """)
    assert low <= high


def test_only_numbers_get_a_minus() -> None:
    assert _minus("rank-one, arXiv 2605-1, [-0.5, -0.25] and -3") == "rank-one, arXiv 2605-1, [−0.5, −0.25] and −3"

"""What tests of pages share: a page's tags, text and data, and a browser that opens it."""

import base64
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")


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


@contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium; the test is skipped where there is none."""
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


def undrawn(script: Any) -> list[str]:
    """Draw all charts; gives those that are still empty."""
    script("sinklens.drawAll()")
    return script(
        "return [...document.querySelectorAll('.plot')].filter((e) => !e.querySelector('.main-svg')).map((e) => e.outerHTML)"
    )

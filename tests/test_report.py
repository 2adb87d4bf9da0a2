"""The report is one page that loads nothing, holds the result's numbers, and works in a browser."""

import base64
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from plotly.offline import get_plotlyjs

from sinklens.errors import ResultFileError
from sinklens.reports import render_report, write_report
from sinklens.reports.encoding import METRICS_SHOWN, encode_maps
from sinklens.results import QUANTITIES, AttentionMaps, HeadProfile
from tests.pages import Page, decode
from tests.synthetic import LARGE_TOKENS, SMALL_TOKENS, make_maps, make_profile


@pytest.fixture(scope="module")
def profile() -> HeadProfile:
    return make_profile(3, 5, len(SMALL_TOKENS))


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    return make_maps(3, 5, SMALL_TOKENS)


@pytest.fixture(scope="module")
def large() -> tuple[HeadProfile, AttentionMaps]:
    return make_profile(30, 9, len(LARGE_TOKENS)), make_maps(30, 9, LARGE_TOKENS)


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
    assert [tag for tag, _ in page.tags].count("script") == 8
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


def test_the_picker_says_what_a_learned_sink_takes(profile: HeadProfile, maps: AttentionMaps) -> None:
    words = (
        "A learned sink, a null key without a value, takes what a row of attention lacks of 1; it is the column before"
    )
    assert words not in render_report(profile, maps)
    assert words in render_report(profile, dataclasses.replace(maps, learned_sink=True))

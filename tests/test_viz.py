"""Figures show the numbers of the result, at the right place, on scales that say what they mean."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

import sinklens as sl
import sinklens.viz
from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS
from sinklens.results import QUANTITIES, AttentionMaps, HeadProfile, Provenance
from sinklens.viz.quantities import DESCRIPTIONS, describe
from sinklens.viz.ranges import colour_range, positive_range, ratio_ticks, shown_values, symmetric_range
from sinklens.viz.text import escape, token_ticks
from sinklens.viz.theme import KIND_COLOURS, KIND_SYMBOLS, PALETTES, Theme
from tests.synthetic import LARGE_TOKENS, SMALL_TOKENS, make_maps, make_profile

# plotly adds the attributes of layouts and traces at run time, where a type checker cannot see them.
viz: Any = sinklens.viz

THE_CAT = ("the", "cat", "the", "cat")


@pytest.fixture(scope="module")
def profile() -> HeadProfile:
    return make_profile(3, 5, 12)


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    return make_maps(3, 5, SMALL_TOKENS)


def with_layers(profile: HeadProfile, layers: tuple[int, ...]) -> HeadProfile:
    return dataclasses.replace(profile, layers=layers)


def plain(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json() or "")


def axes_of(figure: go.Figure) -> dict[str, Any]:
    return {name: axis for name, axis in figure.to_plotly_json()["layout"].items() if name.startswith("coloraxis")}


def test_every_quantity_has_a_description() -> None:
    assert set(DESCRIPTIONS) == set(QUANTITIES)
    assert len({quantity.label for quantity in DESCRIPTIONS.values()}) == len(QUANTITIES)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_head_map_has_the_profile_s_value_in_the_cell_of_its_layer_and_head(
    profile: HeadProfile, quantity: str
) -> None:
    trace = viz.head_map(profile, quantity).data[0]
    for layer, head in ((2, 4), (0, 3), (1, 0)):
        row, column = list(trace.y).index(layer), list(trace.x).index(head)
        assert trace.customdata[row][column] == getattr(profile, quantity)[layer, head].item()


def test_head_map_of_kinds_names_each_head_s_kind(profile: HeadProfile) -> None:
    figure = viz.head_map(profile, "kind")
    trace, scale = figure.data[0], figure.layout.coloraxis
    assert [list(row) for row in trace.text] == profile.kind
    assert [[KINDS[index] for index in row] for row in trace.z] == profile.kind
    for index, kind in enumerate(KINDS):
        place = (index - scale.cmin) / (scale.cmax - scale.cmin)
        stops = scale.colorscale
        colours = [(low[1], high[1]) for low, high in pairwise(stops) if low[0] < place < high[0]]
        assert colours == [(KIND_COLOURS[kind], KIND_COLOURS[kind])]


def test_head_map_labels_rows_with_the_model_s_own_layer_numbers(profile: HeadProfile) -> None:
    figure = viz.head_map(with_layers(profile, (4, 8, 20)))
    assert list(figure.layout.yaxis.ticktext) == ["4", "8", "20"]
    assert list(figure.layout.yaxis.tickvals) == list(figure.data[0].y)
    assert figure.layout.meta["layers"] == [4, 8, 20]


def test_deep_models_have_thinned_layer_labels_where_the_row_is_the_layer() -> None:
    profile = make_profile(90, 1, 4)
    assert list(viz.head_map(profile).layout.yaxis.ticktext)[:3] == ["0", "3", "6"]
    later = with_layers(profile, tuple(range(10, 100)))
    assert list(viz.head_map(later).layout.yaxis.ticktext) == [str(layer) for layer in range(10, 100)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_signed_quantities_have_the_middle_colour_at_zero(profile: HeadProfile, theme: Theme) -> None:
    scale = viz.head_map(profile, "sink_alignment", theme=theme).layout.coloraxis
    assert scale.cmin == -scale.cmax
    assert scale.colorscale[4] == (0.5, PALETTES[theme].diverging[4])


def test_ratios_have_the_middle_colour_at_one(profile: HeadProfile) -> None:
    figure = viz.head_map(profile, "suppression")
    scale = figure.layout.coloraxis
    assert scale.cmin == -scale.cmax
    assert figure.data[0].z[2][4] == pytest.approx(np.log2(profile.suppression[2, 4].item()), rel=1e-6)
    assert list(scale.colorbar.ticktext)[list(scale.colorbar.tickvals).index(0)] == "1"


def test_unsigned_quantities_begin_at_zero(profile: HeadProfile) -> None:
    scale = viz.head_map(profile, "sink_mass").layout.coloraxis
    assert scale.cmin == 0.0
    assert tuple(colour for _, colour in scale.colorscale) == PALETTES["light"].sequential


def test_one_extreme_head_does_not_swamp_the_others_but_keeps_its_value() -> None:
    profile = make_profile(10, 9, 8)
    profile.sums["sink_intra"][3, 4] = -1e6 * profile.counts["intra_queries"][3, 4]
    robust, full = (viz.head_map(profile, "sink_intra", robust=choice) for choice in (True, False))
    assert robust.layout.coloraxis.cmax < 2
    assert full.layout.coloraxis.cmax == pytest.approx(1e6)
    assert robust.data[0].customdata[3][4] == pytest.approx(-1e6)


def test_an_empty_profile_is_drawn_blank() -> None:
    empty = HeadProfile(*HeadProfile.empty(3, 5), (0, 1, 2), Provenance("tiny"))
    for quantity in QUANTITIES:
        figure = viz.head_map(empty, quantity)
        assert np.isnan(figure.data[0].z).all()
        assert figure.layout.coloraxis.cmin < figure.layout.coloraxis.cmax
    assert len(viz.suppression_curves(empty).data) == 0
    assert "No head" in viz.suppression_curves(empty).layout.annotations[0].text


def test_head_maps_gives_each_quantity_its_own_scale_and_bar(profile: HeadProfile) -> None:
    figure = viz.head_maps(profile, ("sink_mass", "sink_alignment", "kind"))
    assert [trace.coloraxis for trace in figure.data] == ["coloraxis", "coloraxis2", "coloraxis3"]
    bars = [axis["colorbar"]["x"] for axis in axes_of(figure).values()]
    assert bars == sorted(set(bars))
    assert figure.data[1].customdata[2][4] == profile.sink_alignment[2, 4].item()


def test_layer_lines_are_means_over_heads(profile: HeadProfile) -> None:
    line = viz.layer_lines(profile, ["sink_mass"]).data[1]
    assert torch.allclose(torch.tensor(line.y), profile.sink_mass.mean(1))
    assert list(line.x) == [0, 1, 2]


def test_drift_lines_are_means_over_heads_and_the_pass_has_its_own() -> None:
    sums, counts = sl.DriftProfile.empty(2, 3)
    for number, name in enumerate(("cone_with", "cone_without"), start=1):
        sums[name] += number * torch.arange(6.0).reshape(2, 3)
        counts[sl.DriftProfile.COUNT_OF[name]] += 10
    clean = sl.DriftProfile(sums, counts, (4, 9), make_profile(1, 1, 4).provenance)
    lines = viz.drift_lines(clean).data[1::2]
    assert [list(line.x) for line in lines] == [[4, 9]] * 2
    assert [line.y.tolist() for line in lines] == [pytest.approx([0.1, 0.4]), pytest.approx([0.2, 0.8])]
    ablated = dataclasses.replace(clean, sums={**sums, "cone_with": sums["cone_with"] * 3})
    named = {line.name: line.y.tolist() for line in viz.drift_lines(sl.AblatedDrift(clean, ablated)).data[1::2]}
    assert named["sinks zeroed in the pass"] == pytest.approx([0.3, 1.2])


def test_scatter_places_every_head_and_says_which_it_is(profile: HeadProfile) -> None:
    points = viz.head_scatter(with_layers(profile, (4, 8, 20)), x="entropy", y="suppression").data[0]
    places = [tuple(row[:2]) for row in points.customdata]
    for row, head in product(range(3), range(5)):
        index = places.index(((4, 8, 20)[row], head))
        assert points.x[index] == profile.entropy[row, head].item()
        assert points.y[index] == profile.suppression[row, head].item()
        assert points.marker.color[index] == KIND_COLOURS[profile.kind[row][head]]
        assert points.marker.symbol[index] == KIND_SYMBOLS[profile.kind[row][head]]


def test_scatter_draws_the_line_of_equality_only_between_shares(profile: HeadProfile) -> None:
    def lines(figure: Any) -> int:
        return sum("lines" in (trace.mode or "") for trace in figure.data)

    assert lines(viz.head_scatter(profile)) == 1
    assert lines(viz.head_scatter(profile, y="output_norm")) == 0


def test_scatter_selectors_offer_every_quantity_with_its_own_values(profile: HeadProfile) -> None:
    figure = viz.head_scatter(profile, x="sink_rate", selectors=True)
    x, y, color = figure.layout.updatemenus
    assert x.buttons[0].label == describe("sink_rate").label
    assert len(x.buttons) == len(y.buttons) == len(QUANTITIES)
    assert len(color.buttons) == len(QUANTITIES) + 1
    button = next(button for button in y.buttons if button.label == describe("entropy").label)
    changes, layout, traces = button.args
    assert np.array_equal(changes["y"][0], profile.entropy.flatten().numpy())
    assert layout == {"yaxis.title.text": "Row entropy"}
    assert list(traces) == [0]


def test_colouring_by_a_signed_quantity_is_centred(profile: HeadProfile) -> None:
    figure = viz.head_scatter(profile, color="sink_alignment")
    assert figure.layout.coloraxis.cmin == -figure.layout.coloraxis.cmax
    assert not figure.layout.showlegend


def test_suppression_curves_are_the_profile_s_with_their_minimum(profile: HeadProfile) -> None:
    line, least, actual = viz.suppression_curves(profile, [(2, 4)], normalize=False).data[:3]
    expected = profile.norm_curve(2, 4, torch.tensor(np.array(line.x)))
    assert torch.allclose(torch.tensor(line.y), expected)
    assert least.y[0] <= min(line.y) * (1 + 1e-6)
    assert least.x[0] == pytest.approx(profile.pooled_alpha_star[2, 4].clamp(0, 1).item())
    assert actual.x[0] == pytest.approx(profile.sink_mass[2, 4].item())
    assert actual.y[0] == pytest.approx(profile.norm_curve(2, 4, profile.sink_mass[2:3, 4]).item())


def test_normalised_curves_begin_at_one(profile: HeadProfile) -> None:
    figure = viz.suppression_curves(profile)
    assert [trace.y[0] for trace in figure.data if trace.mode == "lines"] == [1.0] * 6


def test_suppression_curves_choose_the_strongest_sinks(profile: HeadProfile) -> None:
    chosen = viz.strongest_sink_heads(with_layers(profile, (4, 8, 20)), 3)
    assert len(chosen) == 3
    masses = [profile.sink_mass[(4, 8, 20).index(layer), head].item() for layer, head in chosen]
    assert masses == sorted(profile.sink_mass.flatten().tolist(), reverse=True)[:3]


def test_heatmaps_show_the_metric_of_that_layer_and_head(maps: AttentionMaps) -> None:
    figure = viz.attention_heatmaps(maps, 2, 4, ("attention", "intra", "inter"))
    visible = maps.visible[2].numpy()
    for trace, metric in zip(figure.data, ("attention", "intra", "inter"), strict=True):
        expected = maps.metric(metric)[2, 4].numpy()
        assert np.array_equal(trace.z[visible], expected[visible])
        assert np.isnan(trace.z[~visible]).all()


def test_repeated_tokens_stay_columns_of_their_own() -> None:
    figure = viz.attention_heatmaps(make_maps(3, 5, THE_CAT), 2, 4)
    assert [len(set(trace.x)) for trace in figure.data] == [4, 4, 4]
    assert [len(set(trace.y)) for trace in figure.data] == [4, 4, 4]
    assert list(figure.layout.xaxis.ticktext) == list(THE_CAT)
    assert list(figure.layout.yaxis.ticktext) == list(THE_CAT)


def test_tokens_cannot_become_markup() -> None:
    tokens = ("<s>", "<b>bold</b>", "$x$", "&amp;")
    figure = viz.attention_heatmaps(make_maps(1, 1, tokens), 0, 0)
    shown = [*figure.layout.xaxis.ticktext, *figure.data[0].text[3]]
    assert not any("<s>" in text or "<b>" in text or "$x$" in text for text in shown)
    assert list(figure.layout.xaxis.ticktext) == ["&lt;s&gt;", "&lt;b&gt;bold&lt;/b&gt;", "&#36;x&#36;", "&amp;amp;"]


def test_the_sink_is_left_out_of_the_colour_range() -> None:
    maps = make_maps(1, 1, LARGE_TOKENS)
    attention = torch.full_like(maps.attention, 0.01).tril()
    attention[..., 0] = 0.9
    maps = dataclasses.replace(maps, attention=attention)
    without, within = (
        viz.attention_heatmaps(maps, 0, 0, ("attention",), exclude_sink_from_range=choice).layout.coloraxis.cmax
        for choice in (True, False)
    )
    assert without == pytest.approx(0.01)
    assert within == pytest.approx(0.9)


def test_what_moves_nothing_does_not_look_as_if_it_did() -> None:
    maps = make_maps(1, 1, THE_CAT)
    maps = dataclasses.replace(maps, attention=torch.full_like(maps.attention, 1e-7).tril())
    layout = viz.attention_heatmaps(maps, 0, 0).layout
    assert (layout.coloraxis.cmin, layout.coloraxis.cmax) == (0, 0.001)
    assert (layout.coloraxis2.cmin, layout.coloraxis2.cmax) == (-0.001, 0.001)


def test_contributions_are_centred_at_zero_and_attention_begins_there(maps: AttentionMaps) -> None:
    layout = viz.attention_heatmaps(maps, 2, 4).layout
    assert layout.coloraxis.cmin == 0
    assert layout.coloraxis2.cmin == -layout.coloraxis2.cmax
    assert layout.coloraxis3.cmin == -layout.coloraxis3.cmax


def test_degenerate_rows_are_blank_and_say_so(maps: AttentionMaps) -> None:
    norm = maps.output_norm.clone()
    norm[2, 4, 3] = 0.0
    trace = viz.attention_heatmaps(dataclasses.replace(maps, output_norm=norm), 2, 4, ("intra",)).data[0]
    assert np.isnan(trace.z[3]).all()
    assert "degenerate" in trace.text[3][1]
    assert "degenerate" not in trace.text[4][1]
    assert "cannot see" in trace.text[3][5]


def test_long_prompts_have_thinned_ticks_and_every_token_under_the_pointer() -> None:
    figure = viz.attention_heatmaps(make_maps(1, 1, LARGE_TOKENS), 0, 0, ("attention",))
    assert len(figure.layout.xaxis.tickvals) <= 48
    where = LARGE_TOKENS.index("·internationalization")
    assert figure.data[0].text[59][where].endswith(f"key ·internationalization ({where})")


def test_token_contributions_are_one_row_of_the_maps(maps: AttentionMaps) -> None:
    figure = viz.token_contributions(maps, 2, 4, query=3)
    for trace, metric in zip(figure.data, ("attention", "intra", "inter"), strict=True):
        assert np.array_equal(trace.y, maps.metric(metric)[2, 4, 3, :4].numpy())
        assert list(trace.x) == [0, 1, 2, 3]
    assert viz.token_contributions(maps, 2, 4, query=-1).data[0].x[-1] == 5


def test_figures_know_their_size_and_keep_to_a_budget(maps: AttentionMaps) -> None:
    figure = viz.attention_heatmaps(maps, 2, 4)
    assert viz.figure_bytes(figure) == len((figure.to_json() or "").encode())
    with pytest.raises(InputError, match=r"takes .* MB, more than max_megabytes = 0\.001; use fewer tokens"):
        viz.attention_heatmaps(maps, 2, 4, max_megabytes=0.001)


def test_numbers_travel_as_typed_arrays(profile: HeadProfile, maps: AttentionMaps) -> None:
    assert plain(viz.head_map(profile))["data"][0]["z"]["dtype"] == "f4"
    assert plain(viz.attention_heatmaps(maps, 2, 4))["data"][0]["z"]["dtype"] == "f4"
    assert plain(viz.head_map(profile, "kind"))["data"][0]["z"]["dtype"] == "u1"
    large = viz.attention_heatmaps(make_maps(1, 1, ("a",) * 512), 0, 0)
    # Four thirds for base64, and plotly writes each slash in it as six characters.
    assert viz.figure_bytes(large) < 1.25 * 3 * 512 * 512 * 4 * 4 / 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda profile, maps: viz.head_map(profile, "mass"), "no quantity 'mass'; choose one of sink_mass"),
        (lambda profile, maps: viz.head_maps(profile, ()), "no quantities to show"),
        (lambda profile, maps: viz.layer_lines(profile, ()), "no quantities to show"),
        (lambda profile, maps: viz.suppression_curves(profile, [(7, 0)]), "no layer 7"),
        (lambda profile, maps: viz.suppression_curves(profile, [(2, 5)]), "no head 5; the heads are 0 to 4"),
        (lambda profile, maps: viz.strongest_sink_heads(profile, 0), "cannot show 0 heads"),
        (lambda profile, maps: viz.attention_heatmaps(maps, 3, 0), "no layer 3; the layers here are 0 to 2"),
        (lambda profile, maps: viz.attention_heatmaps(maps, 2, 5), "no head 5"),
        (lambda profile, maps: viz.attention_heatmaps(maps, 2, 4, ()), "no metrics to show"),
        (lambda profile, maps: viz.attention_heatmaps(maps, 2, 4, ("weight",)), "no metric 'weight'"),
        (lambda profile, maps: viz.token_contributions(maps, 2, 4, 6), "no query 6; the queries are 0 to 5"),
        (lambda profile, maps: viz.template("sepia"), "no theme 'sepia'; the themes are light, dark"),
    ],
)  # fmt: skip
def test_mistakes_are_answered_in_words(
    profile: HeadProfile, maps: AttentionMaps, call: Callable[..., Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        call(profile, maps)


def test_ranges_of_nothing_are_still_ranges() -> None:
    nothing = np.array([np.nan], dtype=np.float32)
    assert symmetric_range(nothing) == (-1.0, 1.0)
    assert positive_range(nothing) == (0.0, 1.0)
    assert positive_range(np.zeros(3)) == (0.0, 1.0)
    mostly_zero = np.array([0.0] * 99 + [3.0])
    assert positive_range(mostly_zero) == (0.0, 3.0)


def test_fixed_limits_hold_whatever_the_values() -> None:
    assert colour_range(describe("alpha_star"), np.array([-3.0, 5.0])) == (0.0, 1.0)


def test_ratio_ticks_have_one_in_the_middle_however_narrow_the_range() -> None:
    for bound in (0.05, 1.0, 2.5, 9.0):
        positions, labels = ratio_ticks(-bound, bound)
        assert labels[positions.index(0)] == "1"
        assert min(positions) >= -bound
        assert max(positions) <= bound
    assert shown_values(describe("suppression"), np.array([0.0])).item() == -10


def test_ticks_are_thinned_evenly_and_escaped() -> None:
    positions, labels = token_ticks(["<a>"] * 100, most=10)
    assert positions == list(range(0, 100, 10))
    assert set(labels) == {escape("<a>")}


def test_plots_leave_plotly_s_default_template_alone() -> None:
    code = (
        "import plotly.io as pio; old = pio.templates.default; import sinklens.viz; assert pio.templates.default == old"
    )
    lower = ("transformer_lens", "sinklens.models", "sinklens.analyzers")
    loaded = f"import sys, sinklens.viz; print([name for name in {lower} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    result = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"

"""The image beside the maps of its patches, and a learned sink as a column of its own."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

import sinklens as sl
import sinklens.viz
from sinklens.errors import InputError
from sinklens.results import AttentionMaps
from sinklens.viz.maps import LEARNED_SINK
from tests.captured import load
from tests.families import inputs
from tests.synthetic import make_maps

viz: Any = sinklens.viz
ROWS, COLUMNS = 2, 3
LABELS = ("[CLS]", *(f"{row},{column}" for row in range(ROWS) for column in range(COLUMNS)))
PICTURE = np.arange(3 * 8 * 12, dtype=np.uint8).reshape(3, 8, 12)


@pytest.fixture(scope="module")
def maps() -> AttentionMaps:
    made = make_maps(2, 3, LABELS)
    return dataclasses.replace(made, sink_positions=(0, 5))


def named(figure: Any, name: str) -> list[Any]:
    return [trace for trace in figure.data if trace.name == name]


def value_at(figure: Any, name: str, row: int, column: int) -> float:
    (trace,) = named(figure, name)
    return trace.z[list(trace.y).index(row)][list(trace.x).index(column)]


def test_every_patch_has_what_the_query_reads_from_it(maps: AttentionMaps) -> None:
    figure = viz.image_maps(maps, PICTURE, 1, 2, query=(1, 1), metrics=("attention", "inter"))
    position = LABELS.index("1,1")
    for name, metric in (("Attention", "attention"), ("Inter contribution", "inter")):
        expected = maps.metric(metric)[1, 2, position]
        for row, column in itertools.product(range(ROWS), range(COLUMNS)):
            assert value_at(figure, name, row, column) == expected[LABELS.index(f"{row},{column}")].item()
        (special,) = named(figure, f"{name}, special")
        assert special.z[0][0] == expected[0].item()
        assert special.text[0][0] == "[CLS]"
        assert special.y[0] < -1
    assert "query 1,1" in figure.layout.title.text


@pytest.mark.parametrize(("query", "position"), [((0, 2), 3), (0, 0), (-1, 6), (np.int64(4), 4)])
def test_a_query_is_a_patch_or_a_position(maps: AttentionMaps, query: Any, position: int) -> None:
    figure = viz.image_maps(maps, PICTURE, 0, 0, query=query)
    assert value_at(figure, "Attention", 0, 1) == maps.attention[0, 0, position, 2].item()


def test_without_a_query_it_is_the_mean_over_those_that_have_a_value(maps: AttentionMaps) -> None:
    norm = maps.output_norm.clone()
    norm[0, 1, 3] = 0.0
    figure = viz.image_maps(dataclasses.replace(maps, output_norm=norm), PICTURE, 0, 1)
    kept = [position for position in range(len(LABELS)) if position != 3]
    assert value_at(figure, "Intra contribution", 0, 1) == pytest.approx(
        maps.intra[0, 1, kept, 2].mean().item(), rel=1e-5
    )
    assert value_at(figure, "Attention", 0, 1) == pytest.approx(maps.attention[0, 1, :, 2].mean().item(), rel=1e-5)


def test_the_image_covers_its_patches(maps: AttentionMaps) -> None:
    trace = viz.image_maps(maps, PICTURE, 0, 0).data[0]
    for count, start, step, size in ((COLUMNS, trace.x0, trace.dx, 12), (ROWS, trace.y0, trace.dy, 8)):
        edges = start - step / 2, start + (size - 0.5) * step
        assert edges == pytest.approx((-0.5, count - 0.5))
    assert np.array_equal(trace.z, PICTURE.transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (torch.tensor([[[0.0, 0.5, 1.0]]]), [0, 128, 255]),
        (torch.tensor([[[[-1.0, 0.0, 3.0]]]], dtype=torch.bfloat16), [0, 64, 255]),
        (np.array([[[0.2, 0.2, 0.2]]]), [51, 51, 51]),
        (np.array([[[7.0, 7.0, 7.0]]]), [0, 0, 0]),
        (torch.tensor([[[0, 9, 255]]], dtype=torch.uint8), [0, 9, 255]),
    ],
)
def test_pixels_are_shown_as_bytes(maps: AttentionMaps, image: Any, expected: list[int]) -> None:
    shown = viz.image_maps(maps, image, 0, 0).data[0].z
    assert shown.shape == (1, 3, 3)
    assert all(list(shown[0, :, channel]) == expected for channel in range(3))


def test_sinks_are_crossed_and_the_query_is_framed(maps: AttentionMaps) -> None:
    figure = viz.image_maps(maps, PICTURE, 0, 0, query=(0, 2), metrics=("attention",))
    on_image, on_map = named(figure, "sink")
    assert (list(on_image.x), list(on_image.y)) == ([1], [1])  # [CLS] is no part of the image
    assert (list(on_map.x), list(on_map.y)) == ([0, 1], [-2.0, 1])
    for frame in named(figure, "query"):
        assert (min(frame.x), max(frame.x), min(frame.y), max(frame.y)) == (1.5, 2.5, -0.5, 0.5)
    assert len(named(figure, "query")) == 2
    assert len(named(viz.image_maps(maps, PICTURE, 0, 0, query=0), "query")) == 2  # on the maps alone
    assert sum(bool(trace.showlegend) for trace in figure.data if trace.type == "scatter") == 2


def test_sinks_do_not_set_the_colours(maps: AttentionMaps) -> None:
    attention = torch.full_like(maps.attention, 0.01)
    attention[..., [0, 5]] = 0.9
    flat = dataclasses.replace(maps, attention=attention)
    for choice, expected in ((True, 0.01), (False, 0.9)):
        figure = viz.image_maps(flat, PICTURE, 0, 0, metrics=("attention",), exclude_sink_from_range=choice)
        assert figure.layout.coloraxis.cmax == pytest.approx(expected)


def test_a_model_of_images_from_pixels_to_the_figure() -> None:
    pixels = inputs("vit")
    figure = viz.image_maps(sl.attention_maps(load("bridge", "vit"), pixels), pixels, 1, 3, query=(2, 1), theme="dark")
    assert figure.data[0].z.shape == (16, 16, 3)
    (trace,) = named(figure, "Attention")
    assert trace.z.shape == (4, 4)
    (special,) = named(figure, "Attention, special")
    assert trace.z.sum() + special.z.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(("image", "arguments", "message"), [
    (PICTURE, {"query": (2, 0)}, r"no query \(2, 0\); the patches are \(0, 0\) to \(1, 2\), the positions 0 to 6"),
    (PICTURE, {"query": 7}, "no query 7"),
    (PICTURE, {"head": 3}, "no head 3"),
    (PICTURE, {"layer": 2}, "no layer 2"),
    (PICTURE, {"metrics": ()}, "no metrics to show"),
    (PICTURE, {"metrics": ("weight",)}, "no metric 'weight'"),
    (PICTURE, {"max_megabytes": 0.001}, "more than max_megabytes"),
    (PICTURE.transpose(1, 2, 0), {}, r"the image is uint8 of shape \(8, 12, 3\); expected finite floats or bytes"),
    (np.full((3, 4, 4), np.nan), {}, "the image is float64"),
    (np.array("cat.png"), {}, "the image is <U7"),
])  # fmt: skip
def test_mistakes_are_answered_in_words(maps: AttentionMaps, image: Any, arguments: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        viz.image_maps(maps, image, **{"layer": 0, "head": 0} | arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tokens", [("the", "cat"), ("0,0", "0,2"), ("0,0", "1,1"), ("0,0", "cat"), ("0", "1")])
def test_maps_of_text_have_no_image(tokens: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="their tokens name no patches 'row,column'"):
        viz.image_maps(make_maps(1, 1, tokens), PICTURE, 0, 0)


# --- a learned sink


def test_a_learned_sink_is_a_column_and_drawn_rows_sum_to_one() -> None:
    maps = sl.attention_maps(load("bridge", "gpt_oss"), inputs("gpt_oss")[0])
    assert maps.learned_sink
    figure = viz.attention_heatmaps(maps, 1, 2, ("attention", "intra", "cosine"))
    (drawn,), (column,) = named(figure, "Attention"), named(figure, f"Attention, {LEARNED_SINK}")
    assert column.z.max() > 0.3
    np.testing.assert_allclose(np.nansum(drawn.z, axis=1) + column.z[:, 0], 1, atol=1e-6)
    assert column.x[0] < -1
    where = list(figure.layout.xaxis.tickvals).index(column.x[0])
    assert figure.layout.xaxis.ticktext[where] == LEARNED_SINK
    assert "null key" in column.text[3][0]
    (contribution,) = named(figure, f"Intra contribution, {LEARNED_SINK}")
    assert not contribution.z.any()  # what has no value moves nothing
    assert not named(figure, f"Cosine with the output, {LEARNED_SINK}")


def test_its_bar_is_beside_those_of_the_tokens() -> None:
    maps = sl.attention_maps(load("bridge", "gpt_oss"), inputs("gpt_oss")[0])
    figure = viz.token_contributions(maps, 0, 1, query=4)
    attention, intra, _ = figure.data
    assert sum(attention.y) == pytest.approx(1, abs=1e-6)
    assert attention.y[0] == pytest.approx(maps.learned_sink_mass[0, 1, 4].item())
    assert intra.y[0] == 0
    assert list(attention.x)[1:] == [0, 1, 2, 3, 4]
    assert figure.layout.xaxis.ticktext[0] == LEARNED_SINK


def test_other_models_have_no_such_column(tmp_path: Any) -> None:
    model = load("bridge", "llama")
    maps = sl.attention_maps(model, inputs("llama")[0])
    assert not maps.learned_sink
    assert len(viz.attention_heatmaps(maps, 0, 0).data) == 3
    learned = sl.attention_maps(load("bridge", "gpt_oss"), inputs("gpt_oss")[0])
    assert AttentionMaps.load(learned.save(tmp_path / "maps.safetensors")).learned_sink
    assert learned.layer(1).learned_sink

"""A model of images: exact like the others, nothing hidden, patches named by row and column."""

from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.models.patches import position_labels
from tests.captured import load, n_hooks
from tests.families import inputs
from tests.gaps import largest_gap, relative_gap

GRID = [f"{row},{column}" for row in range(4) for column in range(4)]


@pytest.fixture
def model() -> Any:
    return load("bridge", "vit")


def test_maps_equal_the_reference_and_name_the_patches(model: Any) -> None:
    before = n_hooks(model)
    maps = sl.attention_maps(model, inputs("vit"))
    assert n_hooks(model) == before
    assert largest_gap(maps, "bridge", "vit") < 1e-5
    assert maps.tokens == ("[CLS]", *GRID)
    assert maps.token_ids == ()
    assert maps.visible.all()
    assert (maps.inter.sum((1, 3)) - 1).abs().max() < 1e-5
    assert maps.provenance.n_tokens == 17


def test_a_cache_of_an_image_gives_the_same(model: Any) -> None:
    with torch.no_grad():
        _, cache = model.run_with_cache(inputs("vit"))
    one, other = sl.AttentionMaps.from_cache(model, cache), sl.attention_maps(model, inputs("vit")[0])
    assert relative_gap(one.inter[1], other.inter[1].double()) < 1e-6
    assert one.tokens == other.tokens


@pytest.mark.parametrize("pixels", [None, inputs("vit")])
def test_the_check_runs_on_an_image_of_its_own_or_yours(model: Any, pixels: Any) -> None:
    check = sl.check_model(model, pixels)
    assert check.passed
    assert [layer.verdict for layer in check.layers] == ["exact, not editable"] * 2
    assert all(layer.kind == "4 heads, bidirectional" for layer in check.layers)


def test_sinks_of_an_image_are_chosen_by_position_or_detected(model: Any) -> None:
    assert sl.attention_maps(model, inputs("vit"), sink=[3, 5], layers=[1]).sink_positions == (3, 5)
    assert len(sl.attention_maps(model, inputs("vit"), sink="detect:0.1").sink_positions) > 0
    with pytest.raises(sl.InputError, match="sink 'token:4' needs token ids; an image has none"):
        sl.attention_maps(model, inputs("vit"), sink="token:4")


@pytest.mark.parametrize("given", [
    "a cat", torch.zeros(2, 3, 16, 16), torch.zeros(1, 5, dtype=torch.long), torch.zeros(16, 16),
])  # fmt: skip
def test_what_is_no_image_is_refused(model: Any, given: Any) -> None:
    for call in (sl.attention_maps, sl.check_model):
        with pytest.raises(
            sl.InputError, match=r"tiny-vit reads images and got .*; expected the pixels of one"
        ) as error:
            call(model, given)
        assert "\n" not in str(error.value)


def test_a_model_of_text_has_no_patches_and_takes_no_pixels() -> None:
    model = load("bridge", "bert")
    assert position_labels(model, 2) == ["0", "1"]
    with pytest.raises(sl.InputError, match=r"torch\.float32; expected integers"):
        sl.attention_maps(model, torch.zeros(1, 3, 16, 16))


def test_an_image_of_another_size_has_numbers(model: Any) -> None:
    assert position_labels(model, 5) == ["0", "1", "2", "3", "4"]

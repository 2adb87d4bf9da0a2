"""A model of images: exact like the others, nothing hidden, patches named by row and column."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.models.attention import ModelAttention
from sinklens.models.images import ImageBatches
from sinklens.models.patches import position_labels
from sinklens.results.head_profile import COUNT_OF
from tests.captured import load, n_hooks, raw_layers
from tests.families import inputs, new_hf_model
from tests.gaps import largest_gap, relative_gap
from tests.reference.profile import document_quantities
from tests.test_profile import EPS, assert_same_profile

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


def test_a_folder_is_loaded_without_a_tokenizer(tmp_path: Path, model: Any) -> None:
    new_hf_model("vit").save_pretrained(tmp_path)
    loaded = sl.load_model(tmp_path, device="cpu")
    assert torch.equal(sl.attention_maps(loaded, inputs("vit")).inter, sl.attention_maps(model, inputs("vit")).inter)


# --- several images


def images(count: int = 5) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def profile_of(model: Any, given: Any, **arguments: Any) -> sl.HeadProfile:
    return sl.head_profile(model, given, eps=EPS, progress=False, **arguments)


@pytest.mark.parametrize("sinks", [[0], [3], [2, 9]])
def test_the_profile_of_images_equals_the_literal_computation(model: Any, sinks: list[int]) -> None:
    pixels = images(2)
    profile = profile_of(model, pixels, sink=sinks)
    found: dict[tuple[str, int, int], list[float]] = {}
    for image in pixels:
        for layer, one in raw_layers(model, "vit", image[None]).items():
            heads = document_quantities(one.pattern, one.projected, one.visible, sinks, EPS)
            for head, values in enumerate(heads):
                for quantity, numbers in values.items():
                    found.setdefault((quantity, layer, head), []).extend(numbers)
    assert {quantity for quantity, *_ in found} == set(COUNT_OF)
    for (quantity, layer, head), numbers in found.items():
        assert profile.counts[COUNT_OF[quantity]][layer, head] == len(numbers)
        expected = sum(numbers) / len(numbers)
        assert profile.mean(quantity)[layer, head].item() == pytest.approx(expected, rel=1e-5, abs=1e-5), quantity
    # Whatever is no sink is a query, also before it: nothing is hidden.
    assert (profile.counts["queries"] == 2 * (17 - len(sinks))).all()


def test_how_images_are_given_and_batched_does_not_matter(model: Any) -> None:
    pixels = images()
    before = n_hooks(model)
    whole = profile_of(model, pixels)
    assert n_hooks(model) == before
    assert (whole.provenance.n_documents, whole.provenance.n_tokens, whole.provenance.context_length) == (5, 85, 17)
    for size in (1, 2):
        assert_same_profile(whole, profile_of(model, pixels, batch_size=size))
    assert_same_profile(whole, profile_of(model, list(pixels)))
    assert_same_profile(whole, profile_of(model, [pixels[:2], *pixels[2:].double().numpy()]))
    assert_same_profile(whole, profile_of(model, pixels[:2]).merge(profile_of(model, pixels[2:])))
    assert_same_profile(profile_of(model, pixels[:1]), profile_of(model, pixels[0]))


def test_other_measurements_and_detected_sinks_take_images(model: Any) -> None:
    pixels = images(3)
    keys, profile = sl.run(model, pixels, [sl.KeysAnalyzer(), sl.ProfileAnalyzer()], sink="detect:0.1", progress=False)
    assert torch.isfinite(keys.intra).all()
    assert profile.provenance.sink == "detect:0.1"
    assert profile.counts["queries"].max() > 0


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_the_number_of_batches_is_known_before_the_pass(model: Any, size: int) -> None:
    batches = ImageBatches(ModelAttention(model), images(), size)
    read = list(batches)
    assert len(read) == batches.total
    assert [index for batch in read for index in batch.documents] == [0, 1, 2, 3, 4]


def test_a_model_in_half_precision_takes_the_same_pixels() -> None:
    half = profile_of(load("bridge", "vit", torch.bfloat16), images(2))
    full = profile_of(load("bridge", "vit"), images(2))
    torch.testing.assert_close(half.sink_mass, full.sink_mass, rtol=0.05, atol=0.02)
    assert half.provenance.dtype == "bfloat16"


@pytest.mark.parametrize(("given", "arguments", "message"), [
    (images(1), {"context_length": 8}, "context_length is for text; for images there is batch_size"),
    (images(1), {"sink": "token:4"}, "sink 'token:4' needs token ids"),
    (images(1), {"batch_size": 0}, "batch_size is 0"),
    ([], {}, "there is no image"),
    (images(0), {}, "there is no image"),
    (["a cat"], {}, "tiny-vit reads images and got 'a cat'; expected their pixels"),
    (images(1).long(), {}, r"got a torch\.int64 tensor of shape \(1, 3, 16, 16\); expected their pixels"),
    ([images(1), torch.zeros(3, 8, 16)], {}, r"images of sizes \(3, 16, 16\) and \(3, 8, 16\); expected one size"),
])  # fmt: skip
def test_mistakes_with_images_are_named(model: Any, given: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(sl.InputError, match=message) as error:
        sl.head_profile(model, given, progress=False, **arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", [sl.ablate_sinks, sl.faithfulness, sl.drift_without_sinks])
def test_what_is_measured_on_text_says_so(model: Any, call: Any) -> None:
    with pytest.raises((sl.InputError, sl.UnsupportedAttentionError), match=r"reads images|sees later tokens") as error:
        call(model, images(1), progress=False)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("sink", [0, 6])
def test_the_value_of_a_patch_is_edited_as_the_formula_says(model: Any, sink: int) -> None:
    pixels, name = images(2), "blocks.1.attn.hook_z"
    edit = sl.scale_sink_values(model, -0.5, heads=[(1, 2)], sink=sink)
    with torch.no_grad(), sl.intervene(model, edit):
        _, cache = model.run_with_cache(pixels, names_filter=name)
    for image, found in zip(pixels, cache[name], strict=True):
        one = raw_layers(model, "vit", image[None])[1]
        expected = one.z[0].clone()
        expected[:, 2] -= 1.5 * one.pattern[0, 2, :, sink, None] * one.value[0, sink, 2]
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(3, 20, 20), (1, 16, 16)])
@pytest.mark.parametrize("call", [sl.attention_maps, sl.head_profile])
def test_an_image_that_does_not_fit_is_named(model: Any, call: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(sl.InputError, match=re.escape(f"cannot read an image of shape {shape}; expected")):
        call(model, torch.zeros(shape))

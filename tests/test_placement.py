"""Models that are split over devices or offloaded give the numbers of the same model in one place."""

import json
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import sinklens as sl
from sinklens.cli import app
from sinklens.errors import ModelLoadError
from sinklens.models.placement import input_device, materialized, parse_placement
from tests.commands import expect_one_line
from tests.families import bridge, new_bridge, new_hf_model
from tests.split import OTHER, Places, split
from tests.tiny_tokenizer import tiny_tokenizer

needs_4x = pytest.mark.skipif(version("transformer_lens").startswith("3."), reason="TransformerLens 3 offloads nothing")
TEXTS = ["The cat sat on the mat, and the dog sat", "There are 12 apples"]
OPTIONS: dict[str, Any] = {"context_length": 32, "progress": False}

MEASUREMENTS: dict[str, Callable[[Any], Tensor]] = {
    "maps": lambda model: sl.attention_maps(model, TEXTS[0]).inter,
    "profile": lambda model: sl.head_profile(model, TEXTS, **OPTIONS).sink_intra,
    "keys": lambda model: sl.run(model, TEXTS, [sl.KeysAnalyzer()], **OPTIONS)[0].intra,
    "drift": lambda model: sl.run(model, TEXTS, [sl.DriftAnalyzer()], **OPTIONS)[0].mean("cone_without"),
    "ablation": lambda model: sl.ablate_sinks(model, TEXTS, "layers", **OPTIONS).loss,
    "sweep": lambda model: sl.sweep_sinks(model, TEXTS, "mass", [1], values=[0.0, 0.5], **OPTIONS).measured,
    "faithfulness": lambda model: sl.faithfulness(model, TEXTS, fractions=0.5, **OPTIONS).loss,
}


def same(measure: Callable[[Any], Any], first: Any, second: Any) -> None:
    expected, found = measure(first), measure(second)
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-5, atol=1e-6, equal_nan=True)


# --- split over devices


@pytest.mark.parametrize(
    ("family", "name"), [*(("qwen2", name) for name in MEASUREMENTS), ("gpt2", "maps"), ("gemma2", "profile")]
)
def test_a_model_that_is_split_over_devices_gives_the_same_numbers(family: str, name: str) -> None:
    expected = MEASUREMENTS[name](bridge(family))
    with split(new_bridge(family), [1]) as (model, places):
        found = MEASUREMENTS[name](model)
        moves = places.moves
    assert moves > 4
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(expected), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_a_split_model_is_checked_and_its_edits_are_seen() -> None:
    with split(new_bridge("qwen2"), [1]) as (model, _):
        check = sl.check_model(model)
        with sl.intervene(model, sl.set_sink_mass(model, 0.0, heads=[(0, 1), (1, 2)])):
            edited = model(torch.tensor([[3, 4, 5]]))
    assert [layer.verdict for layer in check.layers] == ["exact", "exact"]
    plain = bridge("qwen2")
    with sl.intervene(plain, sl.set_sink_mass(plain, 0.0, heads=[(0, 1), (1, 2)])):
        torch.testing.assert_close(edited, plain(torch.tensor([[3, 4, 5]])))


def test_the_fake_devices_refuse_what_real_ones_refuse() -> None:
    """Or the tests above would prove nothing."""
    places, here, there = Places(), torch.ones(2, 2), torch.ones(2, 2)
    places.put([there], OTHER)
    with places:
        for mixed in (lambda: here @ there, lambda: here + there, lambda: torch.stack([here, there])):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                mixed()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(1.0)).device == OTHER
        assert (here @ there.cpu()).device == torch.device("cpu")
        assert there.device == torch.zeros(1, device=OTHER).device == here.to(there).device == OTHER
        assert here.device == torch.device("cpu")


# --- offloaded


def offloaded(family: str) -> Any:
    """A bridge whose weights accelerate keeps apart from the modules, as on a GPU that is too small."""
    return bridge_of_offloaded(new_hf_model(family))


def bridge_of_offloaded(source: Any) -> Any:
    import accelerate
    from transformer_lens.model_bridge import TransformerBridge

    accelerate.cpu_offload(source, torch.device("cpu"))
    return TransformerBridge.boot_transformers("tiny", hf_model=source, tokenizer=tiny_tokenizer()).eval()


@needs_4x
@pytest.mark.parametrize("family", ["qwen2", "gpt2", "deepseek_v3"])
def test_an_offloaded_model_gives_the_same_numbers(family: str) -> None:
    model = offloaded(family)
    weights = [parameter for block in model.blocks for parameter in block.attn.parameters()]
    assert "meta" in {weight.device.type for weight in weights}
    assert sl.check_model(model).passed
    for name in ("maps", "profile", "ablation"):
        same(MEASUREMENTS[name], bridge(family), model)
    assert {weight.device.type for weight in weights} == {
        weight.device.type for block in model.blocks for weight in block.attn.parameters()
    }


@needs_4x
def test_a_frame_is_read_off_offloaded_weights() -> None:
    """On weights that are not there, folded value biases would be taken for raw ones, or nothing could be read."""
    source: Any = new_hf_model("llama")
    for layer in source.model.layers:
        layer.self_attn.v_proj.bias.data.zero_()
    with pytest.warns(sl.FrameWarning, match="folded value biases"):
        sl.attention_maps(bridge_of_offloaded(source), TEXTS[0])


@needs_4x
@pytest.mark.parametrize("family", ["gemma2", "olmo2"])
def test_a_norms_gain_is_found_among_offloaded_weights(family: str) -> None:
    model = offloaded(family)
    in_place, apart = (sl.attention_maps(each, TEXTS[0], frame="residual") for each in (bridge(family), model))
    assert apart.provenance.frame == "raw, to the residual stream"
    torch.testing.assert_close(apart.inter, in_place.inter, rtol=1e-5, atol=1e-6)
    assert {weight.device.type for weight in model.blocks[0].parameters()} == {"meta"}


@needs_4x
def test_weights_that_are_being_used_are_not_taken_away() -> None:
    part = offloaded("qwen2").blocks[0].attn.o
    original = part.original_component
    with materialized(part):
        assert original.weight.device.type == "cpu"
        with materialized(part):
            assert original.weight.device.type == "cpu"
        assert original.weight.device.type == "cpu"
    assert original.weight.device.type == "meta"


def test_token_ids_go_where_an_offloaded_model_runs() -> None:
    model = torch.nn.Linear(2, 2, device="meta")
    assert input_device(model) == torch.device("cpu")
    model.cfg = type("Config", (), {"device": "cuda:1"})()  # type: ignore[assignment]
    assert input_device(model) == OTHER


# --- load_model(device_map=)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny"
    new_hf_model("qwen2").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def device_map(first: str | int, second: str | int) -> dict[str, str | int]:
    rest = dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "model.norm", "lm_head"), first)
    return {**rest, "model.layers.0": first, "model.layers.1": second}


MAPS = {"auto": "auto", "one device": "cpu", "a dict": {"": "cpu"}, "disk": device_map("cpu", "disk")}


@pytest.mark.parametrize("kind", ["auto", "one device", "a dict", pytest.param("disk", marks=needs_4x)])
def test_a_device_map_gives_the_same_numbers(folder: Path, kind: str) -> None:
    model = sl.load_model(folder, device_map=MAPS[kind])
    there = {parameter.device.type for parameter in model.parameters()}
    assert there == ({"cpu", "meta"} if kind == "disk" else {"cpu"})
    assert sl.check_model(model).passed
    for name in ("maps", "ablation"):
        same(MEASUREMENTS[name], sl.load_model(folder, device="cpu"), model)


NO_GPU = not torch.cuda.is_available()
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"device": "cpu", "device_map": "auto"}, "device and device_map are both given; pass one of them"),
    ({"device_map": "everywhere"}, "unknown device 'everywhere'"),
    ({"device_map": {}}, "the device_map is empty"),
    ({"device_map": device_map("cpu", "meta")}, "device 'meta' holds no numbers"),
    ({"device_map": device_map("cpu", "nowhere")}, "unknown device 'nowhere'"),
    *([({"device_map": device_map(0, 1)}, "device 'cuda:0' is not available here; available: cpu")] if NO_GPU else []),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_a_device_map_that_cannot_be_followed(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        sl.load_model(folder, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_transformer_lens_says_of_a_mixed_map_is_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed = parse_placement("cpu").__class__(None, device_map("cpu", 0))
    monkeypatch.setattr("sinklens.models.loading.parse_placement", lambda device, device_map: mixed)
    with pytest.raises(ModelLoadError, match="device_map mixes CPU") as caught:
        sl.load_model(folder, device_map="auto")
    assert str(caught.value).endswith("Pass a device_map of GPUs, or of 'cpu' and 'disk' only.")


def test_one_device_only_where_no_map_can_be_followed() -> None:
    with pytest.raises(ModelLoadError, match="a HookedTransformer takes no device_map; pass device="):
        parse_placement(None, "auto").only_device("a HookedTransformer")
    assert str(parse_placement(None, "auto")) == "the devices of the device_map"


def test_on_the_command_line(folder: Path) -> None:
    passed = CliRunner().invoke(app, ["check", str(folder), "--device-map", "auto", "--json"])
    assert passed.exit_code == 0, passed.output
    assert json.loads(passed.stdout)["passed"] is True
    wrong = CliRunner().invoke(app, ["check", str(folder), "--device-map", "auto", "--device", "cpu"])
    expect_one_line(wrong, "device and device_map are both given; pass one of them")


# --- MPS


@pytest.fixture
def with_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformer_lens.utilities import devices

    monkeypatch.setattr("sinklens.models.environment.torch.empty", lambda *_, **__: None)
    monkeypatch.setattr(devices, "_mps_warned", False)
    monkeypatch.delenv("TRANSFORMERLENS_ALLOW_MPS", raising=False)


@pytest.mark.usefixtures("with_mps")
def test_mps_is_warned_about_as_transformer_lens_does() -> None:
    with pytest.warns(UserWarning, match="MPS backend may produce silently incorrect results"):
        assert parse_placement("mps").device == torch.device("mps")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_placement("mps")  # once is enough


@pytest.mark.usefixtures("with_mps")
def test_mps_is_not_warned_about_where_the_user_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSFORMERLENS_ALLOW_MPS", "1")
    assert parse_placement("mps").device == torch.device("mps")  # a warning would be an error here

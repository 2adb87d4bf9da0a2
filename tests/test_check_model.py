"""check_model says what holds on every family, and does not say it where it does not hold."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

import sinklens as sl
from sinklens.models.attention import ModelAttention
from sinklens.models.verify import TOLERANCE
from tests.captured import BACKENDS, MODELS, load, n_hooks, new
from tests.families import FAMILIES
from tests.family_table import gemma4_config
from tests.tiny_tokenizer import tiny_tokenizer


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_every_supported_family_passes(backend: str, name: str) -> None:
    model, family = load(backend, name), FAMILIES[name]
    before = n_hooks(model)
    check = sl.check_model(model)
    assert n_hooks(model) == before
    assert check.passed
    assert check.frame == "raw"
    assert [layer.layer for layer in check.layers] == list(range(family.n_layers))
    measured = [check.layers[layer] for layer in family.attention_layers]
    editable = backend == "hooked" or family.pattern_editable
    assert {layer.verdict for layer in measured} == {"exact" if editable else "exact, not editable"}
    assert check.logits_change == editable
    for layer in measured:
        assert layer.head_gap < 1e-5
        assert layer.output_gap < 1e-4
        assert (layer.row_gap > 1e-2) == family.learned_sink
        expected = {
            f"window {family.windows[layer.layer]}": family.windows[layer.layer] is not None,
            "learned sink": family.learned_sink, "gated": family.gated, "bidirectional": not family.causal,
            f"on {family.geometry(layer.layer)[0]} key/value heads": family.n_kv_heads != family.n_heads,
        }  # fmt: skip
        assert {part: part in layer.kind for part in expected} == expected
    assert "passed" in repr(check)
    assert len(check.to_dataframe()) == family.n_layers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "qwen2"])
def test_other_precisions_pass_within_their_tolerance(name: str, dtype: torch.dtype) -> None:
    check = sl.check_model(load("bridge", name, dtype))
    assert check.passed
    assert check.dtype in str(dtype)
    for layer in check.layers:
        assert max(layer.head_gap, layer.output_gap) < TOLERANCE[check.dtype] / 4


def tiled(value: Tensor, n_heads: int) -> Tensor:
    return value.repeat(1, 1, n_heads // value.shape[2], 1)


FAULTS: dict[str, tuple[str, str, Any, str]] = {
    "values tiled, not repeated": ("llama", "sinklens.models.layer.expand_kv_heads", tiled, "head outputs are not A v"),
    "output bias counted twice": (
        "gpt2",
        "sinklens.models.verify.layer_output",
        lambda z, W_O: z.flatten(2) @ W_O.flatten(0, 1) + 1,
        "heads do not add up",
    ),
    "heads in reverse order": (
        "gpt2",
        "sinklens.models.verify.layer_output",
        lambda z, W_O: z.flatten(2) @ W_O.flip(0).flatten(0, 1),
        "heads do not add up",
    ),
    "gate left out": (
        "qwen3_next",
        "sinklens.models.attention.ModelAttention.is_gated",
        False,
        "head outputs are not A v",
    ),
    "window too short": (
        "mistral",
        "sinklens.models.attention.ModelAttention.window",
        lambda attention, layer: 4,
        "should be invisible",
    ),
    "causal where it is not": (
        "bert",
        "sinklens.models.attention.ModelAttention.is_causal",
        True,
        "should be invisible",
    ),
}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if ("bridge", FAULTS[fault][0]) in MODELS])
def test_a_planted_fault_fails_the_check_and_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, target, broken, reason = FAULTS[fault]
    model = load("bridge", name)
    assert sl.check_model(model).passed
    monkeypatch.setattr(target, broken)
    check = sl.check_model(model)
    assert not check.passed
    refused = [layer for layer in check.layers if layer.verdict == "refused"]
    assert refused
    assert all(reason in str(layer.failure) for layer in refused)
    with pytest.raises(sl.UnsupportedAttentionError, match=reason) as error:
        sl.head_profile(model, ["The cat sat on the mat"], context_length=32, progress=False)
    assert f"layer {refused[0].layer}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_users_edit_of_z_is_named(backend: str) -> None:
    model = new(backend, "llama")
    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", lambda tensor, hook: tensor * 1.01)]):
        check = sl.check_model(model)
    assert [layer.verdict for layer in check.layers] == ["exact", "refused"]
    assert "a hook of yours edits hook_z" in str(check.layers[1].failure)
    assert sl.check_model(model).passed


def test_the_check_takes_a_prompt_of_ones_own() -> None:
    model = load("bridge", "llama")
    assert sl.check_model(model, "The cat sat").passed
    assert sl.check_model(model, torch.tensor([5, 6, 7])).passed
    with pytest.raises(sl.InputError):
        sl.check_model(model, "")


def test_a_model_without_a_tokenizer_is_checked() -> None:
    model = new("bridge", "llama")
    model.tokenizer = None
    assert sl.check_model(model).passed
    assert sl.attention_maps(model, torch.tensor([5, 6, 7])).tokens == ("5", "6", "7")


def test_latent_attention_is_read_before_its_first_pass() -> None:
    """TransformerBridge cannot tell its heads apart until then."""
    fresh, used = new("bridge", "deepseek_v3"), load("bridge", "deepseek_v3")
    sl.check_model(used)
    for layer in range(2):
        found, expected = (ModelAttention(model).output_weights(layer)[0] for model in (fresh, used))
        assert torch.equal(found, expected)


def test_layers_that_share_keys_and_values_are_skipped_by_name() -> None:
    extra = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8}
    kinds = ["sliding_attention", "full_attention"] * 2
    config: Any = gemma4_config(global_head_dim=16, attention_k_eq_v=False, layer_types=kinds, **extra)()
    source: Any = transformers.Gemma4ForCausalLM(config).eval().requires_grad_(False)
    source.config.architectures = ["Gemma4ForCausalLM"]
    model = TransformerBridge.boot_transformers("shared", hf_model=source, tokenizer=tiny_tokenizer(), device="cpu")
    check = sl.check_model(model)
    assert [layer.verdict for layer in check.layers] == ["exact, not editable"] * 2 + ["skipped"] * 2
    assert "keys and values of an earlier layer" in check.layers[3].kind
    assert sl.attention_maps(model, "The cat sat").layers == (0, 1)


def test_packed_weights_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("bridge", "llama")
    packed = torch.zeros(64, 32, dtype=torch.uint8)
    monkeypatch.setattr(type(model.blocks[0].attn), "W_O", property(lambda module: packed))
    for call in (sl.check_model, lambda model: sl.attention_maps(model, "The cat")):
        with pytest.raises(sl.UnsupportedAttentionError, match=r"W_O is torch\.uint8, not plain numbers per head"):
            call(model)

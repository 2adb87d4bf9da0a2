"""Models whose weights were folded or centred are recognised, said to be so once, and give other numbers."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.models import frames
from tests.captured import BACKENDS, MODELS, load, new, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import attention as reference

TEXTS = ["The cat sat on the mat", "There are 12 apples"]


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_WARNED", set())


def profile(model: Any) -> sl.HeadProfile:
    return sl.head_profile(model, TEXTS, context_length=32, progress=False)


def folded(backend: str, name: str) -> Any:
    """The model as HookedTransformer's ``from_pretrained`` or the Bridge's compatibility mode leaves it."""
    model = new(backend, name)
    if backend == "bridge":
        model.enable_compatibility_mode(disable_warnings=True)
    else:
        model.load_and_process_state_dict(model.state_dict())
    return model


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_folded_model_is_recognised_and_its_numbers_are_others(backend: str) -> None:
    model = folded(backend, "gpt2")
    with pytest.warns(sl.FrameWarning, match="value norms and contributions differ from the raw model's") as said:
        after = profile(model)
    assert len(said) == 1
    assert "\n" not in str(said[0].message)
    frame = after.provenance.frame
    assert "folded value biases" in frame
    assert "centred writing weights" in frame
    assert ("folded layer norm" in frame) == (backend == "hooked")
    assert sl.check_model(model).frame == frame
    before = profile(load(backend, "gpt2"))
    assert before.provenance.frame == "raw"
    # The same function: attention agrees. What is called a value does not.
    torch.testing.assert_close(after.sink_mass, before.sink_mass, rtol=1e-3, atol=1e-4)
    assert (after.sink_intra - before.sink_intra).abs().max() > 0.02
    assert (after.value_norm / before.value_norm - 1).abs().max() > 0.02
    with pytest.raises(sl.InputError, match="cannot merge results that differ in frame"):
        after.merge(before)


def constant_values(model: Any, name: str, layer: int) -> Tensor:
    """What every value has whatever its token, ``[head, d_head]``: ``b_V``, and a LayerNorm's bias times ``W_V``."""
    family, block = FAMILIES[name], model.blocks[layer]
    found = block.attn.b_V.detach().double().reshape(-1, family.d_head)
    if name == "gpt2":
        bias: Tensor = block.ln1.b if hasattr(block.ln1, "b") else block.ln1.bias
        found = found + torch.einsum("m,hmd->hd", bias.detach().double(), block.attn.W_V.detach().double())
    return found.repeat_interleave(family.n_heads // len(found), dim=0)


# How far contributions move, at most, when b_V is moved into b_O (and the writing weights of GPT-2 are centred).
MOVED = {"gpt2": 0.2, "llama": 0.1, "qwen2": 0.1}


@pytest.mark.filterwarnings("ignore::sinklens.errors.FrameWarning")
@pytest.mark.parametrize(("backend", "name"), [(backend, name) for backend in BACKENDS for name in MOVED])
def test_folded_contributions_are_those_of_values_without_what_all_of_them_have(backend: str, name: str) -> None:
    model, tokens = load(backend, name), inputs(name)[:, :9]
    after = sl.attention_maps(folded(backend, name), tokens[0])
    before = sl.attention_maps(model, tokens[0])
    assert (before.intra - after.intra).abs().max() > MOVED[name]
    assert (before.value_norm / after.value_norm - 1).abs().max() > 0.1
    for row, (layer, one) in enumerate(raw_layers(model, name, tokens).items()):
        common = torch.einsum("hd,hdm->hm", constant_values(model, name, layer), one.W_O)
        projected = one.projected - common[None, :, None, None]
        if "centred" in after.provenance.frame:
            projected = projected - projected.mean(-1, keepdim=True)
        expected = reference.intra(one.pattern, projected)[0]
        torch.testing.assert_close(after.intra[row].double(), expected, rtol=0, atol=1e-4)
        expected = reference.inter(one.pattern, projected)[0]
        torch.testing.assert_close(after.inter[row].double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_warning_comes_once_per_model_whatever_is_called(backend: str) -> None:
    model = folded(backend, "gpt2")
    with pytest.warns(sl.FrameWarning):
        profile(model)
    profile(model)  # a second warning would be an error here
    sl.attention_maps(model, TEXTS[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_maps_from_a_cache_of_a_folded_model_warn_too(backend: str) -> None:
    model = folded(backend, "gpt2")
    _, cache = model.run_with_cache(inputs("gpt2"))
    with pytest.warns(sl.FrameWarning) as said:
        maps = sl.AttentionMaps.from_cache(model, cache)
    assert len(said) == 1
    assert "folded value biases" in maps.provenance.frame
    assert (maps.intra.sum(-1) - 1).abs().max() < 1e-4


def test_no_work_is_lost_where_warnings_are_errors() -> None:
    """The warning comes before the pass, not after hours of it."""
    model, passes = folded("bridge", "gpt2"), []
    model.blocks[0].attn.hook_pattern.add_hook(lambda tensor, hook: passes.append(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(sl.FrameWarning):
            profile(model)
    assert not passes


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_raw_models_are_raw_and_silent(backend: str, name: str) -> None:
    maps = sl.attention_maps(load(backend, name), inputs(name)[0, :4])  # a warning would be an error here
    assert maps.provenance.frame == "raw"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_raw_weights_are_not_taken_for_centred(dtype: torch.dtype) -> None:
    assert sl.attention_maps(load("bridge", "gpt2", dtype), inputs("gpt2")[0, :4]).provenance.frame == "raw"


def test_folded_biases_alone_are_seen() -> None:
    """A grouped model with an RMS norm: nothing is centred, but the value biases go into b_O."""
    model = folded("bridge", "llama")
    with pytest.warns(sl.FrameWarning, match="folded value biases"):
        after = profile(model)
    assert after.provenance.frame == "folded value biases"
    assert (after.value_norm / profile(load("bridge", "llama")).value_norm - 1).abs().max() > 0.02


@pytest.mark.skipif("hooked" not in BACKENDS, reason="TransformerLens 4 has no HookedTransformer")
def test_a_family_with_an_output_bias_and_no_value_bias_is_not_taken_for_folded() -> None:
    """GPT-Neo: HookedTransformer gives it a b_V of zeros."""
    model = new("hooked", "gpt2")
    model.cfg.original_architecture = "GPTNeoForCausalLM"
    for block in model.blocks:
        block.attn.b_V.data.zero_()
    assert profile(model).provenance.frame == "raw"

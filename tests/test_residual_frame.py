"""Contributions to what is really added to the residual stream, in models with a norm after attention and in all others."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from tests.captured import BACKENDS, MODELS, load, raw_layers
from tests.families import FAMILIES, hf_model
from tests.gaps import prompt, relative_gap
from tests.reference import attention as reference

POST_NORM = [(backend, name) for backend, name in MODELS if FAMILIES[name].post_norm]
# The Bridge's hook_attn_out of these is behind the residual: a norm of the sum (BERT), or the sum itself (BLOOM).
BEHIND = ("bert",)


def gain(name: str, layer: int) -> Tensor:
    """Of the norm after attention, as transformers stores it."""
    model: Any = hf_model(name)
    weight = model.model.layers[layer].post_attention_layernorm.weight.detach().double()
    return 1 + weight if name.startswith(("gemma2", "gemma3")) else weight


@pytest.mark.parametrize(("backend", "name"), POST_NORM)
def test_contributions_are_those_of_values_behind_the_norms_gain(backend: str, name: str) -> None:
    model, tokens = load(backend, name), prompt(name)
    maps = sl.attention_maps(model, tokens[0], frame="residual")
    before = sl.attention_maps(model, tokens[0])
    assert maps.provenance.frame == "raw, to the residual stream"
    assert torch.equal(maps.attention, before.attention)
    for row, (layer, one) in enumerate(raw_layers(model, name, tokens).items()):
        projected = one.projected * gain(name, layer)
        assert relative_gap(maps.intra[row], reference.intra(one.pattern, projected)[0]) < 1e-5
        assert relative_gap(maps.inter[row], reference.inter(one.pattern, projected)[0]) < 1e-5
        norms = reference.head_outputs(one.pattern, projected)[0].norm(dim=-1)
        torch.testing.assert_close(maps.output_norm[row].double(), norms, rtol=1e-5, atol=0)
    assert (maps.inter.sum((1, 3)) - 1).abs().max() < 1e-4
    assert (maps.inter - before.inter).abs().max() > 0.01


@pytest.mark.parametrize(("backend", "name"), POST_NORM)
def test_they_are_contributions_to_the_change_of_the_residual_stream(backend: str, name: str) -> None:
    """``c_ij = <r_i, s_i A_ij g ⊙ ṽ_j> / ||r_i||²`` with the ``r_i`` that the model itself adds, without the bias's part."""
    model, tokens = load(backend, name), prompt(name)
    layer = FAMILIES[name].n_layers - 1
    hooks = [f"blocks.{layer}.hook_resid_{end}" for end in ("pre", "mid")]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=hooks)
    added = (cache[hooks[1]] - cache[hooks[0]])[0].double()
    one = raw_layers(model, name, tokens)[layer]
    summed = reference.layer_output(reference.head_outputs(one.pattern, one.projected))[0]
    bias = getattr(model.blocks[layer].attn, "b_O", None)
    whole = summed if bias is None else summed + bias.detach().double()
    scale = added.norm(dim=-1) / (whole * gain(name, layer)).norm(dim=-1)
    terms = torch.einsum("hqk,hqkm->hqkm", one.pattern[0], one.projected[0].expand(-1, added.shape[0], -1, -1))
    terms = terms * gain(name, layer) * scale[None, :, None, None]
    without_bias = terms.sum((0, 2))
    torch.testing.assert_close(
        without_bias + scale[:, None] * gain(name, layer) * (whole - summed), added, atol=1e-5, rtol=0
    )
    expected = torch.einsum("qm,hqkm->hqk", without_bias, terms) / without_bias.square().sum(-1)[None, :, None]
    maps = sl.attention_maps(model, tokens[0], frame="residual", layers=[layer])
    assert relative_gap(maps.inter[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("backend", "name"), [each for each in MODELS if each not in POST_NORM and each[1] not in BEHIND]
)
def test_where_the_output_itself_is_added_nothing_changes(backend: str, name: str) -> None:
    model, tokens = load(backend, name), prompt(name)[0]
    one, other = (sl.attention_maps(model, tokens, frame=frame) for frame in ("residual", "attention"))
    assert torch.equal(one.inter, other.inter)
    assert one.provenance == other.provenance


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_profile_takes_it_and_does_not_merge_with_the_other(backend: str) -> None:
    model, texts = load(backend, "gemma2"), ["The cat sat on the mat", "There are 12 apples", "Snow"]
    settings: dict[str, Any] = {"context_length": 32, "progress": False}
    residual = sl.head_profile(model, texts, frame="residual", batch_size=1, **settings)
    again = sl.head_profile(model, texts, frame="residual", batch_size=3, **settings)
    torch.testing.assert_close(residual.sink_inter, again.sink_inter, rtol=1e-5, atol=1e-6)
    plain = sl.head_profile(model, texts, **settings)
    assert (residual.sink_inter - plain.sink_inter).abs().max() > 1e-3
    assert torch.equal(residual.sink_mass, plain.sink_mass) or (residual.sink_mass - plain.sink_mass).abs().max() < 1e-6
    with pytest.raises(sl.InputError, match="cannot merge results that differ in frame"):
        residual.merge(plain)


@pytest.mark.parametrize("name", [name for backend, name in MODELS if backend == "bridge" and name in BEHIND])
def test_what_cannot_be_told_apart_is_refused(name: str) -> None:
    with pytest.raises(sl.UnsupportedAttentionError, match="is not its output times a norm's gain") as error:
        sl.attention_maps(load("bridge", name), prompt(name)[0], frame="residual")
    assert "\n" not in str(error.value)


def test_an_unknown_frame_is_refused() -> None:
    with pytest.raises(sl.InputError, match="frame is 'stream'; expected 'attention'"):
        sl.attention_maps(load("bridge", "llama"), prompt("llama")[0], frame="stream")

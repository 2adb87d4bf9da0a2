"""A learned sink is reported apart from the sink token, and scaling it is what the model does with another logit."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.interventions.learned_sinks import scale_learned_sink
from tests.captured import BACKENDS, load, n_hooks, new, raw_layers
from tests.families import inputs

NAME = "gpt_oss"
LAYERS = (0, 1)


def run(model: Any, tokens: Tensor, hooks: Any = ()) -> Tensor:
    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks))


def logits_of_sinks(model: Any, layer: int) -> Tensor:
    """The learned logits ``[head]`` of a layer, to be changed in place."""
    attention = model.blocks[layer].attn
    return getattr(attention, "original_component", attention).sinks.data


def patterns(model: Any, tokens: Tensor, hooks: Any, **arguments: Any) -> dict[int, Tensor]:
    seen: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        return lambda tensor, hook: seen.__setitem__(layer, tensor.detach())

    watch = [(f"blocks.{layer}.attn.hook_pattern", keep(layer)) for layer in LAYERS]
    with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, *watch]):
        model(tokens, **arguments)
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scale", [0.0, 0.3, 4.0])
def test_scaling_is_what_another_logit_does(backend: str, scale: float) -> None:
    edited, model, tokens = new(backend, NAME), load(backend, NAME), inputs(NAME)
    for layer in LAYERS:
        logits_of_sinks(edited, layer).add_(math.log(scale) if scale else -1e4)
    expected, found = run(edited, tokens), run(model, tokens, scale_learned_sink(model, scale))
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    assert (expected - run(model, tokens)).abs().max() > 0.01


@pytest.mark.parametrize("backend", BACKENDS)
def test_single_heads_are_scaled_and_no_other(backend: str) -> None:
    edited, model, tokens = new(backend, NAME), load(backend, NAME), inputs(NAME)
    logits_of_sinks(edited, 1)[2] -= 1e4
    hooks = scale_learned_sink(model, 0.0, heads=[(1, 2)])
    torch.testing.assert_close(run(model, tokens, hooks), run(edited, tokens), atol=2e-5, rtol=0)
    before, after = patterns(model, tokens, [])[1][0], patterns(model, tokens, hooks)[1][0]
    torch.testing.assert_close(after[2].sum(-1), torch.ones(tokens.shape[1]), atol=1e-5, rtol=0)
    assert torch.equal(after[[0, 1, 3]], before[[0, 1, 3]])
    assert "scale_learned_sink 0, head 1.2" in repr(hooks)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scale_1_changes_no_bit_and_need_not(backend: str) -> None:
    model, tokens = load(backend, NAME), inputs(NAME)
    hooks = scale_learned_sink(model, 1.0)
    assert torch.equal(run(model, tokens, hooks), run(model, tokens))
    with torch.no_grad(), sl.intervene(model, hooks) as record:
        model(tokens)
    assert not record.changed


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_and_its_rows_stay(backend: str, side: str) -> None:
    model, short = load(backend, NAME), inputs(NAME)[:, :6]
    alone = run(model, short, scale_learned_sink(model, 0.2))
    pad, real = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 6, dtype=torch.long)
    tokens = torch.cat([short, pad] if side == "right" else [pad, short], 1)
    mask = torch.cat([real, pad] if side == "right" else [pad, real], 1)
    hooks = scale_learned_sink(model, 0.2, attention_mask=mask)
    with torch.no_grad(), model.hooks(fwd_hooks=hooks):
        logits = model(tokens, attention_mask=mask)
    torch.testing.assert_close(logits[0, mask[0].bool()], alone[0], atol=2e-5, rtol=0)
    before, after = (patterns(model, tokens, each, attention_mask=mask)[0] for each in ([], hooks))
    assert torch.equal(after[:, :, ~mask[0].bool()], before[:, :, ~mask[0].bool()])


def test_it_composes_with_the_mass_of_the_sink_token() -> None:
    model, tokens = load("bridge", NAME), inputs(NAME)
    both = scale_learned_sink(model, 0.0, layers=[1]) + sl.set_sink_mass(model, 0.5, layers=[1])
    pattern = patterns(model, tokens, both)[1][0]
    torch.testing.assert_close(pattern[:, 1:, 0], torch.full((4, tokens.shape[1] - 1), 0.5))
    torch.testing.assert_close(pattern.sum(-1), torch.ones(4, tokens.shape[1]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_control_has_the_edits_norm_and_there_is_no_position_to_move(backend: str) -> None:
    model, tokens = load(backend, NAME), inputs(NAME)
    edit = scale_learned_sink(model, 0.0, heads=[(1, 2)])
    W_O = model.blocks[1].attn.W_O[2].detach()
    name = "blocks.1.attn.hook_z"

    def change(hooks: Any) -> Tensor:
        seen: list[Tensor] = []
        for each in ((), hooks):
            run(model, tokens, [*each, (name, lambda z, hook: seen.append(z[0, :, 2].clone()))])
        return (seen[1] - seen[0]) @ W_O

    real, turned = change(edit), change(sl.placebo(edit, "direction"))
    torch.testing.assert_close(turned.norm(dim=-1), real.norm(dim=-1), atol=1e-5, rtol=1e-4)
    assert (torch.cosine_similarity(real, turned, dim=-1).abs() < 0.95).any()
    assert real.norm() > 0.01
    with pytest.raises(sl.InputError, match="no sink that could be moved; take control='direction'"):
        sl.placebo(edit)


@pytest.mark.parametrize(("name", "make", "message"), [
    ("llama", lambda model: scale_learned_sink(model, 0.0), "tiny-llama, layer 0, 1: no learned sink takes part in this softmax"),
    (NAME, lambda model: scale_learned_sink(model, -0.5), r"scale is -0\.5; expected 0"),
    (NAME, lambda model: scale_learned_sink(model, math.inf), "scale is inf; expected a finite number"),
    (NAME, lambda model: scale_learned_sink(model, 0.5, heads=[(1, 4)]), "no head 4; the heads are 0 to 3"),
    (NAME, lambda model: scale_learned_sink(model, 0.5, layers=[2]), "no layer 2"),
])  # fmt: skip
def test_mistakes_are_named(name: str, make: Callable[[Any], object], message: str) -> None:
    model = load("bridge", name)
    before = n_hooks(model)
    with pytest.raises(sl.InputError, match=message) as error:
        make(model)
    assert "\n" not in str(error.value)
    assert n_hooks(model) == before


@pytest.mark.parametrize("backend", BACKENDS)
def test_its_mass_is_apart_from_the_sink_tokens(backend: str) -> None:
    model, tokens = load(backend, NAME), inputs(NAME)
    maps = sl.attention_maps(model, tokens[0])
    profile = sl.head_profile(model, tokens, progress=False)
    for row, one in enumerate(raw_layers(model, NAME, tokens).values()):
        mass = 1 - one.pattern[0].sum(-1)
        torch.testing.assert_close(maps.learned_sink_mass[row].double(), mass, atol=1e-6, rtol=0)
        seeing = [query for query in range(1, tokens.shape[1]) if one.visible[0, query, 0]]
        torch.testing.assert_close(profile.learned_sink_mass[row].double(), mass[:, seeing].mean(-1), atol=1e-6, rtol=0)
        token = one.pattern[0, :, seeing, 0].mean(-1)
        torch.testing.assert_close(profile.sink_mass[row].double(), token, atol=1e-6, rtol=0)
    assert profile.learned_sink_mass.max() > 0.3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_that_rests_on_its_learned_sink_is_a_kind_of_its_own(backend: str) -> None:
    model, tokens = new(backend, NAME), inputs(NAME)
    logits_of_sinks(model, 1)[2] += 20
    with torch.no_grad():
        profile = sl.head_profile(model, tokens, progress=False)
    assert profile.learned_sink_mass[1, 2] > 0.99
    assert profile.kind[1][2] == "learned sink"
    removed = sl.head_profile(load(backend, "llama"), tokens, progress=False)
    assert not any("learned sink" in row for row in removed.kind)

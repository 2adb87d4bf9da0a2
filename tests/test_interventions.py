"""Interventions do to every family what the formulas say, prove that they did it, and leave nothing behind."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sinklens.errors import HookNotFiredError, InputError, UnsupportedAttentionError
from sinklens.interventions import (
    Intervention,
    NoEffectError,
    densify_attention,
    diagonalize_attention,
    intervene,
    mask_contributions,
    mean_sink_values,
    placebo,
    remove_sink_attention,
    scale_sink_values,
    set_sink_mass,
    zero_sink_values,
)
from sinklens.interventions import targets as targets_module
from tests.captured import BACKENDS, MODELS, RawLayer, apart, load, n_hooks, new, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import interventions as reference

EDITABLE = [(b, n) for b, n in MODELS if b == "hooked" or FAMILIES[n].pattern_editable]
# A single head of a group is edited from the pattern, which must then come before the head outputs.
HEADWISE = [(b, n) for b, n in MODELS if (b, n) in EDITABLE or FAMILIES[n].n_kv_heads == FAMILIES[n].n_heads]
THROWN_AWAY = [(b, n) for b, n in MODELS if (b, n) not in EDITABLE]


def run(model: Any, tokens: Tensor, hooks: Any = ()) -> Tensor:
    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks) if isinstance(hooks, tuple) else hooks)


def watched(model: Any, tokens: Tensor, hooks: Intervention, names: list[str], **arguments: Any) -> dict[str, Tensor]:
    """What the named hooks hold after the intervention."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda tensor, hook: seen.__setitem__(name, apart(model, name, tensor.detach().double()))

    with torch.no_grad(), model.hooks(fwd_hooks=[*hooks, *((name, keep(name)) for name in names)]):
        model(tokens, **arguments)
    return seen


def z_after(model: Any, tokens: Tensor, hooks: Intervention, layer: int, **arguments: Any) -> Tensor:
    """Head outputs ``[batch, query, head, d_head]`` of a layer under the intervention."""
    name = f"blocks.{layer}.attn.hook_z"
    return watched(model, tokens, hooks, [name], **arguments)[name]


def last(name: str) -> int:
    return FAMILIES[name].attention_layers[-1]


def raw(model: Any, name: str, tokens: Tensor) -> RawLayer:
    return raw_layers(model, name, tokens)[last(name)]


def output(layer: RawLayer, pattern: Tensor | None = None, **edits: Any) -> Tensor:
    gate = None if layer.gate is None else layer.gate[0]
    return reference.head_output(layer.pattern[0] if pattern is None else pattern, layer.value[0], gate, **edits)


def assert_close(actual: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), atol=atol, rtol=1e-5)


# What is done, against the reference.


@pytest.mark.parametrize(("backend", "name"), HEADWISE)
def test_a_scaled_head_is_that_of_the_reference_and_no_other_head_moves(backend: str, name: str) -> None:
    model, tokens, layer = load(backend, name), inputs(name), last(name)
    head = FAMILIES[name].n_heads - 2
    hooks = scale_sink_values(model, -0.5, heads=[(layer, head)])
    found = z_after(model, tokens, hooks, layer)[0]
    before = raw(model, name, tokens)
    expected = output(before, scaled={(head, 0): -0.5})
    assert_close(found, expected)
    assert (expected[:, head] - before.z[0, :, head]).abs().max() > 1e-3
    others = [h for h in range(FAMILIES[name].n_heads) if h != head]
    assert_close(found[:, others], before.z[0, :, others], atol=1e-9)


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_kv_moves_the_whole_group_and_equals_its_heads_one_by_one(backend: str, name: str) -> None:
    model, tokens, layer, family = load(backend, name), inputs(name), last(name), FAMILIES[name]
    group = range(family.n_heads // family.geometry(layer)[0])
    kv = zero_sink_values(model, heads=[(layer, 0)], level="kv")
    assert kv.heads == {layer: tuple(group)}
    assert_close(
        z_after(model, tokens, kv, layer)[0], output(raw(model, name, tokens), scaled={(h, 0): 0.0 for h in group})
    )
    if (backend, name) not in HEADWISE:
        with pytest.raises(UnsupportedAttentionError, match="choose level='kv', and sinks by position or token"):
            zero_sink_values(model, heads=[(layer, 0)])
        return
    one_by_one = zero_sink_values(model, heads=[(layer, 0)])
    for head in group[1:]:
        one_by_one += zero_sink_values(model, heads=[(layer, head)])
    assert one_by_one.heads == kv.heads
    torch.testing.assert_close(run(model, tokens, one_by_one), run(model, tokens, kv), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("backend", "name"), HEADWISE)
def test_a_mean_replaces_the_sinks_value(backend: str, name: str) -> None:
    model, tokens, layer, family = load(backend, name), inputs(name), last(name), FAMILIES[name]
    mean = torch.randn(*family.geometry(layer), generator=torch.Generator().manual_seed(0))
    head = family.n_heads - 1
    found = z_after(model, tokens, mean_sink_values(model, {layer: mean}, heads=[(layer, head)]), layer)[0]
    assert_close(found, output(raw(model, name, tokens), replaced={(head, 0): mean[-1].double()}))


@pytest.mark.parametrize(("backend", "name"), EDITABLE)
@pytest.mark.parametrize(("mass", "sinks"), [(0.0, [0]), (0.7, [0]), (0.25, [0, 3]), (1.0, [2])])
def test_the_sinks_mass_is_set_as_in_the_reference(backend: str, name: str, mass: float, sinks: list[int]) -> None:
    model, tokens, layer, family = load(backend, name), inputs(name), last(name), FAMILIES[name]
    heads = [0, family.n_heads - 1]
    hooks = set_sink_mass(model, mass, heads=[(layer, head) for head in heads], sink=sinks)
    before = raw(model, name, tokens)
    pattern = reference.sink_mass(before.pattern[0], sinks, mass, before.visible[0], heads, family.learned_sink)
    assert (pattern - before.pattern[0]).abs().max() > 0.01
    seen = watched(model, tokens, hooks, [f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.attn.hook_z"])
    assert_close(seen[f"blocks.{layer}.attn.hook_pattern"][0], pattern)
    assert_close(seen[f"blocks.{layer}.attn.hook_z"][0], output(before, pattern))


@pytest.mark.parametrize(("backend", "name"), EDITABLE)
def test_dense_diagonal_and_masked_attention_are_those_of_the_reference(backend: str, name: str) -> None:
    model, tokens, layer = load(backend, name), inputs(name), last(name)
    before = raw(model, name, tokens)
    pattern, visible = before.pattern[0], before.visible[0]
    removed = torch.rand(pattern.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    made = {
        "attention": (
            densify_attention(model, 0.6, layers=[layer]),
            reference.dense(pattern, visible, 0.6, "attention"),
        ),
        "identity": (
            densify_attention(model, 0.6, base="identity", layers=[layer]),
            reference.dense(pattern, visible, 0.6, "identity"),
        ),
        "diagonal": (diagonalize_attention(model, 0.3, layers=[layer]), reference.diagonal(pattern, visible, 0.3)),
        "masked": (mask_contributions(model, {layer: removed}), reference.without(pattern, removed, False)),
        "rescaled": (
            mask_contributions(model, {layer: removed}, renormalize=True),
            reference.without(pattern, removed, True),
        ),
    }
    for hooks, expected in made.values():
        assert_close(z_after(model, tokens, hooks, layer)[0], output(before, expected))


@pytest.mark.parametrize(("backend", "name"), EDITABLE)
def test_zeroed_value_masked_key_and_removed_attention_are_one(backend: str, name: str) -> None:
    model, tokens = load(backend, name), inputs(name)
    key = torch.zeros(tokens.shape[1], dtype=torch.bool)
    key[0] = True
    zeroed = run(model, tokens, zero_sink_values(model))
    masked = run(model, tokens, mask_contributions(model, dict.fromkeys(FAMILIES[name].attention_layers, key)))
    removed = run(model, tokens, remove_sink_attention(model, renormalize=False))
    for other in (masked, removed):
        torch.testing.assert_close(other, zeroed, atol=1e-5, rtol=0)
    assert (zeroed - run(model, tokens)).abs().max() > 1e-3
    renormalized = run(model, tokens, remove_sink_attention(model))
    assert torch.equal(renormalized, run(model, tokens, set_sink_mass(model, 0.0)))
    assert (renormalized - removed).abs().max() > 1e-3


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_null_edits_change_nothing(backend: str, name: str) -> None:
    model, tokens = load(backend, name), inputs(name)
    plain, layers = run(model, tokens), FAMILIES[name].attention_layers
    single = [(layer, 1) for layer in layers]
    assert torch.equal(run(model, tokens, scale_sink_values(model, 1.0)), plain)
    if (backend, name) in HEADWISE:
        assert torch.equal(run(model, tokens, scale_sink_values(model, 1.0, heads=single)), plain)
    if (backend, name) not in EDITABLE:
        return
    present = {layer: found.pattern[..., 0].float() for layer, found in raw_layers(model, name, tokens).items()}
    nothing = dict.fromkeys(layers, torch.zeros(1, dtype=torch.bool))
    for hooks in (
        mask_contributions(model, nothing),
        mask_contributions(model, nothing, renormalize=True),
        densify_attention(model, 0.0),
        diagonalize_attention(model, 0.0),
        set_sink_mass(model, present),
    ):
        assert torch.equal(run(model, tokens, hooks), plain)


@pytest.mark.parametrize(("backend", "name"), [(b, n) for b, n in EDITABLE if n in ("llama", "qwen3_next", "gemma2")])
def test_detected_sinks_are_scaled(backend: str, name: str) -> None:
    model, tokens, layer = load(backend, name), inputs(name), last(name)
    before = raw(model, name, tokens)
    seen = before.visible[0] & ~torch.eye(tokens.shape[1], dtype=torch.bool)
    means = (before.pattern[0] * seen).sum(1) / seen.sum(0).clamp(min=1)
    received = means.max(0).values.masked_fill(seen.sum(0) < 2, 0)
    threshold = float(received.sort(descending=True).values[1:3].mean())
    sinks = [key for key in range(tokens.shape[1]) if received[key] > threshold]
    assert len(sinks) == 2
    hooks = scale_sink_values(model, 3.0, heads=[(layer, 2)], sink=f"detect:{threshold}")
    expected = output(before, scaled={(2, sink): 3.0 for sink in sinks})
    assert_close(z_after(model, tokens, hooks, layer)[0], expected)
    with pytest.raises(InputError, match="sink='detect' needs attention patterns"):
        zero_sink_values(model, sink="detect", level="kv")


# Batches, padding, positions per document.


@pytest.mark.parametrize(
    ("backend", "name"), [(b, n) for b, n in EDITABLE if n in ("gpt2", "llama", "gpt_oss", "mistral")]
)
@pytest.mark.parametrize("make", [
    lambda model, **where: scale_sink_values(model, 0.3, heads=[(1, 2)], **where),
    lambda model, **where: zero_sink_values(model, level="kv", **where),
    lambda model, **where: set_sink_mass(model, 0.4, **where),
    lambda model, **where: placebo(set_sink_mass(model, 0.4, **where), "direction"),
    lambda model, **where: placebo(zero_sink_values(model, **where), "position", seed=3),
    lambda model, **where: densify_attention(model, 0.5, attention_mask=where["attention_mask"]),
])  # fmt: skip
def test_padding_on_either_side_changes_nothing(backend: str, name: str, make: Callable[..., Intervention]) -> None:
    model, tokens = load(backend, name), inputs(name)[:, :9]
    short = tokens[:, :6]
    alone = run(model, short, make(model, tokens=short, attention_mask=torch.ones_like(short)))
    for side in ("right", "left"):
        pad, real = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 6, dtype=torch.long)
        row = torch.cat([short, pad] if side == "right" else [pad, short], 1)
        kept = torch.cat([real, pad] if side == "right" else [pad, real], 1)
        batch, mask = torch.cat([row, tokens]), torch.cat([kept, torch.ones(1, 9, dtype=torch.long)])
        with torch.no_grad(), intervene(model, make(model, tokens=batch, attention_mask=mask)):
            logits = model(batch, attention_mask=mask)
        torch.testing.assert_close(logits[0, mask[0].bool()], alone[0], atol=2e-5, rtol=0)
        assert (alone - run(model, short)).abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sinks_are_chosen_per_document(backend: str, name: str) -> None:
    model, layer = load(backend, name), 1
    tokens = torch.cat([inputs(name)[:, :8], inputs(name)[:, 3:11]])
    sink = torch.tensor([[0, 4], [2, -1]])
    found = z_after(model, tokens, zero_sink_values(model, heads=[(layer, 1)], sink=sink), layer)
    for row, sinks in enumerate(([0, 4], [2])):
        expected = output(raw(model, name, tokens[row : row + 1]), scaled={(1, s): 0.0 for s in sinks})
        assert_close(found[row], expected)
    token = int(tokens[0, 4])
    by_token = zero_sink_values(model, heads=[(layer, 1)], sink=f"token:{token}", tokens=tokens)
    expected_sinks = [[p for p in range(8) if tokens[row, p] == token] for row in range(2)]
    for row, sinks in enumerate(expected_sinks):
        expected = output(raw(model, name, tokens[row : row + 1]), scaled={(1, s): 0.0 for s in sinks})
        assert_close(z_after(model, tokens, by_token, layer)[row], expected)
    assert expected_sinks[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_half_precision_follows_float32(name: str, dtype: torch.dtype) -> None:
    full, half, tokens = load("bridge", name), load("bridge", name, dtype), inputs(name)
    makers: list[Callable[[Any], Intervention]] = [
        lambda model: zero_sink_values(model, heads=[(0, 1)]),
        lambda model: set_sink_mass(model, 0.3),
        lambda model: placebo(zero_sink_values(model, level="kv"), "direction"),
    ]
    for make in makers:
        expected, found = run(full, tokens, make(full)), run(half, tokens, make(half))
        assert found.dtype == dtype
        assert (found.float() - expected).abs().max() < 0.1 * expected.std()


# Controls.


@pytest.mark.parametrize(
    ("backend", "name"), [(b, n) for b, n in MODELS if n in ("llama", "qwen3_next", "opt", "gpt_oss")]
)
def test_the_random_direction_has_the_edits_norm(backend: str, name: str) -> None:
    model, tokens, layer = load(backend, name), inputs(name), last(name)
    head = FAMILIES[name].n_heads - 1
    hooks = [zero_sink_values(model, heads=[(layer, head)])]
    hooks += [set_sink_mass(model, 0.6, heads=[(layer, head)])] if (backend, name) in EDITABLE else []
    before = raw(model, name, tokens)
    for edit in hooks:
        real, turned, other = (
            (z_after(model, tokens, each, layer)[0] - before.z[0])[:, head] @ before.W_O[head]
            for each in (edit, placebo(edit, "direction"), placebo(edit, "direction", seed=1))
        )
        rows = real.norm(dim=-1) > 1e-4
        assert rows.sum() > 3
        if not FAMILIES[name].gated:
            assert_close(turned.norm(dim=-1)[rows], real.norm(dim=-1)[rows], atol=1e-4)
        for first, second in ((real, turned), (turned, other)):
            assert (torch.cosine_similarity(first[rows], second[rows], dim=-1).abs() < 0.95).any()


def test_the_random_position_is_no_sink_and_depends_on_the_text_not_on_the_batch() -> None:
    model, tokens, layer = load("bridge", "llama"), torch.cat([inputs("llama"), inputs("llama").flip(-1)]), 1

    def moved(batch: Tensor, seed: int) -> Tensor:
        """Which values the control has zeroed, ``[batch, key]``."""
        hooks = placebo(zero_sink_values(model, layers=[layer], tokens=batch), "position", seed=seed)
        name = f"blocks.{layer}.attn.hook_v"
        return (watched(model, batch, hooks, [name])[name] == 0).all(-1).all(-1)

    chosen = torch.stack([moved(tokens, seed) for seed in range(8)])
    assert (chosen.sum(-1) == 1).all()
    assert not chosen[:, :, 0].any()
    assert len({tuple(row.tolist()) for row in chosen[:, 0]}) > 3
    assert torch.equal(moved(tokens.flip(0), 5).flip(0), chosen[5])
    assert torch.equal(moved(tokens[1:], 5), chosen[5, 1:])


def test_controls_need_a_single_intervention_with_a_sink() -> None:
    model = load("bridge", "llama")
    with pytest.raises(InputError, match="these hooks are no single intervention"):
        placebo(zero_sink_values(model) + set_sink_mass(model, 0.2))
    with pytest.raises(InputError, match="no sink that could be moved; take control='direction'"):
        placebo(densify_attention(model, 0.2))
    with pytest.raises(InputError, match="control is 'nothing'; expected 'position' or 'direction'"):
        placebo(zero_sink_values(model), "nothing")


# Composition and the context.


@pytest.mark.parametrize("backend", BACKENDS)
def test_blocks_compose_whatever_is_inner(backend: str) -> None:
    model, tokens, name, layer = load(backend, "llama"), inputs("llama"), "llama", 1
    scale = scale_sink_values(model, 0.5, heads=[(layer, 1)])
    mass = set_sink_mass(model, 0.6, layers=[layer])
    before = raw(model, name, tokens)
    pattern = reference.sink_mass(before.pattern[0], [0], 0.6, before.visible[0], range(4), False)
    expected = output(before, pattern, scaled={(1, 0): 0.5})
    seen: list[Tensor] = []
    watch = [(f"blocks.{layer}.attn.hook_z", lambda tensor, hook: seen.append(tensor.double()))]
    for first, second in ((scale, mass), (mass, scale)):
        with torch.no_grad(), intervene(model, first), intervene(model, second), model.hooks(fwd_hooks=watch):
            model(tokens)
        run(model, tokens, first + second + watch)
    assert len(seen) == 4
    for found in seen:
        assert_close(found[0], expected)
    assert n_hooks(model) == 0


def test_edits_of_one_tensor_compose_in_order() -> None:
    model, tokens = load("bridge", "llama_3x5"), inputs("llama_3x5")
    mass, dense = set_sink_mass(model, 0.9, layers=[2]), densify_attention(model, 0.5, layers=[2])
    name = "blocks.2.attn.hook_pattern"

    def pattern(outer: Intervention, inner: Intervention) -> Tensor:
        with torch.no_grad(), intervene(model, outer), intervene(model, inner):
            return model.run_with_cache(tokens, names_filter=name)[1][name][0, 0]

    assert_close(pattern(dense, mass)[1:, 0], torch.full((tokens.shape[1] - 1,), 0.9))
    assert_close(pattern(mass, dense)[4, 0], torch.tensor(0.5 * 0.9 + 0.5 / 5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), InputError("no")])
def test_an_exception_leaves_the_model_as_it_was(backend: str, error: BaseException) -> None:
    model, tokens = new(backend, "llama"), inputs("llama")
    plain = run(model, tokens)
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: None)

    def fail(tensor: Tensor, hook: Any) -> None:
        raise error

    edit = zero_sink_values(model, heads=[(0, 1)])
    failing = [("blocks.0.hook_resid_post", fail)]
    with pytest.raises(type(error)) as raised, intervene(model, edit), intervene(model, failing):
        model(tokens)
    assert raised.value is error
    assert n_hooks(model) == 1
    assert not model._forward_pre_hooks
    assert torch.equal(run(model, tokens), plain)
    with intervene(model, edit) as record:
        model(tokens)
    assert record.changed


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_did_not_fire_or_change_anything_is_reported(backend: str) -> None:
    model, tokens = load(backend, "llama"), inputs("llama")
    edit = zero_sink_values(model)
    with pytest.raises(HookNotFiredError, match=r"'blocks\.1\.attn\..*' did not fire"), intervene(model, edit):
        model(tokens, stop_at_layer=1)
    misspelt = [("blocks.0.attn.hook_valeu", lambda tensor, hook: tensor)]
    with (
        pytest.raises(HookNotFiredError, match=r"the model has no hook 'blocks\.0\.attn\.hook_valeu'"),
        intervene(model, misspelt),
    ):
        pass
    nowhere = zero_sink_values(model, sink="token:319", tokens=tokens)
    for idle in (nowhere, [("blocks.0.attn.hook_v", lambda tensor, hook: tensor + 0)]):
        with pytest.raises(NoEffectError, match=r"the edit at 'blocks\.0.* changed nothing"), intervene(model, idle):
            model(tokens)
        with intervene(model, idle, require_effect=False) as record:
            model(tokens)
        assert not record.changed
    for meant in (scale_sink_values(model, 1.0), [("blocks.0.attn.hook_v", lambda tensor, hook: None)]):
        with intervene(model, meant):
            model(tokens)
    with intervene(model, edit):
        pass
    with pytest.raises(InputError, match=r"expected \(hook_name, function\) pairs"), intervene(model, ["hook_v"]):
        pass
    assert n_hooks(model) == 0


@pytest.mark.parametrize(("backend", "name"), THROWN_AWAY)
def test_edits_that_would_be_thrown_away_are_refused(backend: str, name: str) -> None:
    model, tokens = load(backend, name), inputs(name)
    own = n_hooks(model)  # TransformerLens' own, permanent
    message = f"tiny-{name}, layer 0, 1: .* throws an edit of the pattern away; use interventions on values"
    makers: list[Callable[[], Intervention]] = [
        lambda: set_sink_mass(model, 0.5),
        lambda: remove_sink_attention(model),
        lambda: densify_attention(model, 0.5),
        lambda: diagonalize_attention(model, 0.5),
        lambda: mask_contributions(model, {0: torch.ones(1, dtype=torch.bool), 1: torch.ones(1, dtype=torch.bool)}),
    ]
    for make in makers:
        with pytest.raises(UnsupportedAttentionError, match=message):
            make()
    mine = [("blocks.0.attn.hook_pattern", lambda tensor, hook: tensor * 0.5)]
    thrown_away = r"the edit at 'blocks\.0\.attn\.hook_pattern' is thrown away"
    with pytest.raises(UnsupportedAttentionError, match=thrown_away), intervene(model, mine):
        model(tokens)
    with intervene(model, [("blocks.0.attn.hook_pattern", lambda tensor, hook: None)]):
        model(tokens)
    assert n_hooks(model) == own


def test_a_model_of_images_takes_edits_of_values() -> None:
    model, pixels = load("bridge", "vit"), inputs("vit")
    plain, edited = (run(model, pixels, hooks) for hooks in ([], zero_sink_values(model, heads=[(1, 2)])))
    assert (getattr(edited, "logits", edited) - getattr(plain, "logits", plain)).abs().max() > 1e-3
    with pytest.raises(UnsupportedAttentionError, match=r"tiny-vit: .*; expected a model that reads token ids"):
        set_sink_mass(model, 0.5)


@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")  # TransformerLens' own call
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cache_of_keys_and_values_is_refused(backend: str) -> None:
    model = load(backend, "llama")
    pattern = torch.full((1, 4, 1, 5), 0.2)
    for hooks in (zero_sink_values(model), zero_sink_values(model, heads=[(0, 1)]), set_sink_mass(model, 0.5)):
        refusing = [function for name, function in hooks if name.endswith("hook_pattern")]
        for function in refusing:
            with pytest.raises(InputError, match="1 queries on 5 keys; interventions need whole sequences"):
                function(pattern, hook=None)
        assert refusing
        with (
            pytest.raises(InputError, match=r"1 queries on .*generate with use_past_kv_cache=False"),
            intervene(model, hooks),
        ):
            model.generate(inputs("llama"), max_new_tokens=2, verbose=False, use_past_kv_cache=True)
        with intervene(model, hooks):
            model.generate(inputs("llama"), max_new_tokens=2, verbose=False, use_past_kv_cache=False)


def test_memory_does_not_grow_and_nothing_is_kept() -> None:
    model, tokens = new("bridge", "llama"), inputs("llama")

    def once() -> None:
        hooks = zero_sink_values(model, heads=[(0, 1)]) + placebo(set_sink_mass(model, 0.2), "direction")
        with torch.no_grad(), intervene(model, hooks):
            model(tokens)

    def n_tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())

    once()
    before = n_tensors()
    for _ in range(20):
        once()
    assert n_tensors() <= before
    assert n_hooks(model) == 0


# Mistakes.


@pytest.mark.parametrize(("make", "message"), [
    (lambda model: zero_sink_values(model, heads=[(0, 4)]), "no head 4; the heads are 0 to 3"),
    (lambda model: zero_sink_values(model, heads=[(2, 0)]), "no layer 2; the layers here are 0, 1"),
    (lambda model: zero_sink_values(model, layers=[5]), "no layer 5; the layers here are 0, 1"),
    (lambda model: zero_sink_values(model, heads=[(3,)]), r"heads holds \(3,\); expected \(layer, head\) pairs"),
    (lambda model: zero_sink_values(model, heads=[]), "no head was named"),
    (lambda model: zero_sink_values(model, heads=[(0, 0)], layers=[0]), "heads and layers are both given"),
    (lambda model: zero_sink_values(model, level="query"), "level is 'query'; expected 'head'"),
    (lambda model: scale_sink_values(model, float("inf")), "factor is inf; expected a finite number"),
    (lambda model: scale_sink_values(model, float("nan")), "factor is nan; expected a finite number"),
    (lambda model: set_sink_mass(model, 1.01), "mass is 1.01; expected a number from 0 to 1"),
    (lambda model: set_sink_mass(model, {0: torch.ones(1)}), "mass has no layer 1"),
    (lambda model: set_sink_mass(model, {0: torch.ones(1), 1: -torch.ones(1)}), "mass of layer 1 reaches from -1"),
    (lambda model: densify_attention(model, -0.1), "strength is -0.1; expected a number from 0 to 1"),
    (lambda model: densify_attention(model, 0.1, base="ones"), "base is 'ones'; expected 'attention' or 'identity'"),
    (lambda model: diagonalize_attention(model, 2.0), "strength is 2.0; expected a number from 0 to 1"),
    (lambda model: mask_contributions(model, {0: torch.ones(2, 3, 3) > 0}), r"the mask of layer 0 is .* 4 heads"),
    (lambda model: mask_contributions(model, {0: torch.ones(3)}), "the mask of layer 0 is torch.float32"),
    (lambda model: zero_sink_values(model, sink=64), "sink position 64 lies beyond the model's context of 64 tokens"),
    (lambda model: zero_sink_values(model, sink=5, tokens=torch.zeros(1, 5, dtype=torch.long)), "sink position 5 lies beyond"),
    (lambda model: zero_sink_values(model, sink=torch.tensor([[3]]), attention_mask=torch.tensor([[0, 1, 1]])),
     "a sink position lies beyond the text or on padding"),
    (lambda model: zero_sink_values(model, sink=torch.tensor([3])), r"expected integer positions \[batch, sink\]"),
    (lambda model: zero_sink_values(model, sink="token:4"), "sink='token:4' needs the tokens"),
    (lambda model: zero_sink_values(model, attention_mask=torch.tensor([[0, 0]])), "a row of attention_mask has no real token"),
    (lambda model: mean_sink_values(model, {0: torch.ones(4, 16), 1: torch.ones(4, 16)}), r"means of layer 0: got \(4, 16\)"),
    (lambda model: mean_sink_values(model, {0: torch.ones(2, 16)}), "means of layer 1: got none"),
])  # fmt: skip
def test_mistakes_are_named_before_any_forward_pass(make: Callable[[Any], object], message: str) -> None:
    model = new("bridge", "llama")
    passes: list[int] = []
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(1))
    with pytest.raises(InputError, match=message) as error:
        make(model)
    assert "\n" not in str(error.value)
    assert not passes


def test_a_mask_of_other_sequences_is_refused() -> None:
    model, tokens = load("bridge", "llama"), inputs("llama")
    hooks = zero_sink_values(model, attention_mask=torch.ones(1, 4))
    with pytest.raises(InputError, match=r"attention_mask has shape \(1, 4\), the sequences that are run \(1, 13\)"):
        run(model, tokens, hooks)
    with pytest.raises(InputError, match="sink position 20 lies beyond a sequence of 13 tokens"):
        run(model, tokens, zero_sink_values(model, sink=20))
    with pytest.raises(InputError, match=r"a mask has shape \(5,\), the pattern that is run \(1, 4, 13, 13\)"):
        run(model, tokens, mask_contributions(model, {0: torch.ones(5) > 0}))


def test_reprs_say_what_moves() -> None:
    model = load("bridge", "llama")
    assert repr(zero_sink_values(model, heads=[(1, 2)], level="kv")) == (
        "Intervention(zero_sink_values of key/value heads, moves heads 1.2, 1.3, at sink 'first'; 2 hooks)"
    )
    assert "scale_sink_values 0.5, head 1.2, at sink '0,3'" in repr(
        scale_sink_values(model, 0.5, heads=[(1, 2)], sink=[3, 0])
    )
    assert "at random positions instead of sink 'first', seed 4" in repr(placebo(zero_sink_values(model), seed=4))
    assert "in a random direction, seed 4" in repr(placebo(set_sink_mass(model, 0.5), "direction", seed=4))


def test_the_probe_of_the_pattern_runs_once() -> None:
    model = new("bridge", "llama")
    passes: list[int] = []
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(tensor.shape[1]))
    for _ in range(3):
        set_sink_mass(model, 0.5)
    assert passes == [3]
    assert all(targets_module._EDITABLE[model.blocks[layer].attn] for layer in range(2))

"""Edits on top of edits: a later one starts from what an earlier one has left, whatever hook shows it."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.errors import InputError
from sinklens.interventions import mask_contributions, scale_sink_values, zero_sink_values
from tests.captured import BACKENDS, MODELS, load, new
from tests.families import FAMILIES, inputs

EDITABLE = [(b, n) for b, n in MODELS if FAMILIES[n].text and (b == "hooked" or FAMILIES[n].pattern_editable)]
GROUPED = [(0, 0)]  # one query head of a group, so that the edit is made at the head's output


def logits(model: Any, tokens: Tensor, hooks: Any) -> Tensor:
    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=list(hooks))


def same(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() < 1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_value_that_is_gone_is_not_taken_away_again(backend: str) -> None:
    model, tokens = load(backend, "llama"), inputs("llama")
    hooks = zero_sink_values(model, heads=GROUPED)
    once = logits(model, tokens, hooks)
    assert not same(once, logits(model, tokens, []))
    assert same(logits(model, tokens, hooks + zero_sink_values(model, heads=GROUPED)), once)
    with torch.no_grad(), sl.intervene(model, hooks):
        assert same(logits(model, tokens, zero_sink_values(model, heads=GROUPED)), once)


@pytest.mark.parametrize(("backend", "name"), EDITABLE)
def test_scales_multiply(backend: str, name: str) -> None:
    model, tokens = load(backend, name), inputs(name)
    heads = [(FAMILIES[name].attention_layers[0], 0)]

    def scaled(*factors: float) -> Tensor:
        edits = [scale_sink_values(model, factor, heads=heads) for factor in factors]
        return logits(model, tokens, [hook for edit in edits for hook in edit])

    assert same(scaled(0.5, 0.5), scaled(0.25))
    assert same(scaled(3.0, 0.5, 2.0), scaled(3.0))
    assert not same(scaled(0.5, 0.5), scaled(0.5))


def test_edits_of_other_positions_and_other_heads_add_up() -> None:
    model, tokens = load("bridge", "llama"), inputs("llama")
    both = zero_sink_values(model, heads=GROUPED, sink=[0, 3])
    apart = zero_sink_values(model, heads=GROUPED, sink=[0]) + zero_sink_values(model, heads=GROUPED, sink=[3])
    assert same(logits(model, tokens, apart), logits(model, tokens, both))
    heads = zero_sink_values(model, heads=[(0, 0)]) + zero_sink_values(model, heads=[(0, 1)])
    assert same(logits(model, tokens, heads), logits(model, tokens, zero_sink_values(model, heads=[(0, 0), (0, 1)])))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", ["edit first", "mask first"])
def test_a_masking_and_an_edit_of_one_layer_keep_each_other(backend: str, order: str) -> None:
    """Every term of the sink's key is taken away by hand; the masking by attention then removes the same as without."""
    model, tokens = load(backend, "llama"), inputs("llama")
    edit = zero_sink_values(model, heads=GROUPED)
    masking = sl.mask_by_metric(model, "attention", 0.3, layers=[0])
    masked, both = logits(model, tokens, masking), logits(model, tokens, [*edit, *masking])
    length = tokens.shape[1]
    scores = attention_of(model, tokens)[0]
    removed = torch.zeros(4, length, length, dtype=torch.bool)
    for query in range(length):
        pairs = sorted((-scores[h, query, k].item(), h, k) for h in range(4) for k in range(query + 1))
        for _, head, key in pairs[: int(0.3 * 4 * (query + 1))]:
            removed[head, query, key] = True
    removed[0, :, 0] = True  # the value is zero: its terms are gone for every query
    expected = logits(model, tokens, mask_contributions(model, {0: removed}))
    assert not same(masked, expected)
    found = both if order == "edit first" else logits(model, tokens, [*masking, *edit])
    assert same(found, expected)


def attention_of(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    return cache["blocks.0.attn.hook_pattern"]


def test_a_masking_keeps_what_a_users_hook_has_added() -> None:
    model, tokens = load("bridge", "llama"), inputs("llama")
    masking = sl.mask_by_metric(model, "attention", 1.0, layers=[0])
    name = "blocks.0.attn.hook_z"
    seen: list[Tensor] = []
    logits(model, tokens, [(name, lambda z, hook: z + 1), *masking, (name, lambda z, hook: seen.append(z))])
    torch.testing.assert_close(seen[0], torch.ones_like(seen[0]), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
def test_masking_refuses_steps_of_generation() -> None:
    model = load("bridge", "llama")
    with (
        model.hooks(fwd_hooks=list(sl.mask_by_metric(model, "attention", 0.3))),
        pytest.raises(InputError, match=r"1 queries on .*generate with use_past_kv_cache=False"),
    ):
        model.generate(inputs("llama"), max_new_tokens=2, verbose=False, use_past_kv_cache=True)


@pytest.mark.parametrize("call", [
    lambda model: sl.faithfulness(model, ["The cat sat."], progress=False),
    lambda model: sl.ablate_sinks(model, ["The cat sat."], progress=False),
    lambda model: sl.sweep_sinks(model, ["The cat sat."], progress=False),
    lambda model: sl.drift_without_sinks(model, ["The cat sat."], progress=False),
    lambda model: sl.multiple_choice(model, [{"question": "Who?", "answer": True}], progress=False),
])  # fmt: skip
def test_a_model_with_dropout_is_refused(call: Any) -> None:
    model = new("bridge", "gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    with pytest.raises(InputError, match=r"training mode with dropout.*call model.eval\(\)"):
        call(model)


def test_the_number_of_foreign_hooks_is_recorded() -> None:
    model = new("bridge", "llama")
    settings: dict[str, Any] = {"context_length": 8, "progress": False}
    assert sl.head_profile(model, ["The cat sat."], **settings).provenance.hooks == 0
    with sl.intervene(model, sl.zero_sink_values(model, layers=[0], level="kv")) as record:
        profile = sl.head_profile(model, ["The cat sat."], **settings)
    assert profile.provenance.hooks == len(record.hooks)

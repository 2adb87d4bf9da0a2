"""The tiny families are what other tests take them for: one function in every back end, biased, grouped."""

import importlib.metadata
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import sinklens as sl
from tests.captured import apart, output_weight
from tests.families import FAMILIES, HOOKED_FAMILIES, PROMPT, bridge, hf_model, hooked, inputs, new_hf_model
from tests.tiny_tokenizer import tiny_tokenizer

MAJOR = int(importlib.metadata.version("transformer-lens").split(".")[0])
needs_hooked = pytest.mark.skipif(MAJOR >= 4, reason="TransformerLens 4 has no HookedTransformer")
LOADED = [name for name, family in FAMILIES.items() if MAJOR >= 4 or not family.bridge_needs_4x]
# A pass over token ids, or pixels, alone; and with an attention that sinklens measures.
BRIDGE_FAMILIES = [name for name in LOADED if FAMILIES[name].decodes_alone]
ATTENTION_FAMILIES = [name for name in BRIDGE_FAMILIES if FAMILIES[name].attention_layers]
PLAIN_FAMILIES = [name for name in BRIDGE_FAMILIES if not FAMILIES[name].refused]


def logits(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output.logits


def capture(model: Any, tokens: torch.Tensor, names: list[str]) -> dict[str, torch.Tensor]:
    """What the named hooks hold in one forward pass; each must fire exactly once."""
    seen: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook_function(tensor: torch.Tensor, hook: Any) -> None:
            assert name not in seen, f"{name} fired twice"
            seen[name] = tensor.clone()

        return hook_function

    model.run_with_hooks(tokens, fwd_hooks=[(name, keep(name)) for name in names])
    assert set(seen) == set(names)
    return seen


def attention_hooks(name: str, layer: int) -> list[str]:
    ends = ["hook_pattern", FAMILIES[name].value_end, "hook_z", *(["hook_q_gate"] if FAMILIES[name].gated else [])]
    return [f"blocks.{layer}.attn.{end}" for end in ends]


@pytest.mark.parametrize("name", BRIDGE_FAMILIES)
def test_bridge_agrees_with_hugging_face(name: str) -> None:
    expected = logits(hf_model(name)(inputs(name)))
    gap = (logits(bridge(name)(inputs(name))) - expected).abs().max()
    assert bool(gap > 0.1) if FAMILIES[name].bridge_is_wrong else bool(gap < 1e-5)
    assert expected.std() > 0.1


@needs_hooked
@pytest.mark.parametrize("name", HOOKED_FAMILIES)
def test_hooked_transformer_agrees_with_hugging_face(name: str) -> None:
    expected = logits(hf_model(name)(inputs(name)))
    torch.testing.assert_close(hooked(name)(inputs(name)), expected, atol=1e-4, rtol=0)


@needs_hooked
@pytest.mark.parametrize("name", HOOKED_FAMILIES)
def test_hooked_transformer_and_bridge_hold_the_same_attention(name: str) -> None:
    for layer in range(FAMILIES[name].n_layers):
        hooks = attention_hooks(name, layer)
        one, other = capture(hooked(name), inputs(name), hooks), capture(bridge(name), inputs(name), hooks)
        for hook in hooks:
            torch.testing.assert_close(one[hook], other[hook], atol=2e-5, rtol=0)
        torch.testing.assert_close(hooked(name).blocks[layer].attn.W_O, bridge(name).blocks[layer].attn.W_O)


@pytest.mark.parametrize("name", PLAIN_FAMILIES)
def test_table_tells_the_shapes_and_the_decomposition(name: str) -> None:
    family, model = FAMILIES[name], bridge(name)
    for layer in range(family.n_layers):
        assert hasattr(model.blocks[layer], "attn") == (layer in family.attention_layers)
        if layer not in family.attention_layers:
            continue
        output_hook = f"blocks.{layer}.attn.o.hook_out"
        seen = capture(model, inputs(name), [*attention_hooks(name, layer), output_hook])
        pattern, value, z, *gate = (apart(model, hook, seen[hook]) for hook in attention_hooks(name, layer))
        n_kv_heads, d_head = family.geometry(layer)
        assert value.shape[2:] == (n_kv_heads, d_head)
        assert z.shape[2:] == (family.n_heads, d_head)
        expanded = value.repeat_interleave(family.n_heads // n_kv_heads, dim=2)
        expected = torch.einsum("bhqk,bkhd->bqhd", pattern, expanded)
        if family.gated:
            expected = expected * gate[0].sigmoid().reshape(expected.shape)
        torch.testing.assert_close(z, expected, atol=1e-6, rtol=0)

        W_O, b_O = output_weight(model, layer), model.blocks[layer].attn.o.bias
        assert W_O.shape == (family.n_heads, d_head, family.d_model)
        output = torch.einsum("bqhd,hdm->bqm", z, W_O)
        assert (b_O is not None) == family.has_output_bias
        if family.has_output_bias:
            assert b_O.abs().min() > 0
            output = output + b_O
        torch.testing.assert_close(seen[output_hook], output, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name in ATTENTION_FAMILIES if FAMILIES[name].text])
def test_pattern_is_zero_outside_what_a_query_sees(name: str) -> None:
    family = FAMILIES[name]
    for layer in family.attention_layers:
        hook = f"blocks.{layer}.attn.hook_pattern"
        pattern = capture(bridge(name), inputs(name), [hook])[hook]
        distance = torch.arange(pattern.shape[-2])[:, None] - torch.arange(pattern.shape[-1])
        window = family.windows[layer] or pattern.shape[-1]
        seen = (distance.abs() < window) & ((distance >= 0) | torch.tensor(not family.causal))
        assert (pattern[:, :, ~seen] == 0).all()
        assert (pattern[:, :, seen] > 0).all()
        row_sums = pattern.sum(dim=-1)
        if family.learned_sink:
            assert row_sums.min() < 0.7
        else:
            torch.testing.assert_close(row_sums, torch.ones_like(row_sums), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ATTENTION_FAMILIES)
def test_only_some_families_take_an_edit_of_the_pattern(name: str) -> None:
    family, model = FAMILIES[name], bridge(name)
    hook = f"blocks.{family.attention_layers[0]}.attn.hook_pattern"
    silent = family.pattern_editable or MAJOR < 4  # 3.9 throws an edit away without a word
    with nullcontext() if silent else pytest.warns(UserWarning, match="edit is discarded"):
        edited = model.run_with_hooks(inputs(name), fwd_hooks=[(hook, lambda pattern, hook: pattern * 0.5)])
    changed = bool((logits(edited) - logits(model(inputs(name)))).abs().max() > 1e-3)
    assert changed == family.pattern_editable


@pytest.mark.parametrize("name", [name for name in PLAIN_FAMILIES if FAMILIES[name].n_kv_heads > 1])
def test_key_value_heads_differ(name: str) -> None:
    family = FAMILIES[name]
    hook = f"blocks.{family.attention_layers[0]}.attn.hook_v"
    value = capture(bridge(name), inputs(name), [hook])[hook]
    for head in range(1, family.n_kv_heads):
        assert (value[:, :, head] - value[:, :, 0]).abs().mean() > 0.1


@pytest.mark.parametrize("name", [name for name in LOADED if FAMILIES[name].refused])
def test_a_refused_family_is_refused_everywhere_and_says_why(name: str) -> None:
    model, tokens = bridge(name), inputs(name)
    for call in (
        lambda: sl.attention_maps(model, tokens[0]),
        lambda: sl.head_profile(model, tokens, progress=False),
        lambda: sl.faithfulness(model, tokens, progress=False),
    ):
        with pytest.raises(sl.UnsupportedAttentionError) as error:
            call()
        message = str(error.value)
        assert FAMILIES[name].refused in message
        assert message.startswith(f"tiny-{name}")
        assert "\n" not in message


def test_windows_are_shorter_than_the_prompt() -> None:
    windows = [window for family in FAMILIES.values() for window in family.windows if window is not None]
    assert windows
    assert max(windows) + 3 < inputs("gpt2").shape[-1]


def test_same_seed_same_weights_other_seed_other_weights() -> None:
    for name in ("gpt_oss", "qwen3_next"):
        first = new_hf_model(name, seed=0).state_dict()
        torch.rand(1)  # the global generator's state must not matter
        again, other = (new_hf_model(name, seed).state_dict() for seed in (0, 1))
        assert all(torch.equal(first[key], again[key]) for key in first)
        assert not any(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("prepends_bos", [True, False])
@pytest.mark.parametrize("text", ["", PROMPT, "naïve café 🎉 مرحبا 日本 \x00", "<s> a\n\tb"])
def test_tiny_tokenizer_encodes_any_text(text: str, prepends_bos: bool) -> None:
    tokenizer = tiny_tokenizer(prepends_bos)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (ids[:1] == [tokenizer.bos_token_id]) == prepends_bos
    assert tokenizer.convert_tokens_to_ids(["<bos>", "<eos>", "<pad>"]) == [0, 1, 2]
    assert len(tokenizer) == 320


def test_bridge_uses_the_tiny_tokenizer() -> None:
    assert bridge("llama").to_tokens(PROMPT).tolist() == inputs("llama").tolist()

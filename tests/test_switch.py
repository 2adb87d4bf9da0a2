"""The attention switch of every family and back end against a literal computation, and planted heads whose answer is known."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.metrics.head_space import head_factor
from sinklens.metrics.switch import CARRIERS
from sinklens.models.layer import LayerAttention, LayerWeights
from sinklens.models.sinks import sink_rule
from sinklens.models.smollm2 import packaged_weights
from sinklens.models.tokens import TokenBatch
from sinklens.results.switch import LAYER_PARTS, SCALES
from tests.captured import BACKENDS, MODELS, RawLayer, load, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import attention as literal
from tests.reference import switch as reference

LENGTHS = (9, 1, 5)
PADDED = [
    (backend, name) for backend in BACKENDS for name in ("llama_3x5", "gpt2", "bert") if (backend, name) in MODELS
]
# Tiny random heads are rarely near zero: wide limits, so that every branch is taken somewhere.
LIMITS = sl.SwitchThresholds(median=0.9, values=0.7, soft=0.3, cancellation=0.6, short_values=0.8)


def documents(name: str, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    ids = inputs(name)[0].tolist()
    return [ids[start : start + length] for start, length in enumerate(lengths)]


def measured(model: Any, texts: Any, **arguments: Any) -> sl.AttentionSwitch:
    settings: dict[str, Any] = {"context_length": 32, "min_length": 1, "progress": False, "thresholds": LIMITS}
    return sl.attention_switch(model, texts, **settings | arguments)


@functools.cache
def raw(backend: str, name: str, document: tuple[int, ...]) -> dict[int, RawLayer]:
    return raw_layers(load(backend, name), name, torch.tensor([document]))


def literal_figures(backend: str, name: str, text: list[int], sinks: list[int]) -> list[list[dict[str, float]]]:
    family = FAMILIES[name]
    found = []
    for layer in family.attention_layers:
        one = raw(backend, name, tuple(text))[layer]
        ungated = literal.projected_values(one.value, one.W_O, 1)[0, :, 0]
        learned = bool((one.pattern.sum(-1) < 0.999).any())
        found.append(
            reference.document_figures(
                one.pattern[0], one.projected[0], ungated, one.visible[0], sinks, dataclasses.asdict(LIMITS), learned,
                one.gate is not None,
            )
        )  # fmt: skip
    return found


def assert_equals_literal(
    result: sl.AttentionSwitch, backend: str, name: str, texts: list[list[int]], sinks: list[int]
) -> None:
    for place, text in enumerate(texts):
        if len(text) == 1:
            assert all(result.documents(quantity)[..., place].isnan().all() for quantity in result.quantities)
            continue
        expected = literal_figures(backend, name, text, sinks)
        for row, heads in enumerate(expected):
            for quantity in heads[0]:
                numbers = torch.tensor([head[quantity] for head in heads], dtype=torch.float64)
                got = result.documents(quantity)[row, :, place]
                tolerance = 1e-4 if quantity == "hull_distance" else 2e-5
                said = f"{quantity} of layer row {row}: "
                torch.testing.assert_close(
                    got,
                    numbers,
                    rtol=tolerance,
                    atol=tolerance,
                    equal_nan=True,
                    msg=lambda text, said=said: said + text,
                )


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_figures_equal_the_literal_computation(backend: str, name: str) -> None:
    texts = documents(name)
    result = measured(load(backend, name), texts)
    assert result.layers == FAMILIES[name].attention_layers
    assert_equals_literal(result, backend, name, texts, [0])


@pytest.mark.parametrize("name", ["llama_3x5", "gpt_oss", "bert", "qwen3_next"])
def test_several_sinks(name: str) -> None:
    if ("bridge", name) not in MODELS:
        pytest.skip("this TransformerLens has no such family")
    texts = documents(name, (9, 6))
    assert_equals_literal(measured(load("bridge", name), texts, sink=[0, 3]), "bridge", name, texts, [0, 3])


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_parts_add_up(backend: str, name: str) -> None:
    result = measured(load(backend, name), documents(name, (9, 6)))
    for scale in SCALES:
        carried = sum(result.documents(f"hard_{scale}_{carrier}") for carrier in CARRIERS)
        torch.testing.assert_close(carried, result.documents(f"hard_{scale}"))
        table: Any = result.carriers(scale, by="head")
        sums = table.groupby(["layer", "head"])["share"].sum(min_count=1).to_numpy()
        hard = result.mean(f"hard_{scale}").flatten().numpy()
        assert sums[hard > 0] == pytest.approx(1.0)
    whole = torch.stack([result.layer_documents(part) for part in LAYER_PARTS[:3]]).sum(0)
    torch.testing.assert_close(whole, torch.ones_like(whole), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("backend", "name"), [(b, n) for b in BACKENDS for n in ("llama_3x5", "gpt2", "bert") if (b, n) in MODELS]
)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_matter(backend: str, name: str, side: str) -> None:
    model, [text, other] = load(backend, name), documents(name, (9, 5))
    tokens, mask = torch.full((2, 9), 3), torch.zeros(2, 9, dtype=torch.long)
    tokens[0], mask[0] = torch.tensor(text), 1
    place = slice(4, 9) if side == "left" else slice(0, 5)
    tokens[1, place], mask[1, place] = torch.tensor(other), 1
    padded, alone = measured(model, tokens, attention_mask=mask), measured(model, [text, other], batch_size=1)
    for quantity in alone.quantities:
        torch.testing.assert_close(
            padded.documents(quantity), alone.documents(quantity), rtol=1e-5, atol=1e-5, equal_nan=True
        )


def test_halves_merge_to_the_whole_and_come_back_from_a_file(tmp_path: Path) -> None:
    model, texts = load("bridge", "llama"), documents("llama", (9, 6, 7, 5))
    whole = measured(model, texts, hull_documents=None)
    halves = [measured(model, part, hull_documents=None) for part in (texts[:2], texts[2:])]
    merged = halves[0].merge(halves[1])
    loaded = sl.AttentionSwitch.load(merged.save(tmp_path / "switch.safetensors"))
    assert loaded.thresholds == LIMITS
    for quantity in whole.quantities:
        torch.testing.assert_close(loaded.documents(quantity), whole.documents(quantity), rtol=1e-5, atol=1e-6)
    pd.testing.assert_frame_equal(loaded.carriers(by="layer"), merged.carriers(by="layer"))
    with pytest.raises(sl.InputError, match="conventions"):
        halves[0].merge(measured(model, texts[2:], thresholds=sl.SwitchThresholds()))


def test_exclusion_tests_are_made_on_the_documents_asked_for() -> None:
    model, texts = load("bridge", "llama"), documents("llama", (9, 6, 7))
    sampled = measured(model, texts, hull_documents=2, batch_size=1)
    known = ~sampled.documents("hull_distance").isnan()
    assert known[0, 0].tolist() == [True, True, False]
    assert (sampled.n_hull_documents, sampled.provenance.conventions["hull_documents"]) == (2, 2)
    assert measured(model, texts, hull_documents=0).n_hull_documents == 0
    assert not sampled.documents("hard_values").isnan().any()


# Planted heads: one layer, one document; what switches them off is known.


def planted(
    pattern: Tensor, value: Tensor, gate: Tensor | None = None, learned: bool = False, **settings: Any
) -> sl.AttentionSwitch:
    """The result of one layer with ``pattern`` [head query key] and ``value`` [key head d_head], each head with W_O = 1."""
    n_heads, length, _ = pattern.shape
    d_head = value.shape[-1]
    W_O = torch.eye(n_heads * d_head).reshape(n_heads, d_head, -1)
    z = torch.einsum("hqk,khd->qhd", pattern, value) * (1 if gate is None else gate)
    weights = LayerWeights(W_O, None, head_factor(W_O), True, None, learned)
    mask, tokens = torch.ones(1, length, dtype=torch.bool), torch.zeros(1, length, dtype=torch.long)
    view = LayerAttention(
        0, 0, pattern[None], value[None], z[None], None if gate is None else gate[None], weights, mask, tokens,
        sink_rule("first"),
    )  # fmt: skip
    analyzer = sl.SwitchAnalyzer(**settings)
    analyzer.start(sl.Setup((0,), n_heads, "planted"))
    analyzer.begin(TokenBatch(tokens, mask, (0,)))
    analyzer.update(view)
    return analyzer.result(sl.Provenance("planted", n_documents=1, n_sequences=1))


def figure(result: sl.AttentionSwitch, name: str, head: int = 0) -> float:
    return result.documents(name)[0, head, 0].item()


def on(key: int, length: int = 5) -> Tensor:
    return torch.eye(length)[key]


def values_of(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows).unsqueeze(1)


APART = values_of((0.0, 0.0), (2.0, 1.0), (1.0, 2.0), (2.0, 2.0), (1.0, 1.0))  # in a quadrant, the sink's is 0


def test_a_sink_of_value_zero_carries_the_switch() -> None:
    pattern = torch.stack([on(0), on(0), on(1), on(0), on(3)]).unsqueeze(0)
    result = planted(pattern, APART)
    assert figure(result, "hard_values") == figure(result, "hard_values_sink") == 0.5
    assert figure(result, "hard_values_short_sink") == 0.5
    assert figure(result, "hard_without_sink") == 0.0
    assert (figure(result, "zero_excluded"), figure(result, "full_rank"), figure(result, "independent")) == (1, 1, 0)
    # The nearest point of the hull is that of the segment from (2, 1) to (1, 2) or the last value itself, (1, 1).
    assert figure(result, "hull_distance") == pytest.approx(math.sqrt(2) / ((2 * 5**0.5 + 8**0.5 + 2**0.5) / 4))
    shares: Any = result.carriers()
    assert shares.set_index("carrier")["share"].to_dict() == {name: float(name == "sink") for name in CARRIERS}


def test_a_sink_that_cancels_the_others_carries_the_switch_without_a_short_value() -> None:
    value = values_of((-1.0, 0.0), (2.0, 0.0), (2.0, 0.0), (2.0, 0.0), (2.0, 0.0))
    row = 2 / 3 * on(0) + 1 / 3 * on(1)
    result = planted(torch.stack([on(0), on(1), row, row, on(1)]).unsqueeze(0), value)
    assert figure(result, "hard_values_sink") == 0.5
    assert figure(result, "hard_values_short_sink") == 0.0


def test_values_that_cancel() -> None:
    value = values_of((5.0, 5.0), (1.0, 0.0), (-1.0, 0.0), (1.0, 0.1), (0.0, 1.0))
    half = 0.5 * on(1) + 0.5 * on(2)
    result = planted(torch.stack([on(0), on(1), half, half, on(4)]).unsqueeze(0), value)
    assert figure(result, "hard_values") == figure(result, "hard_values_cancellation") == 0.5
    assert figure(result, "zero_excluded") == figure(result, "hull_distance") == 0.0
    assert figure(result, "hard_excluded") == 0.0


def test_short_values_of_other_tokens() -> None:
    value = values_of((5.0, 5.0), (0.01, 0.0), (0.0, 0.01), (1.0, 1.0), (1.0, 1.0))
    short = 0.4 * on(1) + 0.4 * on(2) + 0.2 * on(0)
    result = planted(torch.stack([on(0), on(0), on(3), on(3), 0.5 * on(1) + 0.5 * on(2)]).unsqueeze(0), value)
    assert figure(result, "hard_values") == figure(result, "hard_values_short_values") == 0.25
    mixed = planted(torch.stack([on(0), on(0), on(3), on(3), short]).unsqueeze(0), values_of(
        (-0.1, 0.2), (0.1, -0.1), (0.1, -0.1), (1.0, 1.0), (1.0, 1.0)
    ))  # fmt: skip
    assert figure(mixed, "hard_values") == figure(mixed, "hard_values_mixed") == 0.25


def test_a_diagonal_head_is_soft_switched_and_acts_like_an_mlp() -> None:
    result = planted(torch.eye(5).unsqueeze(0), APART)
    assert figure(result, "soft_attention") == figure(result, "soft_contribution") == 1.0
    assert figure(result, "communication") == figure(result, "layer_others") == figure(result, "hard_values") == 0.0
    assert figure(result, "layer_signed_self") == pytest.approx(1.0)


def test_a_diagonal_head_with_a_short_value_carries_its_switch_itself() -> None:
    value = values_of((1.0, 1.0), (0.01, 0.0), (1.0, 2.0), (2.0, 2.0), (1.0, 1.0))
    result = planted(torch.eye(5).unsqueeze(0), value)
    assert figure(result, "hard_values") == figure(result, "hard_values_self") == 0.25


def test_a_closed_gate_carries_the_switch() -> None:
    gate = torch.ones(5, 1, 2)
    gate[2:4] = 0.0
    result = planted(torch.stack([on(0), on(1), on(1), on(0), on(3)]).unsqueeze(0), APART, gate)
    assert figure(result, "hard_values") == 0.5
    # Without its gate, query 2 has an output; query 3 reads the sink, whose value is 0, and stays off.
    assert figure(result, "hard_values_gate") == figure(result, "hard_values_sink") == 0.25
    assert figure(result, "zero_excluded") == 1.0
    assert math.isnan(figure(result, "hard_excluded"))


def test_a_learned_sink_carries_the_switch() -> None:
    pattern = torch.stack([on(0), on(1), 0.01 * on(1), on(3), 0.02 * on(4)]).unsqueeze(0)
    result = planted(pattern, APART, learned=True)
    assert figure(result, "hard_values") == figure(result, "hard_values_learned_sink") == 0.5
    assert figure(result, "hard_without_sink") == 0.0


def test_a_head_that_is_mostly_off_shows_on_the_scale_of_its_values_only() -> None:
    value = APART.clone()
    value[0] = 0.01
    result = planted(torch.stack([on(0), on(0), on(0), on(0), on(3)]).unsqueeze(0), value)
    assert figure(result, "hard_median") == 0.0
    assert figure(result, "hard_values") == 0.75


def test_outputs_of_exactly_zero_are_switched_off_on_every_scale() -> None:
    result = planted(torch.stack([on(0)] * 5).unsqueeze(0), APART)
    assert figure(result, "hard_median") == figure(result, "hard_values") == 1.0
    assert math.isnan(figure(result, "communication"))
    assert math.isnan(figure(result, "hard_without_sink"))
    dead = planted(torch.eye(5).unsqueeze(0), torch.zeros(5, 1, 2))
    assert figure(dead, "hard_values_self") == 1.0
    assert (figure(dead, "zero_excluded"), figure(dead, "hull_distance"), figure(dead, "value_rank")) == (0, 0, 0)


def test_duplicate_values_have_rank_one_and_keep_zero_out() -> None:
    result = planted(torch.eye(5).unsqueeze(0), torch.ones(5, 1, 3))
    assert (figure(result, "value_rank"), figure(result, "full_rank"), figure(result, "zero_excluded")) == (1, 0, 1)
    assert figure(result, "hull_distance") == pytest.approx(1.0)


def test_fewer_values_than_dimensions_exclude_zero_whatever_they_are() -> None:
    result = planted(torch.eye(5).unsqueeze(0), torch.eye(5, 6).unsqueeze(1))
    assert [figure(result, name) for name in ("value_rank", "full_rank", "independent", "zero_excluded")] == [
        4,
        1,
        1,
        1,
    ]
    assert figure(result, "hull_distance") == pytest.approx(0.5)  # of four unit vectors at right angles: 1/√4


def test_values_that_are_nan_are_an_error() -> None:
    value = APART.clone()
    value[2] = float("nan")
    with pytest.raises(sl.InputError, match="values must be finite"):
        planted(torch.eye(5).unsqueeze(0), value)


def test_where_zero_is_excluded_no_mixture_of_the_others_is_shorter_than_the_hull() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(6, 3, 8, generator=generator) + 1
    pattern = torch.rand(3, 6, 6, generator=generator).tril()
    result = planted(pattern / pattern.sum(-1, keepdim=True), value, thresholds=sl.SwitchThresholds(values=0.3))
    excluded = result.documents("hard_excluded")[0, :, 0] == 1
    assert excluded.any()
    assert (result.documents("hard_without_sink")[0, excluded, 0] == 0).all()


@pytest.mark.parametrize("texts", [[[5]], [[5], [6]]])
def test_texts_of_one_token_are_an_error(texts: Any) -> None:
    with pytest.raises(sl.InputError, match="was found in none of"):
        measured(load("bridge", "llama"), texts)


@pytest.mark.parametrize("name", ["median", "values", "soft", "sink", "self_mass", "learned_sink", "cancellation"])
@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
def test_thresholds_are_shares(name: str, value: float) -> None:
    with pytest.raises(sl.InputError, match=name):
        sl.SwitchThresholds(**{name: value})


def test_masses_carry_alone() -> None:
    with pytest.raises(sl.InputError, match=r"sink is 0.4; expected a number from 0.5 to 1"):
        sl.SwitchThresholds(sink=0.4)


@pytest.mark.parametrize("number", [-1, 1.5, True])
def test_a_number_of_hull_documents_is_a_count(number: Any) -> None:
    with pytest.raises((sl.InputError, Exception), match="hull_documents"):
        sl.SwitchAnalyzer(hull_documents=number)


def test_the_model_is_left_as_it_was() -> None:
    from tests.captured import n_hooks

    model = load("bridge", "llama")
    before = n_hooks(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    measured(model, documents("llama"))
    assert n_hooks(model) == before[0]
    assert all(torch.equal(tensor, before[1][name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
@pytest.mark.skipif(packaged_weights() is None, reason="the package with SmolLM2-135M is not installed")
@pytest.mark.parametrize("layer", [4, 18])
def test_a_real_model_equals_the_literal_computation(layer: int) -> None:
    """Layer 18 has heads that rest on the sink, layer 4 heads that rest on other short values."""
    model = sl.load_model("smollm2-135m")
    tokens = torch.tensor([model.tokenizer.encode("<|im_start|>The lighthouse keeper counted the ships.")])
    result = sl.attention_switch(model, tokens, layers=[layer], progress=False)
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
    pattern, value = (cache[f"blocks.{layer}.attn.{hook}"].double() for hook in ("hook_pattern", "hook_v"))
    W_O, length = model.blocks[layer].attn.W_O.double(), tokens.shape[1]
    projected = literal.projected_values(value, W_O, length)[0]
    visible = literal.visible_keys(torch.ones(1, length, dtype=torch.bool))[0]
    limits = dataclasses.asdict(result.thresholds)
    heads = reference.document_figures(pattern[0], projected, projected[:, 0], visible, [0], limits, False, False)
    for quantity in heads[0]:
        expected = torch.tensor([head[quantity] for head in heads], dtype=torch.float64)
        # Vectors of which a part in a thousand is left have float32's digits of what was taken away.
        torch.testing.assert_close(result.documents(quantity)[0, :, 0], expected, rtol=2e-3, atol=1e-3, equal_nan=True)

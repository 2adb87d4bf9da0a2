"""The slow reference is right itself: its identities hold on real layers, and its minimum is a minimum."""

import math

import pytest
import torch
from torch import Tensor

from tests.families import FAMILIES, bridge, inputs
from tests.reference import attention as reference
from tests.test_families import BRIDGE_FAMILIES, attention_hooks, capture

CHOSEN = [
    name
    for name in ("gpt2", "llama", "llama_3x5", "falcon", "mistral", "gpt_oss", "qwen3_next", "bert")
    if name in BRIDGE_FAMILIES
]


def captured(name: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Pattern, projected values, z, W_O and the attention's output without b_O, of the last layer."""
    family, model = FAMILIES[name], bridge(name)
    layer = family.attention_layers[-1]
    output_hook = f"blocks.{layer}.attn.o.hook_out"
    seen = capture(model, inputs(name)[:, :9], [*attention_hooks(name, layer), output_hook])
    pattern, value, z, *gate = (seen[hook] for hook in attention_hooks(name, layer))
    attention = model.blocks[layer].attn
    opened = gate[0].sigmoid().reshape(z.shape) if family.gated else None
    projected = reference.projected_values(value, attention.W_O, pattern.shape[2], opened)
    output = seen[output_hook] - (attention.b_O if family.has_output_bias else 0)
    return pattern, projected, z, attention.W_O, output


@pytest.mark.parametrize("name", CHOSEN)
def test_outputs_are_those_of_the_model(name: str) -> None:
    pattern, projected, z, W_O, output = captured(name)
    outputs = reference.head_outputs(pattern, projected)
    torch.testing.assert_close(outputs, reference.head_outputs_from_z(z, W_O), atol=1e-5, rtol=0)
    torch.testing.assert_close(reference.layer_output(outputs), output.double(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", CHOSEN)
def test_contributions_sum_to_one_and_are_the_product_of_their_factors(name: str) -> None:
    pattern, projected, *_ = captured(name)
    one = torch.tensor(1.0, dtype=torch.float64)
    intra, inter = reference.intra(pattern, projected), reference.inter(pattern, projected)
    torch.testing.assert_close(intra.sum(dim=-1), one.expand(intra.shape[:-1]))
    torch.testing.assert_close(inter.sum(dim=(1, 3)), one.expand(inter.shape[0], inter.shape[2]))
    for within, whole in (("head", intra), ("layer", inter)):
        share = reference.output_normalized(pattern, projected, within)
        torch.testing.assert_close(share * reference.cosine(pattern, projected, within), whole)


@pytest.mark.parametrize("name", CHOSEN)
def test_alpha_star_is_where_the_mixture_is_shortest(name: str) -> None:
    pattern, projected, *_ = captured(name)
    outputs = reference.head_outputs(pattern, projected)
    for h in range(pattern.shape[1]):
        weights, vectors = pattern[0, h, -3], projected[0, h, -3]
        mixture = reference.non_sink_mixture(weights, vectors, sink=4)
        assert mixture is not None
        best = reference.alpha_star(vectors[4], mixture)
        least = reference.mixture_norm(best, vectors[4], mixture)
        for step in (-0.5, -1e-3, 1e-3, 0.5):
            assert reference.mixture_norm(best + step, vectors[4], mixture) > least
        assert reference.is_interior(vectors[4], mixture) == (0 < best < 1)
        rebuilt = reference.mixture_norm(float(weights[4]), vectors[4], mixture)
        if not FAMILIES[name].learned_sink:
            assert rebuilt == pytest.approx(float(outputs[0, h, -3].norm()), rel=1e-5)


def test_sink_rates_of_four_conventions_differ_on_a_hand_made_pattern() -> None:
    # Two samples of three tokens, one head: the mass on token 0 is (1), 0.5, 0.2 and (1), 0.1, 0.1.
    pattern = torch.zeros(2, 1, 3, 3)
    pattern[0, 0] = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.4, 0.4]])
    pattern[1, 0] = torch.tensor([[1.0, 0, 0], [0.1, 0.9, 0], [0.1, 0.1, 0.8]])
    visible = reference.visible_keys(torch.ones(2, 3, dtype=torch.bool))

    def rate(convention: str, own_query: bool) -> float:
        return float(reference.sink_rate(pattern, visible, [0, 0], convention, 0.3, own_query)[0])

    assert rate("per_sample", own_query=False) == 0.5
    assert rate("mean_first", own_query=False) == 0.0
    assert rate("per_query", own_query=False) == 0.25
    assert rate("mean_mass", own_query=False) == pytest.approx(0.9 / 4)
    assert rate("per_sample", own_query=True) == 1.0
    assert rate("mean_mass", own_query=True) == pytest.approx(2.9 / 6)
    mass = reference.sink_mass(pattern, visible, [0, 0])
    torch.testing.assert_close(mass, torch.tensor([[0.35], [0.1]], dtype=torch.float64))


def test_visible_keys_follow_padding_direction_and_window() -> None:
    real = torch.tensor([[False, True, True, True]])
    assert reference.keys_of(reference.visible_keys(real), 0, 3) == [1, 2, 3]
    assert reference.keys_of(reference.visible_keys(real), 0, 0) == []
    assert reference.keys_of(reference.visible_keys(real, window=2), 0, 3) == [2, 3]
    assert reference.keys_of(reference.visible_keys(real, causal=False), 0, 1) == [1, 2, 3]


def test_value_geometry_of_a_sink_that_opposes_the_others() -> None:
    vectors = torch.tensor([[-2.0, 0.0], [3.0, 4.0], [3.0, -4.0], [0.0, 0.0]], dtype=torch.float64)
    assert reference.value_drain(vectors, 0, [1, 2]) == pytest.approx(0.4)
    assert reference.alignment(vectors, 0, [1, 2]) == pytest.approx(-1.0)
    assert reference.mean_cosine(vectors, 0, [1, 2]) == pytest.approx(-0.6)
    assert math.isnan(reference.alignment(vectors, 3, [1, 2]))


def test_drift_with_and_without_the_sink_term() -> None:
    # The sink's vector is opposite to the others', so removing its term turns every output towards the axis.
    vectors = torch.tensor([[-4.0, 1.0], [1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    pattern = torch.tensor([[[[1.0, 0, 0], [0.5, 0.5, 0], [0.5, 0.25, 0.25]]]])
    projected = vectors.expand(1, 1, 3, 3, 2)
    axis = reference.cone_axis(vectors, [1, 2])
    torch.testing.assert_close(axis, torch.tensor([1.0, 0.0], dtype=torch.float64))
    whole = reference.head_outputs(pattern, projected)[0, 0]
    without = reference.outputs_without_sink(pattern, projected, [0])[0, 0]
    assert reference.drift(whole, axis, [1, 2]) == pytest.approx(-1.5 / math.hypot(1.5, 0.5))
    assert reference.drift(without, axis, [1, 2]) == pytest.approx(1.0)
    assert reference.mean_pairwise_cosine(whole, [0, 1]) == pytest.approx(
        (4 * 1.5 + 0.5) / (math.hypot(4, 1) * math.hypot(1.5, 0.5))
    )

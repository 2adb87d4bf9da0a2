"""The pure metrics against the slow float64 reference and against their own identities, on random tensors."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sinklens import metrics
from tests.reference import attention as reference
from tests.reference.profile import normalised_entropy


class Layer(NamedTuple):
    """One random layer: float32 tensors as the metrics take them, and the reference's explicit projected values."""

    pattern: Tensor
    value: Tensor
    z: Tensor
    W_O: Tensor
    gate: Tensor | None
    mask: Tensor
    visible: Tensor
    causal: bool
    window: int | None
    projected: Tensor

    @property
    def n_heads(self) -> int:
        return self.pattern.shape[1]

    @property
    def head_value(self) -> Tensor:
        return metrics.expand_kv_heads(self.value, self.n_heads)


def random_layer(
    seed: int = 0, n_kv_heads: int = 2, gated: bool = False, learned_sink: bool = False, window: int | None = None,
    causal: bool = True, padding: tuple[int, int] = (0, 0), length: int = 6, d_head: int = 3, d_model: int = 7,
) -> Layer:  # fmt: skip
    """Two sequences, four heads; ``padding`` on the left and on the right of the second one."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    n_heads = 4
    left, right = padding
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, :left] = mask[1, length - right :] = False
    visible = reference.visible_keys(mask, causal, window)
    scores = 2 * normal(2, n_heads, length, length)
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    null = normal(2, n_heads, length, 1) if learned_sink else torch.full((2, n_heads, length, 1), -torch.inf)
    weights = torch.cat([scores, null], -1).softmax(-1)[..., :-1]
    pattern = torch.where(visible.unsqueeze(1), weights, 0.0)
    value, W_O = normal(2, length, n_kv_heads, d_head), normal(n_heads, d_head, d_model)
    gate = normal(2, length, n_heads, d_head).sigmoid() if gated else None
    expanded = value.repeat_interleave(n_heads // n_kv_heads, 2)
    z = torch.einsum("bhqk,bkhd->bqhd", pattern.double(), expanded.double())
    z = (z if gate is None else z * gate).float()
    projected = reference.projected_values(value, W_O, length, gate)
    return Layer(pattern, value, z, W_O, gate, mask, visible, causal, window, projected)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"n_kv_heads": 4},
    "grouped": {"n_kv_heads": 2},
    "multi-query": {"n_kv_heads": 1},
    "gated": {"gated": True},
    "learned sink": {"learned_sink": True},
    "window": {"window": 3},
    "padded left": {"padding": (2, 0)},
    "padded right": {"padding": (0, 2)},
    "bidirectional": {"causal": False, "padding": (1, 1)},
    "all at once": {"gated": True, "learned_sink": True, "window": 4, "padding": (0, 1), "n_kv_heads": 1},
    "wide head": {"d_head": 9, "d_model": 5},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
layers = st.builds(
    random_layer,
    seed=st.integers(0, 10_000),
    n_kv_heads=st.sampled_from([1, 2, 4]),
    gated=st.booleans(),
    learned_sink=st.booleans(),
    window=st.sampled_from([None, 1, 2, 4]),
    causal=st.booleans(),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    length=st.integers(5, 6),
    d_head=st.integers(1, 4),
    d_model=st.integers(4, 6),
)


def close(actual: Tensor, expected: Tensor, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)


def real_rows(layer: Layer, tensor: Tensor) -> Tensor:
    """``[batch, head, query, ...]`` as the rows of real queries ``[row, ...]``; padding has no output to speak of."""
    return tensor[layer.mask.unsqueeze(1).expand(tensor.shape[:3])]


def found_metrics(layer: Layer) -> dict[str, Tensor]:
    output = metrics.layer_output(layer.z, layer.W_O)
    factor = metrics.head_factor(layer.W_O)
    if layer.gate is None:
        norms = metrics.projected_value_norms(layer.head_value, factor)
    else:
        norms = metrics.gated_value_norms(layer.head_value, layer.W_O, layer.gate)
    output_norm = metrics.to_head_space(layer.z, factor).norm(dim=-1).transpose(1, 2)
    return {
        "value_weighted": metrics.value_weighted(layer.pattern, norms),
        "output_normalized": metrics.output_normalized(layer.pattern, norms, output_norm),
        "intra": metrics.intra_contributions(layer.pattern, layer.value, layer.z, layer.W_O, layer.gate),
        "inter": metrics.inter_contributions(layer.pattern, layer.value, output, layer.W_O, layer.gate),
    }


@every_kind
@pytest.mark.parametrize("metric", ["value_weighted", "output_normalized", "intra", "inter"])
def test_importance_metrics_equal_the_reference(kind: str, metric: str) -> None:
    layer = random_layer(**KINDS[kind])
    expected = getattr(reference, metric)(layer.pattern, layer.projected)
    close(real_rows(layer, found_metrics(layer)[metric]), real_rows(layer, expected))


@given(layers)
@settings(max_examples=30, deadline=None)
def test_contributions_sum_to_one_and_are_the_product_of_their_factors(layer: Layer) -> None:
    found = found_metrics(layer)
    output = metrics.layer_output(layer.z, layer.W_O)
    factor = metrics.head_factor(layer.W_O)
    head_output = metrics.to_head_space(layer.z, factor)
    along = {
        "intra": metrics.intra_directions(layer.z, layer.W_O),
        "inter": metrics.inter_directions(output, layer.W_O),
    }
    close(real_rows(layer, along["intra"][1]), real_rows(layer, head_output.square().sum(-1).transpose(1, 2)))
    norms = metrics.value_weighted(torch.ones_like(layer.pattern), reference.value_norms(layer.projected).float())
    for name, (directions, squared) in along.items():
        products = metrics.inner_products(directions, layer.head_value, layer.gate)
        A, ratio, cosine = metrics.contribution_factors(layer.pattern, products, norms, squared.sqrt())
        rows = real_rows(layer, A * ratio * cosine)
        scale = real_rows(layer, found[name]).abs().amax(-1, keepdim=True).clamp(min=1)
        close(rows / scale, real_rows(layer, found[name]) / scale)
        assert real_rows(layer, cosine).abs().max() < 1 + 1e-4
        if layer.gate is None:
            close(real_rows(layer, norms), real_rows(layer, reference.value_norms(layer.projected)))
        total = real_rows(layer, found[name]) / scale
        if name == "intra":
            close(total.sum(-1, keepdim=True) * scale, torch.ones_like(scale), atol=1e-4 * float(scale.max()))
    inter = found["inter"].transpose(1, 2)[layer.mask]
    tolerance = 1e-5 * inter.abs().sum((1, 2)).clamp(min=1)
    assert ((inter.sum((1, 2)) - 1).abs() <= tolerance).all()


@every_kind
def test_sums_per_key_equal_the_summed_map(kind: str) -> None:
    layer = random_layer(**KINDS[kind])
    output, real = metrics.layer_output(layer.z, layer.W_O), layer.mask.unsqueeze(1)
    expected = {name: getattr(reference, name)(layer.pattern, layer.projected) for name in ("intra", "inter")}
    along = {
        "intra": metrics.intra_directions(layer.z, layer.W_O),
        "inter": metrics.inter_directions(output, layer.W_O),
    }
    for name, (directions, squared) in along.items():
        found = metrics.contributions_per_key(layer.pattern, layer.head_value, directions, squared * real, layer.gate)
        summed = torch.where(real.unsqueeze(-1), expected[name], 0.0).sum(-2)
        close(found, summed, rtol=1e-4, atol=1e-4)


def test_degenerate_rows_are_nan_in_maps_and_left_out_of_sums() -> None:
    layer = random_layer(n_kv_heads=4)
    z = layer.z.clone()
    z[0, 2, 1] = 0
    intra = metrics.intra_contributions(layer.pattern, layer.value, z, layer.W_O)
    dead = intra.isnan()
    assert dead[0, 1, 2].all()
    assert dead.sum() == 6
    directions, squared = metrics.intra_directions(z, layer.W_O)
    summed = metrics.contributions_per_key(layer.pattern, layer.head_value, directions, squared)
    close(summed, intra.nan_to_num(0.0).sum(-2), rtol=1e-4, atol=1e-4)
    nothing = metrics.inter_contributions(layer.pattern, layer.value, torch.zeros(2, 6, 7), layer.W_O)
    assert nothing.isnan().all()


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_contributions_do_not_depend_on_the_size_of_the_values(scale: float) -> None:
    layer = random_layer(n_kv_heads=4)
    whole = metrics.intra_contributions(layer.pattern, layer.value, layer.z, layer.W_O)
    scaled = metrics.intra_contributions(layer.pattern, layer.value * scale, layer.z * scale, layer.W_O)
    close(scaled, whole, rtol=1e-4)


@pytest.mark.parametrize(("d_head", "d_model", "rank"), [(3, 8, 3), (3, 8, 1), (8, 3, 3), (2, 4, 0)])
def test_the_head_factor_keeps_every_norm_and_angle(d_head: int, d_model: int, rank: int) -> None:
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(2, d_head, rank, generator=generator), torch.randn(2, rank, d_model, generator=generator)
    W_O = left @ right if rank < min(d_head, d_model) else torch.randn(2, d_head, d_model, generator=generator)
    factor = metrics.head_factor(W_O)
    assert factor.dtype == torch.float32
    close(factor @ factor.mT, W_O @ W_O.mT)
    assert metrics.head_factor(W_O.double()).dtype == torch.float64
    assert metrics.head_factor(W_O.half()).dtype == torch.float32


def test_key_value_heads_are_repeated_not_tiled() -> None:
    value = torch.randn(1, 3, 2, 4)
    expanded = metrics.expand_kv_heads(value, 6)
    for head in range(6):
        assert torch.equal(expanded[:, :, head], value[:, :, head // 3])


@every_kind
def test_visible_keys_equal_the_reference(kind: str) -> None:
    layer = random_layer(**KINDS[kind])
    assert torch.equal(metrics.visible_keys(layer.mask, layer.causal, layer.window), layer.visible)
    counts = metrics.visible_counts(layer.mask, layer.causal, layer.window)
    assert torch.equal(counts, layer.visible.sum(-1))


@every_kind
@pytest.mark.parametrize("sinks", [[[0], [2]], [[0, 3], [2, -1]], [[-1], [3]], [[1, 2, 4], [2, 3, -1]]])
def test_queries_after_a_sink_see_one_and_are_none(kind: str, sinks: list[list[int]]) -> None:
    layer = random_layer(**KINDS[kind])
    queries = metrics.queries_after(torch.tensor(sinks), layer.mask, layer.causal, layer.window)
    for b, chosen in enumerate(sinks):
        real = [s for s in chosen if s >= 0]
        expected = [i not in real and any(bool(layer.visible[b, i, s]) for s in real) for i in range(6)]
        assert queries[b].tolist() == expected


@every_kind
def test_received_attention_and_sink_mass_equal_the_reference(kind: str) -> None:
    layer = random_layer(**KINDS[kind])
    received = metrics.received_attention(layer.pattern, layer.visible)
    for key in range(6):
        expected = reference.received_attention(layer.pattern, layer.visible, key)
        close(received[..., key], expected.nan_to_num(0.0))
    first = layer.mask.int().argmax(-1)
    sink = first.unsqueeze(-1)
    queries = metrics.queries_after(sink, layer.mask, layer.causal, layer.window)
    mass = metrics.sink_mass(metrics.attention_on(layer.pattern, sink), queries)
    close(mass, reference.sink_mass(layer.pattern, layer.visible, first.tolist()))


@pytest.mark.parametrize("sinks", [[[0], [0]], [[0], [2]], [[0, 4], [2, -1]], [[-1], [-1]]])
def test_attention_on_sinks_is_gathered(sinks: list[list[int]]) -> None:
    layer = random_layer()
    found = metrics.attention_on(layer.pattern, torch.tensor(sinks))
    for b, row in enumerate(sinks):
        for s, position in enumerate(row):
            expected = layer.pattern[b, :, :, position] if position >= 0 else torch.zeros(4, 6)
            assert torch.equal(found[b, :, :, s], expected)


@pytest.mark.parametrize("convention", ["per_sample", "mean_first", "per_query", "mean_mass"])
@pytest.mark.parametrize("threshold", [0.25, 0.3])
def test_sink_rates_equal_the_reference(convention: Any, threshold: float) -> None:
    layer = random_layer(seed=13)  # equal lengths: the reference pools queries where sinklens averages documents
    expected = reference.sink_rate(layer.pattern, layer.visible, [0, 0], convention, threshold, own_query=True)
    received = metrics.received_attention(layer.pattern, layer.visible)[..., 0]
    per_query = layer.pattern[..., 0]
    found = metrics.sink_rate(received, threshold, convention, per_query, layer.mask)
    close(found, expected)
    assert 0 < float(found.mean()) < 1


def test_the_sink_rates_threshold_is_strict_and_its_conventions_are_checked() -> None:
    assert metrics.sink_rate(torch.tensor([[0.25, 0.26]]), 0.25).tolist() == [0.0, 1.0]
    assert metrics.sink_rate(torch.tensor([[0.25, 0.26]]), 0.25, "mean_first").tolist() == [0.0, 1.0]
    with pytest.raises(ValueError, match="'per_query' needs per_query and queries"):
        metrics.sink_rate(torch.ones(1, 1), convention="per_query")


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.6]))
@settings(max_examples=15, deadline=None)
def test_detected_sinks(seed: int, threshold: float) -> None:
    layer = random_layer(seed, padding=(seed % 3, 0))
    found = metrics.detect_sinks(layer.pattern, layer.visible, layer.mask, threshold)
    for b in range(2):
        expected = []
        for k in range(6):
            readers = [i for i in range(6) if i != k and layer.visible[b, i, k]]
            means = [sum(float(layer.pattern[b, h, i, k]) for i in readers) / max(1, len(readers)) for h in range(4)]
            if len(readers) >= 2 and max(means) > threshold:
                expected.append(k)
        assert [k for k in found[b].tolist() if k >= 0] == expected
        assert found[b].tolist() == expected + [-1] * (found.shape[1] - len(expected))


@every_kind
def test_row_entropy_equals_the_literal_one_and_stays_between_0_and_1(kind: str) -> None:
    layer = random_layer(**KINDS[kind])
    counts = metrics.visible_counts(layer.mask, layer.causal, layer.window)
    total = layer.pattern.sum(-1)
    names: tuple[Any, Any] = ("collision", "shannon")
    found = {name: metrics.row_entropy(layer.pattern, counts, name, total) for name in names}
    for name, entropy in found.items():
        for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(6)).tolist():
            weights = [float(layer.pattern[b, h, i, j]) for j in reference.keys_of(layer.visible, b, i)]
            assert float(entropy[b, h, i]) == pytest.approx(normalised_entropy(weights, name), abs=2e-5)
        assert entropy.amin() >= 0
        assert entropy.amax() < 1 + 1e-5
        if "learned_sink" not in KINDS[kind]:
            close(metrics.row_entropy(layer.pattern, counts, name), entropy)
    assert (found["shannon"] >= found["collision"] - 1e-5).all()


def test_entropy_is_1_for_uniform_and_0_for_one_key_and_for_padding() -> None:
    pattern = torch.zeros(1, 1, 3, 4)
    pattern[0, 0, 0], pattern[0, 0, 1, 2] = 0.25, 1
    visible = torch.tensor([[4, 4, 0]])
    for kind in ("collision", "shannon"):
        close(metrics.row_entropy(pattern, visible, kind).flatten(), torch.tensor([1.0, 0.0, 0.0]))
        half = metrics.row_entropy(pattern * 0.1, visible, kind, pattern.sum(-1) * 0.1)
        close(half.flatten(), torch.tensor([1.0, 0.0, 0.0]))


def test_the_kind_of_a_pattern_is_the_first_that_exceeds_its_threshold() -> None:
    scores = torch.tensor(
        [
            [0.4, 0.9, 0.9, 0.9],
            [0.3, 0.9, 0.9, 0.9],
            [0.3, 0.3, 0.9, 0.9],
            [0.3, 0.3, 0.3, 0.9],
            [0.3, 0.3, 0.3, 0.7],
            [torch.nan, 0.9, 0.0, 0.0],
        ]
    )
    kinds = metrics.pattern_kind(scores[:, 0], scores[:, 1], scores[:, 2], scores[:, 3])
    assert [metrics.KINDS[kind] for kind in kinds] == ["sink", "diagonal", "previous", "dense", "mixed", "diagonal"]


def test_self_and_previous_attention_are_the_two_diagonals() -> None:
    pattern = random_layer().pattern
    for i in range(6):
        assert torch.equal(metrics.self_attention(pattern)[..., i], pattern[..., i, i])
        expected = pattern[..., i, i - 1] if i else torch.zeros(2, 4)
        assert torch.equal(metrics.previous_attention(pattern)[..., i], expected)


def is_sink_of(sinks: list[list[int]]) -> Tensor:
    return metrics.sink_mask(torch.tensor(sinks), 6)


@pytest.mark.parametrize("kind", ["plain", "grouped", "padded left", "padded right", "wide head"])
@pytest.mark.parametrize("sinks", [[[0], [2]], [[0, 3], [2, 3]]])
def test_value_geometry_equals_the_reference(kind: str, sinks: list[list[int]]) -> None:
    layer = random_layer(**KINDS[kind])
    values = metrics.to_head_space(layer.head_value, metrics.head_factor(layer.W_O))
    norms, is_sink = values.norm(dim=-1).transpose(1, 2), is_sink_of(sinks)
    found = {
        "drain": metrics.value_drain(norms, is_sink, layer.mask),
        "alignment": metrics.sink_alignment(values, is_sink, layer.mask),
        "cosine": metrics.mean_sink_cosine(values, is_sink, layer.mask),
    }
    for b, h in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        vectors = layer.projected[b, h, 0]
        others = [j for j in range(6) if layer.mask[b, j] and j not in sinks[b]]
        sink_vector = reference.mean_vector(vectors, sinks[b])
        if len(sinks[b]) == 1:
            assert float(found["drain"][b, h]) == pytest.approx(
                reference.value_drain(vectors, sinks[b][0], others), rel=1e-5
            )
            assert float(found["alignment"][b, h]) == pytest.approx(
                reference.alignment(vectors, sinks[b][0], others), abs=1e-5
            )
            assert float(found["cosine"][b, h]) == pytest.approx(
                reference.mean_cosine(vectors, sinks[b][0], others), abs=1e-5
            )
        sink_norm = sum(float(vectors[s].norm()) for s in sinks[b]) / len(sinks[b])
        other_norm = sum(float(vectors[j].norm()) for j in others) / len(others)
        assert float(found["drain"][b, h]) == pytest.approx(sink_norm / other_norm, rel=1e-5)
        expected = reference.cosine_between(sink_vector, reference.mean_vector(vectors, others))
        assert float(found["alignment"][b, h]) == pytest.approx(expected, abs=1e-5)


class Split(NamedTuple):
    """One row per (batch, head, query): what split_output gave and the reference's vectors."""

    mixture: metrics.Mixture
    mass: Tensor
    output_norm: Tensor


def split(layer: Layer, sink: int, known_value: bool) -> Split:
    factor = metrics.head_factor(layer.W_O)
    output, values = metrics.to_head_space(layer.z, factor), metrics.to_head_space(layer.head_value, factor)
    mass = layer.pattern[..., sink]
    sink_value = values[:, sink : sink + 1]
    term = mass.transpose(1, 2).unsqueeze(-1) * sink_value
    mixture = metrics.split_output(output, term, mass, sink_value if known_value else None)
    return Split(mixture, mass, output.norm(dim=-1).transpose(1, 2))


@given(st.integers(0, 10_000), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_suppression_laws(seed: int, known_value: bool, learned_sink: bool) -> None:
    layer = random_layer(seed, n_kv_heads=4, learned_sink=learned_sink, d_head=3)
    mixture, mass, output_norm = split(layer, 0, known_value)
    products = mixture.sink_squared, mixture.inner, mixture.other_squared
    best, interior = metrics.alpha_star(*products), metrics.is_interior(*products)
    # N at the actual mass is the output's norm, where the rest of the row is on other keys.
    at_mass = torch.stack(
        [
            metrics.norm_curve(a.reshape(1), *(p.reshape(()) for p in row))
            for a, *row in zip(*(x.flatten() for x in (mass, *products)), strict=True)
        ]
    )
    defined = mixture.defined.flatten()
    scale = (mixture.sink_squared + mixture.other_squared).sqrt().flatten()[defined]
    assert ((at_mass[:, 0] - output_norm.flatten()).abs()[defined] <= 2e-4 * scale).all()
    # The least of the curve stands at alpha star, and inside exactly where the condition says so.
    kept = mixture.defined & ~best.isnan() & (best.abs() < 50)
    for step in (-0.5, -0.05, 0.05, 0.5):
        here, there = (squared_norm(best + s, *products) for s in (0.0, step))
        assert (here <= there * (1 + 1e-5))[kept].all()
    apart = kept & (best.abs() > 1e-4) & ((best - 1).abs() > 1e-4)
    assert torch.equal(interior[apart], ((best > 0) & (best < 1))[apart])


def squared_norm(alpha: Tensor, sink_squared: Tensor, inner: Tensor, other_squared: Tensor) -> Tensor:
    return (alpha**2 * sink_squared + 2 * alpha * (1 - alpha) * inner + (1 - alpha) ** 2 * other_squared).double()


@pytest.mark.parametrize("known_value", [True, False])
def test_suppression_equals_the_reference(known_value: bool) -> None:
    layer = random_layer(seed=5, n_kv_heads=4)
    mixture, _, output_norm = split(layer, 0, known_value)
    assert not mixture.defined[..., 0].any()  # the sink's own query attends to nothing else
    grid = torch.linspace(0, 1, 5)
    curves = metrics.norm_curve(grid, mixture.sink_squared, mixture.inner, mixture.other_squared)
    stars = metrics.alpha_star(mixture.sink_squared, mixture.inner, mixture.other_squared)
    for b, h, i in torch.cartesian_prod(torch.arange(2), torch.arange(4), torch.arange(1, 6)).tolist():
        weights, vectors = layer.pattern[b, h, i], layer.projected[b, h, i]
        others = reference.non_sink_mixture(weights, vectors, 0)
        assert others is not None
        expected = [reference.mixture_norm(float(alpha), vectors[0], others) for alpha in grid]
        assert curves[b, h, i].tolist() == pytest.approx(expected, rel=1e-4)
        assert float(stars[b, h, i]) == pytest.approx(reference.alpha_star(vectors[0], others), rel=1e-3, abs=1e-4)
        suppression = float(output_norm[b, h, i] / mixture.other_squared[b, h, i].sqrt())
        assert suppression == pytest.approx(reference.suppression(weights, vectors, 0), rel=1e-4)


def test_a_row_with_all_attention_on_the_sink_has_no_mixture() -> None:
    ones = torch.ones(1, 1, 1, 2)
    for mass in (1.0, 1 - 1e-6):
        mixture = metrics.split_output(ones, ones * mass, torch.tensor([[[mass]]]), ones)
        assert not mixture.defined.any()
        assert all(torch.equal(products, torch.zeros(1, 1, 1)) for products in mixture[:3])
    none = metrics.split_output(ones, ones * 0, torch.zeros(1, 1, 1))
    assert not none.defined.any()
    assert metrics.alpha_star(torch.tensor(1.0), torch.tensor(1.0), torch.tensor(1.0)).isnan()


pairs = st.lists(st.tuples(*[st.floats(0.01, 1.0)] * 2, st.floats(-1.0, 1.0)), min_size=4, max_size=12)


@given(pairs)
@settings(max_examples=50, deadline=None)
def test_shares_of_the_drivers_sum_to_one(rows: list[tuple[float, float, float]]) -> None:
    attention, ratio, direction = torch.tensor(rows).T
    drivers = metrics.contribution_drivers(attention, ratio, direction)
    usable = [(a, r, abs(d)) for a, r, d in rows if abs(torch.tensor(d).item()) > 0]
    assert drivers.n_pairs == len(usable)
    logs = torch.tensor(usable, dtype=torch.float32).double().log() if usable else torch.zeros(0, 3)
    if len(usable) >= 3 and float(logs.sum(1).var(correction=0)) > 1e-6:
        assert float(drivers.share.sum()) == pytest.approx(1, abs=1e-3)
        covariance = ((logs - logs.mean(0)) * (logs.sum(1) - logs.sum(1).mean()).unsqueeze(1)).mean(0)
        close(drivers.share, covariance / logs.sum(1).var(correction=0), rtol=1e-3, atol=1e-3)
    known = drivers.spearman[~drivers.spearman.isnan()]
    assert (known.abs() <= 1 + 1e-6).all()


def test_rank_correlation_of_the_drivers_equals_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    generator = torch.Generator().manual_seed(0)
    factors = torch.rand(3, 40, generator=generator).mul(8).ceil() / 8  # with ties
    drivers = metrics.contribution_drivers(*factors)
    for factor, correlation in zip(factors, drivers.spearman, strict=True):
        expected = stats.spearmanr(factor.numpy(), factors.double().log().sum(0).numpy()).statistic
        assert float(correlation) == pytest.approx(expected, abs=1e-6)
    assert all(value.isnan().all() for value in metrics.contribution_drivers(*factors[:, :2])[:2])


@every_kind
@pytest.mark.parametrize("tail", [1, 3])
def test_every_counted_pair_is_in_exactly_one_group(kind: str, tail: int) -> None:
    layer = random_layer(**KINDS[kind])
    sinks = [[0, 3], [2, -1]]
    queries = metrics.queries_after(torch.tensor(sinks), layer.mask, layer.causal, layer.window)
    groups = metrics.key_groups(torch.tensor(sinks), layer.visible, queries, tail)
    assert torch.equal(groups.sum(0), (layer.visible & queries.unsqueeze(-1)).long())
    for b, i, j in torch.cartesian_prod(torch.arange(2), torch.arange(6), torch.arange(6)).tolist():
        if layer.visible[b, i, j] and queries[b, i]:
            expected = 0 if j in sinks[b] else 1 if abs(i - j) < tail else 2
            assert groups[:, b, i, j].int().argmax() == expected


@pytest.mark.parametrize("kind", ["plain", "padded left", "window"])
def test_drift_equals_the_reference(kind: str) -> None:
    layer = random_layer(**KINDS[kind])
    first = layer.mask.int().argmax(-1)
    sink = first.unsqueeze(-1)
    factor = metrics.head_factor(layer.W_O)
    output, values = metrics.to_head_space(layer.z, factor), metrics.to_head_space(layer.head_value, factor)
    queries = metrics.queries_after(sink, layer.mask, layer.causal, layer.window)
    cone = metrics.cone_cosine(output, values, layer.mask & ~metrics.sink_mask(sink, 6))
    pairwise = metrics.mean_pairwise_cosine(output, queries)
    outputs = reference.head_outputs(layer.pattern, layer.projected)
    for b, h in torch.cartesian_prod(torch.arange(2), torch.arange(4)).tolist():
        tokens = [j for j in range(6) if layer.mask[b, j] and j != first[b]]
        axis = reference.cone_axis(layer.projected[b, h, 0], tokens)
        counted = [i for i in range(6) if queries[b, i]]
        assert float(cone[b, h][queries[b]].mean()) == pytest.approx(
            reference.drift(outputs[b, h], axis, counted), abs=1e-5
        )
        expected = reference.mean_pairwise_cosine(outputs[b, h], counted)
        assert float(pairwise[b, h]) == pytest.approx(expected, abs=1e-5)


def test_mean_pairwise_cosine_leaves_out_what_has_no_direction() -> None:
    output = torch.tensor([[[[1.0, 0.0]], [[0.0, 0.0]], [[0.0, 3.0]]]])
    assert metrics.mean_pairwise_cosine(output, torch.ones(1, 3, dtype=torch.bool)).item() == 0
    assert metrics.mean_pairwise_cosine(output[:, :2], torch.ones(1, 2, dtype=torch.bool)).isnan()


NOT_FINITE: dict[str, Callable[[Tensor], Tensor]] = {
    "cosine": lambda zero: metrics.cosine(zero, torch.ones(3)),
    "alignment": lambda zero: metrics.sink_alignment(
        zero.reshape(1, 1, 1, 3).repeat(1, 2, 1, 1), torch.tensor([[True, False]]), torch.ones(1, 2) > 0
    ),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_a_vector_of_norm_0_has_no_direction(name: str) -> None:
    assert NOT_FINITE[name](torch.zeros(3)).isnan().all()
    assert math.isnan(reference.cosine_between(torch.zeros(3), torch.ones(3)))

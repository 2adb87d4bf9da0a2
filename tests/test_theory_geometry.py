"""Half-spaces, separability, joint feasibility and rank: each answer is checked by plugging its proof in."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sinklens import theory
from sinklens.errors import ConvergenceError, InputError
from sinklens.theory import feasibility as feasibility_module
from sinklens.theory import pattern_feasibility, score_pattern
from tests.reference import theory as reference


def draw(n_tokens: int, d_model: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_tokens, d_model, generator=generator, dtype=torch.float64) + shift


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([0.0, 0.7, 3.0]))
def test_the_nearest_point_of_a_hull_proves_itself(n_points: int, d_model: int, seed: int, shift: float) -> None:
    points = draw(n_points, d_model, seed, shift)
    nearest = theory.nearest_in_hull(points)
    assert nearest.weights.min() >= 0
    assert nearest.weights.sum().item() == pytest.approx(1.0)
    assert torch.allclose(nearest.weights @ points, nearest.point)
    longest = points.norm(dim=1).max().item()
    if nearest.distance == 0:
        assert nearest.point.norm().item() <= 1e-9 * longest
    else:
        # Optimal exactly where every point lies beyond the plane through the nearest one.
        assert (points @ nearest.direction).min().item() >= nearest.distance - 1e-7 * longest


def test_distances_that_are_known_by_hand() -> None:
    # A simplex: the nearest point of e_1 ... e_n is their mean, 1/√n away.
    for n in (1, 2, 9):
        assert theory.nearest_in_hull(torch.eye(n)).distance == pytest.approx(1 / math.sqrt(n))
    # The foot of the perpendicular lies outside the segment, so a corner is nearest.
    corner = theory.nearest_in_hull(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
    assert corner.weights.tolist() == pytest.approx([1.0, 0.0])
    ring = torch.tensor([[math.cos(a), math.sin(a)] for a in (0.0, 2.1, 4.2)])
    assert theory.nearest_in_hull(ring).distance == 0.0
    assert theory.nearest_in_hull(ring).direction.isnan().all()
    assert theory.nearest_in_hull(torch.zeros(3, 2)).distance == 0.0


def test_the_half_space_margin_is_that_of_the_narrowest_cone() -> None:
    angle = 0.4
    fan = torch.tensor([[math.cos(t), math.sin(t)] for t in (-angle, 0.1, angle)], dtype=torch.float64)
    scaled = fan * torch.tensor([[1.0], [50.0], [0.01]], dtype=torch.float64)
    found = theory.half_space_margin(scaled)
    assert found.distance == pytest.approx(math.cos(angle))
    assert found.direction.tolist() == pytest.approx([1.0, 0.0])
    assert theory.half_space_margin(torch.cat([scaled, -scaled[:1]])).distance == 0.0


def test_separability_is_the_distance_to_the_other_keys() -> None:
    X = torch.tensor([[0.0, 0.0], [0.0, 5.0], [4.0, -1.0], [4.0, 1.0]])
    assert theory.key_separability(X[[1, 2, 3]], sink=0).distance > 0
    outer = theory.key_separability(X[[0, 2, 3]], sink=0)
    assert outer.distance == pytest.approx(4.0)
    assert outer.direction.tolist() == pytest.approx([-1.0, 0.0])
    inside = torch.cat([X[1:].mean(0, keepdim=True), X[1:]])
    assert theory.key_separability(inside).distance == 0.0


@pytest.mark.parametrize("sink", [0, 2])
@pytest.mark.parametrize("causal", [True, False])
def test_a_rank_one_witness_makes_the_sink(sink: int, causal: bool) -> None:
    X = draw(8, 20, seed=3)
    witness = theory.rank_one_witness(X, sink, causal)
    assert witness.exists
    assert theory.numerical_rank(witness.W) == 1
    shortest = X[sink + 1 if causal else 0 :].norm(dim=1).min().item()
    margin = reference.least_margin(witness.W, X, score_pattern(8, "sink", causal, sink))
    assert margin >= witness.queries.distance * witness.keys.distance * shortest * (1 - 1e-9)
    assert margin > 0


def test_no_rank_one_witness_where_queries_surround_the_origin() -> None:
    X = torch.tensor([[0.0, 9.0], [1.0, 0.0], [-1.0, 0.1], [-1.0, -1.0]])
    witness = theory.rank_one_witness(X)
    assert not witness.exists
    assert witness.W.isnan().all()
    # The rank-one witness is sufficient only: independent queries can each have their own direction.
    lifted = torch.cat([X, torch.eye(4)], 1)
    assert pattern_feasibility(lifted, score_pattern(4, "sink")).feasible


def test_the_sinks_own_query_counts_only_where_it_sees_other_keys() -> None:
    X = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-1.0, -0.1]])
    assert theory.rank_one_witness(X, causal=True).exists
    assert not theory.rank_one_witness(X, causal=False).exists
    assert not theory.rank_one_witness(X[[1, 0, 1, 2]], sink=1, causal=True).exists
    assert theory.rank_one_witness(X[[1, 0]], sink=1, causal=True).exists


def test_an_anti_aligned_sink_has_its_own_witness() -> None:
    X = torch.nn.functional.normalize(draw(7, 5, seed=1), dim=1)
    X[1:] = torch.where((X[1:] @ X[0] > 0).unsqueeze(1), -X[1:], X[1:])
    assert theory.sink_cosines(X).opposed_share == 1.0
    margin = theory.anti_alignment_margin(X)
    assert margin > 0
    assert margin == pytest.approx(reference.least_margin(-torch.outer(X[0], X[0]), X, score_pattern(7, "sink")))
    X[3] = -X[3]
    assert theory.anti_alignment_margin(X) < 0


def check_certificate(X: torch.Tensor, kind: str, causal: bool) -> bool:
    """Plugs the proof in, either way; returns the verdict."""
    pattern = score_pattern(len(X), kind, causal)
    found = pattern_feasibility(X, pattern)
    assert found.multipliers.min() >= 0
    assert found.multipliers.sum().item() == pytest.approx(1.0)
    length = reference.combination(found.multipliers, X, pattern).norm().item()
    if found.feasible:
        assert found.W is not None
        assert found.W.norm().item() == pytest.approx(1.0)
        margin = reference.least_margin(found.W, X, pattern)
        assert margin > 0
        assert margin == pytest.approx(found.margin, rel=2e-3)
        assert margin <= length * (1 + 1e-6)
    else:
        assert (found.W, found.margin) == (None, 0.0)
        assert length <= 1e-8 * X.norm(dim=1).max().item() ** 2
    return found.feasible


@pytest.mark.parametrize(("n_tokens", "d_model"), [(6, 2), (8, 3), (10, 4), (12, 14)])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["sink", "diagonal", "previous"])
def test_feasibility_is_certified_either_way(kind: str, causal: bool, n_tokens: int, d_model: int) -> None:
    verdicts = {check_certificate(draw(n_tokens, d_model, seed, shift=0.5), kind, causal) for seed in range(3)}
    if d_model > n_tokens:
        assert verdicts == {True}


def test_both_verdicts_occur() -> None:
    outside, inside = torch.eye(4, dtype=torch.float64), draw(9, 3, seed=0)
    inside[0] = inside[1:].mean(0)
    assert check_certificate(outside, "sink", causal=True)
    assert not check_certificate(inside, "sink", causal=True)
    # Two positive numbers: the smaller asks for W < 0, the larger for W > 0.
    assert not check_certificate(torch.tensor([[1.0], [2.0]]), "diagonal", causal=False)
    twins = draw(5, 6, seed=2)
    twins[3] = twins[1]
    assert not check_certificate(twins, "diagonal", causal=True)
    zero = draw(5, 6, seed=2)
    zero[4] = 0.0
    assert not check_certificate(zero, "sink", causal=True)


def test_the_exact_method_decides_what_the_first_order_one_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasibility_module, "FIRST_ORDER_ITERATIONS", 1)
    verdicts = {check_certificate(draw(8, 3, seed), kind, True) for seed in range(4) for kind in ("sink", "diagonal")}
    assert verdicts == {True, False}
    monkeypatch.setattr(feasibility_module, "MOST_EXACT_ENTRIES", 10)
    with pytest.raises(ConvergenceError, match="was not decided; pass fewer tokens"):
        pattern_feasibility(draw(8, 3, 0), score_pattern(8, "sink"))


def test_feasibility_and_cost_are_two_sides_of_one_problem() -> None:
    X, pattern = draw(7, 9, seed=5), score_pattern(7, "diagonal")
    margin = pattern_feasibility(X, pattern).margin
    assert margin == pytest.approx(1 / theory.least_norm(X, pattern).cost, rel=2e-3)


def test_without_constraints_everything_is_feasible() -> None:
    found = pattern_feasibility(torch.ones(1, 3), score_pattern(1, "sink"))
    assert (found.feasible, found.margin) == (True, math.inf)


def test_numerical_rank_counts_what_stands_out_of_the_rounding() -> None:
    thin = draw(30, 4, seed=0) @ draw(4, 20, seed=1)
    for dtype in (torch.float64, torch.float32):
        assert theory.numerical_rank(thin.to(dtype)) == 4
        assert theory.numerical_rank(1e-20 * thin.to(dtype)) == 4
        assert theory.numerical_rank(1e20 * thin.to(dtype)) == 4
    assert theory.numerical_rank(torch.zeros(3, 3)) == 0
    graded = torch.diag(torch.tensor([1.0, 0.1, 0.001]))
    assert [theory.numerical_rank(graded, share) for share in (0.5, 0.01, 0.0001)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: theory.half_space_margin(torch.tensor([[1.0], [0.0]])),
            r"got norm 0 at position 1; leave those tokens out",
        ),
        (
            lambda: theory.nearest_in_hull(torch.ones(0, 3)),
            r"points must be \[token, d_model\] with at least one of each",
        ),
        (
            lambda: theory.nearest_in_hull(torch.tensor([[math.inf]])),
            r"points must be finite, got NaN or infinity in row 0",
        ),
        (lambda: theory.key_separability(torch.ones(1, 3)), r"X must have at least 2 tokens, got 1"),
        (lambda: theory.rank_one_witness(torch.eye(3), sink=-1), r"sink must be a position from 0 to 2, got -1"),
        (lambda: theory.numerical_rank(torch.eye(2), 1.0), r"must be a share from 0 to below 1, got 1.0; pass one"),
        (
            lambda: theory.numerical_rank(torch.eye(200).bfloat16()),
            r"torch.bfloat16 of this shape cannot tell; pass one",
        ),
        (
            lambda: theory.ScorePattern(torch.tensor([0, 0]), torch.ones(2, 2, dtype=torch.bool)),
            r"others must be False on a query's own target",
        ),
        (
            lambda: theory.ScorePattern(torch.tensor([0, 5]), torch.zeros(2, 2, dtype=torch.bool)),
            r"a target must be a key from 0 to 1, or -1",
        ),
    ],
)
def test_misuse_is_explained(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()

"""Costs of patterns: closed forms, the built-in solver with its proofs, cvxpy as a second opinion, and growth exponents."""

import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from sinklens import theory
from sinklens.errors import ConvergenceError, InputError
from sinklens.theory import (
    embedding_cost,
    least_norm,
    pattern_cost,
    score_pattern,
)
from tests.reference import theory as reference

LENGTHS = (4, 8, 16, 24)
# FORMULAS: causal, margin 1, unscaled, by an interior-point solver.
CAUSAL_NUCLEAR = {
    "sink": (1.5, 2.475, 3.75, 4.695),
    "diagonal": (2.39, 6.058, 13.719, 21.519),
}
VARIANTS = [
    ("sink", {}),
    ("diagonal", {}),
    ("previous", {}),
    *[("backcopy", {"switch": switch, "active_share": p}) for switch in ("hard", "soft") for p in (0.2, 0.5, 1.0)],
]


def embeddings(n_tokens: int, d_model: int, seed: int = 0) -> torch.Tensor:
    """Tokens with a common mean, so that no pattern is easy."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_tokens, d_model, generator=generator) + torch.randn(d_model, generator=generator)


@pytest.mark.parametrize("n_tokens", LENGTHS)
def test_sink_and_diagonal_closed_forms_are_the_known_ones(n_tokens: int) -> None:
    def cost(kind: str, norm: str) -> float:
        return pattern_cost(n_tokens, kind, norm, causal=False, margin=2.0, scaled=False, method="closed")

    root = 2.0 * math.sqrt(n_tokens - 1)
    assert cost("sink", "frobenius") == pytest.approx(root)
    assert cost("sink", "nuclear") == pytest.approx(root)
    assert cost("diagonal", "frobenius") == pytest.approx(root)
    assert cost("diagonal", "nuclear") == pytest.approx(2.0 * (n_tokens - 1))


@pytest.mark.parametrize("n_tokens", LENGTHS)
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
@pytest.mark.parametrize(("norm", "causal"), [("nuclear", False), ("frobenius", False), ("frobenius", True)])
def test_closed_forms_agree_with_the_solver(kind: str, options: dict, norm: str, causal: bool, n_tokens: int) -> None:
    closed = pattern_cost(n_tokens, kind, norm, causal, method="closed", **options)
    solved = pattern_cost(n_tokens, kind, norm, causal, method="solver", **options)
    assert solved == pytest.approx(closed, rel=1e-3)


@pytest.mark.parametrize("kind", ["sink", "diagonal"])
def test_causal_nuclear_costs_are_the_published_figures(kind: str) -> None:
    solved = [pattern_cost(n, kind, "nuclear", scaled=False, method="solver") for n in LENGTHS]
    assert solved == pytest.approx(CAUSAL_NUCLEAR[kind], abs=1e-3)


@pytest.mark.parametrize("n_tokens", [2, 5, 24, 60])
def test_the_causal_sinks_closed_form_is_proven_by_its_dual(n_tokens: int) -> None:
    # y_ii = 1/√T is dual feasible and adds up to the primal's cost.
    X, pattern = torch.eye(n_tokens, dtype=torch.float64), score_pattern(n_tokens, "sink")
    multipliers = torch.eye(n_tokens, dtype=torch.float64) / math.sqrt(n_tokens)
    multipliers[0, 0] = 0.0
    combined = theory.constraint_combination(multipliers, X, pattern)
    closed = theory.causal_sink_nuclear_cost(n_tokens)
    assert torch.linalg.matrix_norm(combined, 2).item() == pytest.approx(1.0)
    assert multipliers.sum().item() == pytest.approx(closed)
    weight = torch.full((n_tokens,), -1 / n_tokens, dtype=torch.float64)
    weight[0] += 1
    witness = torch.outer((torch.arange(n_tokens) > 0).double(), weight)
    assert torch.linalg.matrix_norm(witness, "nuc").item() == pytest.approx(closed)
    assert reference.least_margin(witness, X, pattern) == pytest.approx(1.0)


@pytest.mark.parametrize("n_tokens", [2, 3, 16, 40])
@pytest.mark.parametrize(("kind", "options"), VARIANTS)
def test_full_nuclear_closed_forms_are_proven_by_their_dual(kind: str, options: dict, n_tokens: int) -> None:
    # U Vᵀ of the tight scores is a sum of constraints with non-negative multipliers: a subgradient, so the scores are optimal.
    pattern = score_pattern(n_tokens, kind, causal=False, **options)
    rows = torch.arange(n_tokens)[pattern.target >= 0]
    tight = torch.eye(n_tokens, dtype=torch.float64)[pattern.target[rows]] - 1 / n_tokens
    left, singular, right = torch.linalg.svd(tight, full_matrices=False)
    rank = int((singular > 1e-9).sum())
    multipliers = -(left[:, :rank] @ right[:rank])
    own = pattern.target[rows].unsqueeze(1)
    assert torch.allclose(multipliers.sum(1), torch.zeros(len(rows), dtype=torch.float64), atol=1e-9)
    assert multipliers.scatter(1, own, 0.0).min() >= -1e-9
    options_of_closed = {"active_share": 0.5, "switch": "hard"} | options
    assert theory.full_nuclear_cost(n_tokens, kind, **options_of_closed) == pytest.approx(
        singular.sum().item(), abs=1e-9
    )


@pytest.mark.parametrize("norm", theory.NORMS)
@pytest.mark.parametrize(
    ("kind", "causal"), [("sink", True), ("diagonal", True), ("previous", False), ("backcopy", True)]
)
@pytest.mark.parametrize(("n_tokens", "d_model"), [(12, 40), (12, 9)])
def test_a_solution_proves_itself(kind: str, causal: bool, norm: str, n_tokens: int, d_model: int) -> None:
    X, pattern = embeddings(n_tokens, d_model), score_pattern(n_tokens, kind, causal)
    solution = least_norm(X, pattern, norm, margin=1.5)
    matrix_norm, dual = ("nuc", 2) if norm == "nuclear" else ("fro", "fro")
    assert solution.W is not None
    assert reference.least_margin(solution.W, X, pattern) >= 1.5 * (1 - 1e-9)
    assert torch.linalg.matrix_norm(solution.W, matrix_norm).item() == pytest.approx(solution.cost)
    assert solution.multipliers.min() >= 0
    combined = reference.combination(solution.multipliers, X, pattern)
    assert torch.linalg.matrix_norm(combined, dual).item() <= 1 + 1e-9
    assert 1.5 * solution.multipliers.sum().item() == pytest.approx(solution.lower_bound)
    assert 0 <= solution.gap <= 1e-4


def test_a_massive_token_and_many_tokens_are_solved_within_the_tolerance() -> None:
    X = embeddings(64, 200)
    X[0] *= 182
    for kind in ("sink", "diagonal"):
        pattern = score_pattern(64, kind)
        solution = least_norm(X, pattern, "nuclear", tolerance=1e-2, max_iterations=2000)
        assert solution.gap <= 1e-2
        assert solution.W is not None
        assert theory.achieved_margin(solution.W, X, pattern) >= 1 - 1e-9


@pytest.mark.parametrize("norm", theory.NORMS)
@pytest.mark.parametrize(
    ("kind", "causal"), [("sink", True), ("diagonal", True), ("previous", False), ("backcopy", True)]
)
def test_the_solver_agrees_with_cvxpy(kind: str, causal: bool, norm: str) -> None:
    pytest.importorskip("cvxpy")
    assert pattern_cost(8, kind, norm, causal, method="solver") == pytest.approx(
        pattern_cost(8, kind, norm, causal, method="cvxpy"), rel=1e-3
    )
    X = embeddings(8, 11)
    assert embedding_cost(X, kind, norm, causal) == pytest.approx(
        embedding_cost(X, kind, norm, causal, method="cvxpy"), rel=2e-3
    )


def test_cvxpy_recognises_an_infeasible_pattern_too() -> None:
    pytest.importorskip("cvxpy")
    assert embedding_cost(torch.tensor([[1.0], [2.0]]), "diagonal", causal=False, method="cvxpy") == math.inf


def test_without_cvxpy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cvxpy", None)
    with pytest.raises(InputError, match=r"needs cvxpy, which is not installed; pip install 'sinklens\[theory\]'"):
        pattern_cost(3, method="cvxpy")


def test_costs_on_embeddings_follow_their_laws() -> None:
    X = embeddings(10, 14)
    rotation = torch.linalg.qr(torch.randn(14, 14, generator=torch.Generator().manual_seed(1)))[0]
    for norm in theory.NORMS:
        plain = embedding_cost(X, "diagonal", norm)
        assert embedding_cost(X @ rotation, "diagonal", norm) == pytest.approx(plain, rel=2e-3)
        assert embedding_cost(3 * X, "diagonal", norm) == pytest.approx(plain / 9, rel=2e-3)
        assert embedding_cost(X, "diagonal", norm, margin=5.0) == pytest.approx(5 * plain)
        assert embedding_cost(X, "diagonal", norm, d_head=16) == pytest.approx(4 * plain)
    identity = torch.eye(6)
    assert embedding_cost(identity, "sink", "nuclear", causal=False) == pytest.approx(math.sqrt(5), rel=1e-3)
    # Seen from another sink the orthonormal problem is the same one when all keys are visible.
    assert embedding_cost(identity, "sink", "nuclear", causal=False, sink=3) == pytest.approx(math.sqrt(5), rel=1e-3)


def test_the_scaled_setting_multiplies_by_the_root_of_the_length() -> None:
    assert pattern_cost(16, "diagonal") == pytest.approx(4 * pattern_cost(16, "diagonal", scaled=False))


@pytest.mark.parametrize(("kind", "exponent"), [("sink", 1.0), ("diagonal", 1.5)])
def test_exponents_of_the_scaled_nuclear_cost(kind: str, exponent: float) -> None:
    at_large = theory.cost_scaling([256, 512, 1024, 2048, 4096], kind, method="closed")
    assert at_large.exponent == pytest.approx(exponent, abs=0.02)
    assert at_large.low <= at_large.exponent <= at_large.high
    for causal in (False, True):
        solved = theory.cost_scaling([16, 24, 32, 48], kind, causal=causal, method="solver")
        assert solved.exponent == pytest.approx(exponent, abs=0.1)


def test_a_fit_recovers_a_noisy_law_within_its_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [2**k for k in range(3, 13)]
    noise = torch.randn(len(lengths), generator=generator, dtype=torch.float64) * 0.05
    fit = theory.scaling_fit(lengths, [3 * n**1.25 * math.exp(e) for n, e in zip(lengths, noise.tolist(), strict=True)])
    assert fit.low < 1.25 < fit.high
    assert 0 < fit.high - fit.low < 0.1
    wider = theory.scaling_fit(lengths, fit.costs, confidence=0.999)
    assert wider.low < fit.low
    assert fit.high < wider.high


def test_the_interval_is_students() -> None:
    lengths, costs = [4, 8, 16, 32, 64], [3.0, 5.0, 12.0, 20.0, 45.0]
    fit = theory.scaling_fit(lengths, costs, confidence=0.9)
    line, covariance = np.polyfit(np.log(lengths), np.log(costs), 1, cov=True)
    half_width = stats.t.ppf(0.95, 3) * np.sqrt(covariance[0, 0])
    assert (fit.exponent, fit.low, fit.high) == pytest.approx((line[0], line[0] - half_width, line[0] + half_width))
    assert fit.prefactor == pytest.approx(np.exp(line[1]))


def test_value_output_cost_is_that_of_a_projection_on_the_copied_tokens() -> None:
    active = theory.active_positions(20, 0.5)
    projection = torch.diag(torch.zeros(20).scatter(0, active - 1, 1.0))
    for norm, name in (("nuclear", "nuc"), ("frobenius", "fro")):
        assert theory.value_output_cost(20, norm, 0.5) == pytest.approx(
            torch.linalg.matrix_norm(projection, name).item()
        )


def test_patterns_name_the_targets_they_should() -> None:
    hard = score_pattern(10, "backcopy", active_share=0.5, switch="hard")
    assert hard.target.tolist() == [0, 0, 0, 2, 0, 4, 0, 6, 0, 8]
    soft = score_pattern(10, "backcopy", active_share=0.5, switch="soft")
    assert soft.target.tolist() == [0, 1, 2, 2, 4, 4, 6, 6, 8, 8]
    assert score_pattern(4, "sink", sink=2).target.tolist() == [-1, -1, 2, 2]
    assert score_pattern(3, "diagonal").others.int().tolist() == [[0, 0, 0], [1, 0, 0], [1, 1, 0]]
    assert score_pattern(3, "previous", causal=False).others.int().tolist() == [[0, 0, 0], [0, 1, 1], [1, 0, 1]]


@pytest.mark.parametrize("kind", theory.COST_KINDS)
def test_one_token_costs_nothing(kind: str) -> None:
    for norm in theory.NORMS:
        for causal in (True, False):
            assert pattern_cost(1, kind, norm, causal) == 0.0
    assert embedding_cost(torch.ones(1, 3), kind) == 0.0


def test_embeddings_that_cannot_carry_a_pattern_cost_infinitely_much() -> None:
    twice = embeddings(6, 8)
    twice[4] = twice[2]
    assert embedding_cost(twice, "diagonal") == math.inf
    zero = embeddings(6, 8)
    zero[3] = 0.0
    assert embedding_cost(zero, "sink") == math.inf
    inside = embeddings(12, 4)
    inside[0] = inside[1:].mean(0)
    assert embedding_cost(inside, "sink") == math.inf


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pattern_cost(0), r"n_tokens must be at least 1, got 0"),
        (lambda: pattern_cost(4, "sinks"), r"kind must be one of sink, diagonal, previous, backcopy, got 'sinks'"),
        (lambda: pattern_cost(4, norm="l1"), r"norm must be one of frobenius, nuclear, got 'l1'"),
        (lambda: pattern_cost(4, margin=0.0), r"margin must be a finite number above 0, got 0.0"),
        (lambda: pattern_cost(4, "backcopy", active_share=1.5), r"active_share must lie in 0 to 1, got 1.5"),
        (
            lambda: pattern_cost(4, "diagonal", "nuclear", method="closed"),
            r"no closed form is known .* use method='auto'",
        ),
        (lambda: pattern_cost(600, "diagonal", "nuclear"), r"at most 512 tokens, got 600; take fewer"),
        (lambda: embedding_cost(torch.tensor([[1.0], [math.nan]])), r"X must be finite, got NaN or infinity in row 1"),
        (lambda: embedding_cost(torch.ones(2, 2), sink=2), r"sink must be a position from 0 to 1, got 2"),
        (
            lambda: embedding_cost(torch.ones(2, 2), method="closed"),
            r"method must be one of solver, cvxpy, got 'closed'",
        ),
        (lambda: least_norm(torch.ones(3, 2), score_pattern(2)), r"must have 3 queries and keys like X, got \[2, 2\]"),
        (lambda: theory.scaling_fit([4, 8], [1.0, 2.0]), r"three or more different lengths"),
        (lambda: theory.scaling_fit([4, 8, 16], [0.0, 1.0, 2.0]), r"finite costs above 0"),
    ],
)
def test_misuse_is_explained(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()


def test_a_solver_that_is_stopped_early_says_how_far_it_came() -> None:
    with pytest.raises(
        ConvergenceError, match=r"nuclear norm lies between .* after 10 iterations, wanted a relative gap of 1e-09"
    ):
        least_norm(embeddings(12, 8), score_pattern(12, "diagonal"), "nuclear", tolerance=1e-9, max_iterations=10)

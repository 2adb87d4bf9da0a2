"""The smoothing prediction against drawn tokens and explicit attention, its criterion, and the measures of collapse."""

import math
from collections.abc import Callable

import pytest
import torch

from sinklens import theory
from sinklens.errors import InputError
from sinklens.theory import SmoothingMoments, population_moments, predicted_cosine, smoothing_criterion
from tests.reference import theory as reference

D_MODEL = 256
STRENGTHS = (0.0, 0.5, 1.0)


def drawn(n_tokens: int, mean_length: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, their mean and their covariance, which is not isotropic."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(D_MODEL, D_MODEL, generator=generator, dtype=torch.float64) / math.sqrt(D_MODEL)
    factor = factor + torch.eye(D_MODEL, dtype=torch.float64)
    mean = torch.randn(D_MODEL, generator=generator, dtype=torch.float64) * mean_length
    tokens = mean + torch.randn(n_tokens, D_MODEL, generator=generator, dtype=torch.float64) @ factor.T
    return tokens, mean, factor @ factor.T


def value_output(kind: str, seed: int = 1) -> torch.Tensor:
    """Matrices ``W`` whose update follows, ignores or opposes the residual."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(D_MODEL, D_MODEL, generator=generator, dtype=torch.float64) / math.sqrt(D_MODEL)
    identity = torch.eye(D_MODEL, dtype=torch.float64)
    low_rank = noise[:, :16] @ noise[:, 16:32].T
    return {
        "random": 0.8 * noise,
        "copy": 0.5 * identity + 0.2 * noise,
        "low_rank": 2 * low_rank,
        "oppose": -0.5 * identity + 0.1 * noise,
        "oppose_more": -1.4 * identity,
        "overshoot": -2.5 * identity,
    }[kind]


SMOOTHS_LESS = ("oppose", "oppose_more")
KINDS = ("random", "copy", "low_rank", *SMOOTHS_LESS, "overshoot")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_tokens", [256, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_meets_simulation(kind: str, n_tokens: int, causal: bool) -> None:
    tokens, mean, covariance = drawn(n_tokens, mean_length=0.9)
    W = value_output(kind)
    moments = population_moments(mean, covariance, W)
    simulated = [
        theory.token_cosine(reference.attention_step(tokens, tokens @ W.T, strength, causal)).item()
        for strength in STRENGTHS
    ]
    predicted = [predicted_cosine(moments, strength, n_tokens, causal) for strength in STRENGTHS]
    assert predicted == pytest.approx(simulated, abs=0.015)
    # The criterion decides in which direction the cosine moves from diagonal to dense.
    criterion = smoothing_criterion(moments)
    assert (criterion < 0) == (kind in SMOOTHS_LESS)
    assert (simulated[2] - simulated[0] > 0) == (criterion > 0)
    assert (predicted[2] - predicted[0] > 0) == (criterion > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_the_tokens_themselves_predict_as_well(kind: str) -> None:
    tokens, mean, covariance = drawn(512, mean_length=0.5, seed=4)
    update = tokens @ value_output(kind).T
    measured = theory.smoothing_moments(tokens, update)
    population = population_moments(mean, covariance, value_output(kind))
    for name in ("mean_square", "residual_variance", "covariance", "update_variance"):
        assert getattr(measured, name) == pytest.approx(getattr(population, name), rel=0.1, abs=8.0)
    for strength in STRENGTHS:
        simulated = theory.token_cosine(reference.attention_step(tokens, update, strength, causal=False)).item()
        assert predicted_cosine(measured, strength, 512) == pytest.approx(simulated, abs=0.015)


@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0])
def test_moments_of_the_same_tokens_give_the_exact_averages(strength: float) -> None:
    # What is left is the ratio: the mean product over the mean squared length, instead of the mean of the ratios.
    tokens, _, _ = drawn(40, mean_length=0.5, seed=6)
    update = tokens @ value_output("overshoot").T
    out = reference.attention_step(tokens, update, strength, causal=False)
    products = out @ out.T
    shared = (products.sum() - products.trace()) / (40 * 39)
    exact = (shared / (products.trace() / 40)).item()
    assert predicted_cosine(theory.smoothing_moments(tokens, update), strength, 40) == pytest.approx(exact)


def test_residual_and_input_may_differ() -> None:
    # After a norm, what attention reads is not what the residual carries.
    tokens, _, _ = drawn(400, mean_length=0.4, seed=2)
    read = torch.nn.functional.normalize(tokens, dim=1) * 16
    update = read @ value_output("random").T
    moments = theory.smoothing_moments(tokens, update)
    for causal in (False, True):
        for strength in STRENGTHS:
            simulated = theory.token_cosine(reference.attention_step(tokens, update, strength, causal)).item()
            assert predicted_cosine(moments, strength, 400, causal) == pytest.approx(simulated, abs=0.015)


def test_prediction_has_its_exact_limits() -> None:
    moments = SmoothingMoments(mean_square=3.0, residual_variance=1.0, covariance=-0.2, update_variance=0.5)
    whole = 1.0 - 0.4 + 0.5
    assert predicted_cosine(moments, 0.0, 50) == pytest.approx(3.0 / (3.0 + whole))
    assert predicted_cosine(moments, 0.0, 50, causal=True) == pytest.approx(3.0 / (3.0 + whole))
    assert predicted_cosine(moments, 1.0, 10**9) == pytest.approx(3.0 / (3.0 + 1.0))
    # No residual and uniform attention: every output is the same.
    lone = SmoothingMoments(mean_square=0.0, residual_variance=0.0, covariance=0.0, update_variance=2.0)
    assert predicted_cosine(lone, 1.0, 7) == pytest.approx(1.0)
    assert predicted_cosine(lone, 0.0, 7) == 0.0
    assert math.isnan(predicted_cosine(SmoothingMoments(0.0, 0.0, 0.0, 0.0), 0.5, 7))
    assert math.isnan(predicted_cosine(SmoothingMoments(0.0, 0.0, 0.0, 0.0), 0.5, 7, causal=True))


def test_the_causal_prediction_is_the_mean_over_pairs() -> None:
    moments = SmoothingMoments(mean_square=1.0, residual_variance=2.0, covariance=0.3, update_variance=0.7)
    strength, n = 0.6, 5
    own = 2.0 + 2 * 0.4 * 0.3 + 0.16 * 0.7

    def length(i: int) -> float:
        return 1.0 + own + (2 * strength * (0.3 + 0.4 * 0.7) + strength**2 * 0.7) / i

    pairs = [
        (1.0 + strength * (0.3 + 0.7) / j) / math.sqrt(length(i) * length(j))
        for j in range(1, n + 1)
        for i in range(1, j)
    ]
    assert predicted_cosine(moments, strength, n, causal=True) == pytest.approx(sum(pairs) / len(pairs))


def test_token_cosine_is_the_mean_over_pairs() -> None:
    tokens = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)) + 0.5
    assert theory.token_cosine(tokens).item() == pytest.approx(reference.pairwise_cosine(tokens))
    mask = torch.arange(6) > 0
    assert theory.token_cosine(tokens, mask).item() == pytest.approx(reference.pairwise_cosine(tokens[1:]))
    batch = torch.stack([tokens, 2 * tokens + 1])
    assert theory.token_cosine(batch).tolist() == pytest.approx([reference.pairwise_cosine(rows) for rows in batch])


def test_masked_tokens_may_hold_anything() -> None:
    tokens = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    spoilt = tokens.clone()
    spoilt[2] = math.nan
    mask = torch.arange(6) != 2
    for measure in (theory.token_cosine, theory.rank_collapse):
        assert measure(spoilt, mask).item() == pytest.approx(measure(tokens[mask]).item())
        assert math.isnan(measure(spoilt).item())


def test_rank_collapse_runs_from_zero_to_one() -> None:
    tokens = torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centred = tokens - tokens.mean(0)
    assert theory.rank_collapse(centred).item() == pytest.approx(1.0)
    assert theory.rank_collapse(tokens[:1].expand(50, 8)).item() == pytest.approx(0.0, abs=1e-12)
    literal = (centred.norm() / tokens.norm()).item()
    assert theory.rank_collapse(tokens).item() == pytest.approx(literal)
    dense = reference.attention_step(torch.zeros(50, 8), tokens, 1.0, causal=False)
    assert theory.rank_collapse(dense).item() == pytest.approx(0.0, abs=1e-7)
    assert math.isnan(theory.rank_collapse(torch.zeros(3, 2)).item())


def test_zero_vectors_have_no_cosine() -> None:
    tokens = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    assert theory.token_cosine(tokens).item() == pytest.approx(math.sqrt(0.5))
    assert math.isnan(theory.token_cosine(tokens[:2]).item())
    found = theory.sink_cosines(tokens)
    assert found.cosines.isnan().tolist() == [True, False]
    assert (found.mean, found.max) == pytest.approx((math.sqrt(0.5), math.sqrt(0.5)))
    assert found.opposed_share == 0.0


def test_sink_cosines_leave_the_sink_itself_out() -> None:
    tokens = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0], [-1.0, 1.0]])
    found = theory.sink_cosines(tokens, sink=1)
    assert found.cosines.tolist() == pytest.approx([0.0, 1.0, -math.sqrt(0.5)])
    assert found.opposed_share == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: predicted_cosine(SmoothingMoments(1.0, 1.0, 0.0, 1.0), 1.5, 8), r"strength must lie in 0 .* got 1.5"),
        (lambda: predicted_cosine(SmoothingMoments(1.0, 1.0, 0.0, 1.0), 0.5, 1), r"n_tokens must be at least 2, got 1"),
        (lambda: SmoothingMoments(1.0, -1.0, 0.0, 1.0), r"variances must not be negative, got -1.0 and 1.0"),
        (lambda: SmoothingMoments(1.0, math.nan, 0.0, 1.0), r"moments must be finite"),
        (
            lambda: theory.smoothing_moments(torch.ones(1, 2), torch.ones(1, 2)),
            r"number of tokens must be at least 2, got 1",
        ),
        (lambda: theory.smoothing_moments(torch.ones(3, 2), torch.full((3, 2), math.nan)), r"update must be finite"),
        (lambda: theory.sink_cosines(torch.zeros(2, 2)), r"a sink that is not 0, got 2 tokens, sink norm 0"),
    ],
)
def test_misuse_is_explained(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()

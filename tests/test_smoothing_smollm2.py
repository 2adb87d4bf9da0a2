"""Oversmoothing of a real language model: the curves that were measured elsewhere, and how good their prediction is."""

from pathlib import Path

import pytest

import sinklens as sl
from sinklens.models.smollm2 import packaged_weights

DATA = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
# Mean pairwise cosine after attention at λ = 0, 1/2, 1, from diagonal to causal uniform, position 0 left out.
MEASURED = {12: (0.516, 0.549, 0.561), 18: (0.519, 0.637, 0.699)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(packaged_weights() is None, reason="the package with SmolLM2-135M is not installed"),
    pytest.mark.skipif(not DATA.exists(), reason="the GSM8K file is not there"),
]


@pytest.fixture(scope="module")
def study() -> sl.SmoothingResult:
    """8 documents of 128 tokens, BOS first."""
    return sl.oversmoothing(
        sl.load_model("smollm2-135m"),
        DATA,
        (0.0, 0.5, 1.0),
        layers=[3, 12, 18, 24],
        fields=("question", "answer"),
        context_length=128,
        min_length=128,
        overflow="cut",
        max_documents=8,
        depth=False,
        progress=False,
    )


def test_the_measured_curves(study: sl.SmoothingResult) -> None:
    assert (study.provenance.n_documents, study.provenance.n_tokens) == (8, 8 * 128)
    for layer, wanted in MEASURED.items():
        assert study.curve("after_cosine", layer)["mean"].tolist() == pytest.approx(wanted, abs=0.005)
    late = study.curve("after_cosine", 24)["mean"].tolist()
    assert late == pytest.approx((0.589, 0.651, 0.680), abs=0.02)


def test_the_prediction_and_where_it_fails(study: sl.SmoothingResult) -> None:
    error = study.prediction_error().set_index("layer")
    assert (error.loc[[12, 18, 24], "largest"] < 0.02).all()
    # A few tokens carry a third of the spread there: a ratio of means is no mean of ratios.
    assert error.loc[3, "largest"] > 0.2
    assert error.loc[3, "largest_token_share"] > 0.25
    assert (error.loc[[12, 18, 24], "largest_token_share"] < 0.1).all()
    table = study.dense_minus_diagonal()
    assert list(table["verdict"]) == ["more"] * 4
    assert list(table["agrees"]) == [True] * 4
    counters = study.counters()
    assert set(counters["verdict"]) == {"counters"}

"""A real language model: the figures that were published or measured elsewhere, and the slow reference."""

from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.models.smollm2 import packaged_weights
from tests.reference import attention as reference

DATA = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
TEXT = "The lighthouse keeper counted the ships."

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(packaged_weights() is None, reason="the package with SmolLM2-135M is not installed"),
]


@pytest.fixture(scope="module")
def model() -> Any:
    """SmolLM2-135M-Instruct."""
    return sl.load_model("smollm2-135m")


@pytest.mark.skipif(not DATA.exists(), reason="the GSM8K file is not there")
def test_sink_rate_and_alignment_on_gsm8k(model: Any) -> None:
    profile = sl.head_profile(
        model,
        DATA,
        fields=("question", "answer"),
        context_length=64,
        min_length=64,
        overflow="cut",
        max_documents=16,
        progress=False,
    )
    assert (profile.provenance.n_sequences, profile.provenance.n_tokens) == (16, 16 * 64)
    assert profile.sink_rates()["mean_first"] == pytest.approx(0.567, abs=0.01)
    assert profile.opposing_share == pytest.approx(0.73, abs=0.02)
    interior = profile.interior_fraction[12:22]
    assert interior.nanmean().item() > 0.95


def test_one_repeated_token_without_bos_has_no_sink(model: Any) -> None:
    """Equal tokens have equal keys up to their position, so no position can be singled out (Gu et al., arXiv 2410.10781)."""
    tokens = torch.full((2, 64), model.tokenizer.encode(" the")[0])
    profile = sl.head_profile(model, tokens, progress=False)
    assert profile.sink_rates()["per_sample"] == 0.0
    assert profile.sink_rates()["mean_first"] == 0.0


@pytest.mark.parametrize("layer", [0, 12, 29])
def test_maps_equal_the_slow_reference(model: Any, layer: int) -> None:
    maps = sl.attention_maps(model, TEXT, layers=[layer])
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([maps.token_ids]))
    pattern, value = (cache[f"blocks.{layer}.attn.{hook}"].double() for hook in ("hook_pattern", "hook_v"))
    projected = reference.projected_values(value, model.blocks[layer].attn.W_O.double(), len(maps.tokens))
    for name in ("intra", "inter"):
        expected = getattr(reference, name)(pattern, projected)[0]
        found = maps.metric(name)[0].double()
        assert (found - expected).abs().max() <= 1e-3 * expected.abs().max()


def test_contributions_sum_to_one_in_every_layer(model: Any) -> None:
    maps = sl.attention_maps(model, TEXT)
    assert (maps.intra.sum(-1) - 1).abs().max() < 1e-4
    assert (maps.inter.sum((1, 3)) - 1).abs().max() < 1e-4


def test_check_passes(model: Any) -> None:
    check = sl.check_model(model)
    assert check.passed
    assert [layer.verdict for layer in check.layers] == ["exact"] * 30
    assert check.logits_change

"""Head costs: norms against the d_model x d_model matrices, what is refused, margins and least costs against the theory."""

import importlib.metadata
import math
from typing import Any

import numpy as np
import pytest
import torch

import sinklens as sl
from sinklens.analyzers.head_costs import _span_norms
from sinklens.errors import InputError
from sinklens.metrics import pattern_margins, product_norms
from sinklens.results.head_costs import COSTS, NORMS_OF_HEADS
from sinklens.theory import embedding_cost, least_norm, score_pattern
from tests.captured import n_hooks
from tests.families import FAMILIES, HOOKED_FAMILIES, bridge, hf_model, hooked, new_bridge
from tests.reference import head_costs as reference

MAJOR = int(importlib.metadata.version("transformer-lens").split(".")[0])
needs_hooked = pytest.mark.skipif(MAJOR >= 4, reason="TransformerLens 4 has no HookedTransformer")
TEXTS = ["The cat sat on the mat, and the dog sat", "One fish, two fish, red fish, blue fish and the sea"]
QUIET: dict[str, Any] = {"progress": False}

NORMED = "no multiple of q · k"
# What cannot be established, and how that is said.
REFUSED = {
    "qwen3": {"qk": NORMED},
    "gemma3_text": {"qk": NORMED},
    "olmo2": {"qk": NORMED},
    "olmo3": {"qk": NORMED},
    "gemma4": {"qk": NORMED, "vo": "a norm of the values"},
    "gemma4_unlike": {"qk": "", "vo": ""},
    "deepseek_v3": {"qk": "latent attention", "vo": "latent attention"},
    "qwen3_next": {"qk": "gate", "vo": "gate"},
    # TransformerBridge hooks no scores of it, and logarithms of weights hold rotary positions.
    "gptj": {"qk": NORMED},
}
LOADED = [
    name for name, family in FAMILIES.items() if not family.refused and (MAJOR >= 4 or not family.bridge_needs_4x)
]
PLAIN = [name for name in LOADED if name not in REFUSED]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def expect_norms(result: sl.HeadCosts, model: Any, maps: tuple[str, ...] = ("qk", "vo")) -> None:
    """Every norm of every head, from singular values of the whole matrix."""
    n_heads = model.cfg.n_heads
    for row, layer in enumerate(result.layers):
        for of in maps:
            for head in range(n_heads):
                whole = reference.matrix(model.blocks[layer].attn, of, head, n_heads)
                for name in NORMS_OF_HEADS:
                    found = result.cost(f"{of}_{name}")[row, head].item()
                    assert found == pytest.approx(reference.norm(whole, name), rel=1e-5), (layer, of, head, name)


@pytest.mark.parametrize("name", PLAIN)
def test_norms_are_those_of_the_whole_matrices(name: str) -> None:
    result = sl.head_costs(bridge(name), **QUIET)
    assert result.refused == ()
    assert result.layers == FAMILIES[name].attention_layers
    expect_norms(result, bridge(name))
    assert all(bool(result.cost(cost).isfinite().all()) for cost in COSTS)


@needs_hooked
@pytest.mark.parametrize("name", HOOKED_FAMILIES)
def test_both_back_ends_give_the_same_costs(name: str) -> None:
    one, other = sl.head_costs(hooked(name), **QUIET), sl.head_costs(bridge(name), **QUIET)
    for cost in COSTS:
        if name == "gptj" and "qk" in cost:  # scores are hooked in HookedTransformer only
            assert bool(one.cost(cost).isfinite().all())
            continue
        torch.testing.assert_close(one.cost(cost), other.cost(cost), rtol=1e-4, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in REFUSED if name in LOADED])
def test_what_is_no_bilinear_map_is_refused_by_name(name: str) -> None:
    result = sl.head_costs(bridge(name), **QUIET)
    for layer in result.layers:
        reasons = {what: reason for at, what, reason in result.refused if at == layer}
        assert set(reasons) == set(REFUSED[name])
        assert all(words in reasons[what] for what, words in REFUSED[name].items()), reasons
    for of in ("qk", "vo"):
        known = ~result.cost(f"{of}_nuclear").isnan()
        assert bool((~known).all()) if of in REFUSED[name] else bool(known.all())
    assert bool(result.scale.isnan().all())


SCALES = {
    "llama": 16**-0.5,
    "llama_wide_head": 24**-0.5,
    "granite": 0.25,
    "gpt_neo": 1.0,
    "gemma2": 0.25,
    "bloom": 0.25,
}


@pytest.mark.parametrize("name", [name for name in SCALES if name in LOADED])
def test_the_scale_of_scores_is_measured(name: str) -> None:
    scale = sl.head_costs(bridge(name), **QUIET).scale
    torch.testing.assert_close(scale, torch.full_like(scale, SCALES[name]), rtol=1e-4, atol=0)


def gains(name: str) -> list[torch.Tensor]:
    """Of the norm before attention, from the model's own modules; Gemma stores them less 1."""
    inner: Any = hf_model(name)
    if name == "gpt2":
        return [block.ln_1.weight for block in inner.transformer.h]
    stored = [layer.input_layernorm.weight for layer in inner.model.layers]
    return [1 + weight for weight in stored] if name == "gemma" else stored


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_3x5", "gemma", "phi"])
def test_effective_norms_have_the_gain_folded_in(name: str) -> None:
    result = sl.head_costs(bridge(name), **QUIET)
    n_heads = FAMILIES[name].n_heads
    for layer, gain in enumerate(gains(name)):
        for of in ("qk", "vo"):
            whole = reference.matrix(bridge(name).blocks[layer].attn, of, 1, n_heads, gain)
            found = result.cost(f"effective_{of}_nuclear")[layer, 1].item()
            assert found == pytest.approx(reference.norm(whole, "nuclear"), rel=1e-4)
            assert found != pytest.approx(result.cost(f"{of}_nuclear")[layer, 1].item(), rel=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_gain_is_known_in_every_precision(name: str) -> None:
    """What a norm adds under its root is no rounding error of a more precise type."""
    double, single = (sl.head_costs(bridge(name, dtype), progress=False) for dtype in (torch.float64, torch.float32))
    assert double.refused == single.refused == ()
    for cost, values in single.norms.items():
        torch.testing.assert_close(double.norms[cost], values, rtol=1e-5, atol=0)


def test_shares_of_queries_are_exact() -> None:
    result = sl.head_costs(bridge("llama"), TEXTS, embedding_layers=[], embedding_tokens=8, progress=False)
    assert result.margins is not None
    shares = result.margins.documents("sink_share") * 7
    assert torch.equal(shares, shares.round())
    assert shares.unique().numel() > 2


def test_weights_that_are_not_the_queries_are_refused() -> None:
    """A hook of the user's own edits the queries: the weights no longer say what they are."""
    model = new_bridge("llama")
    model.add_hook("blocks.1.attn.hook_q", lambda tensor, hook: tensor * 1.1)
    result = sl.head_costs(model, **QUIET)
    assert [(layer, what) for layer, what, _ in result.refused] == [(1, "qk")]
    assert "are not its queries" in result.refused[0][2]
    assert bool(result.cost("qk_nuclear")[1].isnan().all())
    assert bool(result.cost("qk_nuclear")[0].isfinite().all())


def test_the_model_is_left_as_it_was() -> None:
    model = bridge("llama_3x5")
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    sl.head_costs(model, TEXTS, **QUIET)
    assert n_hooks(model) == 0
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize(("d_model", "d_head"), [(12, 4), (6, 6), (4, 9)])
def test_norms_of_products_of_any_width(d_model: int, d_head: int) -> None:
    left, right = normal(3, d_model, d_head), normal(3, d_model, d_head, seed=1)
    found = product_norms(left, right)
    for head in range(3):
        whole = (left[head].double() @ right[head].double().T).numpy()
        for name in NORMS_OF_HEADS:
            assert getattr(found, name)[head].item() == pytest.approx(reference.norm(whole, name), rel=1e-10)


def test_a_zero_matrix_costs_nothing_and_has_no_participation() -> None:
    norms = product_norms(torch.zeros(1, 5, 2), normal(1, 5, 2))
    assert (norms.frobenius.item(), norms.nuclear.item(), norms.spectral.item()) == (0.0, 0.0, 0.0)
    assert math.isnan(norms.participation.item())


def test_margins_are_those_of_each_query() -> None:
    maps = sl.attention_maps(bridge("llama"), TEXTS[1])
    result = sl.head_costs(bridge("llama"), TEXTS[1:], embedding_layers=[], **QUIET)
    assert result.margins is not None
    assert result.least is None
    for layer in (0, 1):
        for head in range(4):
            for kind in ("sink", "diagonal"):
                expected = reference.margins(maps.attention[layer, head], kind)
                found = {
                    name: result.margins.mean(f"{kind}_{name}")[layer, head].item()
                    for name in ("margin", "margin_least", "share")
                }
                assert found["margin"] == pytest.approx(np.median(expected), abs=1e-4)
                assert found["margin_least"] == pytest.approx(min(expected), abs=1e-4)
                assert found["share"] == pytest.approx(np.mean(np.array(expected) > 0), abs=1e-6)


def test_padding_does_not_count() -> None:
    alone = [sl.head_costs(bridge("llama"), [text], embedding_layers=[0], **QUIET) for text in TEXTS]
    both = sl.head_costs(bridge("llama"), TEXTS, embedding_layers=[0], **QUIET)
    assert both.margins is not None
    assert both.least is not None
    for name in both.margins.quantities:
        expected = torch.cat([part.margins.documents(name) for part in alone if part.margins], -1)
        torch.testing.assert_close(both.margins.documents(name), expected, rtol=1e-4, atol=1e-4)
    for name in both.least.quantities:
        expected = torch.cat([part.least.documents(name) for part in alone if part.least], -1)
        torch.testing.assert_close(both.least.documents(name), expected, rtol=2e-3, atol=0, equal_nan=True)


def test_least_costs_are_of_the_first_documents_not_of_the_longest() -> None:
    """Batches come by length, longest first."""
    first, both = (
        sl.head_costs(bridge("llama"), texts, embedding_layers=[1], embedding_documents=1, batch_size=1, **QUIET)
        for texts in (TEXTS[:1], TEXTS)
    )
    assert first.least is not None
    assert both.least is not None
    assert both.least.n_documents == 1
    found, expected = (part.least.mean("sink_frobenius") for part in (both, first) if part.least)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_least_costs_are_the_theorys_on_what_attention_reads(name: str) -> None:
    model, margin = bridge(name), 0.5
    result = sl.head_costs(model, ["The cat sat on a mat"], margin=margin, embedding_layers=[1], **QUIET)
    assert result.least is not None
    batch = next(iter(sl.tokenize(model, ["The cat sat on a mat"])))
    _, cache = model.run_with_cache(batch.tokens)
    X = cache["blocks.1.attn.hook_in"][0]
    for kind in ("sink", "diagonal"):
        for norm in ("frobenius", "nuclear"):
            expected = embedding_cost(X, kind, norm, margin=margin, d_head=16, tolerance=1e-4)
            assert result.least.mean(f"{kind}_{norm}").item() == pytest.approx(expected, rel=2e-3)
    ratio = result.least.mean("sink_nuclear") / result.least.mean("diagonal_nuclear")
    torch.testing.assert_close(result.least.mean("ratio_nuclear"), ratio)
    assert result.least.mean("diagonal_possible").item() == 1.0
    rows = X.double().numpy()
    between = np.linalg.pinv(rows) @ rows
    whole = reference.matrix(model.blocks[1].attn, "qk", 3, 4)
    assert result.spans is not None
    for norm in ("frobenius", "nuclear"):
        expected = reference.norm(between @ whole @ between, norm)
        assert result.spans.mean(norm)[0, 3].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_head_that_is_the_cheapest_sink_spends_the_least_cost(norm: str) -> None:
    """The theory's own witness as a head: its scores achieve the margin, and it costs what they cost at least."""
    X, pattern, margin = normal(9, 14).double() + 0.5, score_pattern(9, "sink"), 0.7
    best = least_norm(X, pattern, norm, margin, tolerance=1e-6)
    assert best.W is not None
    U, sizes, V = torch.linalg.svd(best.W)
    W_Q, W_K = U * sizes.sqrt(), V.mT * sizes.sqrt()
    scores = (X @ W_Q) @ (X @ W_K).mT
    A = scores.masked_fill(~torch.ones(9, 9).tril().bool(), -torch.inf).softmax(-1)[None, None]
    achieved = pattern_margins(A[..., 0], A * torch.ones(9).index_fill(0, torch.tensor([0]), 0.0))[0, 0, 1:]
    assert achieved.min().item() == pytest.approx(margin, rel=1e-4)
    assert _span_norms(X, W_Q[None], W_K[None])[norm].item() == pytest.approx(best.cost, rel=1e-4)


def test_what_a_head_does_to_other_vectors_is_not_spent_on_these() -> None:
    X = torch.eye(3, 8).double()
    W_Q, W_K = normal(1, 8, 4), normal(1, 8, 4, seed=1)
    inside = (W_Q[0, :3].double() @ W_K[0, :3].double().T).numpy()
    assert _span_norms(X, W_Q, W_K)["nuclear"].item() == pytest.approx(reference.norm(inside, "nuclear"), rel=1e-9)


def test_equal_embeddings_have_a_sink_but_no_diagonal() -> None:
    """Rotary positions are not in what attention reads: a token that occurs twice is one vector at layer 0."""
    model = bridge("llama")
    result = sl.head_costs(model, torch.tensor([[0, 5, 6, 5, 7, 6]]), embedding_layers=[0], **QUIET)
    assert result.least is not None
    figures = {name: result.least.mean(name).item() for name in result.least.quantities}
    assert (figures["sink_possible"], figures["diagonal_possible"], figures["ratio_nuclear"]) == (1.0, 0.0, 0.0)
    assert math.isnan(figures["diagonal_nuclear"])
    assert figures["sink_nuclear"] > 0
    assert bool(result.excess("diagonal").isnan().all())


def test_the_shortest_document_has_one_query() -> None:
    result = sl.head_costs(bridge("llama"), torch.tensor([[0, 5]]), embedding_layers=[1], **QUIET)
    assert result.margins is not None
    assert result.least is not None
    margin, share = result.margins.mean("sink_margin"), result.margins.mean("sink_share")
    assert torch.equal(margin > 0, share == 1.0)
    # One query, two keys: a sink and a diagonal are opposite wishes of the same size.
    torch.testing.assert_close(margin, -result.margins.mean("diagonal_margin"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"margin": 0.0}, "margin must be a finite number above 0, got 0"),
        ({"embedding_layers": [7]}, "embedding_layers has no layer 7; the layers here are 0, 1"),
        ({"embedding_tokens": 0}, "embedding_tokens must be at least 1"),
        ({"embedding_documents": 0}, "embedding_documents must be at least 1"),
        ({"layers": [5]}, "no layer 5"),
    ],
)
def test_mistakes_are_found_before_the_pass(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        sl.head_costs(bridge("llama"), TEXTS, **arguments, **QUIET)


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = new_bridge("llama")
    with torch.no_grad():
        model.blocks[1].attn.k.weight[0, 0] = torch.nan
    result = sl.head_costs(model, **QUIET)
    assert {layer for layer, _, _ in result.refused} == {1}
    assert not any(bool(result.cost(name)[1].isfinite().any()) for name in ("qk_nuclear", "vo_nuclear"))

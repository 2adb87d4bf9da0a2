"""What is made of head costs: correlations, sink against diagonal heads, tables, files, figures, the page."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import sinklens as sl
from sinklens.errors import InputError, ResultFileError
from sinklens.metrics.patterns import KINDS
from sinklens.models.smollm2 import packaged_weights
from sinklens.reports.head_costs import cost_headlines, head_costs_sections, render_head_costs
from sinklens.results import Provenance
from sinklens.results.head_costs import COSTS, HeadCosts, LeastCosts
from sinklens.results.head_ranks import rank_correlations
from sinklens.results.pattern_costs import PatternCosts
from sinklens.theory import embedding_cost
from tests.families import bridge
from tests.reference import head_costs as reference

DATA = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
SHORT: dict[str, Any] = {"fields": ("question", "answer"), "context_length": 64, "overflow": "cut"}
TEXTS = ["The cat sat on the mat, and the dog sat", "One fish, two fish, red fish, blue fish and the sea"]


@pytest.fixture(scope="module")
def measured() -> HeadCosts:
    return sl.head_costs(bridge("llama_3x5"), TEXTS, embedding_layers=[0, 2], progress=False)


def planted(kinds: list[list[str]] | None = None, shift: float = 0.0) -> HeadCosts:
    """4 layers of 30 heads, whose costs follow the sink mass within a layer and go against it from layer to layer."""
    generator = torch.Generator().manual_seed(3)
    mass = 0.1 * torch.rand(4, 30, generator=generator).double() + 0.2 * torch.arange(4).unsqueeze(1)
    cost = 100 + 50 * (mass - 0.4 * torch.arange(4).unsqueeze(1)) + shift
    indices = None if kinds is None else torch.tensor([[KINDS.index(kind) for kind in row] for row in kinds])
    norms = dict.fromkeys(COSTS, cost)
    return HeadCosts(
        norms, torch.ones(4).double(), (0, 1, 2, 3), Provenance("tiny"), scores={"sink_mass": mass}, kinds=indices
    )


@pytest.mark.parametrize("decimals", [1, 6])
def test_rank_correlations_are_spearmans(decimals: int) -> None:
    """With ties, and with heads that lack one of the two."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=40).round(decimals)
    y = (x + generator.normal(size=40)).round(decimals)
    gaps = x.copy()
    gaps[[3, 7]] = np.nan, np.inf
    found = rank_correlations(gaps, y, None, 200, seed=0)
    known = np.isfinite(gaps)
    assert found["n_heads"] == 38
    assert found["spearman"] == pytest.approx(reference.spearman(x[known], y[known]), abs=1e-12)
    expected: Any = stats.spearmanr(x[known], y[known])
    assert found["spearman"] == pytest.approx(expected.statistic, abs=1e-12)
    assert found["low"] < found["spearman"] < found["high"]


def test_the_interval_over_heads_covers() -> None:
    """Of 200 samples from one law, the 95 % intervals hold its rank correlation in about as many cases."""
    generator = np.random.default_rng(1)
    covered = []
    for number in range(200):
        x, y = generator.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], size=80).T
        found = rank_correlations(x, y, None, 300, seed=number)
        covered.append(found["low"] <= 6 / np.pi * np.arcsin(0.3) <= found["high"])
    assert 0.88 <= np.mean(covered) <= 0.99


def test_depth_alone_makes_no_correlation_within_layers() -> None:
    result = planted()
    whole = result.correlations(["qk_nuclear"], ["sink_mass"]).iloc[0]
    within = result.correlations(["qk_nuclear"], ["sink_mass"], within_layers=True).iloc[0]
    assert whole.high < -0.5
    assert within.low > 0.9


def test_correlations_without_enough_to_say_are_nan() -> None:
    constant = rank_correlations(np.ones(5), np.arange(5.0), None, 20, 0)
    few = rank_correlations(np.array([1.0, np.nan, 2.0]), np.arange(3.0), None, 20, 0)
    assert np.isnan([constant["spearman"], constant["low"], few["spearman"], few["high"]]).all()
    assert (constant["n_heads"], few["n_heads"]) == (5, 2)


def test_sink_heads_against_diagonal_heads() -> None:
    kinds = [["sink"] * 10 + ["diagonal"] * 15 + ["dense"] * 5] * 4
    result = planted(kinds)
    row = result.sink_against_diagonal(["vo_nuclear"]).iloc[0]
    values = result.cost("vo_nuclear").numpy()
    assert row.sink == pytest.approx(np.median(values[:, :10]))
    assert row.diagonal == pytest.approx(np.median(values[:, 10:25]))
    assert row.difference == pytest.approx(row.sink - row.diagonal)
    assert row.low < row.difference < row.high
    assert (row.n_sink, row.n_diagonal) == (40, 60)
    cheap = torch.tensor(np.array(kinds) == "sink")
    apart = HeadCosts({"vo_nuclear": torch.where(cheap, 1.0, 2.0 + result.cost("vo_nuclear"))}, result.scale, result.layers,
                      result.provenance, kinds=result.kinds).sink_against_diagonal(["vo_nuclear"]).iloc[0]  # fmt: skip
    assert apart.high < 0


def test_without_a_diagonal_head_there_is_no_difference() -> None:
    result = planted([["sink"] * 30] * 4)
    row = result.sink_against_diagonal(["qk_nuclear"]).iloc[0]
    assert np.isnan([row.diagonal, row.difference, row.low, row.high]).all()
    assert (row.n_sink, row.n_diagonal) == (120, 0)
    assert any("No head is of the kind diagonal" in headline.detail for headline in cost_headlines(result))


def test_headlines_say_yes_and_no() -> None:
    texts = " ".join(headline.detail for headline in cost_headlines(planted([["sink"] * 15 + ["diagonal"] * 15] * 4)))
    assert "Do costs grow with the sink mass? Over 120 heads: no, it is negative" in texts
    assert "Do sink heads cost less? Not told apart" in texts


def test_ratio_of_least_costs_over_layers() -> None:
    values = {"ratio_nuclear": torch.tensor([[0.0, 0.2], [0.4, torch.nan]]).double()}
    value, low, high = LeastCosts(values, (0, 1), Provenance("tiny")).sink_over_diagonal()
    assert value == pytest.approx(0.2)
    assert low == pytest.approx(0.2)
    assert high == pytest.approx(0.2)


def test_tables_hold_what_was_measured(measured: HeadCosts) -> None:
    table = measured.to_dataframe()
    assert len(table) == 15
    assert set(COSTS) | {"layer", "head", "sink_mass", "sink_margin", "kind"} <= set(table.columns)
    np.testing.assert_array_equal(table["qk_nuclear"], measured.cost("qk_nuclear").flatten())
    assert list(table["kind"]) == [kind for row in measured.kind for kind in row]
    least = measured.embedding_table()
    assert list(zip(least["layer"], least["pattern"], least["norm"], strict=True)) == [
        (layer, pattern, norm)
        for layer in (0, 2)
        for pattern in ("diagonal", "sink")
        for norm in ("frobenius", "nuclear")
    ]
    assert measured.spans is not None
    spent = measured.spans.mean("nuclear")[1].nanquantile(0.5).item()
    assert least[(least["layer"] == 2) & (least["norm"] == "nuclear")]["spent"].tolist() == pytest.approx(
        [spent, spent]
    )
    whole, inside = measured.cost("qk_nuclear")[[0, 2]], measured.spans.mean("nuclear")
    assert bool((inside <= whole * (1 + 1e-6)).all())


def test_excess_is_spent_over_least_for_the_margin(measured: HeadCosts) -> None:
    assert measured.least is not None
    assert measured.spans is not None
    assert measured.margins is not None
    margins = measured.margins.documents("sink_margin").clone()
    margins[2] = margins[2].abs()  # random heads have no sinks of their own
    values = {**measured.margins.values, "sink_margin": margins}
    planted = dataclasses.replace(measured, margins=dataclasses.replace(measured.margins, values=values))
    excess = planted.excess("sink", "frobenius")
    floor = measured.least.mean("sink_frobenius")[1] * margins[2].mean(-1)
    torch.testing.assert_close(excess[1], measured.spans.mean("frobenius")[1] / floor)
    assert bool((margins[0].mean(-1) <= 0).all())
    assert bool(excess[0].isnan().all())


def bloom(texts: list[str], **arguments: Any) -> torch.Tensor:
    """The excess of one that has a diagonal head."""
    found = sl.head_costs(bridge("bloom"), texts, embedding_layers=[1], progress=False, **arguments).excess("diagonal")
    assert bool((found > 0).any())
    return found


def test_excess_is_of_the_documents_that_least_costs_are_of() -> None:
    both, first = (bloom(texts, embedding_documents=1) for texts in (TEXTS, TEXTS[:1]))
    torch.testing.assert_close(both, first, rtol=5e-3, atol=0, equal_nan=True)


def test_excess_does_not_depend_on_the_margin_asked_for() -> None:
    one, other = (bloom(TEXTS[:1], margin=margin) for margin in (1.0, 3.0))
    torch.testing.assert_close(one, other, rtol=5e-3, atol=0, equal_nan=True)


def test_saved_and_loaded(measured: HeadCosts, tmp_path: Path) -> None:
    again = HeadCosts.load(measured.save(tmp_path / "costs.safetensors"))
    pd.testing.assert_frame_equal(again.to_dataframe(), measured.to_dataframe())
    pd.testing.assert_frame_equal(again.embedding_table(), measured.embedding_table())
    assert (again.layers, again.refused, again.provenance, repr(again)) == (
        measured.layers, measured.refused, measured.provenance, repr(measured),
    )  # fmt: skip
    alone = sl.head_costs(bridge("qwen3"), progress=False)
    loaded = HeadCosts.load(alone.save(tmp_path / "weights.safetensors"))
    assert loaded.refused == alone.refused
    assert (loaded.kinds, loaded.margins, loaded.least, loaded.spans) == (None, None, None, None)
    with pytest.raises(ResultFileError, match="HeadProfile"):
        sl.HeadProfile.load(tmp_path / "costs.safetensors")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda result: result.cost("qk"), "no cost 'qk' here; there are qk_frobenius"),
        (lambda result: result.score("mass"), "no score 'mass' here"),
        (lambda result: result.excess("previous"), "expected sink or diagonal"),
        (lambda result: sl.viz.cost_map(result, "nuclear"), "no cost 'nuclear'"),
        (lambda result: sl.viz.least_costs(result, "spectral"), "norm is 'spectral'"),
        (lambda result: sl.viz.pattern_costs({}), "no fits to show"),
    ],
)
def test_mistakes_are_named(measured: HeadCosts, call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call(measured)


def test_weights_alone_have_no_scores() -> None:
    result = sl.head_costs(bridge("llama"), progress=False)
    for call in (result.correlations, result.sink_against_diagonal):
        with pytest.raises(InputError, match="without a text"):
            call()
    with pytest.raises(InputError, match="no least costs"):
        result.embedding_table()
    assert [section.name for section in head_costs_sections(result)] == ["cost-maps", "cost-theory"]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figures_show_the_figures(measured: HeadCosts, theme: Any) -> None:
    heat: Any = sl.viz.cost_map(measured, "vo_frobenius", theme=theme)
    np.testing.assert_allclose(heat.data[0].z, measured.cost("vo_frobenius"), rtol=1e-6)
    scatter: Any = sl.viz.cost_scatter(measured, theme=theme)
    assert sum(len(trace.x) for trace in scatter.data) == 15
    chosen = (["qk_nuclear"], ["sink_mass", "self_mass"])
    correlations: Any = sl.viz.cost_correlations(measured, *chosen, theme=theme)
    np.testing.assert_allclose(correlations.data[0].x, measured.correlations(*chosen)["spearman"])
    lines: Any = sl.viz.least_costs(measured, theme=theme)
    least = {trace.name: trace for trace in lines.data}
    assert measured.least is not None
    np.testing.assert_allclose(least["least for a sink"].y, measured.least.mean("sink_nuclear"))


def test_the_page_holds_the_study(measured: HeadCosts) -> None:
    page = render_head_costs(measured, text_name="two sentences")
    assert "two sentences" in page
    assert "Are sinks cheaper on the layers&#39; own inputs?" in page
    refused = render_head_costs(sl.head_costs(bridge("qwen3"), progress=False))
    assert "W_QK of layer 0, 1 is left out: its scores are no multiple of q · k" in refused


def test_pattern_costs_are_those_of_the_theory() -> None:
    costs = PatternCosts.of([4, 8, 16], causal=True, scaled=False)
    table = costs.to_dataframe()
    row = table[(table["pattern"] == "diagonal") & (table["norm"] == "nuclear") & (table["tokens"] == 8)].iloc[0]
    assert row.cost == pytest.approx(6.058, abs=2e-3)
    assert json.loads(str(table.to_json(orient="records")))[0]["exponent"] == pytest.approx(table["exponent"][0])
    full = PatternCosts.of([256, 1024, 4096], causal=False, kinds=("sink", "diagonal")).fits["nuclear"]
    assert [full[kind].exponent for kind in ("sink", "diagonal")] == pytest.approx([1.0, 1.5], abs=0.02)


@pytest.mark.slow
@pytest.mark.skipif(packaged_weights() is None, reason="the package with SmolLM2-135M is not installed")
@pytest.mark.skipif(not DATA.exists(), reason="the GSM8K file is not there")
def test_smollm2_needs_far_less_for_a_sink_than_for_a_diagonal() -> None:
    """The figures that were measured apart from this code, on the input of the norm, with a solver of the theory."""
    model = sl.load_model("smollm2-135m")
    result = sl.head_costs(
        model, DATA, max_documents=3, embedding_layers=[12, 24], embedding_documents=3, progress=False, **SHORT
    )
    assert result.refused == ()
    torch.testing.assert_close(result.scale, torch.full((30,), 0.125).double(), rtol=1e-4, atol=0)
    whole = reference.matrix(model.blocks[12].attn, "qk", 5, 9)
    assert result.cost("qk_nuclear")[12, 5].item() == pytest.approx(reference.norm(whole, "nuclear"), rel=1e-5)
    assert result.least is not None
    _, cache = model.run_with_cache(next(iter(sl.tokenize(model, DATA, max_documents=1, batch_size=1, **SHORT))).tokens)
    X = cache["blocks.24.attn.hook_in"][0]
    for kind in ("sink", "diagonal"):
        expected = embedding_cost(X, kind, "nuclear", d_head=64)
        assert result.least.documents(f"{kind}_nuclear")[1, 0].item() == pytest.approx(expected, rel=3e-3)
    value, _, high = result.least.sink_over_diagonal()
    assert 0 < value <= high < 0.1

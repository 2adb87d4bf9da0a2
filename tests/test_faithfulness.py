"""Faithfulness: terms are ranked and removed as the literal reference does, and runs can be stopped, resumed and merged."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.errors import InputError, ResultFileError, UnsupportedAttentionError
from sinklens.masking import faithfulness, mask_by_metric
from sinklens.masking.hooks import LayerHooks
from sinklens.metrics.ranking import ranks, removal_counts, select, select_by_rank, to_rows, to_terms
from sinklens.results.faithfulness import FaithfulnessResult
from sinklens.results.faithfulness_progress import partial_faithfulness
from sinklens.viz.faithfulness import faithfulness_curves, faithfulness_differences
from tests.captured import BACKENDS, TEXT_FAMILIES, apart, load, n_hooks, new, output_weight
from tests.families import FAMILIES, inputs
from tests.reference import attention as reference
from tests.reference import faithfulness as slow

MODES = ("comprehensiveness", "sufficiency")
GRANULARITIES = ("pair", "edge", "token")
# Grouped heads, sliding windows, a learned sink, a gate.
CHOSEN = [
    name
    for name in (
        "gpt2",
        "phi",
        "llama",
        "llama_3x5",
        "mistral",
        "gemma2",
        "gpt_oss",
        "qwen3_next",
        "bloom",
        "deepseek_v3",
    )
    if name in TEXT_FAMILIES
]
DOCUMENTS = [
    [0, 17, 42, 99, 5, 200, 17, 42, 8, 64, 31],
    [0, 250, 3, 77, 12, 12, 190],
    [0, 61, 33, 128, 254, 19, 20, 21, 22],
    [0, 9, 9, 9, 140],
]
QUIET: dict[str, Any] = {"progress": False, "n_bootstrap": 50}


def llama() -> Any:
    return load(BACKENDS[0], "llama")


# Ranking.


def test_rounding_does_not_decide_between_equal_scores() -> None:
    rows = torch.tensor([[[1.0, 1 + 3e-7, 1 - 3e-7, 1.001]]])
    for each in (rows, rows.double()):
        top = select(each, torch.ones(1, 1, 4, dtype=torch.bool), torch.tensor([[2]]), "comprehensiveness")
        assert top.flatten().tolist() == [True, False, False, True]
    assert rows[0, 0, 1] > 1  # the caller's scores are not rounded


def ordered(row: list[float], candidates: list[bool]) -> list[int]:
    return sorted((i for i, real in enumerate(candidates) if real), key=lambda i: (-row[i], i))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("levels", [2, 5, 1000])
@pytest.mark.parametrize("length", [7, 400])
def test_selection_is_that_of_a_sorted_list_also_among_equal_scores(mode: str, levels: int, length: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    rows = torch.randint(-levels, levels, (2, 6, length), generator=generator).float()
    candidates = torch.rand(2, 6, length, generator=generator) < 0.7
    for fraction in (0.0, 0.02, 0.3, 0.5, 1.0):
        count = removal_counts(candidates.sum(-1), fraction)
        found = select(rows, candidates, count, mode)  # type: ignore[arg-type]
        by_rank = select_by_rank(ranks(rows, candidates), candidates, count, mode)  # type: ignore[arg-type]
        for b in range(2):
            for r in range(6):
                order = ordered(rows[b, r].tolist(), candidates[b, r].tolist())
                n = int(count[b, r])
                expected = set(order[:n] if mode == MODES[0] else order[len(order) - n :])
                assert set(found[b, r].nonzero().flatten().tolist()) == expected
        assert torch.equal(found, by_rank)


def test_selection_does_not_depend_on_memory_layout_and_leaves_scores_alone() -> None:
    rows = torch.randint(0, 3, (1, 5, 60), generator=torch.Generator().manual_seed(1)).float()
    strided = rows.transpose(1, 2).contiguous().transpose(1, 2)
    candidates, count = torch.ones_like(rows, dtype=torch.bool), torch.full((1, 5), 20)
    before = rows.clone()
    for mode in MODES:
        first, second = (select(each, candidates, count, mode) for each in (rows, strided))  # type: ignore[arg-type]
        assert torch.equal(first, second)
    assert torch.equal(rows, before)


def test_top_and_bottom_fractions_part_the_candidates() -> None:
    rows = torch.randint(0, 4, (1, 3, 20), generator=torch.Generator().manual_seed(2)).float()
    everything = torch.ones_like(rows, dtype=torch.bool)
    top = select(rows, everything, torch.full((1, 3), 6), "comprehensiveness")
    bottom = select(rows, everything, torch.full((1, 3), 14), "sufficiency")
    assert torch.equal(top, ~bottom)


def test_counts_are_rounded_down_and_survive_binary_fractions() -> None:
    n = torch.tensor([[9, 19, 20, 100, 1000]])
    assert removal_counts(n, 0.05).tolist() == [[0, 0, 1, 5, 50]]
    assert removal_counts(n, 0.29).tolist() == [[2, 5, 5, 29, 290]]
    assert removal_counts(n, 1.0).tolist() == n.tolist()


def test_infinite_and_undefined_scores_are_still_candidates() -> None:
    rows = torch.tensor([[[torch.nan, -1.0, torch.inf, -torch.inf, 2.0]]])
    candidates = torch.tensor([[[True, True, True, True, False]]])
    for mode, expected in zip(MODES, ([2, 0], [3, 1]), strict=True):
        found = select(rows, candidates, torch.tensor([[2]]), mode)  # type: ignore[arg-type]
        assert found.flatten().nonzero().flatten().tolist() == sorted(expected)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exempt", [(), ("sink",), ("self",), ("sink", "self")])
def test_removed_terms_are_the_reference_s(granularity: Any, mode: Any, exempt: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 3, 9, 9, generator=generator)
    real = torch.tensor([[True] * 9, [False] * 2 + [True] * 6 + [False]])
    visible = reference.visible_keys(real, window=5)
    sinks = [{0}, {2}] if "sink" in exempt else [set(), set()]
    for fraction in (0.34, 0.7):
        allowed = visible.clone()
        for b in range(2):
            allowed[b][:, list(sinks[b])] = False
            if "self" in exempt:
                allowed[b].fill_diagonal_(False)
        rankable = allowed.unsqueeze(1).expand(scores.shape)
        rows, candidates = to_rows(scores, rankable, granularity)
        chosen = select(rows, candidates, removal_counts(candidates.sum(-1), fraction), mode)
        found = to_terms(chosen, rankable, granularity)
        for b in range(2):
            terms = slow.rankable_terms(visible[b], 3, sinks[b], "self" in exempt)
            expected = slow.removed_terms(scores[b], terms, fraction, granularity, mode)
            assert {tuple(term) for term in found[b].nonzero().tolist()} == expected
            assert expected, "the case removes nothing"


# Masked passes against the literal reference.


def reference_logits(
    model: Any, name: str, tokens: Tensor, choose: Callable[..., set[Any]], renormalize: bool
) -> Tensor:
    """Logits of a pass in which every head output is summed again, term by term, without the terms that go."""
    family, seen = FAMILIES[name], dict[str, Tensor]()

    def keep(end: str) -> Callable[..., None]:
        def look(tensor: Tensor, hook: Any) -> None:
            seen[end] = apart(model, end, tensor.detach())

        return look

    def replace(layer: int) -> Callable[..., Tensor]:
        def at_z(z: Tensor, hook: Any) -> Tensor:
            pattern, value = seen["hook_pattern"], seen["hook_v"]
            gate = seen["hook_q_gate"].sigmoid().reshape(z.shape) if family.gated else None
            projected = reference.projected_values(value, output_weight(model, layer), pattern.shape[2], gate)
            visible = reference.visible_keys(torch.ones(tokens.shape, dtype=torch.bool), True, family.windows[layer])
            removed = [choose(pattern, projected, visible[0])]
            return slow.masked_z(pattern, value, gate, removed, renormalize).to(z).reshape(z.shape)

        return at_z

    hooks: list[Any] = []
    ends = ["hook_pattern", "hook_v", *(["hook_q_gate"] if family.gated else [])]
    for layer in family.attention_layers:
        hooks += [(f"blocks.{layer}.attn.{end}", keep(end)) for end in ends]
        hooks.append((f"blocks.{layer}.attn.hook_z", replace(layer)))
    with torch.no_grad():
        return model.run_with_hooks(tokens, fwd_hooks=hooks)


def expected_loss(
    model: Any, name: str, metric: str, mode: str, fraction: float, granularity: str = "pair", absolute: bool = False,
    renormalize: bool = False, exempt: tuple[str, ...] = (),
) -> float:  # fmt: skip
    tokens = inputs(name)

    def choose(pattern: Tensor, projected: Tensor, visible: Tensor) -> set[Any]:
        sinks = {0} if "sink" in exempt else set[int]()
        terms = slow.rankable_terms(visible, pattern.shape[1], sinks, "self" in exempt)
        values = slow.scores(metric, pattern, projected)[0]
        return slow.removed_terms(values, terms, fraction, granularity, mode, absolute)

    return slow.mean_loss(reference_logits(model, name, tokens, choose, renormalize)[0], tokens[0])


def precision(name: str) -> torch.dtype:
    """float64, where PyTorch can run the family's experts in it: orders then agree to the last term."""
    return torch.float32 if name in ("gpt_oss", "qwen3_next", "deepseek_v3") else torch.float64


def measured_loss(model: Any, name: str, metric: str, mode: str, fraction: float, **settings: Any) -> float:
    result = faithfulness(model, inputs(name), metric, fraction, modes=mode, **settings, **QUIET)
    return (result.loss.sum() / result.count.sum()).item()


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize(("metric", "mode"), [("inter", MODES[0]), ("value_weighted", MODES[1])])
def test_masked_loss_is_the_reference_s_on_every_family(name: str, metric: str, mode: str) -> None:
    model = load(BACKENDS[-1] if FAMILIES[name].has_hooked else "bridge", name, precision(name))
    expected = expected_loss(model, name, metric, mode, 0.3)
    clean = slow.mean_loss(model(inputs(name))[0], inputs(name)[0])
    assert abs(expected - clean) > 1e-4
    assert measured_loss(model, name, metric, mode, 0.3) == pytest.approx(expected, abs=1e-5)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("attention", {}),
    ("output_normalized", {}),
    ("intra", {}),
    ("intra", {"granularity": "edge"}),
    ("inter", {"granularity": "token"}),
    ("attention", {"granularity": "token", "exempt": ("self",)}),
    ("inter", {"ranking": "absolute"}),
    ("inter", {"renormalize": True}),
    ("inter", {"exempt": ("sink", "self")}),
]


@pytest.mark.parametrize(("metric", "settings"), CASES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in ("llama", "gpt_oss") if name in CHOSEN])
def test_every_setting_is_the_reference_s(name: str, metric: str, settings: dict[str, Any], mode: str) -> None:
    model = load("bridge", name, precision(name))
    literal = {key: value for key, value in settings.items() if key != "ranking"}
    expected = expected_loss(model, name, metric, mode, 0.25, absolute="ranking" in settings, **literal)
    assert measured_loss(model, name, metric, mode, 0.25, **settings) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", CHOSEN)
def test_removing_nothing_changes_no_bit_and_removing_everything_leaves_no_attention(name: str) -> None:
    model, tokens = load(BACKENDS[0], name), inputs(name)
    layers = FAMILIES[name].attention_layers
    zeros = [(f"blocks.{layer}.attn.hook_z", lambda z, hook: torch.zeros_like(z)) for layer in layers]
    with torch.no_grad():
        nothing = model.run_with_hooks(tokens, fwd_hooks=mask_by_metric(model, "inter", 0.0))
        everything = model.run_with_hooks(tokens, fwd_hooks=mask_by_metric(model, "inter", 1.0))
        assert torch.equal(nothing, model(tokens))
        assert torch.equal(everything, model.run_with_hooks(tokens, fwd_hooks=zeros))
        assert not torch.equal(everything, nothing)


@pytest.mark.parametrize("name", ["opt", "gptj"])
def test_a_pattern_that_comes_too_late_is_told(name: str) -> None:
    model = load("bridge", name)
    before = n_hooks(model)
    with pytest.raises(UnsupportedAttentionError, match="did not fire before the head outputs"):
        faithfulness(model, inputs(name), "attention", 0.1, **QUIET)
    assert n_hooks(model) == before


def test_where_nothing_is_removed_outputs_stay_as_another_edit_left_them() -> None:
    model, tokens = llama(), inputs("llama")
    edit = [("blocks.0.attn.hook_z", lambda z, hook: z + 1)]
    with torch.no_grad():
        alone = model.run_with_hooks(tokens, fwd_hooks=edit)
        both = model.run_with_hooks(tokens, fwd_hooks=[*edit, *mask_by_metric(model, "inter", 0.0)])
    assert torch.equal(alone, both)


def test_only_the_chosen_layers_are_masked() -> None:
    model, tokens = llama(), inputs("llama")
    seen: dict[str, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def look(tensor: Tensor, hook: Any) -> None:
            seen[f"layer {layer}"] = tensor

        return look

    masking = mask_by_metric(model, "attention", 1.0, layers=[1])
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[*masking, *((f"blocks.{n}.attn.hook_z", keep(n)) for n in (0, 1))])
    assert seen["layer 0"].abs().max() > 0
    assert seen["layer 1"].abs().max() == 0


# Runs over documents.


@pytest.fixture(scope="module")
def whole() -> FaithfulnessResult:
    return faithfulness(llama(), DOCUMENTS, fractions=(0.1, 0.3), **QUIET)


def test_documents_do_not_depend_on_their_batch(whole: FaithfulnessResult) -> None:
    apart = faithfulness(llama(), DOCUMENTS, fractions=(0.1, 0.3), batch_size=1, **QUIET)
    torch.testing.assert_close(apart.loss, whole.loss, atol=1e-4, rtol=0)
    assert torch.equal(apart.removed, whole.removed)
    assert torch.equal(apart.count, torch.tensor([10.0, 6.0, 8.0, 4.0], dtype=torch.float64))
    # 2 layers, 4 heads, n (n + 1) / 2 visible pairs: padding is not ranked.
    pairs = torch.tensor([2 * 4 * len(d) * (len(d) + 1) / 2 for d in DOCUMENTS], dtype=torch.float64)
    assert torch.equal(whole.rankable, pairs.expand(whole.rankable.shape))


def test_merged_halves_are_the_whole(whole: FaithfulnessResult) -> None:
    first, second = (
        faithfulness(llama(), part, fractions=(0.1, 0.3), **QUIET) for part in (DOCUMENTS[:2], DOCUMENTS[2:])
    )
    merged = first.merge(second)
    torch.testing.assert_close(merged.loss, whole.loss, atol=1e-4, rtol=0)
    torch.testing.assert_close(merged.effect(), whole.effect(), atol=1e-5, rtol=0)
    assert merged.provenance.n_documents == 4
    with pytest.raises(InputError, match="differ in fractions"):
        whole.merge(faithfulness(llama(), DOCUMENTS, fractions=0.1, **QUIET))


def test_clean_scores_rank_the_first_layer_alike_and_later_layers_not() -> None:
    settings: dict[str, Any] = {"fractions": (0.2, 0.5), "metrics": ("attention", "inter", "random"), **QUIET}
    for granularity in GRANULARITIES:
        first_only = [
            faithfulness(llama(), DOCUMENTS, layers=[0], scores=scores, granularity=granularity, **settings)
            for scores in ("running", "clean")
        ]
        torch.testing.assert_close(first_only[0].loss, first_only[1].loss, atol=1e-6, rtol=0)
    running, clean = (faithfulness(llama(), DOCUMENTS, scores=scores, **settings) for scores in ("running", "clean"))
    assert (running.loss[:2] - clean.loss[:2]).abs().max() > 1e-3
    torch.testing.assert_close(running.loss[2], clean.loss[2])  # random numbers know no pass


def test_hooks_for_the_user_do_what_the_study_measures() -> None:
    model, tokens = llama(), inputs("llama")
    masking = mask_by_metric(model, "intra", 0.2, mode="sufficiency", granularity="edge")
    with torch.no_grad():
        logits = model.run_with_hooks(tokens, fwd_hooks=masking)
    measured = measured_loss(model, "llama", "intra", "sufficiency", 0.2, granularity="edge")
    assert slow.mean_loss(logits[0], tokens[0]) == pytest.approx(measured, abs=1e-5)
    assert "lowest 0.2 by intra" in repr(masking)
    length = tokens.shape[1]
    rankable = model.cfg.n_layers * model.cfg.n_heads * length * (length + 1) // 2
    assert masking.rankable.tolist() == [rankable]
    assert 0 < masking.removed.item() <= 0.2 * rankable


def test_random_depends_on_its_seed_only(whole: FaithfulnessResult) -> None:
    again, other = (faithfulness(llama(), DOCUMENTS, "random", (0.1, 0.3), seed=seed, **QUIET) for seed in (0, 1))
    torch.testing.assert_close(again.loss[0], whole.loss[whole.metrics.index("random")])
    assert (again.loss - other.loss).abs().min() > 0


def test_half_precision_models_are_measured_too() -> None:
    model = load(BACKENDS[0], "llama", torch.bfloat16)
    result = faithfulness(model, DOCUMENTS, ("attention", "inter"), 0.3, **QUIET)
    assert result.provenance.dtype == "bfloat16"
    assert bool(result.loss.isfinite().all())


# Results.


def made_result() -> FaithfulnessResult:
    generator = torch.Generator().manual_seed(0)
    count = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    clean = count * 2.0
    rates = torch.rand(2, 2, 2, 3, generator=generator, dtype=torch.float64)
    return FaithfulnessResult(
        ("attention", "inter"), MODES, (0.1, 0.5), clean + rates * count, rates, torch.ones_like(rates), clean, count,
        sl.Provenance("tiny", seed=0), 200,
    )  # fmt: skip


def test_effects_are_those_of_the_mean_over_tokens() -> None:
    result = made_result()
    loss = float(result.loss[1, 0, 1].sum()) / 60
    assert result.effect()[1, 0, 1].item() == pytest.approx(loss - 2.0)
    perplexity = result.effect("delta_perplexity")[1, 0, 1].item()
    assert perplexity == pytest.approx(torch.tensor(loss).exp().item() - torch.tensor(2.0).exp().item(), rel=1e-5)
    table = result.to_dataframe()
    row = table[(table.metric == "inter") & (table["mode"] == MODES[0]) & (table.fraction == 0.5)].iloc[0]
    assert row.delta_loss == pytest.approx(loss - 2.0)
    assert row.delta_loss_low <= row.delta_loss <= row.delta_loss_high
    assert row.removed_share == pytest.approx(result.removed[1, 0, 1].mean().item())
    aopc = result.aopc()
    assert aopc[(aopc.metric == "inter") & (aopc["mode"] == MODES[0])].aopc.item() == pytest.approx(
        result.effect()[1, 0].mean().item()
    )


def test_differences_are_paired_by_document() -> None:
    result = made_result()
    shift = dataclasses.replace(result, loss=torch.stack([result.loss[0], result.loss[0] + 0.25 * result.count]))
    table = shift.differences("attention")
    # The same difference in every document: an interval without width, which unpaired intervals would not have.
    assert table[["difference", "low", "high"]].to_numpy() == pytest.approx(0.25)
    assert shift.differences(aopc=True)["difference"].to_numpy() == pytest.approx(0.25)
    assert (shift.interval()[..., 1] - shift.interval()[..., 0]).min() > 0.01
    with pytest.raises(InputError, match="no metric 'random'"):
        result.differences("random")


def test_a_single_document_has_no_interval() -> None:
    result = faithfulness(llama(), DOCUMENTS[:1], "attention", 0.3, **QUIET)
    assert bool(result.interval().isnan().all())
    assert bool(result.effect().isfinite().all())


def test_results_come_back_from_their_file(tmp_path: Path, whole: FaithfulnessResult) -> None:
    loaded = FaithfulnessResult.load(whole.save(tmp_path / "a.safetensors"))
    assert loaded.to_dataframe().equals(whole.to_dataframe())
    assert loaded.provenance == whole.provenance
    assert json.loads(json.dumps(loaded.provenance.conventions["granularity"])) == "pair"
    assert re.fullmatch(r"FaithfulnessResult\(tiny-llama: loss .* on 4 documents; .* nats\)", repr(loaded))
    with pytest.raises(ResultFileError, match="no file"):
        FaithfulnessResult.load(tmp_path / "b.safetensors")


# Interruption and resumption.


class Interrupter:
    """A hook of the user's own that interrupts the n-th pass, as Ctrl-C would."""

    def __init__(self, stop_at: int | None):
        self.stop_at, self.passes = stop_at, 0

    def __call__(self, tensor: Tensor, hook: Any) -> None:
        self.passes += 1
        if self.passes == self.stop_at:
            raise KeyboardInterrupt


def counted_run(stop_at: int | None, path: Path | None, **settings: Any) -> tuple[FaithfulnessResult | None, int]:
    model, interrupter = llama(), Interrupter(stop_at)
    before = n_hooks(model)
    result = None
    arguments = {
        "metrics": ("attention", "inter"),
        "fractions": (0.1, 0.3),
        "modes": MODES[0],
        "batch_size": 2,
        **QUIET,
    }
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", interrupter)]):
        if stop_at is None:
            result = faithfulness(model, DOCUMENTS, resume=path, **{**arguments, **settings})
        else:
            with pytest.raises(KeyboardInterrupt):
                faithfulness(model, DOCUMENTS, resume=path, **{**arguments, **settings})
    assert n_hooks(model) == before
    return result, interrupter.passes


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "partial.safetensors"
    complete, n_passes = counted_run(None, None)
    assert complete is not None
    assert n_passes == 1 + 2 * (1 + 4)  # a short pass that verifies; two batches: unmasked, and four cells
    counted_run(9, path)  # in the first masked pass but one of the second batch
    partial = partial_faithfulness(path)
    assert not partial.is_complete
    # The first batch's cells are all there, the second's first one too; batches go from long to short documents.
    assert partial.loss.isfinite().sum(-1).flatten().tolist() == [4, 2, 2, 2]
    finished = partial.loss.isfinite()
    torch.testing.assert_close(partial.loss[finished], complete.loss[finished], atol=1e-6, rtol=0)
    resumed, rest = counted_run(None, path)
    assert resumed is not None
    assert rest == 1 + 3
    torch.testing.assert_close(resumed.loss, complete.loss, atol=1e-6, rtol=0)
    assert resumed.provenance == complete.provenance
    assert counted_run(None, path)[1] == 0
    assert partial_faithfulness(path).is_complete


def test_a_resumed_run_may_add_metrics_and_fractions_but_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "partial.safetensors"
    counted_run(None, path)
    more, n_passes = counted_run(None, path, fractions=(0.1, 0.3, 0.5))
    assert more is not None
    assert n_passes == 1 + 2 * 2
    assert more.fractions == (0.1, 0.3, 0.5)
    path = tmp_path / "without the hook that counts.safetensors"
    faithfulness(llama(), DOCUMENTS, "inter", 0.1, resume=path, batch_size=2, **QUIET)
    for change in ({"granularity": "edge"}, {"seed": 1}, {"layers": [0]}, {"scores": "clean"}):
        [name] = change
        with pytest.raises(InputError, match=f"was begun with {name}"):
            faithfulness(llama(), DOCUMENTS, "inter", 0.1, resume=path, **{**QUIET, **change})
    with pytest.raises(InputError, match="other text or other batches"):
        faithfulness(llama(), DOCUMENTS[1:], "inter", 0.1, resume=path, batch_size=2, **QUIET)
    with pytest.raises(InputError, match="was begun with parameters"):
        faithfulness(other_llama("o_proj", "W_O"), DOCUMENTS, "inter", 0.1, resume=path, batch_size=2, **QUIET)
    with pytest.raises(InputError, match="was begun with parameters"):
        faithfulness(other_llama("gate_proj", "W_gate"), DOCUMENTS, "inter", 0.1, resume=path, batch_size=2, **QUIET)
    with (
        llama().hooks(fwd_hooks=[("blocks.0.hook_resid_pre", lambda residual, hook: residual * 2)]),
        pytest.raises(InputError, match="was begun with hooks 0, this run has 1"),
    ):
        faithfulness(llama(), DOCUMENTS, "inter", 0.1, resume=path, batch_size=2, **QUIET)
    with pytest.raises(ResultFileError, match="does not hold the result FaithfulnessResult"):
        FaithfulnessResult.load(path)


def other_llama(*names: str) -> Any:
    """With one weight changed, which has one of the names, by back end."""
    model = new(BACKENDS[0], "llama")
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if any(name in n for name in names)).mul_(1.5)
    return model


def test_a_masking_that_breaks_the_model_costs_without_bound() -> None:
    """NaN, as from half precision that overflows: not a pass that was not made, and not left out of the mean."""
    model = new(BACKENDS[0], "llama")
    whole = faithfulness(model, DOCUMENTS, "inter", (0.1, 1.0), modes="comprehensiveness", **QUIET)
    assert whole.effect().isfinite().all()
    masked = LayerHooks._at_z

    def broken(self: Any, z: Any, hook: Any) -> Any:
        edited = masked(self, z, hook)
        return edited if edited is None or edited[0].abs().max() > 1e-4 else edited * torch.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LayerHooks, "_at_z", broken)
        result = faithfulness(model, DOCUMENTS, "inter", (0.1, 1.0), modes="comprehensiveness", **QUIET)
    assert result.is_complete
    assert result.effect()[0, 0].tolist() == [whole.effect()[0, 0, 0].item(), float("inf")]


def test_a_failing_pass_leaves_no_hook_and_the_finished_passes(tmp_path: Path) -> None:
    path = tmp_path / "partial.safetensors"
    counted_run(4, path)
    assert partial_faithfulness(path).loss.isfinite().sum().item() == 2
    counted_run(3, tmp_path / "other.safetensors")
    with pytest.raises(ResultFileError, match="no finished pass"):
        partial_faithfulness(tmp_path / "other.safetensors")


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metrics": "attentoin"}, "metrics: there is no 'attentoin'; expected one of attention,"),
        ({"metrics": ()}, "metrics is empty"),
        ({"fractions": (0.1, 1.5)}, "fraction 1.5 is not a number from 0 to 1"),
        ({"fractions": float("nan")}, "fraction nan is not a number"),
        ({"fractions": ()}, "no fraction was given"),
        ({"granularity": "row"}, "granularity: there is no 'row'; expected one of pair, edge, token"),
        ({"ranking": "both"}, "ranking: there is no 'both'"),
        ({"scores": "old"}, "scores is 'old'"),
        ({"modes": "sufficient"}, "modes: there is no 'sufficient'"),
        ({"exempt": "bos"}, "exempt: there is no 'bos'"),
        ({"layers": [7]}, "no layer 7; the layers here are"),
        ({"n_bootstrap": 0}, "n_bootstrap is 0"),
        ({"sink": "last"}, "sink is 'last'"),
        ({"context_length": 9999}, "context_length 9999 is greater"),
    ],
)
def test_mistakes_are_told_in_one_line_before_the_first_pass(arguments: dict[str, Any], message: str) -> None:
    model, interrupter = llama(), Interrupter(None)
    settings = {"metrics": "inter", "fractions": 0.1, **QUIET, **arguments}
    with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", interrupter)]), pytest.raises(InputError) as error:
        faithfulness(model, DOCUMENTS, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert interrupter.passes == 0


def test_an_encoder_has_no_next_token_loss() -> None:
    with pytest.raises(UnsupportedAttentionError, match="no next-token loss"):
        faithfulness(load("bridge", "bert"), inputs("bert"), **QUIET)


def test_hooks_that_were_told_of_other_tokens_say_so() -> None:
    model = llama()
    masking = mask_by_metric(model, "inter", 0.1)
    masking.use(inputs("llama")[:, :5], torch.ones(1, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="the masking was told of"):
        model.run_with_hooks(inputs("llama"), fwd_hooks=masking)


# Figures.


def test_curves_and_bands_show_the_result_s_numbers() -> None:
    result = made_result()
    figure: Any = faithfulness_curves(result)
    lines = [trace for trace in figure.data if trace.mode == "lines+markers"]
    bands = [trace for trace in figure.data if trace.fill == "toself"]
    assert len(lines) == len(bands) == 4
    by_panel = {(trace.xaxis, trace.legendgroup): trace for trace in lines}
    assert list(by_panel["x2", "inter"].y) == pytest.approx(result.effect()[1, 1].tolist())
    assert list(by_panel["x", "attention"].x) == [0.1, 0.5]
    low, high = result.interval()[1, 1].unbind(-1)
    band = next(trace for trace in bands if (trace.xaxis, trace.legendgroup) == ("x2", "inter"))
    assert list(band.y) == pytest.approx([*low.tolist(), *reversed(high.tolist())])
    assert sum(trace.showlegend for trace in lines) == 2
    assert figure.layout.yaxis.title.text == "Δ loss (nats per token)"


def test_difference_bars_show_paired_differences() -> None:
    result = made_result()
    figure: Any = faithfulness_differences(result, fraction=0.5)
    table = result.differences("attention")
    row = table[(table["mode"] == MODES[1]) & (table.fraction == 0.5)].iloc[0]
    bar = figure.data[1]
    assert bar.y[0] == pytest.approx(row.difference)
    assert bar.error_y.array[0] == pytest.approx(row.high - row.difference)
    assert bar.error_y.arrayminus[0] == pytest.approx(row.difference - row.low)
    with pytest.raises(InputError, match="was not measured"):
        faithfulness_differences(result, fraction=0.2)


# The figures of the real model.


@pytest.mark.slow
def test_smollm2_on_gsm8k_gives_the_known_order() -> None:
    """On 8 documents of 128 tokens with BOS; numbers measured when the definitions were written down."""
    path = Path(__file__).parents[2] / "shared" / "data" / "gsm8k_test.jsonl"
    if not path.is_file():
        pytest.skip("needs the GSM8K test set")
    model = sl.load_model("smollm2-135m")
    batches = sl.tokenize(
        model, path, fields=("question", "answer"), context_length=128, min_length=128, overflow="cut", max_documents=8
    )
    top = faithfulness(model, batches, ("attention", "value_weighted", "inter"), 0.05, modes=MODES[0], **QUIET)
    assert top.effect().flatten().tolist() == pytest.approx([3.57, 4.61, 5.25], abs=0.1)
    bottom = faithfulness(model, batches, ("value_weighted", "inter"), 0.5, modes=MODES[1], **QUIET)
    assert bottom.effect().flatten().tolist() == pytest.approx([0.021, 0.174], abs=0.01)

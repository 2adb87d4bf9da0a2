"""Ablation studies: losses, divergences, norms and drift are those of the reference, and nothing is hidden."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.ablation import ablate_sinks, drift_without_sinks, sweep_sinks, value_means
from sinklens.ablation.losses import sequence_losses
from sinklens.errors import InputError, ResultFileError, SinklensError, UnsupportedAttentionError
from sinklens.interventions import (
    mask_contributions,
    mean_sink_values,
    placebo,
    remove_sink_attention,
    scale_sink_values,
    set_sink_mass,
    zero_sink_values,
)
from sinklens.results.ablation import AblationCell, AblationResult, SweepResult
from sinklens.viz import ablation as viz_module
from tests.captured import BACKENDS, MODELS, load, n_hooks, new, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import attention
from tests.reference import interventions as reference

viz: Any = viz_module
SETTINGS: dict[str, Any] = {"context_length": 32, "progress": False, "n_bootstrap": 50}
STORY = (
    "A farmer has 12 apples and gives 3 of them to each of her two sons. How many apples does she keep? "
    "She gives away 2 * 3 = 6 apples, so she keeps 12 - 6 = 6 apples. "
)
CAUSAL = [(b, n) for b, n in MODELS if FAMILIES[n].causal]
EDITABLE = [(b, n) for b, n in CAUSAL if b == "hooked" or FAMILIES[n].pattern_editable]


def documents(name: str) -> list[list[int]]:
    ids = inputs(name)[0].tolist()
    return [ids, ids[2:9], [*ids[5:9], *ids[:4]], ids[1:7]]


def run(model: Any, ids: list[int], hooks: Any) -> Tensor:
    with torch.no_grad():
        return model.run_with_hooks(torch.tensor([ids]), fwd_hooks=hooks)[0]


def sums(model: Any, ids: list[int], make: Callable[[Tensor], Any]) -> tuple[float, float]:
    """Summed cross-entropy and divergence of one document, run alone and unpadded."""
    tokens = torch.tensor([ids])
    edited, clean = run(model, ids, make(tokens)), run(model, ids, [])
    return math.fsum(reference.cross_entropy(edited, tokens[0])), math.fsum(reference.divergence(clean, edited))


@pytest.mark.parametrize(("backend", "name"), CAUSAL)
def test_losses_and_divergences_are_those_of_documents_run_alone(backend: str, name: str) -> None:
    model, texts = load(backend, name), documents(name)
    result = ablate_sinks(model, texts, "all", batch_size=3, **SETTINGS)
    makers: dict[str, Callable[[Tensor], Any]] = {
        "sink": lambda tokens: zero_sink_values(model),
        "position": lambda tokens: placebo(zero_sink_values(model, tokens=tokens), "position"),
        "direction": lambda tokens: placebo(zero_sink_values(model), "direction"),
    }
    assert [cell.where for cell in result.cells] == list(makers)
    assert result.count.tolist() == [len(text) - 1 for text in texts]
    for document, text in enumerate(texts):
        assert result.clean_loss[document].item() == pytest.approx(sums(model, text, lambda tokens: [])[0], rel=1e-5)
        for row, make in enumerate(makers.values()):
            loss, divergence = sums(model, text, make)
            assert result.loss[row, document].item() == pytest.approx(loss, rel=2e-5)
            assert result.divergence[row, document].item() == pytest.approx(divergence, rel=2e-3, abs=2e-4)
    assert result.changed == (True, True, True)
    assert result.divergence[0].min() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_edit_by_name_is_the_intervention(backend: str) -> None:
    model, texts, pair = load(backend, "llama"), documents("llama"), (1, 2)
    means = value_means(model, texts, layers=[1], context_length=32, progress=False)
    edits = {
        "zero": zero_sink_values(model, heads=[pair]),
        "mean": mean_sink_values(model, means, heads=[pair]),
        "remove": remove_sink_attention(model, heads=[pair]),
        "scale:2": scale_sink_values(model, 2.0, heads=[pair]),
        "mass:0.75": set_sink_mass(model, 0.75, heads=[pair]),
    }
    result = ablate_sinks(model, texts, [pair], edits=list(edits), controls=(), **SETTINGS)
    assert [(cell.group, cell.edit) for cell in result.cells][3:] == [("head 1.2", "scale"), ("head 1.2", "mass")]
    for row, hooks in enumerate(edits.values()):
        for document, text in enumerate(texts):
            expected = sums(model, text, lambda _, hooks=hooks: hooks)[0]
            assert result.loss[row, document].item() == pytest.approx(expected, rel=2e-5)


def test_value_means_leave_sinks_and_padding_out() -> None:
    model, texts = load("bridge", "llama"), documents("llama")
    values = [raw_layers(model, "llama", torch.tensor([text]))[1].value[0, 1:] for text in texts]
    means = value_means(model, texts, context_length=32, progress=False)
    torch.testing.assert_close(means[1].double(), torch.cat(values).mean(0), atol=1e-6, rtol=1e-5)


def test_effects_and_intervals_follow_from_the_sums() -> None:
    result = ablate_sinks(load("bridge", "llama"), documents("llama"), "layers", **SETTINGS)
    table = result.to_dataframe()
    assert table["group"].tolist() == [f"layer {layer}" for layer in (0, 1) for _ in range(3)]
    loss, clean, count = result.loss.sum(1), result.clean_loss.sum(), result.count.sum()
    torch.testing.assert_close(torch.tensor(table["delta_loss"]), (loss - clean) / count)
    torch.testing.assert_close(torch.tensor(table["delta_perplexity"]), (loss / count).exp() - (clean / count).exp())
    torch.testing.assert_close(torch.tensor(table["divergence"]), result.divergence.sum(1) / count)
    resampled = []
    for weights in result.weights:
        drawn = torch.tensor([d for d, times in enumerate(weights.tolist()) for _ in range(int(times))])
        assert len(drawn) == len(result.count)
        resampled.append((result.loss[4][drawn].sum() - result.clean_loss[drawn].sum()) / result.count[drawn].sum())
    ends = torch.stack(resampled).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
    torch.testing.assert_close(result.interval()[4], ends)
    paired: Any = result.against_controls()
    effects = result.effect()
    assert paired["control"].tolist() == ["position", "direction"] * 2
    assert paired["difference"].tolist() == pytest.approx(
        [(effects[r - r % 3] - effects[r]).item() for r in (1, 2, 4, 5)]
    )
    differences = (result.weights @ (result.loss[3] - result.loss[5])) / (result.weights @ result.count)
    expected = differences.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    assert [paired["low"][3], paired["high"][3]] == pytest.approx(expected)


def test_seeds_make_it_repeatable_and_batches_do_not_matter() -> None:
    model, texts = load("bridge", "llama"), documents("llama")
    one, again, other = (ablate_sinks(model, texts, seed=seed, **SETTINGS) for seed in (0, 0, 1))
    small = ablate_sinks(model, texts, seed=0, batch_size=1, **SETTINGS)
    assert torch.equal(one.loss, again.loss)
    assert torch.equal(one.interval(), again.interval())
    assert not torch.equal(one.loss[1:], other.loss[1:])
    torch.testing.assert_close(small.loss, one.loss, atol=1e-4, rtol=1e-6)


def test_halves_merge_to_the_whole_and_come_back_from_a_file(tmp_path: Path) -> None:
    model, texts = load("bridge", "llama_3x5"), documents("llama_3x5")

    def sweep(model: Any, texts: Any, **more: Any) -> SweepResult:
        return sweep_sinks(model, texts, "mass", [1], values=(0.0, 0.5), **more)

    measures: list[Callable[..., Any]] = [ablate_sinks, sweep]
    for measure in measures:
        whole, first, second = (measure(model, part, **SETTINGS) for part in (texts, texts[:2], texts[2:]))
        merged: Any = first.merge(second)
        for field in dataclasses.fields(whole):
            mine, expected = getattr(merged, field.name), getattr(whole, field.name)
            if isinstance(expected, Tensor):
                torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-5, equal_nan=True)
        torch.testing.assert_close(merged.interval(), whole.interval(), atol=1e-4, rtol=1e-4)
        path = whole.save(tmp_path / f"{type(whole).__name__}.safetensors")
        loaded = type(whole).load(path)
        assert loaded.to_dataframe().equals(whole.to_dataframe())
        assert loaded.provenance == whole.provenance
        assert loaded.cells[0].heads == whole.cells[0].heads
    with pytest.raises(ResultFileError, match="does not hold the result SweepResult"):
        SweepResult.load(tmp_path / "AblationResult.safetensors")
    with pytest.raises(InputError, match="cannot merge ablations of other groups or edits"):
        ablate_sinks(model, texts, [0], **SETTINGS).merge(ablate_sinks(model, texts, [1], **SETTINGS))


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_enters_no_loss(side: str) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, clean = torch.randn(2, 1, 6, 11, generator=generator)
    tokens = torch.randint(0, 11, (1, 6), generator=generator)
    alone = sequence_losses(logits, tokens, torch.ones(1, 6, dtype=torch.bool), clean)
    assert alone.loss.item() == pytest.approx(math.fsum(reference.cross_entropy(logits[0], tokens[0])), rel=1e-6)
    assert alone.divergence.item() == pytest.approx(math.fsum(reference.divergence(clean[0], logits[0])), rel=1e-5)

    def padded(tensor: Tensor, value: float) -> Tensor:
        padding = torch.full_like(tensor[:, :2], value)
        return torch.cat([tensor, padding] if side == "right" else [padding, tensor], 1)

    mask = padded(torch.ones(1, 6), 0.0).bool()
    other = sequence_losses(padded(logits, 50.0), padded(tokens, 3), mask, padded(clean, -50.0))
    assert (other.loss, other.divergence, other.n_predicted) == alone


# Sweeps.


@pytest.mark.parametrize(("backend", "name"), EDITABLE)
def test_in_one_layer_measured_norms_are_the_closed_form_and_the_references(backend: str, name: str) -> None:
    model, texts, layer = load(backend, name), documents(name)[:2], FAMILIES[name].attention_layers[-1]
    result = sweep_sinks(model, texts, "mass", [layer], values=(0.0, 0.35, 1.0), controls=(), batch_size=2, **SETTINGS)
    table: Any = result.norms()
    assert len(table) == 3 * FAMILIES[name].n_heads
    assert table["measured"].tolist() == pytest.approx(table["closed_form"].tolist(), rel=2e-4)
    head, squares, clean, queries = FAMILIES[name].n_heads - 1, 0.0, 0.0, 0
    for text in texts:
        before = raw_layers(model, name, torch.tensor([text]))[layer]
        pattern = reference.sink_mass(
            before.pattern[0], [0], 0.35, before.visible[0], [head], FAMILIES[name].learned_sink
        )
        outputs = attention.head_outputs(pattern.unsqueeze(0), before.projected)[0, head]
        rows = [i for i in range(1, len(text)) if before.visible[0, i, 0]]
        squares += math.fsum(float(outputs[i] @ outputs[i]) for i in rows)
        whole = attention.head_outputs(before.pattern, before.projected)[0, head]
        clean += math.fsum(float(whole[i] @ whole[i]) for i in rows)
        queries += len(rows)
    row = table[(table["head"] == head) & (table["value"] == 0.35)].iloc[0]
    assert row["measured"] == pytest.approx(math.sqrt(squares / queries), rel=1e-4)
    assert row["clean"] == pytest.approx(math.sqrt(clean / queries), rel=1e-4)
    assert table["measured"].std() > 0.01


@pytest.mark.parametrize(
    ("backend", "name"), [(b, n) for b, n in CAUSAL if n in ("llama", "opt", "qwen3_next", "gpt_oss")]
)
def test_scaled_values_have_the_norms_of_the_closed_form(backend: str, name: str) -> None:
    model, texts, layer = load(backend, name), documents(name), FAMILIES[name].attention_layers[-1]
    for groups in ([layer], [(layer, 1)]):
        result = sweep_sinks(model, texts, "scale", groups, values=(-1.0, 0.0, 1.0, 2.0), controls=(), **SETTINGS)
        table: Any = result.norms()
        assert table["measured"].tolist() == pytest.approx(table["closed_form"].tolist(), rel=2e-4)
        assert table[table["value"] == 1.0]["measured"].tolist() == pytest.approx(
            table[table["value"] == 1.0]["clean"].tolist()
        )
        assert abs(result.effect()[2]) < 1e-6
        assert result.changed == (True, True, False, True)


def test_beyond_one_layer_the_indirect_effect_shows() -> None:
    result = sweep_sinks(load("bridge", "llama"), documents("llama"), "mass", "all", values=(0.9,), **SETTINGS)
    table: Any = result.norms().set_index(["layer", "head"])
    gap = (table["measured"] / table["closed_form"] - 1).abs()
    assert gap.loc[0].max() < 2e-4
    assert gap.loc[1].max() > 1e-2
    assert result.measured[1].isnan().all()


# Drift.


@pytest.mark.parametrize(("backend", "name"), [(b, n) for b, n in MODELS if n in ("llama", "mistral", "opt", "bert")])
def test_drift_without_sinks_is_the_first_layers_arithmetic_and_more_beyond(backend: str, name: str) -> None:
    model, texts = load(backend, name), documents(name)
    both = drift_without_sinks(model, texts, context_length=32, progress=False)
    [alone] = sl.run(model, texts, [sl.DriftAnalyzer()], context_length=32, progress=False)
    torch.testing.assert_close(both.clean.mean("cone_with"), alone.mean("cone_with"))
    table: Any = both.to_dataframe()
    first, later = table[table["layer"] == 0], table[table["layer"] == 1]
    assert first["cone_ablated"].tolist() == pytest.approx(first["cone_without"].tolist(), abs=1e-4)
    assert (later["cone_ablated"] - later["cone_without"]).abs().max() > 1e-3
    assert (first["cone_with"] - first["cone_without"]).abs().max() > 1e-3
    assert "with sinks ablated" in repr(both)


# Mistakes and what stays behind.


@pytest.mark.parametrize(("arguments", "message"), [
    ({"groups": "layer"}, "groups is 'layer'; expected 'all', 'layers', 'heads'"),
    ({"groups": [7]}, "no layer 7; the layers here are 0, 1"),
    ({"groups": [(0, 9)]}, "no head 9; the heads are 0 to 3"),
    ({"groups": []}, "no group of heads"),
    ({"groups": {"mine": []}}, "no head was named"),
    ({"edits": ()}, "no edit was named"),
    ({"edits": ("erase",)}, "edit is 'erase'; expected 'zero', 'mean', 'remove'"),
    ({"edits": ("scale",)}, "edit is 'scale'; expected"),
    ({"edits": ("scale:nan",)}, "factor is nan; expected a finite number"),
    ({"edits": ("scale:inf",)}, "edit is 'scale:inf'; expected"),
    ({"edits": ("mass:1.5",)}, "mass is 1.5; expected a number from 0 to 1"),
    ({"controls": ("none",)}, "controls holds 'none'; expected 'position' or 'direction'"),
    ({"sink": 64}, "sink position 64 lies beyond the model's context of 64 tokens"),
    ({"sink": 12, "batch_size": 1}, "sink position 12 lies beyond a sequence of 8 tokens"),
    ({"sink": "detect"}, "a study needs the same sinks in all layers"),
    ({"n_bootstrap": 0}, "n_bootstrap is 0; expected a whole number from 1 to 1000000"),
])  # fmt: skip
def test_mistakes_are_named_before_the_first_pass(arguments: dict[str, Any], message: str) -> None:
    model = new("bridge", "llama")
    passes: list[int] = []
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(tensor.shape[1]))
    with pytest.raises(InputError, match=message) as error:
        ablate_sinks(model, documents("llama"), **{**SETTINGS, **arguments})
    assert "\n" not in str(error.value)
    assert set(passes) <= {3}  # the probe of the pattern at most, no text


def test_what_cannot_be_studied_is_refused() -> None:
    with pytest.raises(UnsupportedAttentionError, match="tiny-bert sees later tokens, so it has no next-token loss"):
        ablate_sinks(load("bridge", "bert"), documents("bert"), **SETTINGS)
    with pytest.raises(UnsupportedAttentionError, match="throws an edit of the pattern away"):
        sweep_sinks(load("bridge", "opt"), documents("opt"), **SETTINGS)
    with pytest.raises(InputError, match="kind is 'size'; expected 'mass' or 'scale'"):
        sweep_sinks(load("bridge", "llama"), documents("llama"), "size", **SETTINGS)
    with pytest.raises(InputError, match="no effect 'accuracy'; there are delta_loss, delta_perplexity, divergence"):
        ablate_sinks(load("bridge", "llama"), documents("llama"), **SETTINGS).effect("accuracy")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("mine")])
def test_an_interrupted_study_leaves_the_model_clean_and_what_it_has(error: BaseException, tmp_path: Path) -> None:
    model = new("bridge", "llama")
    plain = run(model, documents("llama")[0], [])
    calls: list[int] = []

    def interrupt(tensor: Tensor, hook: Any) -> None:
        calls.append(1)
        if len(calls) == 10:  # in the second batch: one clean pass and six edits each
            raise error

    handle = (
        model.blocks[1].hook_resid_post if hasattr(model.blocks[1], "hook_resid_post") else model.blocks[1].hook_out
    )
    handle.add_hook(interrupt)
    own = n_hooks(model)
    with pytest.raises(type(error)):
        ablate_sinks(
            model, documents("llama"), "layers", batch_size=2, partial=tmp_path / "so_far.safetensors", **SETTINGS
        )
    assert n_hooks(model) == own
    partial = AblationResult.load(tmp_path / "so_far.safetensors")
    whole = ablate_sinks(load("bridge", "llama"), documents("llama"), "layers", batch_size=2, **SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["so_far.safetensors"]
    assert partial.count.tolist() == [12.0, 7.0]
    torch.testing.assert_close(partial.loss, whole.loss[:, [0, 2]])
    assert partial.provenance.n_documents == 4  # read, of which two are measured
    assert torch.equal(run(model, documents("llama")[0], []), plain)


def test_an_edit_without_effect_is_told() -> None:
    model, texts = load("bridge", "llama"), documents("llama")
    result = ablate_sinks(model, texts, sink="token:319", controls=(), **SETTINGS)
    assert result.changed == (False,)
    assert result.effect().tolist() == [0.0]
    assert result.to_dataframe()["changed"].tolist() == [False]


# Figures.


@pytest.fixture(scope="module")
def by_head() -> AblationResult:
    """3 layers x 5 heads."""
    return ablate_sinks(
        load("bridge", "llama_3x5"), documents("llama_3x5"), "heads", controls=("position",), **SETTINGS
    )


def test_the_map_has_each_heads_effect_in_its_cell(by_head: AblationResult) -> None:
    trace = viz.ablation_map(by_head).data[0]
    table = by_head.to_dataframe()
    at_sink = table[table["where"] == "sink"].set_index("group")["delta_loss"]
    for layer, head in ((2, 4), (0, 3), (1, 0)):
        assert trace.z[layer][head] == pytest.approx(at_sink[f"head {layer}.{head}"])
    assert viz.ablation_map(by_head).layout.coloraxis.cmin == -viz.ablation_map(by_head).layout.coloraxis.cmax
    control = viz.ablation_map(by_head, place="position").data[0]
    assert control.z[2][4] != trace.z[2][4]
    with pytest.raises(InputError, match="no single head was ablated at place 'direction'"):
        viz.ablation_map(by_head, place="direction")


def test_effects_stand_beside_their_controls_with_intervals() -> None:
    result = ablate_sinks(load("bridge", "llama"), documents("llama"), "layers", edits=("zero", "mass:0.5"), **SETTINGS)
    figure = viz.ablation_effects(result, "divergence")
    assert [trace.name for trace in figure.data][:3] == [
        "zero, at the sink", "zero, control: random other position", "zero, control: random direction, same norm",
    ]  # fmt: skip
    for trace in figure.data:
        edit, place = trace.name.split(", ")[:2]
        where = {"at the sink": "sink", "control: random other position": "position"}.get(place, "direction")
        rows = [
            r
            for r, c in enumerate(result.cells)
            if c.where == where and edit == (c.edit if c.edit == "zero" else "mass 0.5")
        ]
        assert list(trace.x) == ["layer 0", "layer 1"]
        assert list(trace.y) == pytest.approx(result.effect("divergence")[rows].tolist())
        high = [y + up for y, up in zip(trace.y, trace.error_y.array, strict=True)]
        assert high == pytest.approx(result.interval("divergence")[rows][:, 1].tolist())
    with pytest.raises(InputError, match="no effect 'accuracy'"):
        viz.ablation_effects(result, "accuracy")


def test_sweeps_show_effects_and_norms_at_their_values() -> None:
    values = (0.0, 0.25, 1.0)
    result = sweep_sinks(load("bridge", "llama_3x5"), documents("llama_3x5"), "mass", [2], values=values, **SETTINGS)
    lines = {trace.name: trace for trace in viz.sweep_effects(result).data if trace.showlegend is not False}
    line = lines["layer 2, at the sink"]
    assert list(line.x) == list(values)
    assert list(line.y) == pytest.approx(result.effect()[[0, 2, 4]].tolist())
    assert set(lines) == {"layer 2, at the sink", "layer 2, control: random other position"}
    table: Any = result.norms()
    figure = viz.sweep_norms(result, [(2, 4)])
    rows = table[table["head"] == 4]
    for trace, column in zip(figure.data[:2], ("closed_form", "measured"), strict=True):
        assert list(trace.x) == list(values)
        assert list(trace.y) == pytest.approx(rows[column].tolist())
    assert list(figure.data[2].x) == pytest.approx([rows["mass"].iloc[0]])
    assert len(viz.sweep_norms(result, n=2).data) == 6
    with pytest.raises(InputError, match=r"head 1\.4 was not swept; the sweep has 5 heads"):
        viz.sweep_norms(result, [(1, 4)])


def test_reprs_tell_the_largest_effect_beside_its_controls() -> None:
    count = torch.tensor([10.0, 10.0], dtype=torch.float64)
    cells = tuple(AblationCell("all layers", ((0, 0),), "zero", math.nan, where) for where in ("sink", "position"))
    loss = torch.tensor([[30.0, 30.0], [21.0, 21.0]], dtype=torch.float64)
    clean = torch.tensor([20.0, 20.0], dtype=torch.float64)
    result = AblationResult(cells, loss, torch.zeros_like(loss), clean, count, (True, True), sl.Provenance("tiny"))
    assert repr(result) == (
        "AblationResult(tiny: loss 2.000 on 2 documents; largest effect zero in all layers: +1.000 nats [1.000, 1.000]; "
        "controls: position +0.100)"
    )


def test_a_single_document_has_no_interval() -> None:
    count = torch.tensor([10.0], dtype=torch.float64)
    cells = tuple(AblationCell("all layers", ((0, 0),), "zero", math.nan, where) for where in ("sink", "position"))
    loss = torch.tensor([[30.0], [21.0]], dtype=torch.float64)
    result = AblationResult(cells, loss, torch.zeros_like(loss), 2 * count, count, (True, True), sl.Provenance("tiny"))
    assert result.effect().tolist() == pytest.approx([1.0, 0.1])
    assert result.interval().isnan().all()
    assert result.against_controls()[["low", "high"]].isna().to_numpy().all()
    assert "zero in all layers: +1.000 nats; controls" in repr(result)


# A real model.


@pytest.fixture(scope="module")
def smollm2() -> Any:
    try:
        return sl.load_model("smollm2-135m")
    except SinklensError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_on_a_real_model_null_edits_change_nothing_and_levels_agree(smollm2: Any) -> None:
    tokens = next(iter(sl.tokenize(smollm2, ["The cat sat on the mat, and the dog sat on the log."]))).tokens
    plain = run(smollm2, tokens[0].tolist(), [])
    layers = range(smollm2.cfg.n_layers)
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    with torch.no_grad():
        _, cache = smollm2.run_with_cache(tokens, names_filter=names)
    present = {layer: cache[name][..., 0] for layer, name in zip(layers, names, strict=True)}
    nothing = dict.fromkeys(layers, torch.zeros(1, dtype=torch.bool))
    for hooks in (
        scale_sink_values(smollm2, 1.0, heads=[(layer, 4) for layer in layers]),
        mask_contributions(smollm2, nothing),
        set_sink_mass(smollm2, present),
    ):
        assert torch.equal(run(smollm2, tokens[0].tolist(), hooks), plain)
    group = [(12, head) for head in (3, 4, 5)]
    single = [zero_sink_values(smollm2, heads=[pair for pair in group if pair[1] == head]) for head in (3, 4, 5)]
    together = zero_sink_values(smollm2, heads=group, level="kv")
    one, other = (run(smollm2, tokens[0].tolist(), hooks) for hooks in (single[0] + single[1] + single[2], together))
    assert (other - plain).abs().max() > 0.1
    assert (one - other).abs().max() / plain.abs().max() < 1e-5


@pytest.mark.slow
def test_on_a_real_model_zeroed_sinks_cost_what_other_positions_do_not(smollm2: Any) -> None:
    texts = [STORY[start:] + STORY[:start] for start in range(0, 160, 40)]
    settings: dict[str, Any] = {**SETTINGS, "overflow": "cut", "controls": ("position",)}
    result = ablate_sinks(smollm2, texts, "all", **settings)
    sink, position = result.effect().tolist()
    assert sink > 0.1
    assert sink > 3 * abs(position)

"""Interventions and ablation studies under hands that make mistakes: what is refused, what is accepted, what is told."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.ablation import ablate_sinks, drift_without_sinks, sweep_sinks, value_means
from sinklens.ablation.cells import listed
from sinklens.cli.summaries import ablation_figures
from sinklens.errors import InputError, ResultFileError, UnsupportedAttentionError
from sinklens.interventions import (
    NoEffectError,
    intervene,
    mean_sink_values,
    placebo,
    scale_sink_values,
    set_sink_mass,
    zero_sink_values,
)
from sinklens.interventions.recipe import require_n_bootstrap, require_seed
from sinklens.interventions.targets import head_pairs
from sinklens.reports.tables import ablation_table
from sinklens.results.ablation import AblationCell, AblationResult, SweepResult
from sinklens.viz import ablation as viz_module
from tests.captured import load, new
from tests.commands import Run, expect_one_line, forbid_passes, runner
from tests.families import inputs

viz: Any = viz_module
SETTINGS: dict[str, Any] = {"context_length": 32, "progress": False, "n_bootstrap": 20}
Z = "blocks.0.attn.hook_z"


def texts() -> list[list[int]]:
    ids = inputs("llama")[0].tolist()
    return [ids, ids[2:9]]


def run(model: Any, hooks: Any) -> Tensor:
    with torch.no_grad():
        return model.run_with_hooks(inputs("llama"), fwd_hooks=hooks)


def study(where: tuple[str, ...], effects: list[float], values: list[float], changed: bool = True) -> AblationResult:
    """A result with these effects in nats, made by hand."""
    cells = tuple(
        AblationCell("all layers", ((0, 0),), "scale", value, place) for value, place in zip(values, where, strict=True)
    )
    count = torch.tensor([10.0, 10.0], dtype=torch.float64)
    loss = 2 * count + torch.tensor(effects, dtype=torch.float64)[:, None] * count
    return AblationResult(
        cells, loss, torch.zeros_like(loss), 2 * count, count, (changed,) * len(cells), sl.Provenance("tiny")
    )


# Models in training mode, and two models.


@pytest.mark.parametrize("measure", [ablate_sinks, sweep_sinks, drift_without_sinks, value_means])
def test_a_model_with_dropout_in_training_mode_is_refused(measure: Callable[..., Any]) -> None:
    model = new("bridge", "gpt2")
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    passes: list[int] = []
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(1))
    with pytest.raises(InputError, match=r"in training mode with dropout, .* call model\.eval\(\)"):
        measure(model, texts(), progress=False)
    assert not passes


def test_results_of_two_models_of_one_name_do_not_merge() -> None:
    model, other = load("bridge", "llama"), new("bridge", "llama")
    with torch.no_grad():
        other.blocks[0].attn.W_O.mul_(1.5)
    first, second = (ablate_sinks(each, texts(), controls=(), **SETTINGS) for each in (model, other))
    assert first.merge(ablate_sinks(model, texts(), controls=(), **SETTINGS)).count.shape == (4,)
    with pytest.raises(InputError, match="cannot merge results that differ in weights"):
        first.merge(second)


# Seeds and resamples.


@pytest.mark.parametrize("seed", [None, 1.5, 2**63, 2**70, -1, True, "1"])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(InputError, match=r"seed is .*; expected a whole number from 0 to 9223372036854775807") as error:
        require_seed(seed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("n_bootstrap", [None, 1.5, 0, -3, True, 1_000_001])
def test_resamples_are_a_whole_number(n_bootstrap: Any) -> None:
    with pytest.raises(InputError, match=r"n_bootstrap is .*; expected a whole number from 1 to 1000000"):
        require_n_bootstrap(n_bootstrap)
    assert require_n_bootstrap(np.int64(7)) == 7


@pytest.mark.parametrize("settings", [{"seed": 2**70}, {"seed": -1}, {"seed": True}, {"n_bootstrap": 10**12}])
@pytest.mark.parametrize("measure", [ablate_sinks, sweep_sinks])
def test_seeds_and_resamples_are_checked_before_the_first_pass(
    measure: Callable[..., Any], settings: dict[str, Any]
) -> None:
    model, passes = new("bridge", "llama"), list[int]()
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(tensor.shape[1]))
    with pytest.raises(InputError, match=f"{next(iter(settings))} is "):
        measure(model, texts(), **SETTINGS | settings)
    assert not passes


@pytest.mark.parametrize("control", ["position", "direction"])
def test_the_largest_seed_makes_a_control_and_larger_ones_do_not(control: str) -> None:
    model = load("bridge", "llama")
    for edit in (zero_sink_values(model), zero_sink_values(model, heads=[(1, 0)]), set_sink_mass(model, 0.4)):
        largest, other = (run(model, placebo(edit, control, seed=seed)) for seed in (2**63 - 1, 1))
        assert (largest - other).abs().max() > 1e-5
        with pytest.raises(InputError, match="seed is 9223372036854775808"):
            placebo(edit, control, seed=2**63)


@pytest.mark.parametrize(
    "option", [("--seed", "-1"), ("--seed", str(2**70)), ("--n-bootstrap", "0"), ("--n-bootstrap", str(10**12))]
)
@pytest.mark.parametrize("command", ["ablate", "faithfulness"])
def test_the_commands_refuse_seeds_and_resamples(
    monkeypatch: pytest.MonkeyPatch, command: str, option: tuple[str, str]
) -> None:
    call: Run = runner(monkeypatch)
    forbid_passes(monkeypatch)
    result = call(command, "--quiet", *option)
    expect_one_line(result, f"{option[0]} is {option[1]}; expected a whole number from")


# Where an intervention acts.


def test_a_repeated_position_is_one_sink() -> None:
    model = load("bridge", "llama")
    makers: list[Callable[[Tensor], Any]] = [
        lambda sink: zero_sink_values(model, heads=[(0, 0)], sink=sink),
        lambda sink: zero_sink_values(model, sink=sink),
        lambda sink: set_sink_mass(model, 0.3, sink=sink),
        lambda sink: placebo(zero_sink_values(model, sink=sink), seed=2),
    ]
    for make in makers:
        once, twice = (run(model, make(torch.tensor([sink]))) for sink in ([0, 3, -1], [0, 3, 0]))
        assert torch.equal(once, twice)
        assert not torch.equal(once, run(model, []))


@pytest.mark.parametrize("measure", [ablate_sinks, sweep_sinks, drift_without_sinks, zero_sink_values])
def test_a_token_beyond_the_vocabulary_is_refused(measure: Callable[..., Any]) -> None:
    model, passes = new("bridge", "llama"), list[int]()
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(tensor.shape[1]))
    size = model.cfg.d_vocab
    arguments: dict[str, Any] = {"tokens": inputs("llama")} if measure is zero_sink_values else {"progress": False}
    given = () if measure is zero_sink_values else (texts(),)
    with pytest.raises(InputError, match=f"sink token {size} .* vocabulary of {size} tokens"):
        measure(model, *given, sink=f"token:{size}", **arguments)
    assert not passes


def test_drift_is_measured_where_some_batch_has_no_such_token() -> None:
    model, ids = load("bridge", "llama"), texts()
    rare = next(token for token in ids[0] if token not in ids[1])
    found = drift_without_sinks(model, ids, sink=f"token:{rare}", batch_size=1, progress=False)
    assert found.clean.provenance.n_documents == 2
    absent = next(token for token in range(model.cfg.d_vocab) if token not in ids[0])
    with pytest.raises(InputError, match=f"no sink 'token:{absent}' was found in the text"):
        drift_without_sinks(model, ids, sink=f"token:{absent}", progress=False)


# What the context proves.


def zeroed_in_place(tensor: Tensor, hook: Any) -> Tensor:
    tensor[:, :, 0] = 0.0
    return tensor


def zeroed_without_return(tensor: Tensor, hook: Any) -> None:
    tensor[:, :, 0] = 0.0


@pytest.mark.parametrize("function", [zeroed_in_place, zeroed_without_return])
def test_an_edit_in_place_counts_as_a_change(function: Callable[..., Any]) -> None:
    model = load("bridge", "llama")
    plain = run(model, [])
    with torch.no_grad(), intervene(model, [(Z, function)]) as record:
        edited = model(inputs("llama"))
    assert record.changed
    assert (edited - plain).abs().max() > 1e-4


def test_an_edit_in_place_that_changes_nothing_is_told() -> None:
    model = load("bridge", "llama")

    def same(tensor: Tensor, hook: Any) -> Tensor:
        tensor[:, :, 0] *= 1.0
        return tensor

    with pytest.raises(NoEffectError, match="changed nothing"), torch.no_grad(), intervene(model, [(Z, same)]):
        model(inputs("llama"))


def test_looking_at_numbers_that_are_nan_is_no_change() -> None:
    model = load("bridge", "llama")
    broken = [(Z, lambda tensor, hook: torch.full_like(tensor, torch.nan))]
    with torch.no_grad(), intervene(model, broken), intervene(model, [(Z, lambda tensor, hook: None)]) as record:
        model(inputs("llama"))
    assert not record.changed


def test_a_pattern_edited_in_place_that_is_thrown_away_is_refused() -> None:
    model = load("bridge", "opt")
    mine = [("blocks.0.attn.hook_pattern", zeroed_without_return)]
    with pytest.raises(UnsupportedAttentionError, match="is thrown away"), torch.no_grad(), intervene(model, mine):
        model(inputs("opt"))


class Hooks(list[Any]):
    may_change_nothing = True


def test_hooks_that_say_so_may_change_nothing() -> None:
    model = load("bridge", "llama")
    idle = [(Z, lambda tensor, hook: tensor + 0)]
    with torch.no_grad(), intervene(model, Hooks(idle)) as record:
        model(inputs("llama"))
    assert not record.changed
    with pytest.raises(NoEffectError), torch.no_grad(), intervene(model, [*Hooks(idle)]):
        model(inputs("llama"))
    marked: Any = lambda tensor, hook: tensor + 0  # noqa: E731 -- an attribute is set on it
    marked.may_change_nothing = True
    with torch.no_grad(), intervene(model, [(Z, marked)]):
        model(inputs("llama"))


@pytest.mark.parametrize("fraction", [0.0, 1e-6])
def test_masking_of_no_term_is_no_mistake(fraction: float) -> None:
    model = load("bridge", "llama")
    with torch.no_grad(), intervene(model, sl.mask_by_metric(model, "inter", fraction)):
        assert torch.equal(model(inputs("llama")), run(model, []))


# Arguments.


@pytest.mark.parametrize(("mass", "message"), [
    ({0: 0.3, 1: 0.3}, "mass of layer 0 is a float; expected a tensor"),
    ({0: torch.rand(1, 3, 13), 1: torch.rand(1)}, r"mass of layer 0 has shape \(1, 3, 13\); .* \[batch, 4 heads, query\]"),
    ({0: torch.rand(1, 1, 4, 13), 1: torch.rand(1)}, r"mass of layer 0 has shape \(1, 1, 4, 13\)"),
    ({0: torch.full((1,), torch.nan), 1: torch.rand(1)}, "mass of layer 0 reaches from nan to nan; expected 0 to 1"),
])  # fmt: skip
def test_masses_of_the_wrong_kind_are_refused(mass: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        set_sink_mass.__wrapped__(load("bridge", "llama"), mass)  # type: ignore[attr-defined] -- as without beartype
    assert "\n" not in str(error.value)


def test_a_mass_of_other_sequences_is_refused_in_the_pass() -> None:
    model = load("bridge", "llama")
    for mass in (torch.rand(5), torch.rand(3, 1, 13)):
        hooks = set_sink_mass(model, {0: mass}, layers=[0])
        with pytest.raises(InputError, match=r"a mass has shape .*, the rows that are run \(1, 4, 13\)"):
            run(model, hooks)


def test_numbers_of_numpy_are_numbers() -> None:
    model = load("bridge", "llama")
    pairs: list[tuple[Any, Any]] = [
        (scale_sink_values(model, np.float32(0.5)), scale_sink_values(model, 0.5)),
        (set_sink_mass(model, np.float32(0.5)), set_sink_mass(model, 0.5)),
        (set_sink_mass(model, np.int64(1)), set_sink_mass(model, 1.0)),
        (sl.densify_attention(model, np.float32(0.5)), sl.densify_attention(model, 0.5)),
        (zero_sink_values(model, heads=[(np.int64(1), np.int64(2))]), zero_sink_values(model, heads=[(1, 2)])),
        (zero_sink_values(model, heads=np.array([[1, 2]])), zero_sink_values(model, heads=[(1, 2)])),
        (zero_sink_values(model, layers=np.array([1])), zero_sink_values(model, layers=[1])),
    ]
    for given, plain in pairs:
        assert repr(given) == repr(plain)
        assert torch.equal(run(model, given), run(model, plain))
        assert not torch.equal(run(model, given), run(model, []))
    for wrong in ([(True, 0)], [(0, 1.0)], [3], [(0, 1, 2)], ["01"]):
        with pytest.raises(InputError, match=r"heads holds .*; expected"):
            head_pairs(wrong)


@pytest.mark.parametrize("groups", [np.array([1]), np.array([[1, 2]]), {"mine": [(np.int64(1), np.int64(2))]}])
def test_groups_of_numpy_can_be_saved(groups: Any, tmp_path: Path) -> None:
    result = ablate_sinks(load("bridge", "llama"), texts(), groups, controls=(), **SETTINGS)
    assert AblationResult.load(result.save(tmp_path / "result.safetensors")).cells[0].heads == result.cells[0].heads
    assert {type(number) for pair in result.cells[0].heads for number in pair} == {int}


def test_one_name_is_a_list_of_one() -> None:
    model = load("bridge", "llama")
    in_lists = ablate_sinks(model, texts(), edits=["mass:0.5"], controls=["position"], **SETTINGS)
    plain = ablate_sinks(model, texts(), edits="mass:0.5", controls="position", **SETTINGS)
    assert plain.cells == in_lists.cells
    assert torch.equal(plain.loss, in_lists.loss)
    assert plain.provenance == in_lists.provenance
    sweep = sweep_sinks(model, texts(), values=[0.5], controls="position", **SETTINGS)
    assert [cell.where for cell in sweep.cells] == ["sink", "position"]
    with pytest.raises(InputError, match=r"lists of names, \(\) for none; got None"):
        listed(None)
    with pytest.raises(InputError, match="controls holds 'random'; expected"):
        ablate_sinks(model, texts(), controls="random", **SETTINGS)


@pytest.mark.parametrize("settings", [{}, {"edits": ["mean"]}])
@pytest.mark.parametrize("name", ["so_far.foo", "so_far"])
def test_the_suffix_of_a_partial_result_is_checked_before_the_first_pass(
    settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    model, passes = new("bridge", "llama"), list[int]()
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: passes.append(tensor.shape[1]))
    for measure, further in ((ablate_sinks, settings), (sweep_sinks, {})):
        with pytest.raises(ResultFileError, match=r"results are kept as \.safetensors"):
            measure(model, texts(), partial=tmp_path / name, **SETTINGS, **further)
    assert not passes


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_means_that_are_no_numbers_are_refused(number: float) -> None:
    model = load("bridge", "llama")
    means = {layer: torch.ones(2, 16) for layer in (0, 1)}
    means[1][0, 3] = number
    with pytest.raises(InputError, match="means of layer 1 are not all finite"):
        mean_sink_values(model, means)
    mean_sink_values(model, means, layers=[0])


# What results say.


def test_controls_are_paired_by_the_exact_number() -> None:
    near, nearer = 0.12345678, 0.12345679
    result = study(("sink", "position") * 2, [0.5, 0.1, 0.7, 0.2], [near, near, nearer, nearer])
    table: Any = result.against_controls()
    assert table["difference"].tolist() == pytest.approx([0.4, 0.5])
    figure = viz.ablation_effects(result)
    assert [trace.name for trace in figure.data if "at the sink" in trace.name] == [
        "scale 0.12345678, at the sink", "scale 0.12345679, at the sink",
    ]  # fmt: skip
    assert [row[1] for row in ablation_table(result).rows] == ["scale 0.12345678", "scale 0.12345679"]


def test_reprs_name_the_largest_effect_by_size_and_its_number() -> None:
    result = study(("sink", "sink"), [0.1, -0.4], [2.0, 0.25])
    assert "largest effect scale 0.25 in all layers: -0.400 nats" in repr(result)
    idle = study(("sink", "position"), [0.0, 0.0], [1.0, 1.0], changed=False)
    assert repr(idle) == "AblationResult(tiny: loss 2.000 on 2 documents; no edit changed anything)"
    sweep = sweep_sinks(load("bridge", "llama"), texts(), "scale", values=[0.25], **SETTINGS)
    assert isinstance(sweep, SweepResult)
    assert "largest effect scale 0.25 in all layers" in repr(sweep)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_null_in_json(loss: float) -> None:
    result = study(("sink", "position"), [0.1, 0.2], [2.0, 2.0])
    broken = dataclasses.replace(result, clean_loss=torch.full_like(result.clean_loss, loss))
    figures = json.loads(json.dumps(ablation_figures(broken), allow_nan=False))
    assert figures["clean_loss"] is None
    assert ablation_figures(result)["clean_loss"] == 2.0


@pytest.mark.parametrize("n", [0, -2])
def test_figures_of_no_group_are_refused(n: int) -> None:
    result = sweep_sinks(load("bridge", "llama"), texts(), values=[0.5], **SETTINGS)
    for draw in (viz.ablation_effects, viz.sweep_effects, viz.sweep_norms):
        with pytest.raises(InputError, match=f"n is {n}; expected 1 or more"):
            draw(result, n=n)

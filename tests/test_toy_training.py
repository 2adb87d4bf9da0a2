"""Training a toy: seeds, weight decay, architectures that switch the sink off, saving, histories and their figures."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import sinklens as sl
from sinklens import toy, viz
from sinklens.results.toy_history import GOALS, QUANTITIES, ToyHistory
from sinklens.toy import CopyTask, ToyRun
from sinklens.toy.architectures import NO_LOGIT, new_original, trainable
from tests.captured import MAJOR

SMALL: dict[str, Any] = {"steps": 8, "d_model": 16, "batch_size": 4, "record_every": 4, "progress": False}
ARCHITECTURES = [name for name, one in toy.ARCHITECTURES.items() if MAJOR >= 4 or not one.bridge_needs_4x]


def train(**settings: Any) -> ToyRun:
    return toy.train_toy(**{**SMALL, **settings})


@pytest.fixture(scope="module")
def several() -> ToyHistory:
    """Two groups of two seeds."""
    runs = [train(architecture=name, seed=seed).history for name in ("bos", "no_bos") for seed in (0, 1)]
    return runs[0].merge(runs[1]).merge(runs[2]).merge(runs[3])


def test_the_seed_decides_everything() -> None:
    state = torch.random.get_rng_state()
    one, same, other = train(seed=3), train(seed=3), train(seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name in ("loss_active", "loss_dormant", "qk_nuclear"):
        assert torch.equal(one.history.of(name), same.history.of(name))
        assert not torch.equal(one.history.of(name), other.history.of(name))
    assert one.task.seed == 3


def test_the_seed_decides_what_is_trained_on_and_not_what_is_measured_on(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[torch.Tensor] = []
    sample = CopyTask.sample

    def kept(task: CopyTask, n: int, seed: Any) -> torch.Tensor:
        drawn.append(sample(task, n, seed))
        return drawn[-1]

    monkeypatch.setattr(CopyTask, "sample", kept)
    for seed in (3, 4):
        train(task=CopyTask(), seed=seed, steps=2)  # of the same table
    held_out, first, second, other_held_out, other_first, _ = drawn
    assert torch.equal(held_out, other_held_out)
    assert not torch.equal(first, other_first)
    assert not torch.equal(first, second)


def test_losses_fall_and_a_stopped_training_is_the_beginning_of_the_whole() -> None:
    whole, begun = train(steps=30, record_every=5), train(steps=30, record_every=5, stop_after=10)
    for name in ("loss_active", "loss_dormant"):
        values = whole.history.of(name)[0]
        assert values[-1] < values[0] - 0.05
        assert torch.equal(begun.history.of(name)[0], values[:3])
    assert begun.history.steps == (0, 5, 10)
    assert train(record_every=3).history.steps == (0, 3, 6, 8)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_trains_and_comes_back_from_its_folder(name: str, tmp_path: Path) -> None:
    run = train(architecture=name)
    assert run.task.bos == (name != "no_bos")
    folder = run.save(tmp_path / "kept", command="a command")
    again, plain = toy.load_toy(folder), sl.load_model(folder)
    tokens = run.task.sample(3, 1)
    for model in (again.model, plain):
        assert torch.allclose(model(tokens), run.model(tokens), atol=1e-5)
    assert again.task == run.task
    assert torch.equal(again.history.of("loss_active"), run.history.of("loss_active"))
    assert all(not weight.requires_grad for weight in run.model.parameters())
    text = run.task.texts(1, 1)[0]
    for model in (run.model, again.model):
        assert sl.attention_maps(model, text).tokens[0] == run.task.words[int(tokens[0, 0])]
    with pytest.raises(sl.ResultFileError, match="it is there already; name a new folder"):
        run.save(folder)
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_switches_the_sink_off_is_what_sinklens_reads(name: str) -> None:
    history = train(architecture=name).history
    final = {quantity: history.final(quantity).item() for quantity in QUANTITIES}
    assert (final["learned_sink_mass_dormant"] > 1e-3) == (name == "learned_sink")
    assert (0 < final["gate_dormant"] < 1) == (name == "gated")  # NaN without a gate
    assert (final["qk_nuclear"] > 0) == (name != "gated")


def test_a_held_logit_stays_shut() -> None:
    run = train(architecture="no_learned_sink")
    held = [weight for name, weight in run.model.named_parameters() if name.endswith("sinks")]
    assert [weight.tolist() for weight in held] == [[NO_LOGIT]]
    learned = train(architecture="learned_sink")
    moved = [weight for name, weight in learned.model.named_parameters() if name.endswith("sinks")]
    fresh = new_original("learned_sink", learned.task, 16, 0).model.layers[0].self_attn.sinks
    assert not torch.equal(moved[0], fresh)
    for trained, is_held in ((run, True), (learned, False)):  # its gradient is 0 anyway; it must not even be asked for
        architecture = toy.ARCHITECTURES[trained.history.settings[0].architecture]
        names = {name for name, _ in new_original("learned_sink", trained.task, 16, 0).named_parameters()}
        assert ("model.layers.0.self_attn.sinks" not in trainable(trained.model, names, architecture)) == is_held


def test_weight_decay_shrinks_matrices_and_leaves_vectors_alone() -> None:
    free, decayed = (train(weight_decay=decay, learning_rate=1e-6) for decay in (0.0, 1e5))
    shrunk = [0.0, 0.0]
    for (name, one), (_, other) in zip(free.model.named_parameters(), decayed.model.named_parameters(), strict=True):
        is_vector = one.ndim < 2
        if "qkv" in name:  # TransformerBridge's copy, which no pass reads
            continue
        ratio = (other.norm() / one.norm()).item() if one.norm() > 1e-3 else 1.0
        shrunk[is_vector] = max(shrunk[is_vector], abs(ratio - 1))
        assert is_vector == (abs(ratio - 1) < 1e-3), name
    assert shrunk[0] > 0.1
    for name in ("qk_nuclear", "vo_nuclear"):
        assert decayed.history.final(name) < free.history.final(name)


@pytest.mark.parametrize(("settings", "words"), [
    ({"architecture": "mlp"}, "no architecture 'mlp'; expected one of bos, no_bos"),
    ({"steps": 0}, "steps is 0; expected a whole number from 1"),
    ({"stop_after": 9}, "stop_after is 9; expected a whole number from 1 to 8"),
    ({"record_every": 0}, "record_every is 0"),
    ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a number from 0 on"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0; expected a number above 0"),
    ({"batch_size": 0}, "batch_size is 0"),
    ({"d_model": 18}, "d_model is 18; expected a multiple of 4"),
    ({"seed": -1}, "seed is -1"),
    ({"task": "paste"}, "no task 'paste'"),
])  # fmt: skip
def test_settings_without_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(sl.InputError, match=words):
        train(**settings)


def test_a_loss_that_is_no_number_is_told() -> None:
    with pytest.raises(sl.ConvergenceError, match=r"weights are not finite after step \d, .* lower learning_rate"):
        train(learning_rate=1e30)


def test_a_history_names_its_runs_and_comes_back(several: ToyHistory, tmp_path: Path) -> None:
    assert several.labels == ("bos, seed 0", "bos, seed 1", "no_bos, seed 0", "no_bos, seed 1")
    assert several.groups == {"bos": [0, 1], "no_bos": [2, 3]}
    assert several.provenance.seed is None
    table = several.to_dataframe()
    assert len(table) == 4 * len(several.steps)
    chosen = table[(table["architecture"] == "no_bos") & (table["seed"] == 1) & (table["step"] == 8)].iloc[0]
    assert chosen["value_drain"] == several.final("value_drain")[3].item()
    assert chosen["kind_dormant"] == several.kind("kind_dormant")[3][-1]
    loaded = ToyHistory.load(several.save(tmp_path / "history.safetensors"))
    assert loaded.to_dataframe().equals(table)
    assert loaded.settings == several.settings
    goals = several.goals()
    for row in goals.to_dict("records"):
        [(_, side, bound)] = [goal for goal in GOALS if goal[0] == row["quantity"]]
        assert row["reached"] == (row["value"] > bound if side == ">" else row["value"] < bound)
    with pytest.raises(sl.InputError, match="cannot merge runs with figures at other steps"):
        several.merge(train(steps=4).history)
    for call in (several.of, several.kind):
        with pytest.raises(sl.InputError, match=r"no (quantity|kind) 'loss' here"):
            call("loss")


def test_figures_show_the_history(several: ToyHistory) -> None:
    losses: Any = viz.toy_losses(several, theme="dark")
    shown = [list(trace.y) for trace in losses.data if trace.name == "no_bos"]
    assert shown[0] == several.of("loss_active")[2].tolist()
    assert shown[3] == several.of("loss_dormant")[3].tolist()
    bounds = {trace.y[0] for trace in losses.data if trace.name == "least possible"}
    assert {0.0, round(several.final("optimal_dormant")[0].item(), 3)} <= bounds
    masses: Any = viz.toy_masses(several, 1)
    assert list(masses.data[0].y) == several.of("sink_mass_dormant")[1].tolist()
    assert list(masses.data[-1].y) == several.of("target_mass_active")[1].tolist()
    costs: Any = viz.toy_costs(several)
    assert list(costs.data[-1].y) == several.of("vo_nuclear")[3].tolist()
    compared: Any = viz.toy_comparison(several, ["value_drain", "excess_dormant"])
    assert compared.data[1].x[0] == pytest.approx(several.final("value_drain")[:2].mean().item())
    excess = several.final("loss_dormant") - several.final("optimal_dormant")
    assert compared.data[6].x.tolist() == excess[2:].tolist()
    with pytest.raises(sl.InputError, match="no run 4; the history has runs 0 to 3"):
        viz.toy_masses(several, 4)
    with pytest.raises(sl.InputError, match="no quantities to show"):
        viz.toy_comparison(several, [])


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    folder = train().save(tmp_path / "kept")
    save_file({"wte": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(sl.ModelLoadError, match="other weights than the architecture's"):
        toy.load_toy(folder)


@pytest.mark.slow
def test_another_seed_grows_a_sink_too() -> None:
    run = toy.train_toy(seed=1, progress=False, record_every=300)
    assert all(run.history.goals()["reached"])
    assert run.history.final("loss_active") < 0.3
    assert run.history.final("loss_dormant") - run.history.final("optimal_dormant") < 0.08
    assert dataclasses.asdict(run.history.settings[0])["seed"] == 1

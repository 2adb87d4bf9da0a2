"""The copy-paste tasks, what is measured of a toy, and the trained toy that comes with the package."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens import toy
from sinklens.models.toy_files import toy_folder
from sinklens.results.toy_history import GOALS
from sinklens.toy import CopyTask, ToyRun
from sinklens.toy.measure import measure_toy, task_losses, weight_norms
from tests.captured import BACKENDS
from tests.reference import toy as reference

TASK_LIST = [
    CopyTask(),
    CopyTask(offset=3, active_share=0.3),
    CopyTask(bos=False),
    CopyTask(offset=2, bos=False, seed=5),
]


@pytest.fixture(scope="module")
def shipped() -> ToyRun:
    return toy.load_toy()


def hooked_tensors(model: Any, tokens: Tensor, *names: str) -> list[Tensor]:
    _, cache = model.run_with_cache(tokens)
    return [cache[f"blocks.0.attn.{name}"] for name in names]


@pytest.mark.parametrize("task", TASK_LIST, ids=lambda task: f"{task.name}-{task.bos}")
def test_sequences_follow_their_law(task: CopyTask) -> None:
    tokens = task.sample(400, seed=3)
    surprise, least, active = [], [], []
    optimal = task.optimal_loss(tokens)
    for row, sequence in enumerate(tokens[:60].tolist()):
        assert not any(1 <= token <= task.n_triggers for token in sequence[: task.first_trigger])
        assert (sequence[0] == 0) == task.bos
        for position in range(task.length - 1):
            law = reference.next_law(task, sequence, position)
            weight = law[sequence[position + 1]]
            assert weight > 0
            assert optimal[row, position].item() == pytest.approx(reference.entropy(law), abs=1e-12)
            surprise.append(-math.log(weight))
            least.append(reference.entropy(law))
            active.append(weight == 1.0 and 1 <= sequence[position] <= task.n_triggers)
    gaps = torch.tensor(surprise) - torch.tensor(least)
    assert abs(gaps.mean()) < 4 * gaps.std() / len(gaps) ** 0.5  # the entropy is the expected loss of who knows the law
    assert gaps.std() > 0.1
    assert task.active(tokens)[:60, :-1].flatten().tolist() == active


def test_drawn_tokens_have_the_frequencies_of_the_table() -> None:
    task = CopyTask(n_tokens=8, n_triggers=2, length=40, concentration=1.0)
    tokens = task.sample(3000, seed=1)
    before, after = tokens[:, 2:-1].flatten(), tokens[:, 3:].flatten()
    common = [token for token in range(3, 8) if (before == token).sum() > 5000]
    assert len(common) >= 3
    for token in common:
        counts = torch.bincount(after[before == token], minlength=8).double()
        expected = task.table[token]
        spread = (expected * (1 - expected) / counts.sum()).sqrt()
        assert bool(((counts / counts.sum() - expected).abs() <= 4.5 * spread + 1e-12).all())


def test_the_share_of_active_positions_is_the_one_asked_for() -> None:
    for share in (0.1, 0.4):
        task = CopyTask(active_share=share, length=200)
        assert task.active(task.sample(300, 0)[:, 20:]).double().mean().item() == pytest.approx(share, abs=0.01)


def test_a_task_is_drawn_from_its_seeds_alone() -> None:
    task, state = CopyTask(), torch.random.get_rng_state()
    assert torch.equal(task.sample(3, 7), CopyTask().sample(3, 7))
    assert not torch.equal(task.sample(3, 7), task.sample(3, 8))
    assert not torch.equal(task.table, CopyTask(seed=1).table)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert CopyTask.from_dict(json.loads(json.dumps(TASK_LIST[1].to_dict()))) == TASK_LIST[1]


@pytest.mark.parametrize(("settings", "words"), [
    ({"active_share": 0.5}, "active_share of the task is 0.5; expected a number in 0 to 0.5"),
    ({"active_share": float("nan")}, "active_share of the task is nan"),
    ({"concentration": 0.0}, "concentration of the task is 0.0"),
    ({"n_tokens": 6}, "leave fewer than two ordinary ones"),
    ({"n_tokens": 500}, "there are words for no more"),
    ({"offset": 0}, "offset of the task is 0; expected a whole number from 1"),
    ({"offset": 62}, "leaves no room in 64 tokens"),
    ({"seed": -1}, "seed is -1"),
])  # fmt: skip
def test_a_task_without_sense_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(sl.InputError, match=words):
        CopyTask(**settings)
    with pytest.raises(sl.InputError, match="no task 'paste'; expected backcopy or copy"):
        toy.copy_task("paste")


def test_words_and_tokens_are_the_same(shipped: ToyRun) -> None:
    tokens = shipped.task.sample(5, 3)
    again = next(iter(sl.tokenize(shipped.model, shipped.task.texts(5, 3))))
    assert torch.equal(again.tokens, tokens)
    assert sl.token_labels(shipped.model, tokens[0])[:3] == [shipped.task.words[int(token)] for token in tokens[0, :3]]
    with pytest.raises(sl.InputError, match="a word that the tokenizer does not know"):
        sl.attention_maps(shipped.model, "ba ^1 cat")


@pytest.mark.parametrize("task", [CopyTask(), CopyTask(offset=3)], ids=lambda task: task.name)
@pytest.mark.parametrize("architecture", ["bos", "learned_sink"])
def test_figures_are_those_of_loops(task: CopyTask, architecture: str) -> None:
    run = toy.train_toy(task, architecture, steps=2, d_model=16, batch_size=4, progress=False)
    tokens = run.task.sample(6, 1)
    pattern, value = hooked_tensors(run.model, tokens, "hook_pattern", "hook_v")
    values, _, _ = measure_toy(run.model, run.task, tokens)
    for name, expected in reference.masses(run.task, tokens, pattern[:, 0]).items():
        assert values[name] == pytest.approx(expected, abs=1e-6), name
    W_O = run.model.blocks[0].attn.W_O[0].detach()
    assert values["value_drain"] == pytest.approx(reference.value_drain(value.reshape(6, 64, 16), W_O), rel=1e-5)
    attention = run.model.blocks[0].attn
    product = attention.W_Q[0].detach().double() @ attention.W_K[0].detach().double().T
    norms = weight_norms(run.model)
    assert norms["qk_nuclear"] == pytest.approx(torch.linalg.matrix_norm(product, "nuc").item(), rel=1e-6)
    assert norms["qk_frobenius"] == pytest.approx(product.norm().item(), rel=1e-6)
    output = attention.W_V[0].detach().double() @ W_O.double()
    assert norms["vo_nuclear"] == pytest.approx(torch.linalg.matrix_norm(output, "nuc").item(), rel=1e-6)


def test_losses_are_apart_for_active_and_dormant_tokens(shipped: ToyRun) -> None:
    task, tokens = shipped.task, shipped.task.sample(4, 2)
    chances = shipped.model(tokens).double().softmax(-1)
    found: dict[bool, list[float]] = {True: [], False: []}
    for row, sequence in enumerate(tokens.tolist()):
        for position in range(task.length - 1):
            is_active = 1 <= sequence[position] <= task.n_triggers
            found[is_active].append(-math.log(chances[row, position, sequence[position + 1]].item()))
    losses = task_losses(shipped.model, task, tokens)
    assert losses["loss_active"] == pytest.approx(sum(found[True]) / len(found[True]), rel=1e-5)
    assert losses["loss_dormant"] == pytest.approx(sum(found[False]) / len(found[False]), rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_shipped_toy_has_a_true_sink(shipped: ToyRun, backend: str) -> None:
    model = sl.load_model("toy", backend=backend)
    tokens = shipped.task.sample(128, seed=11)
    [masses] = sl.run(model, tokens, [toy.CopyAnalyzer(shipped.task)], progress=False)
    profile = sl.head_profile(model, tokens, progress=False)
    values = {name: masses.mean(name).item() for name in masses.quantities}
    values["value_drain"] = profile.sink_value_ratio.item()
    for name, side, bound in GOALS:
        assert values[name] > bound if side == ">" else values[name] < bound
    assert values["output_norm_dormant"] < 0.2 * values["output_norm_active"]
    assert profile.kind == [["sink"]]
    assert profile.sink_alignment.item() < 0
    assert model.cfg.model_name == "toy"
    assert torch.allclose(model(tokens[:2]), shipped.model(tokens[:2]), atol=1e-5)


def test_the_shipped_toy_is_what_its_record_says(shipped: ToyRun) -> None:
    files = {file.name: file.stat().st_size for file in toy_folder().iterdir()}
    recipe = json.loads((toy_folder() / "toy.json").read_text())
    [settings] = shipped.history.settings
    assert sum(files.values()) < 2e6
    assert set(recipe["versions"]) == {"sinklens", "transformer-lens", "transformers", "torch"}
    for name, value in dataclasses.asdict(settings).items():
        assert f"--{name.replace('_', '-')} {value}" in recipe["command"]
    values, kinds, _ = measure_toy(shipped.model, shipped.task, toy.held_out(shipped.task))
    for name in ("loss_active", "sink_mass_dormant", "value_drain", "qk_nuclear"):
        assert shipped.history.final(name).item() == pytest.approx(values[name], rel=1e-3)
    assert all(shipped.history.goals()["reached"])
    assert (shipped.history.kind("kind_dormant")[0][-1], shipped.history.kind("kind_active")[0][-1]) == (
        "sink",
        "previous",
    )
    assert kinds["kind"] == 0
    # weights and data of the shipped training, from its first steps again
    first = shipped.history.steps[1]
    begun = toy.train_toy(
        steps=settings.steps, seed=settings.seed, stop_after=first, record_every=first, progress=False
    )
    for name in ("loss_active", "loss_dormant", "qk_nuclear"):
        assert begun.history.of(name)[0].tolist() == pytest.approx(shipped.history.of(name)[0, :2].tolist(), rel=0.01)


def test_a_folder_that_holds_no_toy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(sl.ModelLoadError, match=r"holds no toy: .* make one with `sinklens toy"):
        toy.load_toy(tmp_path)
    (tmp_path / "toy.json").write_text("{}")
    with pytest.raises(sl.ModelLoadError, match="holds no toy"):
        toy.load_toy(tmp_path)

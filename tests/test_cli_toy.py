"""``sinklens toy``: what it prints and writes is what Python measures, mistakes are one line, files are whole or absent."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from sinklens import toy
from sinklens.cli import app
from sinklens.results.toy_history import ToyHistory
from sinklens.toy import files as toy_files
from sinklens.toy import training
from tests.commands import expect_one_line
from tests.pages import Page

SMALL = ("--steps", "2", "--d-model", "8", "--batch-size", "2", "--quiet")
OUTPUTS = (
    "--out",
    "page.html",
    "--table",
    "t.csv",
    "--json",
    "all.json",
    "--save",
    "h.safetensors",
    "--save-model",
    "model",
)
Toy = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toy:
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["toy", *map(str, arguments)])


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def test_one_run_is_what_python_trains(run: Toy) -> None:
    result = run(*SMALL, "--seed", 3, *OUTPUTS)
    assert result.exit_code == 0, result.output
    assert files() == ["all.json", "h.safetensors", "model", "page.html", "t.csv"]
    python = toy.train_toy(steps=2, d_model=8, batch_size=2, seed=3, progress=False).history
    kept = ToyHistory.load("h.safetensors")
    assert kept.final("loss_dormant").tolist() == python.final("loss_dormant").tolist()
    assert pd.read_csv("t.csv")["sink_mass_dormant"].tolist() == pytest.approx(
        python.of("sink_mass_dormant")[0].tolist()
    )
    written = json.loads(Path("all.json").read_text())
    assert [row["step"] for row in written["history"]] == [0, 1, 2]
    assert [row["reached"] for row in written["goals"]] == python.goals()["reached"].tolist()
    assert f"{python.final('loss_active').item():.3f}" in result.stdout
    assert "Model: model" in result.stdout
    assert "Written: h.safetensors, t.csv, all.json, page.html" in result.stdout
    page = Page(Path("page.html").read_text())
    assert set(page.data["figures"]) == {"toy-losses-chart", "toy-costs-chart", "toy-attention-0"}
    assert "Does a sink form where nothing is to be read? A toy on backcopy" in page.text
    command = json.loads(Path("model/toy.json").read_text())["command"]
    assert command.startswith("sinklens toy --task backcopy --architecture bos --weight-decay 0.01 --seed 3 --steps 2 ")
    assert toy.load_toy("model").history.settings == python.settings


def test_lists_give_a_run_for_every_combination(run: Toy) -> None:
    result = run(
        *SMALL,
        "--architecture",
        "bos,no_bos",
        "--seed",
        "0-1",
        "--weight-decay",
        "0,0.1",
        "--json",
        "-",
        "--out",
        "p.html",
    )
    assert result.exit_code == 0, result.output
    table = pd.DataFrame(json.loads(result.stdout)["history"]).query("step == 2")
    found = set(table[["architecture", "weight_decay", "seed"]].itertuples(index=False, name=None))
    assert len(table) == len(found) == 8
    page = Page(Path("p.html").read_text())
    assert "toy-comparison" in page.data["figures"]
    assert {f"toy-attention-{group}" for group in range(4)} <= set(page.data["figures"])


@pytest.mark.parametrize(("options", "words"), [
    (["--task", "paste"], "no task 'paste'; expected backcopy or copy"),
    (["--architecture", "bos,mlp"], "no architecture 'mlp'"),
    (["--weight-decay", "much"], "--weight-decay is 'much'; expected numbers"),
    (["--weight-decay", "-1"], "weight_decay is -1.0; expected a number from 0 on"),
    (["--seed", "a"], "--seed is 'a'; expected numbers and ranges"),
    (["--steps", "0"], "steps is 0; expected a whole number from 1"),
    (["--seed", "0,1", "--save-model", "m"], "--save-model takes the model of a single run, and there are 2"),
    (["--save-model", "there"], "cannot save a toy as there: it is there already"),
    (["--out", "page.txt"], "page.txt"),
])  # fmt: skip
def test_a_mistake_is_one_line_before_any_training(
    run: Toy, monkeypatch: pytest.MonkeyPatch, options: list[str], words: str
) -> None:
    monkeypatch.setattr(training, "new_original", lambda *_: pytest.fail("trained before the mistake was found"))
    Path("there").mkdir()
    expect_one_line(run(*options), words)
    assert files() == ["there"]


def test_an_interrupted_training_leaves_nothing(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training._Training, "step", interrupted)
    expect_one_line(run(*SMALL, *OUTPUTS), "interrupted; nothing was written", code=130)
    assert files() == []


def test_an_interrupted_saving_leaves_no_half_folder(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(toy_files, "_save_tokenizer", interrupted)
    expect_one_line(run(*SMALL, *OUTPUTS), "interrupted; nothing was written", code=130)
    assert files() == []

"""``sinklens ablate`` and ``sinklens faithfulness``: the numbers are those of Python, and every file is whole or absent."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import sinklens as sl
from sinklens.masking import study as masking_study
from tests.captured import n_hooks
from tests.commands import OUTPUTS, Run, expect_one_line, forbid_passes, runner, texts_beside
from tests.families import bridge, hf_model
from tests.tiny_tokenizer import tiny_tokenizer

SETTINGS: dict[str, Any] = {"context_length": 32, "n_bootstrap": 50, "progress": False}
COMMON = ("--context-length", 32, "--n-bootstrap", 50, "--quiet")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return texts_beside(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def model_stays_clean() -> Iterator[None]:
    yield
    assert n_hooks(bridge("llama_3x5")) == 0


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def found(result: Any) -> dict[str, Any]:
    """What --json - printed; it is JSON alone."""
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def expect_table(path: str, expected: pd.DataFrame) -> None:
    # Both as a .csv has them: it knows no missing whole numbers.
    read = pd.read_csv(io.StringIO(expected.to_csv(index=False)))
    pd.testing.assert_frame_equal(pd.read_csv(path), read, rtol=1e-9)


def groups(result: Any) -> list[str]:
    return list(dict.fromkeys(row["group"] for row in found(result)["effects"]))


def test_ablate_prints_and_writes_what_python_measures(run: Run, data: Path) -> None:
    result = run("ablate", "--data", data, "--layers", "0,2", "--edits", "zero,scale:0.5", *OUTPUTS, *COMMON)
    assert result.exit_code == 0, result.output
    assert files() == ["all.json", "page.html", "result.safetensors", "table.csv"]
    python = sl.ablate_sinks(bridge("llama_3x5"), data, [0, 2], edits=["zero", "scale:0.5"], **SETTINGS)
    expected = python.to_dataframe()
    expect_table("table.csv", expected)
    loaded = sl.AblationResult.load("result.safetensors")
    assert torch.equal(loaded.loss, python.loss)
    written = json.loads(Path("all.json").read_text())
    assert [row["delta_loss"] for row in written["effects"]] == pytest.approx(
        expected["delta_loss"].tolist(), abs=1e-11
    )
    assert [row["value"] for row in written["effects"][:4]] == [None, None, None, 0.5]
    assert len(written["against_controls"]["divergence"]) == 8
    assert written["provenance"]["n_documents"] == 3
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("layer 2")]
    assert rows[0][:3] == ["layer", "2", "zero"]
    assert float(rows[0][3]) == pytest.approx(python.effect()[6].item(), abs=1e-3)
    assert "Written: result.safetensors, table.csv, all.json, page.html" in result.stdout


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["all layers"]),
        (["--layers", "all"], ["layer 0", "layer 1", "layer 2"]),
        (["--layers", "0-1", "--together"], ["layers 0-1"]),
        (["--heads", "2.4,0.0-1"], ["head 2.4", "head 0.0", "head 0.1"]),
        (["--heads", "2.3,0.1", "--together"], ["heads 2.3,0.1"]),
    ],
)
def test_groups_are_named_as_they_were_typed(run: Run, data: Path, options: list[str], expected: list[str]) -> None:
    assert groups(run("ablate", "-d", data, *options, "--controls", "none", "--json", "-", *COMMON)) == expected


def test_one_pass_takes_what_stands_together(run: Run, data: Path) -> None:
    shared = ("ablate", "-d", data, "--controls", "none", "--json", "-", *COMMON)
    [row] = found(run(*shared, "--heads", "2.3,0.1", "--together"))["effects"]
    python = sl.ablate_sinks(bridge("llama_3x5"), data, {"both": [(2, 3), (0, 1)]}, controls=(), **SETTINGS)
    assert row["delta_loss"] == pytest.approx(python.effect().item(), abs=1e-11)


def test_level_kv_takes_the_heads_that_share_a_value(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    run, model = runner(monkeypatch, "llama"), bridge("llama")
    shared = ("ablate", "-d", data, "--controls", "none", "--json", "-", *COMMON)
    result = found(run(*shared, "--heads", "1.3", "--level", "kv"))
    size = model.cfg.n_heads // model.cfg.n_key_value_heads
    assert size > 1
    group = [(1, head) for head in range(3 // size * size, 3 // size * size + size)]
    python = sl.ablate_sinks(model, data, {"group": group}, controls=(), **SETTINGS)
    assert result["effects"][0]["group"] == f"key/value head 1.{3 // size}"
    assert result["effects"][0]["delta_loss"] == pytest.approx(python.effect().item(), abs=1e-11)
    assert (
        len(groups(run(*shared, "--heads", "all", "--level", "kv"))) == model.cfg.n_layers * model.cfg.n_heads // size
    )
    assert groups(run(*shared, "--layers", "1", "--level", "kv")) == ["layer 1"]


@pytest.mark.parametrize("kind", ["mass", "scale"])
def test_a_sweep_has_effects_and_norms(run: Run, data: Path, kind: str) -> None:
    options = ("--sweep", kind, "--values", "0,0.5,1", "--layers", "2")
    result = run("ablate", "-d", data, *options, *OUTPUTS, *COMMON)
    assert result.exit_code == 0, result.output
    python = sl.sweep_sinks(bridge("llama_3x5"), data, kind, [2], values=[0.0, 0.5, 1.0], **SETTINGS)
    expect_table("table.csv", python.to_dataframe())
    norms: Any = python.norms()
    written = json.loads(Path("all.json").read_text())["norms"]
    assert [row["measured"] for row in written] == pytest.approx(norms["measured"].tolist())
    assert "norm, clean" in result.stdout
    assert "sink sweep" in Path("page.html").read_text()
    assert torch.equal(sl.SweepResult.load("result.safetensors").closed, python.closed)


def test_only_the_largest_of_many_effects_are_printed(run: Run, data: Path) -> None:
    options = ("--heads", "all", "--edits", "zero,mean", "--controls", "none", "--table", "all.csv")
    result = run("ablate", "-d", data, *options, *COMMON)
    table = pd.read_csv("all.csv")
    assert len(table) == 30
    assert "the 24 largest of 30 effects" in result.stdout
    rows = [float(line.split()[3]) for line in result.stdout.splitlines() if line.startswith("head ")]
    assert rows == pytest.approx(sorted(table["delta_loss"], key=abs, reverse=True)[:24], abs=1e-3)


def test_an_edit_that_changes_nothing_is_told(run: Run, data: Path) -> None:
    result = run("ablate", "-d", data, "--edits", "scale:1", "--controls", "none", "--out", "page.html", *COMMON)
    assert "No edit changed anything in: all layers" in result.stdout
    assert "An edit changed nothing" in Path("page.html").read_text()


def test_faithfulness_prints_and_writes_what_python_measures(run: Run, data: Path) -> None:
    options = ("--metrics", "inter,attention", "--fractions", "0.5,0.1", "--exempt", "self", "--layers", "1-2")
    result = run("faithfulness", "-d", data, *options, "--renormalize", "--granularity", "edge", *OUTPUTS, *COMMON)
    assert result.exit_code == 0, result.output
    assert files() == ["all.json", "page.html", "result.safetensors", "table.csv"]
    python = sl.faithfulness(
        bridge("llama_3x5"), data, ("inter", "attention"), (0.1, 0.5), exempt="self", layers=[1, 2], renormalize=True,
        granularity="edge", **SETTINGS,
    )  # fmt: skip
    expect_table("table.csv", python.to_dataframe())
    assert torch.equal(sl.FaithfulnessResult.load("result.safetensors").loss, python.loss)
    written = json.loads(Path("all.json").read_text())
    assert written["reference"] == "attention"
    differences = python.differences("attention", aopc=True)["difference"].tolist()
    assert [row["difference"] for row in written["aopc_differences"]["delta_loss"]] == pytest.approx(differences)
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("inter ")]
    shown = np.array([[float(number) for number in row[1:4]] for row in rows])
    effects = python.effect()[0]
    expected = torch.cat([effects, effects.mean(-1, keepdim=True)], -1).numpy()
    np.testing.assert_allclose(shown, expected, atol=1e-3)


def test_everything_may_go_to_one_pipe(run: Run, data: Path) -> None:
    options = (
        "--metrics",
        "inter",
        "--fractions",
        "0.1",
        "--modes",
        "sufficiency",
        "--out",
        "page.html",
        "--json",
        "-",
    )
    result = found(run("faithfulness", "-d", data, *options, *COMMON))
    assert [row["mode"] for row in result["effects"]] == ["sufficiency"]
    assert result["aopc_differences"]["delta_loss"] == []
    assert files() == ["page.html"]


# Interruptions.


class InterruptAfter:
    """Ctrl-C in a pass of the model, after some."""

    def __init__(self, function: Any, passes: int):
        self.function, self.left = function, passes

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.function(*arguments, **options)


def test_an_interrupted_faithfulness_goes_on(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("faithfulness", "-d", data, "--metrics", "inter,random", "--fractions", "0.1,0.5", *OUTPUTS, *COMMON)
    with monkeypatch.context() as patch:
        patch.setattr(masking_study, "run_masked", InterruptAfter(masking_study.run_masked, 4))
        expect_one_line(
            run(*options, "--resume", "so_far.safetensors"), "interrupted", "--resume so_far.safetensors", code=130
        )
    assert files() == ["so_far.safetensors"]
    counted = InterruptAfter(masking_study.run_masked, 1000)
    monkeypatch.setattr(masking_study, "run_masked", counted)
    again = run(*options, "--resume", "so_far.safetensors")
    assert again.exit_code == 0, again.output
    assert 1000 - counted.left == 1 + 2 * 2 * 2 - 4
    resumed = Path("table.csv").read_text()
    assert run(*options).exit_code == 0
    assert Path("table.csv").read_text() == resumed


def test_a_finished_run_is_not_repeated(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = (
        "faithfulness",
        "-d",
        data,
        "--metrics",
        "inter",
        "--fractions",
        "0.1",
        "--resume",
        "f.safetensors",
        *COMMON,
    )
    first = run(*options)
    forbid_passes(monkeypatch)
    assert run(*options).stdout == first.stdout
    expect_one_line(run(*options, "--ranking", "absolute"), "f.safetensors", "ranking", "signed")


@pytest.mark.parametrize("partial", [None, "so_far.safetensors"])
def test_an_interrupted_ablation_leaves_nothing_half_written(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, partial: str | None
) -> None:
    from sinklens.ablation import study

    monkeypatch.setattr(study, "logits_of", InterruptAfter(study.logits_of, 4))
    kept = [] if partial is None else ["--partial", partial]
    result = run("ablate", "-d", data, *OUTPUTS, *COMMON, "--batch-size", 2, *kept)
    if partial is None:
        expect_one_line(result, "interrupted; nothing was written", code=130)
        assert files() == []
    else:
        expect_one_line(result, "interrupted", "so_far.safetensors", "AblationResult.load", code=130)
        assert files() == [partial]
        assert len(sl.AblationResult.load(partial).count) == 2


@pytest.mark.parametrize(
    ("asked", "left"), [((), "nothing was written"), (OUTPUTS[2:4], "written before that: table.csv")]
)
def test_an_interruption_while_writing_leaves_no_half_file(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], left: str
) -> None:
    from sinklens.reports import ablation

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ablation, "render_study", interrupted)
    result = run("ablate", "-d", data, "--out", "page.html", *asked, *COMMON)
    assert result.exit_code == 130
    assert left in result.stderr
    assert files() == [name for name in asked if name.endswith(".csv")]


def test_a_file_that_cannot_be_written_after_all_does_not_take_the_figures_away(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    result = run("ablate", "-d", data, "--table", "table.csv", *COMMON)
    assert result.exit_code == 2
    assert "cannot write table.csv: No space left on device" in result.stderr
    assert "all layers  zero" in result.stdout
    assert files() == []


def test_an_older_partial_file_is_not_taken_for_this_run_s(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sinklens.ablation import study

    options = ("ablate", "-d", data, "--partial", "so_far.safetensors", *COMMON)
    assert run(*options).exit_code == 0
    before = Path("so_far.safetensors").read_bytes()
    monkeypatch.setattr(study, "clean_pass", InterruptAfter(study.clean_pass, 0))
    expect_one_line(run(*options), "interrupted; nothing was written", code=130)
    assert Path("so_far.safetensors").read_bytes() == before


# A real process, a real folder, a real signal.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer, as the hub has them."""
    path = tmp_path_factory.mktemp("model")
    hf_model("llama_3x5").save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def start(*arguments: Any) -> subprocess.Popen[str]:
    # A shell that runs the tests in the background has them ignore Ctrl-C, and what they start too.
    heeding = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from sinklens.cli import main; main()"
    )
    command = [sys.executable, "-c", heeding, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_ctrl_c_leaves_a_file_that_is_picked_up_again(folder: Path, data: Path) -> None:
    data.write_text(
        "".join(
            json.dumps({"text": f"The cat number {n} sat on the mat, and {n} dogs sat."}) + "\n" for n in range(400)
        )
    )
    options = (
        "faithfulness",
        "--model",
        folder,
        "--data",
        data,
        "--device",
        "cpu",
        "--batch-size",
        4,
        "--context-length",
        32,
    )
    kept, wanted = (
        Path("so_far.safetensors"),
        ("--resume", "so_far.safetensors", "--out", "page.html", "--table", "table.csv"),
    )
    process = start(*options, *wanted)
    deadline = time.monotonic() + 120
    while not kept.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert output == ""
    assert errors.splitlines()[-1].endswith("--resume so_far.safetensors goes on from there")
    assert "Traceback" not in errors
    assert files() == ["so_far.safetensors"]
    assert sl.partial_faithfulness(kept).loss.isfinite().sum() > 0


@pytest.mark.slow
def test_a_model_folder_and_a_text_become_a_page(folder: Path, data: Path) -> None:
    process = start(
        "ablate", "--model", folder, "--texts", data, "--device", "cpu", "--context-length", 32, *OUTPUTS, "--quiet"
    )
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "all layers  zero" in output
    assert files() == ["all.json", "page.html", "result.safetensors", "table.csv"]

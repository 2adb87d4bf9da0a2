"""Mistakes in ``sinklens ablate`` and ``sinklens faithfulness``: one line, exit code 2, before the model runs, no file."""

from pathlib import Path
from typing import Any

import pytest

from sinklens.models import loading
from tests.commands import Run, expect_one_line, forbid_passes, runner, texts_beside

COMMON = ("--context-length", 32, "--n-bootstrap", 50, "--quiet")
BOTH: list[tuple[list[str], list[str]]] = [
    (["--data", "/nowhere/text.txt"], ["no file", "/nowhere/text.txt"]),
    (["--layers", "99"], ["no layer 99", "0 to 2"]),
    (["--layers", "0-"], ["--layers", "0-"]),
    (["--layers", "2-1"], ["--layers", "2-1"]),
    (["--sink", "last"], ["sink", "last"]),
    (["--sink", "40"], ["sink position 40", "lies beyond"]),
    (["--effect", "accuracy"], ["--effect", "accuracy", "delta_loss"]),
    (["--n-bootstrap", "0"], ["--n-bootstrap", "0"]),
    (["--batch-size", "0"], ["--batch-size"]),
    (["--fields", "question"], ["line 1", "question"]),
    (["--out", "page.pdf"], ["page.pdf", ".html"]),
    (["--table", "table.xls"], ["table.xls", ".csv"]),
    (["--json", "all.txt"], ["all.txt", ".json"]),
    (["--save", "result.pt"], ["result.pt", ".safetensors"]),
    (["--out", "/proc/nothing/page.html"], ["cannot write", "/proc/nothing/page.html"]),
    (["--json", "same.json", "--table", "same.json"], ["--json", "--table", "same file"]),
    (["--json", "same.json", "--table", "./there/../same.json"], ["--json", "--table", "same file"]),
]
ABLATE: list[tuple[list[str], list[str]]] = [
    (["--heads", "2.9"], ["no head 9", "0 to 4"]),
    (["--heads", "7.0"], ["no layer 7", "0 to 2"]),
    (["--heads", "2"], ["--heads", "'2'", "LAYER.HEAD"]),
    (["--heads", "1.3-2"], ["--heads", "1.3-2"]),
    (["--heads", "9.0", "--level", "kv"], ["no layer 9"]),
    (["--heads", "1.0", "--layers", "1"], ["--layers and --heads are both given"]),
    (["--level", "query"], ["--level", "query", "kv"]),
    (["--edits", "remove,burn"], ["burn", "zero"]),
    (["--edits", "zero,"], ["--edits", "zero,"]),
    (["--edits", "scale:inf"], ["scale:inf"]),
    (["--edits", "scale:nan"], ["scale", "nan", "finite"]),
    (["--edits", "scale"], ["scale", "scale:FACTOR"]),
    (["--edits", "mass:1.5"], ["mass", "1.5", "0 to 1"]),
    (["--sweep", "value"], ["--sweep", "value", "mass", "scale"]),
    (["--sweep", "mass", "--values", "0,-0.1"], ["mass", "-0.1", "0 to 1"]),
    (["--sweep", "scale", "--values", "nan"], ["scale", "nan", "finite"]),
    (["--sweep", "scale", "--values", "one"], ["--values", "one"]),
    (["--sweep", "mass", "--edits", "zero"], ["--edits and --sweep"]),
    (["--values", "0,1"], ["--values", "--sweep"]),
    (["--controls", "nothing"], ["--controls", "nothing", "position"]),
    (["--sink", "detect"], ["detect", "first"]),
    (["--partial", "so_far.pt"], ["so_far.pt", ".safetensors"]),
    (["--partial", "x.safetensors", "--save", "x.safetensors"], ["--partial", "--save", "same file"]),
]
FAITHFULNESS: list[tuple[list[str], list[str]]] = [
    (["--metrics", "attention,gradient"], ["gradient", "value_weighted"]),
    (["--metrics", ""], ["--metrics"]),
    (["--fractions", "0.1,1.5"], ["1.5", "0 to 1"]),
    (["--fractions", "-0.1"], ["-0.1", "0 to 1"]),
    (["--fractions", "nan"], ["nan", "0 to 1"]),
    (["--fractions", "5%"], ["--fractions", "5%"]),
    (["--modes", "both"], ["both", "comprehensiveness"]),
    (["--granularity", "head"], ["granularity", "head", "pair"]),
    (["--ranking", "squared"], ["ranking", "squared"]),
    (["--scores", "old"], ["--scores", "old", "clean"]),
    (["--exempt", "bos"], ["exempt", "bos", "self"]),
    (["--reference", "random", "--metrics", "inter,attention"], ["--reference", "random", "inter"]),
    (["--resume", "so_far.pt"], ["so_far.pt", ".safetensors"]),
    (["--resume", "x.safetensors", "--save", "x.safetensors"], ["--resume", "--save", "same file"]),
]
CASES = [
    (command, arguments, words)
    for command, cases in (("ablate", BOTH + ABLATE), ("faithfulness", BOTH + FAITHFULNESS))
    for arguments, words in cases
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return texts_beside(tmp_path, monkeypatch)


@pytest.mark.parametrize(("command", "arguments", "words"), CASES, ids=[f"{c} {' '.join(a)}" for c, a, _ in CASES])
def test_a_mistake_is_one_line_before_the_model_runs(
    run: Run, data: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: list[str], words: list[str]
) -> None:
    forbid_passes(monkeypatch)
    out = [] if "--out" in arguments else ["--out", "page.html"]
    # What comes later on the line counts, so a case may say its own text.
    expect_one_line(run(command, "--data", data, *COMMON, *out, *arguments), *words)
    assert list(Path().iterdir()) == []


def test_without_the_mistake_the_model_would_run(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_passes(monkeypatch)
    for command in ("ablate", "faithfulness"):
        with pytest.raises(pytest.fail.Exception, match="the model ran"):
            run(command, "--data", data, *COMMON)


@pytest.mark.parametrize("command", ["ablate", "faithfulness"])
def test_an_output_that_leads_to_the_text_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    text, path = tmp_path / "text.txt", tmp_path / "all.json"
    text.write_text("The cat sat on the mat, and the dog sat.")
    path.symlink_to(text)
    expect_one_line(run(command, "--data", text, "--json", path, *COMMON), "--json", "the text", "same file")
    assert path.is_symlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ("ablate", "--edits", "burn"),
        ("ablate", "--heads", "1"),
        ("ablate", "--out", "page.pdf"),
        ("ablate", "--sink", "detect"),
        ("faithfulness", "--fractions", "2"),
        ("faithfulness", "--metrics", "burn"),
        ("faithfulness", "--scores", "old"),
        ("faithfulness", "--data", "none.txt"),
    ],
)
def test_what_needs_no_model_is_found_before_one_is_loaded(monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    run = runner(monkeypatch)
    monkeypatch.setattr(loading, "load_model", lambda name, **_: pytest.fail("loaded"))
    expect_one_line(run(*arguments))

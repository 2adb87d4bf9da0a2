"""What tests of the command line share: a tiny model behind it, texts, and what a mistake must look like."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from sinklens.cli import app
from sinklens.models import loading
from tests.families import bridge

Run = Callable[..., Result]
OUTPUTS = ("--out", "page.html", "--table", "table.csv", "--json", "all.json", "--save", "result.safetensors")
TEXTS = ["The cat sat on the mat, and the dog sat.", "A dog ran; the cat did not.", "The mat."]


def runner(monkeypatch: pytest.MonkeyPatch, family: str = "llama_3x5") -> Run:
    """Runs a command on a tiny model; by default of 3 layers with 5 heads."""
    monkeypatch.setattr(loading, "load_model", lambda name, **_: bridge(family))

    def call(*arguments: Any) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def write_texts(path: Path) -> Path:
    """A .jsonl file of short documents."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


def texts_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The text in a folder of its own; the working directory is beside it, so that outputs can be listed."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return write_texts(tmp_path / "data.jsonl")


def expect_one_line(result: Result, *words: str, code: int = 2) -> None:
    """One line on stderr with the words, nothing on stdout, no traceback."""
    lines = [line for line in result.stderr.splitlines() if line.startswith("sinklens:")]
    assert result.exit_code == code, result.output
    assert len(lines) == 1
    assert "Traceback" not in result.output
    assert result.stdout == ""
    for word in words:
        assert word in lines[0]


def forbid_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a measurement that runs the model fails the test."""
    from sinklens.ablation import passes, study
    from sinklens.masking import study as masking

    def ran(*_: Any, **__: Any) -> None:
        pytest.fail("the model ran before the mistake was found")

    for module, name in ((passes, "logits_of"), (study, "logits_of"), (study, "clean_pass"), (masking, "run_masked")):
        monkeypatch.setattr(module, name, ran)

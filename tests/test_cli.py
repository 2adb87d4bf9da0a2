"""The command line: every mistake is one line and an exit code, and nothing is half written."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import Tensor
from typer.testing import CliRunner

from sinklens.cli import app
from sinklens.models import loading
from sinklens.results import HeadProfile
from tests.commands import Run, expect_one_line, runner, write_texts
from tests.families import bridge


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a tiny model with 3 layers of 5 heads."""
    return runner(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A .jsonl file of short documents."""
    return write_texts(tmp_path / "data.jsonl")


def test_report_writes_one_page(run: Run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    result = run("report", "--data", data, "--out", out, "--context-length", 32, "--quiet", "--title", "My heads")
    assert result.exit_code == 0, result.output
    assert str(out) in result.stdout
    page = out.read_text()
    assert "<title>My heads</title>" in page
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_report_without_data_uses_the_built_in_text(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = run("report", "--out", out, "--context-length", 32, "--documents", 2, "--quiet", "--json")
    assert json.loads(result.stdout) == {"report": str(out), "bytes": out.stat().st_size}
    assert "built-in demonstration text" in out.read_text()


def test_profile_saves_a_result_and_tables(run: Run, data: Path, tmp_path: Path) -> None:
    common = ("profile", "--data", data, "--context-length", 32, "--quiet", "--eps", 0.2)
    assert run(*common, "--out", tmp_path / "p.safetensors").exit_code == 0
    profile = HeadProfile.load(tmp_path / "p.safetensors")
    assert profile.eps == 0.2
    assert profile.provenance.n_documents == 3
    assert run(*common, "--out", tmp_path / "p.csv", "--layers", "0,2").exit_code == 0
    table = pd.read_csv(tmp_path / "p.csv")
    assert sorted(set(table["layer"])) == [0, 2]
    assert table.loc[table["layer"] == 2, "sink_mass"].tolist() == pytest.approx(
        profile.sink_mass[2].tolist(), rel=1e-5
    )


def test_profile_json_is_json_alone(run: Run, data: Path) -> None:
    result = run("profile", "--data", data, "--context-length", 32, "--quiet", "--json")
    found = json.loads(result.stdout)
    assert set(found["summary"]["sink_rate"]) == {"per_sample", "mean_first", "per_query", "mean_mass"}
    assert found["provenance"]["n_documents"] == 3


def test_profile_prints_the_strongest_heads(run: Run, data: Path) -> None:
    result = run("profile", "--data", data, "--context-length", 32, "--quiet")
    assert "HeadProfile(tiny-llama_3x5: 3 layers x 5 heads, 3 documents" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines() if line and line.split()[0].isdigit()]
    masses = [float(row[3]) for row in rows]
    assert len(masses) == 10
    assert masses == sorted(masses, reverse=True)


def test_check_prints_a_verdict_per_layer(run: Run, tmp_path: Path) -> None:
    result = run("check", "anything", "--out", tmp_path / "check.csv")
    assert result.exit_code == 0
    assert "3 exact; edits of the pattern change the logits" in result.stdout
    assert pd.read_csv(tmp_path / "check.csv")["verdict"].tolist() == ["exact"] * 3
    assert json.loads(run("check", "anything", "--json").stdout)["passed"] is True


def test_check_of_a_refused_model_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiled(value: Tensor, n_heads: int) -> Tensor:
        return value.repeat(1, 1, n_heads // value.shape[2], 1)

    monkeypatch.setattr(loading, "load_model", lambda name, **_: bridge("llama"))
    monkeypatch.setattr("sinklens.models.layer.expand_kv_heads", tiled)
    result = CliRunner().invoke(app, ["check", "llama"])
    assert result.exit_code == 1
    assert "failed: 2 layers, 2 refused" in result.stdout


@pytest.mark.parametrize("command", ["report", "profile"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "/nowhere/text.txt"], ["no file", "/nowhere/text.txt"]),
        (["--data", "text.pdf"], ["text.pdf", ".txt", ".jsonl"]),
        (["--layers", "99"], ["no layer 99", "0 to 2"]),
        (["--layers", "a-b"], ["--layers", "a-b"]),
        (["--sink", "last"], ["sink", "last", "first"]),
        (["--context-length", "9999"], ["context_length 9999", "64"]),
        (["--context-length", "0"], ["--context-length is 0; expected a number from 1 on"]),
        (["--batch-size", "0"], ["--batch-size"]),
        (["--overflow", "wrap"], ["overflow", "wrap"]),
        (["--min-length", "60", "--context-length", "64", "--data", "{data}"], ["no usable document", "60"]),
        (["--sink", "40", "--context-length", "64", "--data", "{data}"], ["sink position 40"]),
        (["--fields", "question", "--data", "{data}"], ["line 1", "question"]),
        (["--out", "/proc/nothing/out.html"], ["cannot write", "/proc/nothing/out.html"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_mistake_is_one_line(
    run: Run, data: Path, tmp_path: Path, command: str, arguments: list[str], words: list[str]
) -> None:
    out = (
        [] if "--out" in arguments else ["--out", tmp_path / "out.html" if command == "report" else tmp_path / "o.csv"]
    )
    before = set(tmp_path.iterdir())
    filled = [argument.format(data=data) for argument in arguments]
    expect_one_line(run(command, *filled, *out, "--quiet"), *words)
    assert set(tmp_path.iterdir()) == before


def test_a_broken_line_is_named_by_its_number(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"text": "one two three"}\n{"text": "four five"\n')
    out = tmp_path / "profile.csv"
    expect_one_line(run("profile", "--data", path, "--out", out, "--context-length", 32, "--quiet"), "line 2", "JSON")
    assert not out.exists()


def test_an_unknown_table_is_refused_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "load_model", lambda name, **_: pytest.fail("loaded"))
    expect_one_line(run("profile", "--out", tmp_path / "table.xls"), ".xls", ".safetensors", ".csv")


def test_a_model_that_does_not_load_is_one_line() -> None:
    expect_one_line(CliRunner().invoke(app, ["profile", "--model", "./no-such-folder"]), "no-such-folder")
    expect_one_line(CliRunner().invoke(app, ["profile", "--dtype", "int3"]), "int3", "float32")


@pytest.mark.parametrize("moment", ["loading", "measuring"])
def test_interrupt_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, run: Run, data: Path, tmp_path: Path, moment: str
) -> None:
    from sinklens.analyzers.profile import ProfileAnalyzer

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    model = bridge("llama_3x5")
    if moment == "loading":
        monkeypatch.setattr(loading, "load_model", interrupted)
    else:
        monkeypatch.setattr(ProfileAnalyzer, "update", interrupted)
    result = run("report", "--data", data, "--out", tmp_path / "report.html", "--context-length", 32, "--quiet")
    expect_one_line(result, "interrupted", code=130)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]
    assert all(not point.fwd_hooks for point in model.hook_dict.values())


def test_a_bug_is_one_line_too(monkeypatch: pytest.MonkeyPatch, run: Run, data: Path) -> None:
    monkeypatch.setattr(HeadProfile, "to_dataframe", lambda self: 1 / 0)
    result = run("profile", "--data", data, "--context-length", 32, "--quiet")
    expect_one_line(result, "unexpected error: ZeroDivisionError", "SINKLENS_DEBUG", code=1)


@pytest.mark.parametrize("arguments", [["profile", "--bogus"], ["nothing"], ["profile", "--batch-size", "many"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Error" in result.stderr
    assert "Traceback" not in result.output


def test_import_is_light_and_help_is_quick() -> None:
    script = (
        "import sys, sinklens, sinklens.cli\n"
        "heavy = {'plotly', 'transformer_lens', 'transformers', 'torch', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert sinklens.__version__ and 'head_profile' in dir(sinklens)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_every_public_name_exists() -> None:
    import sinklens

    for name in sinklens.__all__:
        assert getattr(sinklens, name) is not None
    assert callable(sinklens.report)
    with pytest.raises(AttributeError, match="no attribute 'contribution'"):
        _ = sinklens.contribution

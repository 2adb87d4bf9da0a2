"""The index of models: verdicts are those that the tests find, names are those of TransformerLens' registry."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from sinklens.cli import app
from sinklens.errors import InputError
from sinklens.models import index, registry
from sinklens.models.families import EXACT, NOT_EDITABLE, NOT_TRIED, PARTLY, REFUSED, VERDICTS, verdict_on
from sinklens.models.index import KnownModel, as_table, by_family, known_models
from tests.commands import expect_one_line
from tests.families import FAMILIES, HOOKED_FAMILIES, Family
from tests.models_doc import COLUMNS, FILE, read

# --- verdicts


def families_of(architecture: str) -> list[Family]:
    return [family for family in FAMILIES.values() if family.model_class == architecture]


def expected_verdict(families: list[Family]) -> str:
    refused = {bool(family.refused) for family in families}
    if refused == {True, False}:
        return PARTLY
    if refused == {True}:
        return REFUSED
    return EXACT if all(family.pattern_editable for family in families) else NOT_EDITABLE


def test_there_is_a_verdict_on_every_family_of_the_tests_and_on_no_other() -> None:
    assert set(VERDICTS) == {family.model_class for family in FAMILIES.values()}


@pytest.mark.parametrize("architecture", VERDICTS)
def test_a_verdict_is_that_of_the_table_of_families(architecture: str) -> None:
    found, families = VERDICTS[architecture], families_of(architecture)
    assert found.family in {family.name for family in families}
    assert found.verdict == expected_verdict(families)
    assert found.has_hooked == any(family.name in HOOKED_FAMILIES for family in families)
    assert found.bridge_needs_4x == any(family.bridge_needs_4x for family in families)
    assert bool(found.note) or found.verdict in (EXACT, NOT_EDITABLE)


@pytest.mark.parametrize("architecture", VERDICTS)
def test_a_verdict_is_that_of_the_document(architecture: str) -> None:
    found, cells = VERDICTS[architecture], read(FILE.read_text())
    names = [family.name for family in families_of(architecture)]
    bridge = {cells[name, COLUMNS[0]] for name in names}
    expected = {EXACT: {"exact"}, NOT_EDITABLE: {"exact"}, REFUSED: {"refused"}, PARTLY: {"exact", "refused"}}
    assert {cell.partition(",")[0] for cell in bridge} == expected[found.verdict]
    assert any(cell.endswith("*") for cell in bridge) == (found.verdict == NOT_EDITABLE)
    assert any(cells[name, COLUMNS[2]].startswith("exact") for name in names) == found.has_hooked
    assert all(cells[name, COLUMNS[1]] == "–" for name in names) == found.bridge_needs_4x


def test_what_was_not_tried_says_so() -> None:
    found = verdict_on("SomethingNewForCausalLM")
    assert (found.family, found.verdict, found.note) == ("", NOT_TRIED, "run sinklens check NAME")


# --- the index


def one(name: str) -> KnownModel:
    return next(model for model in known_models() if model.name == name)


@pytest.mark.parametrize(
    ("name", "family", "verdict"),
    [
        ("gpt2", "gpt2", EXACT),
        ("EleutherAI/pythia-70m", "gpt_neox", EXACT),
        ("meta-llama/Llama-3.1-8B", "llama", EXACT),
        ("google/gemma-2-2b", "gemma2", EXACT),
        ("Qwen/Qwen3-0.6B", "qwen3", EXACT),
        ("openai/gpt-oss-20b", "gpt_oss", EXACT),
        ("facebook/opt-125m", "opt", NOT_EDITABLE),
        ("google-bert/bert-base-cased", "bert", NOT_EDITABLE),
        ("smollm2-135m", "llama", EXACT),
        ("EleutherAI/gpt-j-6B", "gptj", NOT_EDITABLE),
        ("google-t5/t5-base", "t5", REFUSED),
        ("tiiuae/falcon-rw-1b", "falcon", PARTLY),
        ("NeelNanda/Attn_Only_2L512W_C4_Code", "own format", EXACT),
        ("HuggingFaceTB/SmolLM3-3B", "", NOT_TRIED),
    ],
)
def test_models_that_people_load(name: str, family: str, verdict: str) -> None:
    found = one(name)
    assert (found.family, found.verdict) == (family, verdict)


def test_a_copy_with_packed_weights_is_refused_by_its_name() -> None:
    found = one("TheBloke/Mistral-7B-Instruct-v0.1-GPTQ")
    assert (found.family, found.verdict, found.hooked) == ("mistral", REFUSED, False)
    assert found.note == "packed weights, by its name (gptq); take an unquantised copy"
    assert one("openai/gpt-oss-20b").verdict == EXACT
    assert one("Qwen/Qwen3-4B").verdict == EXACT  # 4B is a size


def test_what_needs_a_newer_version_says_so() -> None:
    cohere = next(model for model in known_models() if model.architecture == "CohereForCausalLM")
    assert cohere.note == "needs TransformerLens 4"


def test_every_name_of_the_registry_is_listed_once() -> None:
    names = [model.name for model in known_models()]
    assert len(names) == len(set(names)) > 10_000
    assert {*registry.architectures(), *registry.aliases(), "smollm2-135m"} == set(names)


def test_the_index_agrees_with_transformer_lens_own_way_to_read_its_registry() -> None:
    from transformer_lens.tools.model_registry import api

    for architecture in ("GPT2LMHeadModel", "GPTNeoXForCausalLM"):
        works = {entry.model_id for entry in api.get_supported_models(architecture, verified_only=True)}
        assert works
        found = [model for model in known_models() if model.architecture == architecture]
        assert {model.name for model in found if model.transformer_lens == "works"} == works


def test_a_search_takes_words_in_any_order_and_case_and_what_is_meant_comes_first() -> None:
    found = known_models("70M Pythia")
    assert {"EleutherAI/pythia-70m", "EleutherAI/pythia-70m-deduped"} <= {model.name for model in found}
    assert all("pythia" in model.name.lower() and "70m" in model.name.lower() for model in found)
    assert known_models("gpt2-small")[0].name == "gpt2"
    assert {model.family for model in known_models("gpt_neox")} == {"gpt_neox"}
    assert known_models("no such thing") == []


def test_tables() -> None:
    found = known_models("pythia-70m")
    table = as_table(found)
    assert list(table["name"]) == [model.name for model in found]
    assert table.loc[0, "aliases"] == " ".join(found[0].aliases)
    everything = known_models()
    families: Any = by_family(everything)
    assert families["names"].sum() == len(everything)
    assert families["architecture"].is_unique
    (row,) = families[families["architecture"] == "GPTNeoXForCausalLM"].to_dict("records")
    assert (row["family"], row["verdict"]) == ("gpt_neox", EXACT)
    assert row["for_example"] in registry.aliases()


def test_a_version_without_a_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FOLDER", Path("nowhere"))
    for cached in (registry._entries, registry.architectures, index._all):
        cached.cache_clear()
    with pytest.raises(InputError, match="has no registry of models"):
        known_models()


# --- on the command line


def run(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["check", "--list", *(str(argument) for argument in arguments)])


def test_without_a_filter_families_are_listed() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["family", "verdict", "architecture", "names", "run_by_transformer_lens", "for_example"]
    shown = {line.split()[0] for line in lines[1 : 2 + len(VERDICTS)]}
    assert shown == {found.family for found in VERDICTS.values()} | {"own"}
    assert "are not tried: sinklens check NAME" in result.stdout
    assert len(lines) < 40


def test_with_a_filter_models_are_listed() -> None:
    result = run("gpt2-small")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[:4] == ["gpt2", "gpt2-small", "gpt2", "exact"]
    many = run("gpt2")
    assert "more: a narrower filter, --json or --out shows them" in many.stdout
    assert len(many.stdout.splitlines()) < 55
    assert "falcon: multi-query (7B) is exact; grouped" in run("tiiuae falcon-rw").stdout


def test_json_and_tables_have_all_of_them(tmp_path: Path) -> None:
    listed = json.loads(run("pythia", "--json").stdout)
    assert len(listed) == len(known_models("pythia")) > 40
    assert listed[0].keys() == {
        "name", "aliases", "architecture", "family", "verdict", "transformer_lens", "hooked", "note",
    }  # fmt: skip
    assert run("pythia", "--out", tmp_path / "models.csv").exit_code == 0
    assert list(pd.read_csv(tmp_path / "models.csv")["name"]) == [model["name"] for model in listed]


def test_the_other_back_end_has_fewer() -> None:
    both = {backend: json.loads(run("--json", "--backend", backend).stdout) for backend in ("bridge", "hooked")}
    assert len(both["hooked"]) < len(both["bridge"])
    assert {model["hooked"] for model in both["hooked"]} == {True}


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    expect_one_line(run("pythia70"), "no model that matches 'pythia70'; similar: EleutherAI/pythia-70m")
    expect_one_line(run("zzzzz"), "sinklens check --list shows the families")
    expect_one_line(run("gpt2", "--out", tmp_path / "models.txt"), "models.txt")
    expect_one_line(run("gpt2", "--backend", "tl"), "unknown backend 'tl'")


def test_no_model_is_loaded_and_transformer_lens_is_not_either() -> None:
    import subprocess
    import sys

    script = (
        "import sys; from sinklens.cli import app; from typer.testing import CliRunner; "
        "assert CliRunner().invoke(app, ['check', '--list', 'gpt2']).exit_code == 0; "
        "assert 'transformer_lens' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)

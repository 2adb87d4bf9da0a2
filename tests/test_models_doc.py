"""``docs/models.md`` says what is measured."""

from typing import Any

import pytest

from tests.captured import TEXT_FAMILIES
from tests.families import FAMILIES, SUPPORTED
from tests.family_table import N_HEADS
from tests.models_doc import COLUMNS, FILE, cell, current, measured_here, read, render, written


def test_the_list_of_models_is_that_of_the_table_and_of_what_is_measured() -> None:
    text = FILE.read_text()
    assert current(text) == text, "docs/models.md is stale; run python -m tests.models_doc"


def test_making_it_again_mends_a_stale_list() -> None:
    text = FILE.read_text()
    names = ("gpt2", "gemma4")
    stale = {(name, column): "unknown" for name in names for column in measured_here()}
    assert render({**read(text), **stale}) != text
    assert current(render({**read(text), **stale}), names) == text


IN = "sinklens.models"
FAULTS: dict[str, tuple[str, str, Any, str]] = {
    "values tiled, not repeated": (
        "llama",
        f"{IN}.layer.expand_kv_heads",
        lambda value, n_heads: value.repeat(1, 1, n_heads // value.shape[2], 1),
        "refused",
    ),
    "output bias left inside": (
        "gpt2",
        f"{IN}.layer.LayerAttention.output",
        property(lambda view: view.module_output),
        "exact, 1e-0",
    ),
    "gate left out": ("qwen3_next", f"{IN}.attention.ModelAttention.is_gated", False, "refused"),
    "window ignored": ("mistral", f"{IN}.attention.ModelAttention.window", lambda self, layer: None, "exact, wrong"),
    "latent values not taken apart": (
        "deepseek_v3",
        f"{IN}.attention.heads_apart",
        lambda template, tensor, width: tensor.reshape(*tensor.shape[:1], -1, N_HEADS, width),
        "refused",
    ),
}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if FAULTS[fault][0] in TEXT_FAMILIES])
def test_a_planted_fault_changes_the_verdict(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, target, broken, verdict = FAULTS[fault]
    column = next(column for column in measured_here() if column.startswith("TransformerBridge"))
    stands = read(FILE.read_text())[name, column]
    assert cell(column, FAMILIES[name], stands) == stands
    monkeypatch.setattr(target, broken)
    assert cell(column, FAMILIES[name], stands) == verdict


def test_every_family_has_a_verdict_and_at_least_22_are_exact() -> None:
    cells = read(FILE.read_text())
    assert {name for name, _ in cells} == set(FAMILIES)
    exact = {name for (name, _), cell in cells.items() if cell.startswith("exact")}
    assert exact == set(SUPPORTED)
    assert len(exact) >= 22
    assert all(cell.startswith("refused") or cell == "–" for (name, _), cell in cells.items() if name not in SUPPORTED)


def test_a_changed_verdict_or_family_makes_the_list_stale() -> None:
    text = FILE.read_text()
    cells = read(text)
    assert render(cells) == text
    assert render({**cells, ("llama", COLUMNS[0]): "refused"}) != text
    assert render({key: cell for key, cell in cells.items() if key[0] != "llama"}) != text


@pytest.mark.parametrize(
    ("gap", "kept", "expected"),
    [(9e-7, "exact, 1e-6", "1e-6"), (2e-6, "exact, 1e-6", "1e-6"), (4e-6, "exact, 1e-6", "1e-5"), (1e-9, "exact, 1e-6", "1e-9")],
)  # fmt: skip
def test_a_gap_that_fits_what_stands_is_kept(gap: float, kept: str, expected: str) -> None:
    assert written(gap, kept) == expected


def test_some_column_is_measured_here() -> None:
    assert measured_here()

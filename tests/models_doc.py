"""Makes ``docs/models.md`` from the table of families and from what is measured here: ``python -m tests.models_doc``.

One version of TransformerLens measures its own columns and keeps those of the others as they stand in the file; run it in
both environments. A gap is written as the power of ten above it. The last digits of float32 differ between machines, so a
gap that stands in the file is kept as long as it fits what is measured.
"""

import importlib.metadata
import math
import re
from collections.abc import Iterable
from pathlib import Path

import sinklens as sl
from tests.captured import MAJOR
from tests.families import FAMILIES, HOOKED_FAMILIES, Family
from tests.gaps import measure

FILE = Path(__file__).parents[1] / "docs" / "models.md"
COLUMNS = ("TransformerBridge 4.3", "TransformerBridge 3.9", "HookedTransformer 3.9")
NOT_THERE = "–"
REFUSED = "refused"
HEAD = """# Which models, and how exactly

Tiny random models of every family (2 layers, 4 heads, random biases and gains) are run through each back end of
TransformerLens. *exact* means that head outputs are `A v`, that heads add up to the layer's output, that contributions
sum to one, and that maps, profiles and interventions equal a literal float64 reference. The number is the worst relative
gap of any map to that reference in float32, by order of magnitude; a star says that edits of the pattern are thrown away
by that back end, so that interventions on patterns are refused there and those on values are not.

This file is made by `python -m tests.models_doc` and checked by the tests. Your own model, layer by layer:
`sinklens check NAME`, or `sinklens.check_model(model)`.
"""


def version_of(column: str) -> str:
    """The version of TransformerLens that a column is about.

    Example:
        >>> version_of("TransformerBridge 4.3")
        '4.3'
    """
    return column.rpartition(" ")[2]


def measured_here() -> list[str]:
    """The columns that the installed version of TransformerLens can fill."""
    installed = importlib.metadata.version("transformer-lens")
    return [column for column in COLUMNS if installed.startswith(version_of(column) + ".")]


def cell(column: str, family: Family, kept: str) -> str:
    """The verdict on a family in a column; ``kept`` is what the file says."""
    backend = "hooked" if column.startswith("Hooked") else "bridge"
    if (backend == "hooked" and family.name not in HOOKED_FAMILIES) or (
        backend == "bridge" and MAJOR < 4 and family.bridge_needs_4x
    ):
        return NOT_THERE
    try:
        gap = measure(backend, family.name)
    except sl.UnsupportedAttentionError:
        return REFUSED
    star = "" if backend == "hooked" or family.pattern_editable else " *"
    return f"exact, {written(gap, kept)}{star}"


def written(gap: float, kept: str) -> str:
    """The gap as a power of ten, or as it stands where that still fits.

    Example:
        >>> written(4e-7, ""), written(1.2e-6, "exact, 1e-6"), written(1e-4, "exact, 1e-6")
        ('1e-6', '1e-6', '1e-4')
    """
    stands = re.search(r"1e-\d+", kept)
    if stands and float(stands[0]) / 50 < gap < 3 * float(stands[0]):
        return stands[0]
    if not math.isfinite(gap):
        return "wrong"
    return f"1e-{-math.ceil(math.log10(max(gap, 1e-9)) - 1e-9)}"


Cells = dict[tuple[str, str], str]


def read(text: str) -> Cells:
    """The cells of an existing file by family and column."""
    found: Cells = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.strip("|").split("|")]
        name = parts[0].strip("`")
        if name in FAMILIES and len(parts) == 2 + len(COLUMNS):
            found |= {(name, column): part for column, part in zip(COLUMNS, parts[2:], strict=True)}
    return found


def render(cells: Cells) -> str:
    """The whole file."""
    exact = sum(any(cells.get((name, c), "").startswith("exact") for c in COLUMNS) for name in FAMILIES)
    lines = [HEAD, f"{exact} of {len(FAMILIES)} families are exact.", ""]
    lines += ["| family | attention | " + " | ".join(COLUMNS) + " |", "|---" * (2 + len(COLUMNS)) + "|"]
    for name, family in FAMILIES.items():
        verdicts = " | ".join(cells.get((name, column), NOT_THERE) for column in COLUMNS)
        lines.append(f"| `{name}` | {', '.join(family.traits) or 'plain'} | {verdicts} |")
    lines += ["", "What to know beside:", ""]
    lines += [f"- `{family.name}`: {remark(family)}." for family in FAMILIES.values() if family.refused or family.note]
    return "\n".join(lines) + "\n"


def remark(family: Family) -> str:
    """What stands below the table."""
    parts = [f"refused, *{family.refused}*"] if family.refused else []
    return "; ".join([*parts, *([family.note] if family.note else [])])


def current(text: str, names: Iterable[str] = tuple(FAMILIES)) -> str:
    """The file as it should be, from what it says and from what is measured here of the named families."""
    cells = read(text)
    for column in measured_here():
        for name in names:
            cells[name, column] = cell(column, FAMILIES[name], cells.get((name, column), ""))
    return render(cells)


if __name__ == "__main__":
    FILE.write_text(current(FILE.read_text() if FILE.exists() else ""))

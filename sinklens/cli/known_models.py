"""``sinklens check --list``: which models TransformerLens knows by name, and the verdict on each one's family."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from sinklens.cli.output import say
from sinklens.errors import InputError

SHOWN = 40  # rows on the terminal; all of them is what --out and --json are for
_LEGEND = (
    "verdict: of sinklens on the family, from tiny random models (docs/models.md); "
    "transformer_lens: its own runs of the model."
)


def list_models(search: str, out: Path | None, as_json: bool, backend: str | None) -> None:
    """Print the models that match, or without a search their families.

    Args:
        search: words that must all match; empty for a table of families.
        out: a file for the table of all of them.
        as_json: whether all of them are printed as JSON instead.
        backend: ``"hooked"`` for those only that HookedTransformer holds.

    Raises:
        InputError: nothing matches, or the back end is unknown.
        ResultFileError: the file cannot be written.
    """
    from sinklens.models.index import as_table, known_models
    from sinklens.results.files import write_table

    if backend not in (None, "bridge", "hooked"):
        raise InputError(f"unknown backend {backend!r}; expected 'bridge' or 'hooked'")
    found = [model for model in known_models(search) if backend != "hooked" or model.hooked]
    if not found:
        raise InputError(_nothing(search))
    table = as_table(found)
    if out is not None:
        write_table(out, table)
    if as_json:
        say([asdict(model) for model in found], as_json=True)
    else:
        say(_models(table) if search.strip() else _families(found))
        say(f"Written: {out}" if out is not None else _LEGEND)


def _nothing(search: str) -> str:
    from sinklens.models.registry import similar_names

    similar = similar_names(search)
    advice = f"similar: {', '.join(similar)}" if similar else "sinklens check --list shows the families"
    return f"TransformerLens' registry has no model that matches {search!r}; {advice}"


def _models(table: Any) -> str:
    first_alias = table["aliases"].str.partition(" ")[0]
    family = table["family"].where(table["family"] != "", table["architecture"])
    rows = table.assign(alias=first_alias, family=family)[["name", "alias", "family", "verdict", "transformer_lens"]]
    more = f"\n... and {len(rows) - SHOWN:,} more: a narrower filter, --json or --out shows them" * (len(rows) > SHOWN)
    notes = dict.fromkeys(zip(family.head(SHOWN), table["note"].head(SHOWN), strict=True))
    remarks = "".join(f"\n{name or 'unknown'}: {note}." for name, note in notes if note)
    return f"{_left_aligned(rows.head(SHOWN))}{more}\n{remarks}\n{len(rows):,} models."


def _families(models: list[Any]) -> str:
    from sinklens.models.index import by_family

    table = by_family(models)
    tried = table[table["family"] != ""]
    others = table[table["family"] == ""]
    return (
        f"{_left_aligned(tried)}\n\n{len(models):,} models. {len(others)} further architectures ({others['names'].sum():,} "
        "names) are not tried: sinklens check NAME. One family or name: sinklens check --list FILTER."
    )


def _left_aligned(table: Any) -> str:
    texts = [list(table.columns), *table.astype(str).to_numpy().tolist()]
    widths = [max(len(row[column]) for row in texts) for column in range(len(table.columns))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in texts]
    return "\n".join(line.rstrip() for line in lines)

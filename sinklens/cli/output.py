"""What a command prints and writes: checked before the work, whole or not at all after it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.app import Interrupted
from sinklens.errors import InputError, ResultFileError

_PAGES = (".html", ".htm")
STANDARD_OUTPUT = Path("-")


def say(message: Any, as_json: bool = False) -> None:
    """Print on standard output."""
    typer.echo(json.dumps(message, indent=1) if as_json else message)


def shown(table: Any, number: str) -> str:
    """A table for the terminal, its numbers in one format."""
    return table.to_string(index=False, float_format=number.format)


@contextmanager
def interruptible(kept: Path | None, advice: str, *, older_counts: bool = False) -> Iterator[None]:
    """Say on Ctrl-C what is left, where a file with what was finished may be.

    Args:
        kept: the file.
        advice: what can be done with it.
        older_counts: whether a file that was there before is of this run too.

    Raises:
        Interrupted: Ctrl-C.
    """
    before = None if older_counts else _state(kept)
    try:
        yield
    except KeyboardInterrupt:
        found = _state(kept) not in (None, before)
        raise Interrupted(f"what was finished is in {kept}: {advice}" if found else "") from None


def _state(path: Path | None) -> tuple[int, int] | None:
    """Tells one version of a file from another; None where there is none."""
    if path is None or not path.exists():
        return None
    found = path.stat()
    return found.st_ino, found.st_mtime_ns


@dataclass(frozen=True)
class StudyOutputs:
    """The files of a study."""

    out: Annotated[Path | None, typer.Option("--out", "-o", help="An HTML page with charts and tables.")] = None
    table: Annotated[Path | None, typer.Option(help="All figures as a table: .parquet, .csv or .json.")] = None
    json: Annotated[Path | None, typer.Option(help="All figures as JSON; - prints them in place of the table.")] = None
    save: Annotated[Path | None, typer.Option(help="The result itself, .safetensors, to be loaded in Python.")] = None
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None

    def check(self, data: str | None, kept: Path | None = None, kept_name: str = "") -> None:
        """Fail before the work where a file could not be written, or two are one.

        Args:
            data: the text, which must not be overwritten.
            kept: a further file that is written during the work.
            kept_name: its option.

        Raises:
            ResultFileError: a path cannot be written or has a wrong suffix.
            InputError: two of the files are the same.
        """
        from sinklens.results.files import check_table_suffix

        files = {"--out": self.out, "--table": self.table, "--json": self.json, "--save": self.save, kept_name: kept}
        if files["--json"] == STANDARD_OUTPUT:
            del files["--json"]
        _check_distinct(data, {name: path for name, path in files.items() if path is not None})
        _check_suffix(self.out, _PAGES)
        _check_suffix(self.save, (".safetensors",))
        _check_suffix(kept, (".safetensors",))
        _check_suffix(files.get("--json"), (".json",))
        if self.table is not None:
            check_table_suffix(self.table)

    @property
    def prints_json(self) -> bool:
        """Whether JSON takes the place of the table on the terminal."""
        return self.json == STANDARD_OUTPUT

    def finish(self, result: Any, figures: dict[str, Any], summary: str, page: Callable[[], str]) -> None:
        """Write what was asked for, then print; a file that cannot be written must not take the figures away.

        Args:
            result: of the study.
            figures: it, as JSON holds it.
            summary: it, for a reader.
            page: makes the HTML.

        Raises:
            ResultFileError: a file cannot be written.
            Interrupted: Ctrl-C while files were written.
        """
        written: list[Path] = []
        try:
            self._write(result, figures, page, written)
        except KeyboardInterrupt:
            raise Interrupted(f"written before that: {_listed(written)}" if written else "") from None
        finally:
            say(figures if self.prints_json else summary, self.prints_json)
        if written and not self.prints_json:
            say(f"\nWritten: {_listed(written)}")

    def _write(self, result: Any, figures: dict[str, Any], page: Callable[[], str], written: list[Path]) -> None:
        from sinklens.results.files import write_table

        if self.save is not None:
            written.append(result.save(self.save))
        if self.table is not None:
            written.append(write_table(self.table, result.to_dataframe()))
        if self.json is not None and not self.prints_json:
            written.append(_write_text(self.json, json.dumps(figures, indent=1) + "\n"))
        if self.out is not None:
            written.append(_write_text(self.out, page()))


def _listed(paths: list[Path]) -> str:
    return ", ".join(str(path) for path in paths)


def _write_text(path: Path, text: str) -> Path:
    from sinklens.results.files import write_whole

    return write_whole(path, lambda target: target.write_text(text, encoding="utf-8"))


def records(table: Any) -> list[dict[str, Any]]:
    """A table as JSON holds it: a number that there is not is null."""
    return json.loads(str(table.to_json(orient="records", double_precision=15)))


def _check_distinct(data: str | None, files: dict[str, Path]) -> None:
    from sinklens.results.files import check_writable

    taken = {} if data is None else {Path(data).resolve(): "the text"}
    for name, path in files.items():
        check_writable(path)
        other = taken.setdefault(path.resolve(), name)
        if other != name:
            raise InputError(f"{name} and {other} are the same file, {path}; choose another path for one of them")


def _check_suffix(path: Path | None, known: tuple[str, ...]) -> None:
    if path is not None and path.suffix.lower() not in known:
        raise ResultFileError(f"cannot write {path}: its suffix is {path.suffix!r}; expected {known[0]}")

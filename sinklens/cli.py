"""The command line: ``sinklens report | profile | check``. A user's mistake gives one line and exit code 2."""

import dataclasses
import functools
import inspect
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens import __version__
from sinklens.errors import InputError, SinklensError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Measure what attention heads and their sinks really do, head by head.",
)  # fmt: skip

DATA_HELP = "A .txt or .jsonl file, or hf:NAME[:CONFIG][@SPLIT]. Default: a built-in text."
Eps = Annotated[float, typer.Option(help="Threshold of the sink rate.")]
ProfileOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="A .safetensors result, or a .csv, .parquet or .json table.")
]


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"sinklens {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Measure what attention heads and their sinks really do, head by head."""


# The options that every measurement has, in the order of the help page.
SHARED: dict[str, tuple[Any, Any]] = {
    "model": (Annotated[str, typer.Option("--model", "-m", help="Hub name, local folder, or smollm2-135m.")], "smollm2-135m"),
    "data": (Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)], None),
    "device": (Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: the best one there is.")], None),
    "dtype": (Annotated[str, typer.Option(help="float32, float16 or bfloat16; metrics are float32 anyway.")], "float32"),
    "backend": (Annotated[str | None, typer.Option(help="bridge or hooked (TransformerLens 3). Default: bridge.")], None),
    "layers": (Annotated[str | None, typer.Option(help="Layers, such as 0,3,10-15. Default: all.")], None),
    "sink": (Annotated[str, typer.Option(help="first, detect, detect:0.5, token:ID, or positions such as 0,3.")], "first"),
    "context_length": (Annotated[int | None, typer.Option(help="Longest sequence. Default: 128 or the model's.")], None),
    "batch_size": (Annotated[int, typer.Option(help="Sequences per batch.")], 8),
    "documents": (Annotated[int | None, typer.Option(help="Stop after this many documents.")], None),
    "min_length": (Annotated[int, typer.Option(help="Leave out shorter sequences.")], 2),
    "overflow": (Annotated[str, typer.Option(help="Longer documents: split, cut or error.")], "split"),
    "fields": (Annotated[str | None, typer.Option(help="Fields of a .jsonl or dataset: question,answer.")], None),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")], False),
    "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")], False),
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What the user asked to measure, and on what: the values of :data:`SHARED`."""

    model: str
    data: str | None
    device: str | None
    dtype: str
    backend: str | None
    layers: str | None
    sink: str
    context_length: int | None
    batch_size: int
    documents: int | None
    min_length: int
    overflow: str
    fields: str | None
    as_json: bool
    quiet: bool

    def load(self) -> Any:
        """The model."""
        from sinklens.models.loading import load_model

        return load_model(self.model, device=self.device, dtype=self.dtype, backend=self.backend)

    def texts(self) -> Any:
        """The texts; a missing or broken file is found here, before a model is loaded."""
        from sinklens.models.sources import document_source, is_dataset_name
        from sinklens.reports.demo_text import DEMO_TEXTS

        if self.data is None:
            return list(DEMO_TEXTS)
        if is_dataset_name(self.data):
            return self.data
        next(iter(document_source(Path(self.data), self._fields).read()))
        return Path(self.data)

    @property
    def _fields(self) -> list[str] | None:
        return None if self.fields is None else [field.strip() for field in self.fields.split(",")]

    def tokenization(self) -> dict[str, Any]:
        """The arguments of :func:`sinklens.tokenize`."""
        names = ("context_length", "batch_size", "min_length", "overflow")
        return {name: getattr(self, name) for name in names} | {"max_documents": self.documents, "fields": self._fields}

    def measurement(self) -> dict[str, Any]:
        """The arguments of a measurement of heads."""
        return self.tokenization() | {
            "layers": _parse_layers(self.layers),
            "sink": self.sink,
            "progress": not self.quiet,
        }


def _command(name: str, shared: Iterable[str] = SHARED) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command that gets a :class:`Request` from the shared options, beside options of its own."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def call(**options: Any) -> None:
            asked = {name: default for name, (_, default) in SHARED.items()}
            function(Request(**asked | {name: options.pop(name) for name in shared}), **options)

        own = list(inspect.signature(function).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        given = [(name, *SHARED[name]) for name in shared]
        parameters = [
            *(parameter.replace(kind=keyword) for parameter in own),
            *(inspect.Parameter(name, keyword, default=default, annotation=kind) for name, kind, default in given),
        ]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del call.__wrapped__  # type: ignore[attr-defined] -- or its signature would be read instead
        return app.command(name)(_guarded(call))

    return register


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Every way in which a command can fail becomes one line and an exit code; typer itself handles wrong options."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt:
            raise _failure("interrupted; nothing was written", 130) from None
        except SinklensError as error:
            raise _failure(" ".join(str(error).split()), 2) from error
        except MemoryError as error:
            advice = "use a smaller --batch-size or --context-length, or another --device"
            raise _failure(f"not enough memory; {advice}", 2) from error
        except typer.Exit:
            raise
        except Exception as error:  # the last line of defence: a bug of ours is told in one line too
            if os.environ.get("SINKLENS_DEBUG"):
                raise
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise _failure(f"unexpected error: {text} (SINKLENS_DEBUG=1 shows where; please report it)", 1) from error

    return guarded


def _failure(message: str, code: int) -> typer.Exit:
    typer.echo(f"sinklens: {message}", err=True)
    return typer.Exit(code)


@_command("report")
def report_command(
    request: Request,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    prompt: Annotated[
        str | None, typer.Option(help="Text for the head picker. Default: the start of the data.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    eps: Eps = 0.3,
) -> None:
    """Write an interactive HTML report.

    Every head's sink, contributions and suppression, a scatter of all heads, and a head picker for one prompt.
    """
    from sinklens.reports.demo_text import DEMO_PROMPT
    from sinklens.reports.report import report
    from sinklens.results.files import check_writable

    check_writable(out)
    texts = request.texts()
    options: dict[str, Any] = request.measurement() | {"eps": eps, "title": title}
    built_in = request.data is None
    options["prompt"] = DEMO_PROMPT if prompt is None and built_in else prompt
    options["text_name"] = "the built-in demonstration text" if built_in else request.data
    path = report(request.load(), texts, out, **options)
    found = {"report": str(path), "bytes": path.stat().st_size}
    _say(found if request.as_json else f"Report: {path.absolute()}", request.as_json)


@_command("profile")
def profile_command(request: Request, out: ProfileOut = None, eps: Eps = 0.3) -> None:
    """Measure every head over a text.

    Prints a summary and the strongest sink heads, and saves the profile or a table of it.
    """
    from sinklens.analyzers.profile import head_profile
    from sinklens.results.files import check_table_suffix, check_writable, write_table

    if out is not None:
        check_writable(out)
        check_table_suffix(out, also=(".safetensors",))
    texts = request.texts()
    options: dict[str, Any] = request.measurement() | {"eps": eps}
    profile = head_profile(request.load(), texts, **options)
    if out is not None:
        profile.save(out) if out.suffix == ".safetensors" else write_table(out, profile.to_dataframe())
    if request.as_json:
        _say({"summary": profile.summary(), "provenance": profile.provenance.to_dict()}, as_json=True)
        return
    columns = ["layer", "head", "kind", "sink_mass", "sink_rate", "sink_value_ratio", "sink_alignment", "sink_intra"]
    strongest = profile.to_dataframe().nlargest(10, "sink_mass")[[*columns, "suppression"]]
    _say(f"{profile!r}\n\n{_shown(strongest, '{:.3f}')}")


@_command("check", shared=("model", "data", "fields", "device", "dtype", "backend", "as_json"))
def check_command(
    request: Request,
    name: Annotated[str | None, typer.Argument(help="The model; the same as --model.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv, .parquet or .json table.")] = None,
) -> None:
    """Check a model layer by layer.

    Does attention decompose, and does an edit of it reach the logits? Exit code 1 where a layer is refused.
    """
    from sinklens.models.checks import check_model
    from sinklens.results.files import check_table_suffix, check_writable, write_table

    if out is not None:
        check_writable(out)
        check_table_suffix(out)
    texts = None if request.data is None else request.texts()
    asked = request if name is None else dataclasses.replace(request, model=name)
    check = check_model(asked.load(), texts)
    table = check.to_dataframe()
    if out is not None:
        write_table(out, table)
    if request.as_json:
        found = {"model": check.model_name, "frame": check.frame, "verdict": check.verdict, "passed": check.passed}
        _say(found | {"layers": json.loads(str(table.to_json(orient="records")))}, as_json=True)
    else:
        _say(f"{_shown(table.drop(columns=['failure', 'output_hook']), '{:.1e}')}\n\n{check!r}")
    if not check.passed:
        raise typer.Exit(1)


def _parse_layers(text: str | None) -> list[int] | None:
    """``0,3,10-15`` as numbers.

    Example:
        >>> _parse_layers("0,3,5-7")
        [0, 3, 5, 6, 7]
    """
    if text is None:
        return None
    parts = [re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part) for part in text.split(",")]
    bounds = [(int(part[1]), int(part[2] or part[1])) for part in parts if part]
    if len(bounds) < len(parts) or any(first > last for first, last in bounds):
        raise InputError(f"--layers is {text!r}; expected numbers and ranges such as 0,3,10-15")
    return [layer for first, last in bounds for layer in range(first, last + 1)]


def _shown(table: Any, number: str) -> str:
    """A table for the terminal, its numbers in one format."""
    return table.to_string(index=False, float_format=number.format)


def _say(message: Any, as_json: bool = False) -> None:
    typer.echo(json.dumps(message, indent=1) if as_json else message)


def _one_line_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(f"sinklens: {category.__name__}: {message}", err=True)


def main() -> None:
    """Entry point of the ``sinklens`` command."""
    warnings.showwarning = _one_line_warning
    app()


if __name__ == "__main__":
    main()

"""The command line: ``sinklens report | profile | check``. A user's mistake gives one line and exit code 2."""

import functools
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.errors import InputError, SinklensError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Measure what attention heads and their sinks really do, head by head.",
)  # fmt: skip

Model = Annotated[str, typer.Option("--model", "-m", help="Hub name, local folder, or smollm2-135m.")]
Data = Annotated[
    str | None,
    typer.Option("--data", "-d", help="A .txt or .jsonl file, or hf:NAME[:CONFIG][@SPLIT]. Default: a built-in text."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: the best one there is.")]
Dtype = Annotated[str, typer.Option(help="float32, float16 or bfloat16; metrics are float32 in any case.")]
Backend = Annotated[str | None, typer.Option(help="bridge or hooked (TransformerLens 3). Default: bridge.")]
ContextLength = Annotated[int | None, typer.Option(help="Longest sequence, BOS included. Default: 128 or the model's.")]
BatchSize = Annotated[int, typer.Option(help="Sequences per batch.")]
Documents = Annotated[int | None, typer.Option(help="Stop after this many documents.")]
MinLength = Annotated[int, typer.Option(help="Leave out shorter sequences.")]
Overflow = Annotated[str, typer.Option(help="Longer documents: split, cut or error.")]
Fields = Annotated[
    str | None, typer.Option(help="Fields of a .jsonl or dataset, joined by a newline: question,answer.")
]
Layers = Annotated[str | None, typer.Option(help="Layers, such as 0,3,10-15. Default: all.")]
Sink = Annotated[str, typer.Option(help="first, detect, detect:0.5, token:ID, or positions such as 0,3.")]
Eps = Annotated[float, typer.Option(help="Threshold of the sink rate.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]


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


@app.command("report")
@_guarded
def report_command(
    model: Model = "smollm2-135m",
    data: Data = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    prompt: Annotated[
        str | None, typer.Option(help="Text for the head picker. Default: the start of the data.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    backend: Backend = None,
    context_length: ContextLength = None,
    batch_size: BatchSize = 8,
    documents: Documents = None,
    min_length: MinLength = 2,
    overflow: Overflow = "split",
    fields: Fields = None,
    layers: Layers = None,
    sink: Sink = "first",
    eps: Eps = 0.3,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write an interactive HTML report: every head's sink, contributions and suppression, and a head picker."""
    from sinklens.reports.demo_text import DEMO_PROMPT
    from sinklens.reports.report import report
    from sinklens.results.files import check_writable

    check_writable(out)
    texts, options = _text_options(data, context_length, batch_size, documents, min_length, overflow, fields)
    options |= {"layers": _parse_layers(layers), "sink": sink, "eps": eps, "progress": not quiet}
    shown = DEMO_PROMPT if prompt is None and data is None else prompt
    loaded = _load(model, device, dtype, backend)
    name = "the built-in demonstration text" if data is None else data
    path = report(loaded, texts, out, prompt=shown, title=title, text_name=name, **options)
    _say({"report": str(path), "bytes": path.stat().st_size} if as_json else f"Report: {path.absolute()}", as_json)


@app.command("profile")
@_guarded
def profile_command(
    model: Model = "smollm2-135m",
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A .safetensors result, or a .csv, .parquet or .json table.")
    ] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    backend: Backend = None,
    context_length: ContextLength = None,
    batch_size: BatchSize = 8,
    documents: Documents = None,
    min_length: MinLength = 2,
    overflow: Overflow = "split",
    fields: Fields = None,
    layers: Layers = None,
    sink: Sink = "first",
    eps: Eps = 0.3,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure every head over the data; print a summary and the strongest sink heads, and save the profile."""
    from sinklens.analyzers.profile import head_profile
    from sinklens.results.files import check_table_suffix, check_writable, write_table

    if out is not None:
        check_writable(out)
        check_table_suffix(out, also=(".safetensors",))
    texts, options = _text_options(data, context_length, batch_size, documents, min_length, overflow, fields)
    options |= {"layers": _parse_layers(layers), "sink": sink, "eps": eps, "progress": not quiet}
    profile = head_profile(_load(model, device, dtype, backend), texts, **options)
    if out is not None:
        profile.save(out) if out.suffix == ".safetensors" else write_table(out, profile.to_dataframe())
    if as_json:
        _say({"summary": profile.summary(), "provenance": profile.provenance.to_dict()}, as_json)
        return
    columns = ["layer", "head", "kind", "sink_mass", "sink_rate", "sink_value_ratio", "sink_alignment", "sink_intra"]
    strongest = profile.to_dataframe().nlargest(10, "sink_mass")[[*columns, "suppression"]]
    _say(f"{profile!r}\n\n{_shown(strongest, '{:.3f}')}", as_json)


@app.command("check")
@_guarded
def check_command(
    name: Annotated[str | None, typer.Argument(help="The model; the same as --model.")] = None,
    model: Model = "smollm2-135m",
    data: Data = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv, .parquet or .json table.")] = None,
    device: Device = None,
    dtype: Dtype = "float32",
    backend: Backend = None,
    as_json: AsJson = False,
) -> None:
    """Check layer by layer that attention decomposes and can be edited; exit code 1 where a layer is refused."""
    from sinklens.models.checks import check_model
    from sinklens.results.files import check_table_suffix, check_writable, write_table

    if out is not None:
        check_writable(out)
        check_table_suffix(out)
    texts = None if data is None else _text_options(data, None, 1, 1, 2, "cut", None)[0]
    check = check_model(_load(name or model, device, dtype, backend), texts)
    table = check.to_dataframe()
    if out is not None:
        write_table(out, table)
    if as_json:
        found = {"model": check.model_name, "frame": check.frame, "verdict": check.verdict, "passed": check.passed}
        _say(found | {"layers": json.loads(str(table.to_json(orient="records")))}, as_json)
    else:
        _say(f"{_shown(table.drop(columns=['failure', 'output_hook']), '{:.1e}')}\n\n{check!r}", as_json)
    if not check.passed:
        raise typer.Exit(1)


def _text_options(
    data: str | None,
    context_length: int | None,
    batch_size: int,
    documents: int | None,
    min_length: int,
    overflow: str,
    fields: str | None,
) -> tuple[Any, dict[str, Any]]:
    """The texts and the arguments of tokenize; a missing or broken file is found before a model is loaded."""
    from sinklens.models.sources import document_source, is_dataset_name
    from sinklens.reports.demo_text import DEMO_TEXTS

    texts: Any = list(DEMO_TEXTS) if data is None else data if is_dataset_name(data) else Path(data)
    names = None if fields is None else [field.strip() for field in fields.split(",")]
    if isinstance(texts, Path):
        next(iter(document_source(texts, names).read()))
    options: dict[str, Any] = {"context_length": context_length, "batch_size": batch_size, "max_documents": documents}
    return texts, options | {"min_length": min_length, "overflow": overflow, "fields": names}


def _parse_layers(text: str | None) -> list[int] | None:
    """``0,3,10-15`` as numbers.

    Example:
        >>> _parse_layers("0,3,5-7")
        [0, 3, 5, 6, 7]
    """
    if text is None:
        return None
    try:
        bounds = [part.split("-") for part in text.split(",")]
        return [layer for part in bounds for layer in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        raise InputError(f"--layers is {text!r}; expected numbers and ranges such as 0,3,10-15") from None


def _load(name: str, device: str | None, dtype: str, backend: str | None) -> Any:
    from sinklens.models.loading import load_model

    return load_model(name, device=device, dtype=dtype, backend=backend)


def _shown(table: Any, number: str) -> str:
    """A table for the terminal, its numbers in one format."""
    return table.to_string(index=False, float_format=number.format)


def _say(message: Any, as_json: bool) -> None:
    typer.echo(json.dumps(message, indent=1) if as_json else message)


def _one_line_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(f"sinklens: {category.__name__}: {message}", err=True)


def main() -> None:
    """Entry point of the ``sinklens`` command."""
    warnings.showwarning = _one_line_warning
    app()


if __name__ == "__main__":
    main()

"""The application: how a command is registered, and how every way in which it can fail becomes one line."""

import dataclasses
import functools
import inspect
import os
import warnings
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from sinklens import __version__
from sinklens.errors import SinklensError

app = typer.Typer(
    add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Measure what attention heads and their sinks really do, head by head.",
)  # fmt: skip


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with a sentence on what is left; without one, nothing is."""


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


def command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command. A parameter that is a dataclass stands for its fields, each an option.

    Args:
        name: as it is typed.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(function).parameters.values()
        groups: dict[str, Any] = {
            each.name: each.annotation for each in parameters if dataclasses.is_dataclass(each.annotation)
        }

        @functools.wraps(function)
        def call(**options: Any) -> None:
            filled = {
                name: group(**{field.name: options.pop(field.name) for field in dataclasses.fields(group)})
                for name, group in groups.items()
            }
            function(**filled, **options)

        flat = [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in parameters
            for option in (_options(groups[each.name]) if each.name in groups else [each])
        ]
        call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
        del call.__wrapped__  # type: ignore[attr-defined] -- or its signature would be read instead
        return app.command(name)(_guarded(call))

    return register


def _options(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in dataclasses.fields(group)
    ]


def _guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Every way in which a command can fail becomes one line and an exit code; typer itself handles wrong options."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise _failure(f"interrupted; {str(error) or 'nothing was written'}", 130) from None
        except SinklensError as error:
            raise _failure(" ".join(str(error).split()), 2) from error
        except MemoryError as error:
            advice = "use a smaller --batch-size or --context-length, or another --device"
            raise _failure(f"not enough memory; {advice}", 2) from error
        except (typer.Exit, BrokenPipeError):  # who reads the output has seen enough: typer ends quietly
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


def _one_line_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    typer.echo(f"sinklens: {category.__name__}: {message}", err=True)


def main() -> None:
    """Entry point of the ``sinklens`` command."""
    warnings.showwarning = _one_line_warning
    app()

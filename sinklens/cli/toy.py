"""``sinklens toy``: train a small model that grows an attention sink, and see when it does not."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.output import StudyOutputs, interruptible, records
from sinklens.cli.parse import decimals, names, numbers_and_ranges
from sinklens.errors import InputError


@dataclass(frozen=True)
class ToyOptions:
    """What is trained: a list gives a run for every combination."""

    task: Annotated[str, typer.Option(help="backcopy, or copy (three back, a share of 0.3 active).")] = "backcopy"
    architecture: Annotated[
        str, typer.Option(help="bos, no_bos, learned_sink, no_learned_sink, gated; or several.")
    ] = "bos"
    weight_decay: Annotated[str, typer.Option(help="Of AdamW, on matrices; one or several.")] = "0.01"
    seed: Annotated[str, typer.Option(help="Of table, weights and data; one or several, 0-2.")] = "0"
    steps: Annotated[int, typer.Option(help="Of training.")] = 600
    learning_rate: Annotated[float, typer.Option(help="At its highest.")] = 5e-3
    batch_size: Annotated[int, typer.Option(help="Sequences a step.")] = 32
    d_model: Annotated[int, typer.Option(help="Width.")] = 64
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False

    def runs(self) -> list[dict[str, Any]]:
        """The arguments of every run, checked before the first.

        Raises:
            InputError: one has no sense.
        """
        from sinklens.toy.training import toy_settings

        varied = (
            names(self.task, "--task"),
            names(self.architecture, "--architecture"),
            dict.fromkeys(decimals(self.weight_decay, "--weight-decay")),
            dict.fromkeys(numbers_and_ranges(self.seed, "--seed")),
        )
        same = {name: getattr(self, name) for name in ("steps", "learning_rate", "batch_size", "d_model")}
        keys = ("task", "architecture", "weight_decay", "seed")
        runs: list[dict[str, Any]] = [
            {**dict(zip(keys, values, strict=True)), **same} for values in itertools.product(*varied)
        ]
        for run in runs:
            toy_settings(**run)
        return runs


@command("toy")
def toy_command(
    *,
    options: ToyOptions,
    outputs: StudyOutputs,
    save_model: Annotated[
        Path | None, typer.Option(help="A new folder for the model itself (Hugging Face format); of a single run.")
    ] = None,
) -> None:
    """Train a toy and see its sink form.

    A model of one layer and one head learns to copy a token after a trigger, and else has nothing to read.
    """
    runs = options.runs()
    outputs.check(None)
    _check_folder(save_model, len(runs))
    with interruptible(save_model, "the trained model"):
        history = _trained(runs, save_model, options.quiet)
    _report(history, outputs, save_model)


def _check_folder(folder: Path | None, n_runs: int) -> None:
    from sinklens.toy.files import check_new_folder

    if folder is None:
        return
    if n_runs > 1:
        raise InputError(
            f"--save-model takes the model of a single run, and there are {n_runs}; choose one of each option"
        )
    check_new_folder(folder)


def _trained(runs: list[dict[str, Any]], folder: Path | None, quiet: bool) -> Any:
    from sinklens.toy import train_toy

    histories = []
    for run in runs:
        trained = train_toy(**run, progress=not quiet)
        histories.append(trained.history)
        if folder is not None:
            trained.save(folder, _command(run))
    history = histories[0]
    for other in histories[1:]:
        history = history.merge(other)
    return history


def _command(run: dict[str, Any]) -> str:
    settings = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in run.items())
    return f"sinklens toy {settings} --save-model FOLDER"


def _report(history: Any, outputs: StudyOutputs, folder: Path | None) -> None:
    from sinklens.reports.toy import render_toy

    summary = toy_summary(history) + (f"\n\nModel: {folder}" if folder is not None else "")
    outputs.finish(history, toy_figures(history), summary, lambda: render_toy(history, title=outputs.title))


def toy_summary(history: Any) -> str:
    """What is printed of toy runs."""
    from sinklens.reports.toy import toy_headlines, toy_table

    source = history.provenance
    first = (
        f"{', '.join(history.varied('task'))}, {history.steps[-1]} steps; measured on {source.n_sequences} held-out "
        f"sequences, {source.n_tokens:,} tokens"
    )
    lines = [f"{each.value}  {each.label}. {each.detail}" for each in toy_headlines(history)]
    return "\n\n".join([first, "\n".join(lines), toy_table(history).to_text()])


def toy_figures(history: Any) -> dict[str, Any]:
    """Toy runs as JSON holds them."""
    return {
        "result": type(history).__name__,
        "goals": records(history.goals()),
        "history": records(history.to_dataframe()),
        "provenance": history.provenance.to_dict(),
    }

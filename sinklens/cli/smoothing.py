"""``sinklens smoothing``: does dense attention make tokens more alike than sparse attention does?"""

from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import HeadOptions
from sinklens.cli.output import StudyOutputs, records
from sinklens.cli.parse import decimals
from sinklens.errors import InputError


@command("smoothing")
def smoothing_command(
    *,
    strengths: Annotated[
        str, typer.Option(help="Shares λ of uniform attention; 0 and 1 must be among them.")
    ] = "0,0.25,0.5,0.75,1",
    depth: Annotated[bool, typer.Option("--depth/--no-depth", help="Densify the whole model too.")] = True,
    outputs: StudyOutputs,
    request: HeadOptions,
) -> None:
    """Does dense attention smooth tokens?

    Mean pairwise cosine after each layer's attention, from sparse to uniform, beside its prediction.
    """
    from sinklens.ablation import oversmoothing
    from sinklens.models.sinks import sink_rule
    from sinklens.reports.smoothing import render_smoothing

    steps = _strengths(strengths)
    sink_rule(request.sink)
    outputs.check(request.data)
    texts, options = request.texts(), request.measurement()
    result = oversmoothing(request.load(), texts, steps, depth=depth, **options)
    outputs.finish(
        result,
        smoothing_figures(result),
        smoothing_summary(result),
        lambda: render_smoothing(result, title=outputs.title, text_name=request.text_name),
    )


def _strengths(text: str) -> tuple[float, ...]:
    from sinklens.ablation.smoothing import check_strengths

    try:
        return check_strengths(decimals(text, "--strengths"))
    except InputError as error:
        raise InputError(str(error) if "--strengths" in str(error) else f"--strengths: {error}") from None


def smoothing_summary(result: Any) -> str:
    """What is printed of an oversmoothing study."""
    from sinklens.cli.summaries import study_summary
    from sinklens.reports.smoothing import counter_table, difference_table, smoothing_headlines

    return study_summary(
        result.provenance, smoothing_headlines(result), [difference_table(result), counter_table(result)]
    )


def smoothing_figures(result: Any) -> dict[str, Any]:
    """An oversmoothing study as JSON holds it."""
    return {
        "result": type(result).__name__,
        "cells": records(result.to_dataframe()),
        "dense_minus_diagonal": records(result.dense_minus_diagonal()),
        "counters": records(result.counters()),
        "prediction_error": records(result.prediction_error()),
        "provenance": result.provenance.to_dict(),
    }

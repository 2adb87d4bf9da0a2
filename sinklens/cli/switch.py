"""``sinklens switch``: which heads are off for which tokens, what switches them off, and how much attention communicates."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import HeadOptions
from sinklens.cli.output import StudyOutputs, records
from sinklens.errors import InputError


@dataclass(frozen=True)
class SwitchOptions:
    """What counts as switched off, and what carries it."""

    values: Annotated[float, typer.Option(help="Hard: output at most this share of the values' mean norm.")] = 0.1
    median: Annotated[float, typer.Option(help="Hard: output at most this share of the head's median.")] = 0.1
    soft: Annotated[float, typer.Option(help="Soft: own attention above this.")] = 0.5
    sink_threshold: Annotated[float, typer.Option(help="Mass above which the sink carries a hard switch.")] = 0.5
    self_threshold: Annotated[float, typer.Option(help="Mass above which the query itself does.")] = 0.5
    learned_sink_threshold: Annotated[float, typer.Option(help="Mass above which a learned sink does.")] = 0.5
    cancellation: Annotated[float, typer.Option(help="Coherence below which cancellation does.")] = 0.2
    short_values: Annotated[float, typer.Option(help="Size of attended values below which they do.")] = 0.2
    hull_documents: Annotated[str, typer.Option(help="Exclusion tests on the first so many documents, or all.")] = "8"

    def arguments(self) -> dict[str, Any]:
        """The arguments of :func:`sinklens.attention_switch`, checked before a model is loaded.

        Raises:
            InputError: one has no sense.
        """
        from sinklens.results.switch import SwitchThresholds

        own = {
            "sink": self.sink_threshold,
            "self_mass": self.self_threshold,
            "learned_sink": self.learned_sink_threshold,
        }
        same = {name: getattr(self, name) for name in ("values", "median", "soft", "cancellation", "short_values")}
        try:
            thresholds = SwitchThresholds(**same, **own)
        except InputError as error:
            # Options have longer names where an argument's own would be taken for something else.
            name, rest = str(error).split(" ", 1)
            option = f"{name.removesuffix('_mass')}_threshold" if name in own else name
            raise InputError(f"--{option.replace('_', '-')} {rest}") from None
        return {"thresholds": thresholds, "hull_documents": self._hull_documents()}

    def _hull_documents(self) -> int | None:
        if self.hull_documents == "all":
            return None
        if not (self.hull_documents.isascii() and self.hull_documents.isdecimal()):
            raise InputError(f"--hull-documents is {self.hull_documents!r}; expected a number from 0 on, or all")
        return int(self.hull_documents)


@command("switch")
def switch_command(*, switch: SwitchOptions, outputs: StudyOutputs, request: HeadOptions) -> None:
    """Is attention used as a switch?

    Which heads are off for which tokens, whether the sink switches them off, whether they could be off without it, and how
    much of each layer's output comes from other tokens.
    """
    from sinklens.analyzers.switch import attention_switch
    from sinklens.models.sinks import sink_rule
    from sinklens.reports.switch import render_switch

    arguments = switch.arguments()
    sink_rule(request.sink)
    outputs.check(request.data)
    options: dict[str, Any] = request.measurement() | arguments
    texts = request.texts()
    result = attention_switch(request.load(), texts, **options)
    outputs.finish(
        result,
        switch_figures(result),
        switch_summary(result),
        lambda: render_switch(result, title=outputs.title, text_name=request.text_name),
    )


def switch_summary(result: Any) -> str:
    """What is printed of an attention switch."""
    from sinklens.cli.summaries import study_summary
    from sinklens.reports.switch import assumption_table, carrier_table, head_table, layer_table, switch_headlines

    tables = [carrier_table(result), head_table(result, 10)]
    if result.n_hull_documents:
        tables.append(assumption_table(result))
    return study_summary(result.provenance, switch_headlines(result), [*tables, layer_table(result)])


def switch_figures(result: Any) -> dict[str, Any]:
    """An attention switch as JSON holds it."""
    return {
        "result": type(result).__name__,
        "heads": records(result.to_dataframe()),
        "layers": records(result.by_layer()),
        "carriers": {scale: records(result.carriers(scale)) for scale in ("values", "median")},
        "thresholds": dataclasses.asdict(result.thresholds),
        "provenance": result.provenance.to_dict(),
    }

"""``sinklens cost``: what heads cost, what they spend it on, and what the theory says is least."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import HeadOptions
from sinklens.cli.output import StudyOutputs, records
from sinklens.cli.parse import numbers_and_ranges
from sinklens.errors import InputError


@dataclass(frozen=True)
class CostOptions:
    """What is solved for, and the theory without a model."""

    margin: Annotated[float, typer.Option(help="Of least costs, in score units.")] = 1.0
    embedding_layers: Annotated[
        str | None, typer.Option(help="Least costs in these layers, such as 0,12; none for none. Default: five.")
    ] = None
    embedding_documents: Annotated[int, typer.Option(help="Least costs on so many documents.")] = 4
    embedding_tokens: Annotated[int, typer.Option(help="And so many tokens of each.")] = 64
    weights: Annotated[bool, typer.Option("--weights", help="The weights alone, without a text.")] = False
    theory: Annotated[bool, typer.Option("--theory", help="Costs of patterns by length; no model is loaded.")] = False
    lengths: Annotated[str, typer.Option(help="With --theory: numbers of tokens, three or more.")] = "4,8,16,24,32"
    full: Annotated[bool, typer.Option("--full", help="With --theory: every query sees every key.")] = False
    unscaled: Annotated[bool, typer.Option("--unscaled", help="With --theory: scores are not over √d.")] = False

    def arguments(self) -> dict[str, Any]:
        """The arguments of :func:`sinklens.head_costs`, checked before a model is loaded.

        Raises:
            InputError: one has no sense.
        """
        from sinklens.theory.arrays import checked_count, checked_positive

        try:
            checked_positive("margin", self.margin)
            for name in ("embedding_documents", "embedding_tokens"):
                checked_count(name, getattr(self, name), 1)
        except InputError as error:
            raise InputError(f"--{str(error).replace('_', '-')}") from None
        same = ("margin", "embedding_documents", "embedding_tokens")
        return {name: getattr(self, name) for name in same} | {"embedding_layers": self._embedding_layers()}

    def _embedding_layers(self) -> list[int] | None:
        if self.embedding_layers is None:
            return None
        return (
            [] if self.embedding_layers == "none" else numbers_and_ranges(self.embedding_layers, "--embedding-layers")
        )


@command("cost")
def cost_command(*, costs: CostOptions, outputs: StudyOutputs, request: HeadOptions) -> None:
    """What does each head cost?

    Norms of W_QK and W_VO beside what heads do, and the least cost of a sink and of a diagonal on the layers' own inputs.
    """
    if costs.theory:
        _theory(costs, outputs)
        return
    from sinklens.models.sinks import sink_rule

    arguments = costs.arguments()
    sink_rule(request.sink)
    outputs.check(request.data)
    texts = None if costs.weights else request.texts()
    options: dict[str, Any] = request.measurement() | arguments
    _report(_measured(request, texts, options), outputs, "" if costs.weights else request.text_name)


def _measured(request: HeadOptions, texts: Any, options: dict[str, Any]) -> Any:
    from sinklens.analyzers.head_costs import head_costs

    return head_costs(request.load(), texts, **options)


def _report(result: Any, outputs: StudyOutputs, text_name: str) -> None:
    from sinklens.reports.head_costs import render_head_costs

    outputs.finish(
        result,
        cost_figures(result),
        cost_summary(result),
        lambda: render_head_costs(result, title=outputs.title, text_name=text_name),
    )


def cost_summary(result: Any) -> str:
    """What is printed of head costs."""
    from sinklens.cli.summaries import study_summary
    from sinklens.reports.head_costs import correlation_table, cost_headlines, kinds_table, least_table, refusals

    tables = [correlation_table(result), kinds_table(result)] if result.scores else []
    tables += [] if result.least is None else [least_table(result)]
    return study_summary(result.provenance, cost_headlines(result), tables, refusals(result))


def cost_figures(result: Any) -> dict[str, Any]:
    """Head costs as JSON holds them."""
    figures: dict[str, Any] = {"result": type(result).__name__, "heads": records(result.to_dataframe())}
    if result.scores:
        figures["correlations"] = records(result.correlations())
        figures["correlations_within_layers"] = records(result.correlations(within_layers=True))
        figures["sink_against_diagonal"] = records(result.sink_against_diagonal())
    if result.least is not None:
        figures["least_costs"] = records(result.embedding_table())
    refused = [{"layer": layer, "what": what, "reason": reason} for layer, what, reason in result.refused]
    return figures | {"refused": refused, "provenance": result.provenance.to_dict()}


def _theory(costs: CostOptions, outputs: StudyOutputs) -> None:
    """Costs of patterns by number of tokens."""
    from sinklens.reports.head_costs import theory_table
    from sinklens.results.pattern_costs import PatternCosts

    for name, path in (("--save", outputs.save), ("--out", outputs.out)):
        if path is not None:
            raise InputError(f"{name} is of a model's costs; with --theory take --table or --json")
    outputs.check(None)
    lengths = numbers_and_ranges(costs.lengths, "--lengths")
    try:
        found = PatternCosts.of(lengths, causal=not costs.full, scaled=not costs.unscaled)
    except InputError as error:
        raise InputError(f"--lengths: {error}") from None
    figures = {"result": "PatternCosts", "setting": found.setting, "costs": records(found.to_dataframe())}
    outputs.finish(found, figures, theory_table(found).to_text(), lambda: "")

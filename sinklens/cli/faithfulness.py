"""``sinklens faithfulness``: which metric finds the terms that matter."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import HeadOptions, check_resampling
from sinklens.cli.output import StudyOutputs, interruptible
from sinklens.cli.parse import decimals, names
from sinklens.errors import InputError

_METRICS = "attention,value_weighted,output_normalized,intra,inter,random"


@dataclass(frozen=True)
class RankingOptions:
    """What ranks the terms, and what is removed."""

    metrics: Annotated[str, typer.Option(help="Rank by these.")] = _METRICS
    fractions: Annotated[str, typer.Option(help="How much is removed, 0 to 1.")] = "0.01,0.05,0.1,0.2,0.5"
    modes: Annotated[str, typer.Option("--modes", "--mode", help="Remove the top, or the bottom.")] = (
        "comprehensiveness,sufficiency"
    )
    granularity: Annotated[str, typer.Option(help="pair (per query), edge (per head and query) or token.")] = "pair"
    ranking: Annotated[str, typer.Option(help="signed or absolute contributions.")] = "signed"
    scores: Annotated[str, typer.Option(help="Of the running (masked) pass, or of the clean one.")] = "running"
    exempt: Annotated[str | None, typer.Option(help="Never removed: sink, self, or both.")] = None
    renormalize: Annotated[bool, typer.Option("--renormalize", help="Scale what is left of a row to its sum.")] = False
    seed: Annotated[int, typer.Option(help="Of the random metric and of resamples.")] = 0
    n_bootstrap: Annotated[int, typer.Option(help="Resamples of the documents for 95 % intervals.")] = 1000

    def arguments(self) -> dict[str, Any]:
        """The arguments of :func:`sinklens.faithfulness`, checked before a model is loaded.

        Raises:
            InputError: one has no sense.
        """
        from sinklens.masking.rule import check_fractions, check_metrics, check_modes, masking_rule

        check_resampling(self.seed, self.n_bootstrap)
        exempt = [] if self.exempt is None else names(self.exempt, "--exempt")
        masking_rule(self.granularity, self.ranking, exempt, self.renormalize, self.seed)
        if self.scores not in ("running", "clean"):
            raise InputError(f"--scores is {self.scores!r}; expected running or clean")
        same = ("granularity", "ranking", "scores", "renormalize", "seed", "n_bootstrap")
        return {name: getattr(self, name) for name in same} | {
            "metrics": check_metrics(names(self.metrics, "--metrics")),
            "modes": check_modes(names(self.modes, "--modes")),
            "fractions": check_fractions(decimals(self.fractions, "--fractions")),
            "exempt": exempt,
        }


@command("faithfulness")
def faithfulness_command(
    *,
    ranking: RankingOptions,
    reference: Annotated[
        str | None, typer.Option(help="The metric that differences are taken from. Default: attention, or the first.")
    ] = None,
    effect: Annotated[str, typer.Option(help="Shown: delta_loss or delta_perplexity.")] = "delta_loss",
    outputs: StudyOutputs,
    resume: Annotated[
        Path | None, typer.Option(help="A .safetensors file of what is finished; an existing one is picked up again.")
    ] = None,
    request: HeadOptions,
) -> None:
    """Does a metric find what matters?

    Remove what it ranks highest, or lowest, and measure the loss; with intervals and paired differences.
    """
    arguments = ranking.arguments()
    subtracted = _reference(reference, arguments["metrics"])
    _check_rest(request.sink, effect)
    outputs.check(request.data, resume, "--resume")
    texts = request.texts()
    options: dict[str, Any] = request.measurement() | arguments | {"resume": resume}
    again = f"the same command with --resume {resume} goes on from there"
    with interruptible(resume, again, older_counts=True):
        result = _measured(request, texts, options)
    _report(result, effect, subtracted, outputs, request.text_name)


def _reference(reference: str | None, metrics: tuple[str, ...]) -> str:
    if reference is None:
        return "attention" if "attention" in metrics else metrics[0]
    if reference not in metrics:
        raise InputError(f"--reference is {reference!r}, which is not measured; expected one of {', '.join(metrics)}")
    return reference


def _check_rest(sink: str, effect: str) -> None:
    from sinklens.models.sinks import sink_rule
    from sinklens.results.faithfulness import EFFECTS

    sink_rule(sink)
    if effect not in EFFECTS:
        raise InputError(f"--effect is {effect!r}; expected {', '.join(EFFECTS)}")


def _measured(request: HeadOptions, texts: Any, options: dict[str, Any]) -> Any:
    from sinklens.ablation.study import require_positions
    from sinklens.interventions import SinkChoice
    from sinklens.masking import faithfulness
    from sinklens.models.sinks import sink_rule
    from sinklens.models.tokens import tokenize

    model = request.load()
    batches = tokenize(model, texts, **request.tokenization())
    # A sink beyond the text would be found in the first pass that meets it; better before.
    require_positions(SinkChoice(sink_rule(request.sink)), batches)
    left = {name: value for name, value in options.items() if name not in request.tokenization()}
    return faithfulness(model, batches, **left)


def _report(result: Any, effect: Any, reference: str, outputs: StudyOutputs, text_name: str) -> None:
    from sinklens.cli.summaries import faithfulness_figures, faithfulness_summary
    from sinklens.reports.faithfulness import render_faithfulness

    figures = faithfulness_figures(result, reference)
    outputs.finish(
        result,
        figures,
        faithfulness_summary(result, effect, reference),
        lambda: render_faithfulness(result, effect, reference=reference, title=outputs.title, text_name=text_name),
    )

"""Results of studies in words for the terminal, and as JSON."""

import math
from collections.abc import Sequence
from typing import Any

from sinklens.cli.output import records
from sinklens.reports.facts import Headline
from sinklens.reports.tables import (
    Table,
    ablation_table,
    control_table,
    difference_table,
    faithfulness_table,
    norm_table,
)
from sinklens.results.ablation import AblationResult, SweepResult
from sinklens.results.faithfulness import FaithfulnessEffect, FaithfulnessResult
from sinklens.results.provenance import Provenance

SHOWN = 24  # rows on the terminal; a table of all is what --table is for


def study_summary(
    source: Provenance, headlines: Sequence[Headline], tables: Sequence[Table], notes: Sequence[str] = ()
) -> str:
    """What is printed of a study: on what it was measured, the yes and no in words, then the tables.

    Example:
        >>> table = Table("Loss", ("layer", "Δ"), (("3", "-0.1"),))
        >>> print(study_summary(Provenance("tiny"), [Headline("−0.1", "change", "Is it less? Yes: [-0.2, -0.1].")], [table]))
        tiny: 0 documents, 0 tokens
        <BLANKLINE>
        -0.1  change. Is it less? Yes: [-0.2, -0.1].
        <BLANKLINE>
        Loss
        layer     Δ
        3      -0.1
    """
    of = f"{source.n_documents} {'document' if source.n_documents == 1 else 'documents'}, {source.n_tokens:,} tokens"
    # Tables on a terminal have the keyboard's minus, so that they can be read by programs.
    words = "\n".join(f"{each.value}  {each.label}. {each.detail}" for each in headlines).replace("−", "-")
    return "\n\n".join([f"{source.model_name}: {of}", words, *(table.to_text() for table in tables), *notes])


def ablation_summary(result: AblationResult, effect: str) -> str:
    """What is printed of an ablation study or a sweep."""
    tables = [ablation_table(result, effect, SHOWN), control_table(result, effect, SHOWN)]
    if isinstance(result, SweepResult):
        tables.append(norm_table(result))
    idle = sorted({cell.group for cell, changed in zip(result.cells, result.changed, strict=True) if not changed})
    notes = [f"No edit changed anything in: {', '.join(idle)}"] if idle else []
    return "\n\n".join([_clean(result), *(table.to_text() for table in tables if table is not None), *notes])


def faithfulness_summary(result: FaithfulnessResult, effect: FaithfulnessEffect, reference: str) -> str:
    """What is printed of a faithfulness run."""
    tables = [
        *(faithfulness_table(result, mode, effect) for mode in result.modes),
        difference_table(result, reference, effect),
    ]
    return "\n\n".join([_clean(result), *(table.to_text() for table in tables if table is not None)])


def _clean(result: AblationResult | FaithfulnessResult) -> str:
    source, loss = result.provenance, result.mean_loss
    return (
        f"{source.model_name}: loss {loss:.4f} nats per token (perplexity {_perplexity(loss):.4g}) without an edit; "
        f"{source.n_documents} documents, {int(result.count.sum()):,} predicted tokens. Effects are changes from this."
    )


def _perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _or_null(number: float) -> float | None:
    """JSON has neither NaN nor infinity."""
    return number if math.isfinite(number) else None


def ablation_figures(result: AblationResult) -> dict[str, Any]:
    """An ablation study or a sweep as JSON holds it."""
    figures = {
        "result": type(result).__name__,
        "clean_loss": _or_null(result.mean_loss),
        "effects": records(result.to_dataframe()),
        "against_controls": {
            name: records(result.against_controls(name)) for name in ("delta_loss", "delta_perplexity", "divergence")
        },
        "provenance": result.provenance.to_dict(),
    }
    return figures | ({"norms": records(result.norms())} if isinstance(result, SweepResult) else {})


def faithfulness_figures(result: FaithfulnessResult, reference: str) -> dict[str, Any]:
    """A faithfulness run as JSON holds it."""
    names: tuple[FaithfulnessEffect, ...] = ("delta_loss", "delta_perplexity")
    return {
        "result": type(result).__name__,
        "clean_loss": _or_null(result.mean_loss),
        "effects": records(result.to_dataframe()),
        "aopc": {name: records(result.aopc(name)) for name in names},
        "differences": {name: records(result.differences(None, name)) for name in names},
        "aopc_differences": {name: records(result.differences(reference, name, aopc=True)) for name in names},
        "reference": reference,
        "provenance": result.provenance.to_dict(),
    }

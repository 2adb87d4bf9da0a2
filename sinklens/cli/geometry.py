"""``sinklens geometry``: is a sink representable on what each layer reads, and is its token opposed to the others?"""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import HeadOptions
from sinklens.cli.output import StudyOutputs, records


@dataclass(frozen=True)
class MassiveOptions:
    """What counts as a massive activation."""

    massive_magnitude: Annotated[float, typer.Option(help="A massive activation is larger than this.")] = 100.0
    massive_ratio: Annotated[float, typer.Option(help="And than this multiple of the median magnitude.")] = 1000.0

    def arguments(self) -> dict[str, float]:
        """The arguments of :func:`sinklens.sink_geometry`, checked before a model is loaded.

        Raises:
            InputError: one has no sense.
        """
        from sinklens.theory.arrays import checked_positive

        found = {"massive_magnitude": self.massive_magnitude, "massive_ratio": self.massive_ratio}
        for name, value in found.items():
            checked_positive(f"--{name.replace('_', '-')}", value)
        return found


@command("geometry")
def geometry_command(*, massive: MassiveOptions, outputs: StudyOutputs, request: HeadOptions) -> None:
    """Is a sink representable here?

    The sink's cosines with the other tokens, half-space and key margins, and massive activations, on the residual stream and
    on what each attention reads.
    """
    from sinklens.analyzers.geometry import sink_geometry
    from sinklens.models.sinks import sink_rule
    from sinklens.reports.geometry import render_geometry

    arguments = massive.arguments()
    sink_rule(request.sink)
    outputs.check(request.data)
    options: dict[str, Any] = request.measurement() | arguments
    texts = request.texts()
    result = sink_geometry(request.load(), texts, **options)
    outputs.finish(
        result,
        geometry_figures(result),
        geometry_summary(result),
        lambda: render_geometry(result, title=outputs.title, text_name=request.text_name),
    )


def geometry_summary(result: Any) -> str:
    """What is printed of a sink geometry."""
    from sinklens.cli.summaries import study_summary
    from sinklens.reports.geometry import geometry_headlines, geometry_table, massive_table
    from sinklens.results.geometry import SPACES

    tables = [*(geometry_table(result, space) for space in SPACES), massive_table(result)]
    return study_summary(result.provenance, geometry_headlines(result), [table for table in tables if table.rows])


def geometry_figures(result: Any) -> dict[str, Any]:
    """A sink geometry as JSON holds it."""
    from sinklens.results.geometry import SPACES

    return {
        "result": type(result).__name__,
        "layers": records(result.to_dataframe()),
        "representable": {space: records(result.representable(space)) for space in SPACES},
        "anti_aligned": {space: records(result.anti_aligned(space)) for space in SPACES},
        "massive_dimensions": records(result.massive_dimensions()),
        "provenance": result.provenance.to_dict(),
    }

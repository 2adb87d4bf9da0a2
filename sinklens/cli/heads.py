"""``sinklens report | profile | check``: heads, measured on a text; and whether a model can be measured at all."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.known_models import list_models
from sinklens.cli.options import BUILT_IN, AsJson, HeadOptions, ModelOptions
from sinklens.cli.output import records, say, shown
from sinklens.cli.parse import names

Eps = Annotated[float, typer.Option(help="Threshold of the sink rate.")]
ProfileOut = Annotated[
    Path | None, typer.Option("--out", "-o", help="A .safetensors result, or a .csv, .parquet or .json table.")
]


@command("report")
def report_command(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    prompt: Annotated[
        str | None, typer.Option(help="Text for the head picker. Default: the start of the data.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Heading of the page.")] = None,
    sections: Annotated[
        str | None, typer.Option(help="Further parts, measured too: geometry,smoothing,switch,cost; toy.")
    ] = None,
    eps: Eps = 0.3,
    request: HeadOptions,
    as_json: AsJson = False,
) -> None:
    """Write an interactive HTML report.

    Every head's sink, contributions and suppression, a scatter of all heads, and a head picker for one prompt.
    """
    from sinklens.reports.demo_text import DEMO_PROMPT
    from sinklens.reports.report import report
    from sinklens.reports.sections import check_sections
    from sinklens.results.files import check_writable

    check_writable(out)
    wanted = () if sections is None else check_sections(names(sections, "--sections"))
    texts = request.texts()
    options: dict[str, Any] = request.measurement() | {"eps": eps, "title": title, "sections": wanted}
    options["prompt"] = DEMO_PROMPT if prompt is None and request.text_name == BUILT_IN else prompt
    options["text_name"] = request.text_name
    path = report(request.load(), texts, out, **options)
    found = {"report": str(path), "bytes": path.stat().st_size}
    say(found if as_json else f"Report: {path.absolute()}", as_json)


@command("profile")
def profile_command(*, out: ProfileOut = None, eps: Eps = 0.3, request: HeadOptions, as_json: AsJson = False) -> None:
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
    if as_json:
        say({"summary": profile.summary(), "provenance": profile.provenance.to_dict()}, as_json=True)
        return
    columns = ["layer", "head", "kind", "sink_mass", "sink_rate", "sink_value_ratio", "sink_alignment", "sink_intra"]
    strongest = profile.to_dataframe().nlargest(10, "sink_mass")[[*columns, "suppression"]]
    say(f"{profile!r}\n\n{shown(strongest, '{:.3f}')}")


@command("check")
def check_command(
    *,
    name: Annotated[
        str | None, typer.Argument(help="The model; the same as --model. With --list: words to look for.")
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List the models that TransformerLens knows, with the verdict on each family."),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A .csv, .parquet or .json table.")] = None,
    request: ModelOptions,
    as_json: AsJson = False,
) -> None:
    """Check a model layer by layer.

    Does attention decompose, and does an edit of it reach the logits? Exit code 1 where a layer is refused.
    """
    from sinklens.models.checks import check_model
    from sinklens.results.files import check_table_suffix, check_writable, write_table

    if out is not None:
        check_writable(out)
        check_table_suffix(out)
    if listed:
        list_models(name or "", out, as_json, request.backend)
        return
    texts = None if request.data is None else request.texts()
    asked = request if name is None else dataclasses.replace(request, model=name)
    check = check_model(asked.load(), texts)
    table = check.to_dataframe()
    if out is not None:
        write_table(out, table)
    if as_json:
        found = {"model": check.model_name, "frame": check.frame, "verdict": check.verdict, "passed": check.passed}
        say(found | {"layers": records(table)}, as_json=True)
    else:
        say(f"{shown(table.drop(columns=['failure', 'output_hook']), '{:.1e}')}\n\n{check!r}")
    if not check.passed:
        raise typer.Exit(1)

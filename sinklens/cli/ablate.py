"""``sinklens ablate``: what taking sinks away does, or a sweep of their mass or scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.app import command
from sinklens.cli.options import TextOptions, check_resampling
from sinklens.cli.output import StudyOutputs, interruptible
from sinklens.cli.parse import Head, decimals, head_pairs, names, numbers_and_ranges
from sinklens.errors import InputError

ALL = "all"
NONE = "none"


@dataclass(frozen=True)
class GroupOptions:
    """Which heads lose their sinks, and which of them at once."""

    layers: Annotated[
        str | None, typer.Option(help="Layers, one after another: 0,3,10-15, or all. Default: all heads at once.")
    ] = None
    heads: Annotated[str | None, typer.Option(help="Heads, one after another, as LAYER.HEAD: 18.3,2.0-4, or all.")] = (
        None
    )
    together: Annotated[bool, typer.Option("--together", help="The named layers or heads at once.")] = False
    level: Annotated[str, typer.Option(help="head; or kv: a named head with those that share its keys and values.")] = (
        "head"
    )

    def check(self) -> str | list[int] | list[Head]:
        """What was named, as :func:`sinklens.ablate_sinks` takes it.

        Raises:
            InputError: it has no sense.
        """
        if self.level not in ("head", "kv"):
            raise InputError(f"--level is {self.level!r}; expected head, or kv (with the heads that share a value)")
        if self.layers is not None and self.heads is not None:
            raise InputError("--layers and --heads are both given; name whole layers, or heads as LAYER.HEAD, not both")
        if self.layers is not None:
            return "layers" if self.layers.strip() == ALL else numbers_and_ranges(self.layers, "--layers")
        if self.heads is not None:
            return "heads" if self.heads.strip() == ALL else head_pairs(self.heads, "--heads")
        return ALL

    def groups(self, model: Any) -> dict[str, tuple[Head, ...]]:
        """The groups of heads by name.

        Raises:
            InputError: no such layer or head.
        """
        from sinklens.ablation.cells import named_groups

        found = named_groups(model, self.check())
        found = _with_shared_values(model, found) if self.level == "kv" else found
        if not self.together:
            return found
        heads = tuple(dict.fromkeys(head for group in found.values() for head in group))
        return {f"layers {self.layers}" if self.layers else f"heads {self.heads or ALL}": heads}


def _with_shared_values(model: Any, groups: dict[str, tuple[Head, ...]]) -> dict[str, tuple[Head, ...]]:
    """Each group with all heads that read the same values: an edit of them is one of the values themselves."""
    from sinklens.interventions.targets import choose

    found: dict[str, tuple[Head, ...]] = {}
    for name, heads in groups.items():
        targets = choose(model, heads, None)
        wider = tuple((target.layer, head) for target in targets for head in target.moved_by_kv)
        same = set(wider) == set(heads)
        kv_heads = ", ".join(f"{target.layer}.{head}" for target in targets for head in target.kv_heads)
        found[name if same else f"key/value head {kv_heads}"] = wider
    return found


def _edits(edits: str | None, sweep: str | None, values: str | None) -> tuple[list[str], list[float] | None]:
    """The edits of a study, or the values of a sweep, checked before a model is loaded."""
    from sinklens.ablation.cells import parse_edit

    if sweep not in (None, "mass", "scale"):
        raise InputError(f"--sweep is {sweep!r}; expected mass (0 to 1) or scale (of the sink's value)")
    if sweep is not None and edits is not None:
        raise InputError("--edits and --sweep are both given; a sweep is an edit of its own, choose one")
    if sweep is None and values is not None:
        raise InputError("--values are those of a sweep; add --sweep mass or --sweep scale")
    given = None if values is None else decimals(values, "--values")
    chosen = [f"{sweep}:{value!r}" for value in given or ()] if sweep else names(edits or "zero", "--edits")
    for edit in chosen:
        _require_number(*parse_edit(edit))
    return chosen, given


def _require_number(edit: str, value: float) -> None:
    if edit == "mass" and not 0 <= value <= 1:
        raise InputError(f"mass {value!r} is out of range; expected a number from 0 to 1")
    if edit == "scale" and not abs(value) < float("inf"):
        raise InputError(f"scale {value!r} is not finite; expected a number such as 0.5")


def _controls(text: str | None, sweep: str | None) -> Sequence[str]:
    from sinklens.ablation.cells import CONTROLS

    if text is None:
        return ("position",) if sweep else CONTROLS
    chosen = [] if text.strip() == NONE else names(text, "--controls")
    for control in chosen:
        if control not in CONTROLS:
            raise InputError(f"--controls holds {control!r}; expected {', '.join(CONTROLS)}, or {NONE}")
    return chosen


@command("ablate")
def ablate_command(
    *,
    chosen: GroupOptions,
    edits: Annotated[
        str | None,
        typer.Option("--edits", "--edit", help="zero, mean, remove, scale:FACTOR, mass:MASS. Default: zero."),
    ] = None,
    sweep: Annotated[str | None, typer.Option(help="mass or scale: the whole curve instead of single edits.")] = None,
    values: Annotated[str | None, typer.Option(help="Of the sweep: 0,0.5,1. Default: 0 to 1, or 0 to 2.")] = None,
    controls: Annotated[
        str | None, typer.Option(help="position, direction, both, or none. Default: both; of a sweep position.")
    ] = None,
    effect: Annotated[
        str, typer.Option(help="Shown first: delta_loss, delta_perplexity or divergence.")
    ] = "delta_loss",
    seed: Annotated[int, typer.Option(help="Of controls and resamples.")] = 0,
    n_bootstrap: Annotated[int, typer.Option(help="Resamples of the documents for 95 % intervals.")] = 1000,
    outputs: StudyOutputs,
    partial: Annotated[
        Path | None, typer.Option(help="A .safetensors file that holds the result so far, after every batch.")
    ] = None,
    request: TextOptions,
) -> None:
    """Take sinks away, and measure what the model loses.

    Change of loss, perplexity and next-token distribution, beside controls, with intervals over documents.
    """
    edited, swept = _edits(edits, sweep, values)
    compared = _controls(controls, sweep)
    chosen.check()
    outputs.check(request.data, partial, "--partial")
    check_resampling(seed, n_bootstrap)
    _check_rest(request.sink, effect)
    texts = request.texts()
    model = request.load()
    options: dict[str, Any] = request.measurement() | {
        "controls": compared, "seed": seed, "n_bootstrap": n_bootstrap, "partial": partial
    }  # fmt: skip
    with interruptible(partial, f"{'SweepResult' if sweep else 'AblationResult'}.load reads it"):
        result = _measured(model, texts, chosen.groups(model), edited, sweep, swept, options)
    _report(result, effect, outputs, request.text_name)


def _check_rest(sink: str, effect: str) -> None:
    """What needs no model is refused before one is loaded."""
    from sinklens.models.sinks import sink_rule
    from sinklens.results.ablation import EFFECTS

    if sink_rule(sink).kind == "detect":
        raise InputError("--sink detect differs from layer to layer; a study needs first, token:ID, or positions")
    if effect not in EFFECTS:
        raise InputError(f"--effect is {effect!r}; expected {', '.join(EFFECTS)}")


def _measured(
    model: Any, texts: Any, groups: Any, edits: list[str], sweep: str | None, values: list[float] | None,
    options: dict[str, Any],
) -> Any:  # fmt: skip
    from sinklens.ablation import ablate_sinks, sweep_sinks

    if sweep is not None:
        return sweep_sinks(model, texts, sweep, groups, values=values, **options)
    return ablate_sinks(model, texts, groups, edits=edits, **options)


def _report(result: Any, effect: str, outputs: StudyOutputs, text_name: str) -> None:
    from sinklens.cli.summaries import ablation_figures, ablation_summary
    from sinklens.reports.ablation import render_ablation

    figures = ablation_figures(result)
    outputs.finish(
        result,
        figures,
        ablation_summary(result, effect),
        lambda: render_ablation(result, effect, title=outputs.title, text_name=text_name),
    )

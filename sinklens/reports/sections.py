"""Further sections of a report: which there are, and how each is measured."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sinklens.ablation.smoothing import oversmoothing
from sinklens.analyzers.geometry import sink_geometry
from sinklens.analyzers.head_costs import head_costs
from sinklens.analyzers.switch import attention_switch
from sinklens.errors import InputError
from sinklens.interventions.targets import choose, uneditable
from sinklens.models.toy_files import NAME as TOY
from sinklens.reports import geometry, smoothing, switch, toy
from sinklens.reports import head_costs as costs
from sinklens.reports.facts import Facts
from sinklens.reports.study import Section
from sinklens.results.smoothing import SmoothingResult
from sinklens.results.toy_history import ToyHistory
from sinklens.toy import load_toy


@dataclass(frozen=True)
class Extra:
    """Sections that a report may have beside its own.

    Attributes:
        measure: from a model and texts to a result.
        sections: from the result to parts of a page.
        definitions: from the result to the terms in them.
    """

    measure: Callable[..., Any]
    sections: Callable[[Any], list[Section]]
    definitions: Callable[[Any], Facts]


@dataclass
class ExtraSections:
    """What the chosen sections add to a page."""

    sections: list[Section] = field(default_factory=list)
    definitions: dict[str, str] = field(default_factory=dict)


def _smoothing(model: Any, texts: Any, **options: Any) -> SmoothingResult:
    """With the depth where the whole model can be edited; layers one by one need no edit."""
    return oversmoothing(model, texts, depth=not uneditable(choose(model, None, None)), **options)


def _toy_history(model: Any, texts: Any, **options: Any) -> ToyHistory:
    """How the packaged toy was trained; it comes with the package, so nothing is measured."""
    return load_toy().history


EXTRAS = {
    "geometry": Extra(sink_geometry, geometry.geometry_sections, geometry.geometry_definitions),
    "smoothing": Extra(_smoothing, smoothing.smoothing_sections, lambda _: smoothing.DEFINITIONS),
    "switch": Extra(attention_switch, switch.switch_sections, switch.switch_definitions),
    "cost": Extra(head_costs, costs.head_costs_sections, lambda _: costs.DEFINITIONS),
    "toy": Extra(_toy_history, toy.toy_sections, lambda _: toy.DEFINITIONS),
}


def check_sections(names: Iterable[str]) -> tuple[str, ...]:
    """The names themselves, each once, in the order of the page.

    Raises:
        InputError: there is no such section.

    Example:
        >>> check_sections(["cost", "geometry", "cost"])
        ('geometry', 'cost')
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"sections is {names!r}; expected a list of names from {', '.join(EXTRAS)}")
    chosen = list(names)
    for name in chosen:
        if name not in EXTRAS:
            raise InputError(f"no section {name!r}; there are {', '.join(EXTRAS)}")
    return tuple(name for name in EXTRAS if name in chosen)


def require_sections(names: Iterable[str], model: Any) -> tuple[str, ...]:
    """:func:`check_sections` for a model that is there: only the packaged toy has a training to show.

    Raises:
        InputError: there is no such section, or the model cannot have it.
    """
    chosen = check_sections(names)
    name = str(getattr(model.cfg, "model_name", ""))
    if "toy" in chosen and name != TOY:
        raise InputError(
            f"section 'toy' shows how the packaged toy was trained, and the model is {name}; load it with "
            "sinklens.load_model('toy'), or train one with `sinklens toy --out FILE`"
        )
    return chosen


def measured_sections(names: Iterable[str], model: Any, texts: Any, **options: Any) -> ExtraSections:
    """Measure each of the chosen sections on the same texts.

    Args:
        names: from :data:`EXTRAS`.
        model: a TransformerBridge or HookedTransformer.
        texts: what :func:`sinklens.tokenize` takes.
        options: of each measurement.
    """
    found = ExtraSections()
    for name in require_sections(names, model):
        extra = EXTRAS[name]
        result = extra.measure(model, texts, **options)
        found.sections += extra.sections(result)
        found.definitions |= dict(extra.definitions(result))
    return found

"""What an ablation study does: groups of heads, edits by name, and the interventions that these make."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsIndex

from torch import Tensor

from sinklens.errors import InputError
from sinklens.interventions import (
    Intervention,
    SinkChoice,
    mean_sink_values,
    placebo,
    remove_sink_attention,
    scale_sink_values,
    set_sink_mass,
    zero_sink_values,
)
from sinklens.interventions.targets import head_pairs
from sinklens.models.attention import ModelAttention
from sinklens.results.ablation import AblationCell
from sinklens.results.labels import whole_number

EDITS = ("zero", "mean", "remove", "scale", "mass")
CONTROLS = ("position", "direction")
Head = tuple[int, int]
Groups = (
    str | Iterable[SupportsIndex] | Iterable[Iterable[SupportsIndex]] | Mapping[str, Iterable[Iterable[SupportsIndex]]]
)


def named_groups(model: Any, groups: Groups) -> dict[str, tuple[Head, ...]]:
    """Groups of heads by name, from what the user wrote (:func:`sinklens.ablate_sinks`).

    Raises:
        InputError: no such layer or head, or it is none of the forms.
    """
    if isinstance(groups, Mapping):
        found = {str(name): tuple(head_pairs(heads)) for name, heads in groups.items()}
    elif isinstance(groups, str):
        found = _by_name(ModelAttention(model).layers, model.cfg.n_heads, groups)
    else:
        found = _by_number(groups, model.cfg.n_heads)
    if not found:
        raise InputError("no group of heads; name at least one layer or head")
    return found


def _by_name(layers: Sequence[int], n_heads: int, groups: str) -> dict[str, tuple[Head, ...]]:
    every = [(layer, head) for layer in layers for head in range(n_heads)]
    if groups == "all":
        return {"all layers": tuple(every)}
    if groups == "layers":
        return _by_number(list(layers), n_heads)
    if groups == "heads":
        return _by_number(every, n_heads)
    raise InputError(
        f"groups is {groups!r}; expected 'all', 'layers', 'heads', layer numbers, (layer, head) pairs, "
        "or a mapping of names to pairs"
    )


def _by_number(groups: Iterable[Any], n_heads: int) -> dict[str, tuple[Head, ...]]:
    found: dict[str, tuple[Head, ...]] = {}
    for group in groups:
        layer = whole_number(group)
        if layer is not None:
            found[f"layer {layer}"] = tuple((layer, head) for head in range(n_heads))
        elif isinstance(group, Iterable) and not isinstance(group, str):
            [(layer, head)] = head_pairs([group])
            found[f"head {layer}.{head}"] = ((layer, head),)
        else:
            raise InputError(f"groups holds {group!r}; expected layer numbers or (layer, head) pairs")
    return found


def parse_edit(edit: str) -> tuple[str, float]:
    """The name and the number of an edit such as ``"scale:0.5"``.

    Raises:
        InputError: there is no such edit, or its number is missing or out of place.

    Example:
        >>> parse_edit("scale:0.5"), parse_edit("zero")[0]
        (('scale', 0.5), 'zero')
    """
    name, _, number = str(edit).partition(":")
    try:
        value = float(number) if number else math.nan
    except ValueError:
        value = math.inf
    if name not in EDITS or (name in ("scale", "mass")) != bool(number) or math.isinf(value):
        raise InputError(f"edit is {edit!r}; expected 'zero', 'mean', 'remove', 'scale:FACTOR' or 'mass:MASS'")
    return name, value


def listed(names: Any) -> list[str]:
    """Names as a list; one name alone is a list of one.

    Raises:
        InputError: they are no names.

    Example:
        >>> listed("zero"), listed(("zero", "mean"))
        (['zero'], ['zero', 'mean'])
    """
    if not isinstance(names, Iterable):
        raise InputError(f"edits and controls are names or lists of names, () for none; got {names!r}")
    return [names] if isinstance(names, str) else list(names)


def make_cells(
    groups: Mapping[str, tuple[Head, ...]], edits: Sequence[tuple[str, float]], controls: str | Sequence[str]
) -> list[AblationCell]:
    """Every edit of every group, at the sink and under each control.

    Raises:
        InputError: there is no such control, or no edit.
    """
    controls = listed(controls)
    for control in controls:
        if control not in CONTROLS:
            raise InputError(f"controls holds {control!r}; expected 'position' or 'direction'")
    if not edits:
        raise InputError(f"no edit was named; expected at least one of {', '.join(EDITS)}")
    return [
        AblationCell(name, heads, edit, value, where)
        for (name, heads), (edit, value), where in itertools.product(groups.items(), edits, ("sink", *controls))
    ]


def intervention(
    model: Any, cell: AblationCell, choice: SinkChoice, means: Mapping[int, Tensor], seed: int
) -> Intervention:
    """The hooks of a cell.

    Raises:
        InputError: a head, layer, factor or mass is out of place.
        UnsupportedAttentionError: the back end cannot do the edit.
    """
    where: dict[str, Any] = {"heads": cell.heads, "sink": choice}
    if cell.edit == "zero":
        hooks = zero_sink_values(model, **where)
    elif cell.edit == "scale":
        hooks = scale_sink_values(model, cell.value, **where)
    elif cell.edit == "mean":
        hooks = mean_sink_values(model, means, **where)
    elif cell.edit == "mass":
        hooks = set_sink_mass(model, cell.value, **where)
    else:
        hooks = remove_sink_attention(model, **where)
    if cell.where == "position":
        return placebo(hooks, "position", seed=seed)
    return hooks if cell.where == "sink" else placebo(hooks, "direction", seed=seed)

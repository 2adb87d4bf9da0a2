"""How each per-head quantity is shown: its name for people, its colour scale, and how to read it."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from sinklens.errors import InputError
from sinklens.results import QUANTITIES, HeadProfile

Scale = Literal["sequential", "diverging", "ratio"]
HeadValues = Float[np.ndarray, "layer head"]


@dataclass(frozen=True)
class Quantity:
    """How a quantity is shown.

    Attributes:
        name: its name in :data:`sinklens.results.QUANTITIES`.
        label: its name for people.
        scale: sequential from 0, diverging around 0, or ratio: diverging around 1, logarithmic.
        reading: one sentence that says how to read a map of it.
        share: whether it is a share of attention or output, comparable with other shares on one axis.
        limits: fixed ends of the colour range, where the quantity may leave its meaningful range.
    """

    name: str
    label: str
    scale: Scale
    reading: str
    share: bool = False
    limits: tuple[float, float] | None = None


_QUANTITIES = (
    Quantity(
        "sink_mass",
        "Attention on the sink",
        "sequential",
        "The more a cell stands out from the page, the more of its attention the head sends to the sink, averaged over "
        "the queries after it.",
        share=True,
    ),
    Quantity(
        "sink_rate",
        "Sink rate",
        "sequential",
        "The share of documents in which the sink receives more mean attention than the threshold: 1 "
        "is a sink head in every text.",
        share=True,
        limits=(0.0, 1.0),
    ),
    Quantity(
        "sink_value_ratio",
        "Value ratio of the sink",
        "ratio",
        "Red heads drain their sink: its projected value is shorter than the other tokens' (ratio "
        "below 1); blue ones lengthen it.",
    ),
    Quantity(
        "sink_alignment",
        "Alignment of the sink",
        "diverging",
        "Red: the sink's value points against the mean of the other tokens' values; blue: along it (cosine, −1 to 1).",
    ),
    Quantity(
        "sink_cosine",
        "Mean cosine with the sink",
        "diverging",
        "Red: on average the sink's value points against each other token's value; blue: along it (cosine, −1 to 1).",
    ),
    Quantity(
        "sink_intra",
        "Intra contribution of the sink",
        "diverging",
        "The part of the head's own output that comes from the sink; red heads' sinks work against their output.",
        share=True,
    ),
    Quantity(
        "sink_inter",
        "Inter contribution of the sink",
        "diverging",
        "The part of the whole layer's output that comes from the sink through this head; red works against the layer.",
        share=True,
    ),
    Quantity(
        "self_mass",
        "Attention on itself",
        "sequential",
        "The more a cell stands out from the page, the more the head attends to the query's own token.",
        share=True,
    ),
    Quantity(
        "self_intra",
        "Intra contribution of itself",
        "diverging",
        "The part of the head's output that comes from the query's own token; red works against it.",
        share=True,
    ),
    Quantity(
        "previous_mass",
        "Attention on the previous token",
        "sequential",
        "The more a cell stands out from the page, the more the head attends to the token before the query.",
        share=True,
    ),
    Quantity(
        "entropy",
        "Row entropy",
        "sequential",
        "The more a cell stands out, the more the head spreads its attention: 0 is one key, 1 is all visible keys alike.",
        share=True,
    ),
    Quantity(
        "learned_sink_mass",
        "Mass on a learned sink",
        "sequential",
        "The more a cell stands out from the page, the more mass on a learned null key; 0 throughout in models without one.",
        share=True,
    ),
    Quantity(
        "value_norm",
        "Value norm of the other tokens",
        "sequential",
        "The mean length of the other tokens' projected values, in units of the residual stream.",
    ),
    Quantity(
        "sink_value_norm",
        "Value norm of the sink",
        "sequential",
        "The length of the sink's projected value, in units of the residual stream.",
    ),
    Quantity(
        "output_norm",
        "Output norm",
        "sequential",
        "The mean length of the head's output, in units of the residual stream.",
    ),
    Quantity(
        "other_norm",
        "Output norm without the sink",
        "sequential",
        "The mean length of what the head would write if its sink had no mass, in units of the residual stream.",
    ),
    Quantity(
        "alpha_star",
        "Mass of least norm α*",
        "sequential",
        "The sink mass at which the head's output would be shortest; colours stop at 0 and 1, hover shows the value.",
        share=True,
        limits=(0.0, 1.0),
    ),
    Quantity(
        "interior_fraction",
        "Share of queries with 0 < α* < 1",
        "sequential",
        "The more a cell stands out from the page, the more queries whose output a sink mass between 0 and 1 makes shortest.",
        share=True,
        limits=(0.0, 1.0),
    ),
    Quantity(
        "suppression",
        "Suppression by the sink",
        "ratio",
        "Red heads are quieter with their sink than without it (ratio of output norms below 1); blue ones are louder.",
    ),
)
DESCRIPTIONS: dict[str, Quantity] = {quantity.name: quantity for quantity in _QUANTITIES}
KIND_LABEL = "Pattern kind"
KIND_READING = (
    "Each head's kind is the first of sink, learned sink (a null key, in models that have one), diagonal (itself) "
    "and previous token whose mean attention exceeds its threshold; "
    "else dense where its rows are spread out, else mixed."
)


def describe(name: str) -> Quantity:
    """How a quantity is shown.

    Args:
        name: one of :data:`sinklens.results.QUANTITIES`.

    Returns:
        A :class:`Quantity`.

    Raises:
        InputError: there is no such quantity.

    Example:
        >>> describe("sink_mass").label
        'Attention on the sink'
    """
    if name not in DESCRIPTIONS:
        raise InputError(f"no quantity {name!r}; choose one of {', '.join(QUANTITIES)} or kind")
    return DESCRIPTIONS[name]


def head_values(profile: HeadProfile, name: str) -> HeadValues:
    """The values of a quantity as a float32 array.

    Args:
        profile: the measurement.
        name: one of :data:`sinklens.results.QUANTITIES`.

    Returns:
        ``[layer, head]``.

    Raises:
        InputError: there is no such quantity.
    """
    return getattr(profile, describe(name).name).float().numpy()

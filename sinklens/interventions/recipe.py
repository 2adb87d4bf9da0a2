"""How an intervention was made, so that its controls can be made the same way."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sinklens.errors import InputError
from sinklens.interventions.hooks import Intervention
from sinklens.interventions.positions import SinkChoice
from sinklens.interventions.targets import LayerTarget


@dataclass(frozen=True)
class Recipe:
    """Makes an intervention again, elsewhere or in a random direction.

    Attributes:
        make: from the sinks (None for an edit without any) and the seed of a direction (None for the edit itself).
        choice: the sinks of the intervention.
    """

    make: Callable[[SinkChoice | None, int | None], Intervention]
    choice: SinkChoice | None


def heads_of(targets: Sequence[LayerTarget]) -> dict[int, tuple[int, ...]]:
    """The chosen query heads by layer."""
    return {target.layer: target.heads for target in targets}


def require_finite(number: float, name: str) -> float:
    """The number itself.

    Raises:
        InputError: it is no finite number.

    Example:
        >>> require_finite(float("nan"), "factor")
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: factor is nan; expected a finite number
    """
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise InputError(f"{name} is {number!r}; expected a finite number")
    return float(number)


def require_fraction(number: float, name: str) -> float:
    """The number itself.

    Raises:
        InputError: it is no number from 0 to 1.

    Example:
        >>> require_fraction(1.5, "mass")
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: mass is 1.5; expected a number from 0 to 1
    """
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
        raise InputError(f"{name} is {number!r}; expected a number from 0 to 1")
    return float(number)

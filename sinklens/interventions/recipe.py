"""How an intervention was made, so that its controls can be made the same way."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, SupportsFloat

from sinklens.errors import InputError
from sinklens.interventions.hooks import Intervention
from sinklens.interventions.positions import SinkChoice
from sinklens.interventions.targets import LayerTarget
from sinklens.results.labels import whole_number

# A number as Python or numpy has it.
Number = SupportsFloat
MAX_SEED = 2**63 - 1
MAX_BOOTSTRAP = 1_000_000  # each resample has a number per document


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


def require_finite(number: Number, name: str) -> float:
    """The number itself.

    Raises:
        InputError: it is no finite number.

    Example:
        >>> require_finite(float("nan"), "factor")
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: factor is nan; expected a finite number
    """
    found = _as_float(number)
    if found is None or not math.isfinite(found):
        raise InputError(f"{name} is {number!r}; expected a finite number")
    return found


def require_fraction(number: Number, name: str) -> float:
    """The number itself.

    Raises:
        InputError: it is no number from 0 to 1.

    Example:
        >>> require_fraction(1.5, "mass")
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: mass is 1.5; expected a number from 0 to 1
    """
    found = _as_float(number)
    if found is None or not 0 <= found <= 1:
        raise InputError(f"{name} is {number!r}; expected a number from 0 to 1")
    return found


def _as_float(number: Any) -> float | None:
    if isinstance(number, bool) or not isinstance(number, Real):
        return None
    try:
        return float(number)
    except OverflowError:  # a whole number of more digits than a float has
        return math.inf


def require_seed(seed: Any) -> int:
    """The seed itself, as a plain whole number.

    Raises:
        InputError: it is no whole number from 0 to 2^63 - 1.

    Example:
        >>> require_seed(None)
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: seed is None; expected a whole number from 0 to 9223372036854775807
    """
    return _require_between(seed, "seed", 0, MAX_SEED)


def require_n_bootstrap(n_bootstrap: Any) -> int:
    """The number of resamples itself, as a plain whole number.

    Raises:
        InputError: it is no whole number from 1 to a million.

    Example:
        >>> require_n_bootstrap(0)
        Traceback (most recent call last):
            ...
        sinklens.errors.InputError: n_bootstrap is 0; expected a whole number from 1 to 1000000
    """
    return _require_between(n_bootstrap, "n_bootstrap", 1, MAX_BOOTSTRAP)


def _require_between(number: Any, name: str, low: int, high: int) -> int:
    found = whole_number(number)
    if found is None or not low <= found <= high:
        raise InputError(f"{name} is {number!r}; expected a whole number from {low} to {high}")
    return found

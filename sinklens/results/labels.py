"""Layers and heads by the model's own numbers."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from sinklens.errors import InputError


def layer_index(layers: Sequence[int], layer: int) -> int:
    """The row of a layer in a result, which may hold only some of the model's layers.

    Raises:
        InputError: the result does not hold the layer.

    Example:
        >>> layer_index((4, 8), 8)
        1
    """
    if isinstance(layer, bool) or layer not in layers:
        raise InputError(f"no layer {layer!r}; the layers here are {describe_numbers(layers)}")
    return list(layers).index(layer)


def check_head(n_heads: int, head: int) -> int:
    """The head itself, if there is one of that number.

    Raises:
        InputError: there is not.

    Example:
        >>> check_head(9, 8)
        8
    """
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
        raise InputError(f"no head {head!r}; the heads are 0 to {n_heads - 1}")
    return head


def known_name(name: str, known: Iterable[str], kind: str = "quantity") -> str:
    """The name itself, if a result has something of that name.

    Args:
        name: what was asked for.
        known: what there is, in the order of the message.
        kind: of thing that is named.

    Raises:
        InputError: there is nothing of that name.

    Example:
        >>> known_name("entropy", ["entropy", "sink_mass"])
        'entropy'
    """
    names = list(known)
    if name not in names:
        raise InputError(f"no {kind} {name!r} here; there are {', '.join(names)}")
    return name


def describe_numbers(numbers: Sequence[int]) -> str:
    """Numbers for a message: a range where they run without a gap.

    Example:
        >>> describe_numbers([0, 1, 2]), describe_numbers([3, 7])
        ('0 to 2', '3, 7')
    """
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(str(number) for number in numbers)


def whole_number(number: Any) -> int | None:
    """A whole number of Python, numpy or torch as a plain one; None for anything else, such as True.

    Example:
        >>> whole_number(3), whole_number(3.0), whole_number(True)
        (3, None, None)
    """
    if isinstance(number, bool):
        return None
    try:
        return operator.index(number)
    except (TypeError, ValueError):
        return None

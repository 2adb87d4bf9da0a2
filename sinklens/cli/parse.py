"""What is typed as one word, such as ``0,3,10-15``, as Python has it; a mistake is named with its option."""

import re

from sinklens.errors import InputError

Head = tuple[int, int]
_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_HEADS = re.compile(r"(\d{1,4})\.(\d{1,4})(?:-(\d{1,4}))?")


def names(text: str, option: str) -> list[str]:
    """``question,answer`` as names, each once.

    Raises:
        InputError: one is empty.

    Example:
        >>> names("zero, mean", "--edits")
        ['zero', 'mean']
    """
    found = [part.strip() for part in text.split(",")]
    if not all(found):
        raise InputError(f"{option} is {text!r}; expected names with commas between them")
    return list(dict.fromkeys(found))


def decimals(text: str, option: str) -> list[float]:
    """``0.01,0.5`` as numbers.

    Raises:
        InputError: one is no number.

    Example:
        >>> decimals("0.01,0.5", "--fractions")
        [0.01, 0.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{option} is {text!r}; expected numbers with commas between them, such as 0.01,0.5") from None


def numbers_and_ranges(text: str, option: str) -> list[int]:
    """``0,3,10-15`` as numbers.

    Raises:
        InputError: it is something else.

    Example:
        >>> numbers_and_ranges("0,3,5-7", "--layers")
        [0, 3, 5, 6, 7]
    """
    parts = [_RANGE.fullmatch(part.strip()) for part in text.split(",")]
    bounds = [(int(part[1]), int(part[2] or part[1])) for part in parts if part]
    if len(bounds) < len(parts) or any(first > last for first, last in bounds):
        raise InputError(f"{option} is {text!r}; expected numbers and ranges such as 0,3,10-15")
    return [number for first, last in bounds for number in range(first, last + 1)]


def head_pairs(text: str, option: str) -> list[Head]:
    """``18.3,2.0-4`` as ``(layer, head)`` pairs.

    Raises:
        InputError: it is something else.

    Example:
        >>> head_pairs("18.3,2.0-1", "--heads")
        [(18, 3), (2, 0), (2, 1)]
    """
    parts = [_HEADS.fullmatch(part.strip()) for part in text.split(",")]
    bounds = [(int(part[1]), int(part[2]), int(part[3] or part[2])) for part in parts if part]
    if len(bounds) < len(parts) or any(first > last for _, first, last in bounds):
        raise InputError(f"{option} is {text!r}; expected LAYER.HEAD and ranges of heads, such as 18.3,2.0-4")
    return [(layer, head) for layer, first, last in bounds for head in range(first, last + 1)]

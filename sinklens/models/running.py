"""The sequences that the next forward pass runs on, for hooks that depend on the tokens or on which of them are real."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from torch import Tensor


class Sequences(NamedTuple):
    """Token ids ``[batch, position]`` and their mask, True on real tokens."""

    tokens: Tensor
    mask: Tensor


_RUNNING: ContextVar[Sequences | None] = ContextVar("running", default=None)


@contextmanager
def running(tokens: Tensor, mask: Tensor) -> Iterator[None]:
    """Say for a block of code what passes run on: whoever makes the batches knows, whoever made the hooks did not.

    Example:
        >>> import torch
        >>> with running(torch.tensor([[5, 6]]), torch.tensor([[True, False]])):
        ...     running_sequences().mask.tolist()
        [[True, False]]
        >>> running_sequences() is None
        True
    """
    token = _RUNNING.set(Sequences(tokens, mask.bool()))
    try:
        yield
    finally:
        _RUNNING.reset(token)


def running_sequences() -> Sequences | None:
    """What passes run on now, or None where nobody said it."""
    return _RUNNING.get()

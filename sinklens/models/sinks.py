"""How sinks are chosen: the first real token, a token id, explicit positions, or detection."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sinklens.axes import KeyMask, Pattern, SinkPositions, Tokens, Visible
from sinklens.errors import InputError
from sinklens.metrics.sinks import detect_sinks, positions_of

Sink = str | int | Sequence[int]


@dataclass(frozen=True)
class SinkRule:
    """A rule that says which positions of each sequence are sinks; made by :func:`sink_rule`.

    Attributes:
        kind: ``first``, ``token``, ``positions`` or ``detect``.
        numbers: the token id, or the positions counted from the first real token.
        threshold: of the detection.
    """

    kind: Literal["first", "token", "positions", "detect"]
    numbers: tuple[int, ...] = ()
    threshold: float = 0.3

    @property
    def needs_pattern(self) -> bool:
        """Whether sinks can differ from layer to layer."""
        return self.kind == "detect"

    def positions(
        self,
        tokens: Tokens,
        mask: KeyMask,
        attention: Callable[[], tuple[Pattern, Visible]] | None = None,
    ) -> SinkPositions:
        """Sink positions ``[batch, sink]``, ascending, -1 where a sequence has fewer sinks than the widest.

        Args:
            tokens: ``[batch, position]``.
            mask: True on real tokens ``[batch, key]``.
            attention: gives the pattern and the visible keys, called only by a rule that detects.

        Raises:
            InputError: an explicit position lies beyond a sequence.
        """
        first = mask.int().argmax(-1, keepdim=True)
        if self.kind == "first":
            return first
        if self.kind == "positions":
            return self._explicit(first, mask)
        if self.kind == "token":
            return positions_of((tokens == self.numbers[0]) & mask)
        if attention is None:
            raise InputError("sink='detect' needs attention patterns; choose sinks by position or token here")
        pattern, visible = attention()
        return detect_sinks(pattern, visible, mask, self.threshold)

    def _explicit(self, first: Tensor, mask: Tensor) -> Tensor:
        shortest = int(mask.sum(-1).min())
        if max(self.numbers) >= shortest:
            raise InputError(
                f"sink position {max(self.numbers)} lies beyond a sequence of {shortest} tokens; "
                "choose positions inside every sequence, or raise min_length"
            )
        return first + torch.tensor(self.numbers, device=first.device)

    def describe(self) -> str:
        """The rule as it is recorded with results and typed on the command line.

        Example:
            >>> sink_rule("token:2").describe(), sink_rule([0, 3]).describe()
            ('token:2', '0,3')
        """
        if self.kind == "token":
            return f"token:{self.numbers[0]}"
        if self.kind == "positions":
            return ",".join(str(number) for number in self.numbers)
        return self.kind if self.kind == "first" else f"detect:{self.threshold:g}"


def sink_rule(sink: "Sink | SinkRule" = "first", threshold: float = 0.3) -> SinkRule:
    """Turn what the user wrote into a rule.

    Args:
        sink: ``"first"`` (the first real token), ``"token:ID"`` (every occurrence of a token id), a position or several
            (counted from the first real token; also as text, ``"0,3"``), or ``"detect"``: every position whose mean
            received attention over later queries exceeds a threshold in at least one head of the layer (ours).
        threshold: of the detection; ``"detect:0.5"`` says its own.

    Returns:
        The rule.

    Raises:
        InputError: it is none of these.

    Example:
        >>> sink_rule("first").kind, sink_rule(3).numbers, sink_rule("detect:0.5").threshold
        ('first', (3,), 0.5)
    """
    if isinstance(sink, SinkRule):
        return sink
    if sink == "first":
        return SinkRule("first")
    try:
        rule = _written_rule(sink, threshold) if isinstance(sink, str) else _position_rule(sink)
    except (TypeError, ValueError):
        rule = None
    if rule is None or min(rule.numbers, default=0) < 0 or not 0 < rule.threshold < 1:
        raise InputError(
            f"sink is {sink!r}; expected 'first', 'detect', 'detect:0.5', 'token:ID' or positions such as 0 or '0,3'"
        )
    return rule


def _written_rule(sink: str, threshold: float) -> SinkRule:
    kind, _, own = sink.partition(":")
    if kind == "detect":
        return SinkRule("detect", threshold=float(own) if own else threshold)
    if kind == "token":
        return SinkRule("token", (int(own),))
    return SinkRule("positions", tuple(sorted({int(part) for part in sink.split(",")})))


def _position_rule(sink: int | Sequence[int]) -> SinkRule | None:
    given = [sink] if isinstance(sink, int) else list(sink)
    if not given or any(isinstance(position, bool) for position in given):
        return None
    return SinkRule("positions", tuple(sorted({operator.index(position) for position in given})))

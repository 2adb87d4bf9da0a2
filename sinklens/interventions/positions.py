"""Where an intervention acts: the sinks of each sequence, or random other positions, found while the model runs."""

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sinklens.axes import KeyMask, Pattern, SinkPositions, Visible
from sinklens.errors import InputError
from sinklens.metrics.sinks import positions_of
from sinklens.metrics.values import sink_mask
from sinklens.models.running import running_sequences
from sinklens.models.sinks import Sink, SinkRule, sink_rule

Attention = Callable[[], tuple[Pattern, Visible]]


class SinkChoice:
    """The sinks of the sequences that are run next, by a rule or by explicit positions.

    Without ``mask`` every position counts as a real token, so ``first`` is position 0. With padding on either side give
    the mask; for a rule by token id, the tokens. Where sinklens itself makes the batches (tasks), its own take their place.

    Attributes:
        rule: how sinks are chosen, or None where ``positions`` says it.
        positions: absolute positions ``[batch, sink]``, -1 where absent, or None.
        tokens: ids of the sequences ``[batch, position]``, or None.
        mask: True on real tokens ``[batch, position]``, or None.
    """

    def __init__(self, rule: SinkRule | None = None, positions: Tensor | None = None):
        self.rule = rule
        self.positions = positions
        self.tokens: Tensor | None = None
        self.mask: Tensor | None = None

    def use(self, tokens: Tensor | None, mask: Tensor | None) -> "SinkChoice":
        """Choose for these sequences from now on; returns itself.

        Raises:
            InputError: shapes differ, or a position lies beyond a sequence.
        """
        self.tokens, self.mask = _rows(tokens, "tokens"), _rows(mask, "attention_mask")
        if self.mask is not None:
            self.mask = self.mask.bool()
            if not bool(self.mask.any(-1).all()):
                raise InputError("a row of attention_mask has no real token; leave that row out")
        known = self.mask if self.mask is not None else self.tokens
        if known is not None and not self.needs_pattern:
            self.find((known.shape[0], known.shape[1]), known.device)
        return self

    def known(self) -> tuple[Tensor | None, Tensor | None]:
        """Tokens and mask of the sequences that are run: those of the pass where it says them, else what was given."""
        return running_sequences() or (self.tokens, self.mask)

    @property
    def needs_pattern(self) -> bool:
        """Whether sinks are found on the attention pattern, so that they may differ from layer to layer."""
        return self.rule is not None and self.rule.needs_pattern

    def real(self, shape: tuple[int, int], device: torch.device) -> KeyMask:
        """True on real tokens ``[batch, position]``.

        Raises:
            InputError: the mask is that of other sequences than those that are run.
        """
        mask = self.known()[1]
        if mask is None:
            return torch.ones(shape, dtype=torch.bool, device=device)
        _require_shape("attention_mask", mask, shape)
        return mask.to(device)

    def find(self, shape: tuple[int, int], device: torch.device, attention: Attention | None = None) -> SinkPositions:
        """Sink positions ``[batch, sink]`` of sequences of a shape ``(batch, position)``, -1 where absent.

        Raises:
            InputError: what is known of the sequences does not fit, or a position lies beyond them.
        """
        tokens = self.known()[0]
        if tokens is not None:
            _require_shape("tokens", tokens, shape)
        real = self.real(shape, device)
        if self.positions is not None:
            return self._given(shape, real)
        assert self.rule is not None
        tokens = torch.zeros(shape, dtype=torch.long, device=device) if tokens is None else tokens.to(device)
        return self.rule.positions(tokens, real, attention)

    def _given(self, shape: tuple[int, int], real: KeyMask) -> SinkPositions:
        assert self.positions is not None
        if running_sequences() is not None:
            raise InputError(
                "sink is a tensor of positions, one row per sequence of a batch of yours, but here sinklens makes the batches; "
                "choose sinks by rule, such as 'first', 0 or 'token:ID'"
            )
        sink = self.positions.to(real.device)
        if len(sink) != shape[0]:
            raise InputError(f"sink has positions for {len(sink)} sequences; expected one row for each of {shape[0]}")
        inside = (sink < shape[1]) & real.gather(-1, sink.clamp(min=0, max=shape[1] - 1))
        if not bool((inside | (sink < 0)).all()):
            raise InputError(
                f"a sink position lies beyond the text or on padding: {sink.tolist()} in sequences of "
                f"{real.sum(-1).tolist()} tokens; choose positions of real tokens, -1 for none"
            )
        return sink

    def describe(self) -> str:
        """The choice, as a rule is written."""
        return self.rule.describe() if self.rule is not None else "given positions"

    def in_words(self) -> str:
        """The choice, to stand after "at"."""
        return "the given positions" if self.rule is None else f"sink {self.rule.describe()!r}"


class RandomPositions(SinkChoice):
    """As many random real positions as another choice has sinks, none of them a sink: a control.

    They depend on the seed and on the sequence's tokens where these are known, else on its row; not on the batch.

    Attributes:
        choice: whose sinks are avoided.
        seed: of the draw.
    """

    def __init__(self, choice: SinkChoice, seed: int):
        super().__init__(choice.rule, choice.positions)
        self.choice = choice
        self.seed = seed

    def real(self, shape: tuple[int, int], device: torch.device) -> KeyMask:
        """True on real tokens, as the other choice has it."""
        return self.choice.real(shape, device)

    def find(self, shape: tuple[int, int], device: torch.device, attention: Attention | None = None) -> SinkPositions:
        """Random positions ``[batch, sink]``, ascending, -1 where a sequence has too few other tokens."""
        sink = self.choice.find(shape, device, attention).cpu()
        free = self.real(shape, device).cpu() & ~sink_mask(sink, shape[1])
        chosen = torch.zeros_like(free)
        for row in range(shape[0]):
            wanted = int((sink[row] >= 0).sum())
            order = torch.randperm(int(free[row].sum()), generator=self._generator(row))[:wanted]
            chosen[row, free[row].nonzero()[order, 0]] = True
        return positions_of(chosen).to(device)

    def _generator(self, row: int) -> torch.Generator:
        tokens, mask = self.choice.known()
        key = row
        if tokens is not None:
            real = tokens[row] if mask is None else tokens[row][mask[row].to(tokens.device)]
            key = zlib.crc32(real.cpu().long().numpy().tobytes())
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{key}".encode()))

    def in_words(self) -> str:
        """The choice, to stand after "at"."""
        return f"random positions instead of {self.choice.in_words()}, seed {self.seed}"


def sink_choice(
    model: Any, sink: Sink | SinkRule | Tensor | SinkChoice, tokens: Tensor | None, attention_mask: Tensor | None
) -> SinkChoice:
    """Turn what the user wrote into a choice, and check it against what is known.

    Raises:
        InputError: it is no rule, a position cannot exist, or a rule by token id has no tokens.
    """
    if isinstance(sink, SinkChoice):
        return sink
    choice = SinkChoice(positions=_explicit(sink)) if isinstance(sink, Tensor) else SinkChoice(sink_rule(sink))
    require_in_context(model, choice)
    if choice.rule is not None and choice.rule.kind == "token" and tokens is None:
        raise InputError(f"sink={choice.describe()!r} needs the tokens of the sequences that will be run; pass tokens=")
    return choice.use(tokens, attention_mask)


def _explicit(sink: Tensor) -> Tensor:
    if sink.ndim != 2 or sink.is_floating_point() or sink.dtype == torch.bool or sink.shape[1] == 0:
        raise InputError(
            f"sink is a {sink.dtype} tensor of shape {tuple(sink.shape)}; expected integer positions [batch, sink], "
            "-1 where a sequence has fewer"
        )
    return _once(sink.long())


def _once(sink: Tensor) -> Tensor:
    """A position that a row repeats is one sink: its attention must not be counted twice."""
    is_repeat = (sink.unsqueeze(-1) == sink.unsqueeze(-2)).tril(-1).any(-1)
    return sink.masked_fill(is_repeat, -1)


def require_in_context(model: Any, choice: SinkChoice) -> None:
    """Refuse positions and tokens that no text of the model can have.

    Raises:
        InputError: a position lies beyond the model's context, or a token beyond its vocabulary.
    """
    size = getattr(model.cfg, "d_vocab", 0)
    if choice.rule is not None and choice.rule.kind == "token" and 0 < size <= choice.rule.numbers[0]:
        raise InputError(
            f"sink token {choice.rule.numbers[0]} lies beyond the model's vocabulary of {size} tokens; "
            f"choose an id from 0 to {size - 1}"
        )
    numbers = choice.rule.numbers if choice.rule is not None and choice.rule.kind == "positions" else ()
    if choice.positions is not None:
        numbers = tuple(choice.positions.flatten().tolist())
    if numbers and max(numbers) >= model.cfg.n_ctx:
        raise InputError(
            f"sink position {max(numbers)} lies beyond the model's context of {model.cfg.n_ctx} tokens; "
            "choose positions inside the text"
        )


def _rows(tensor: Tensor | None, name: str) -> Tensor | None:
    if tensor is None or tensor.ndim == 2:
        return tensor
    if tensor.ndim != 1:
        raise InputError(f"{name} has shape {tuple(tensor.shape)}; expected [batch, position] or [position]")
    return tensor.unsqueeze(0)


def _require_shape(name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
    if tuple(tensor.shape) != tuple(shape):
        raise InputError(
            f"{name} has shape {tuple(tensor.shape)}, the sequences that are run {tuple(shape)}; "
            f"make the intervention with the {name} of these sequences"
        )

"""Copy-paste tasks: sequences of a random bigram law in which a trigger says to repeat an earlier token (arXiv 2410.13835)."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.axes import Pattern, PerQuery
from sinklens.errors import InputError
from sinklens.interventions.recipe import require_seed
from sinklens.results.labels import whole_number

BOS = 0
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_LEAST = {"n_tokens": 4, "n_triggers": 1, "offset": 1, "length": 4}


@dataclass(frozen=True)
class CopyTask:
    """A copy-paste task. With ``offset`` 1 it is Bigram-Backcopy (Guo et al., arXiv 2410.13835), on a bigram table of our own.

    The first token is BOS (id 0). The next ``offset`` tokens hold no trigger, the first of them from the unigram law. After a
    trigger at position ``i`` comes the token at ``i - offset`` again, for certain: the trigger's query is *active*. After any
    other token comes one drawn from its row of the bigram table: its query is *dormant*, nothing but the token is needed.

    Every row gives triggers the same total weight, so that a share ``active_share`` of the positions is active (exactly so
    in the long run for ``offset`` 1, nearly beyond). Ordinary tokens have a unigram law ``u`` from a flat Dirichlet law and
    rows from one with parameters ``concentration · n · u``. All of it follows from ``seed``.

    Attributes:
        offset: how far back the repeated token stands.
        active_share: of the positions, above 0 and below 0.5.
        n_tokens: size of the vocabulary, BOS and triggers included.
        n_triggers: how many tokens are triggers, ids 1 to ``n_triggers``.
        length: tokens of a sequence, BOS included.
        concentration: small for rows with few likely tokens, large for rows like the unigram law.
        bos: whether sequences begin with BOS; without it they begin with the token of the unigram law.
        seed: of the bigram table.

    Raises:
        InputError: a number is out of range.

    Example:
        >>> task = CopyTask()
        >>> tokens = task.sample(2, seed=0)
        >>> tokens.shape, tokens[:, 0].tolist()
        (torch.Size([2, 64]), [0, 0])
        >>> trigger = int(task.active(tokens)[0, :-1].nonzero()[0])
        >>> bool(tokens[0, trigger + 1] == tokens[0, trigger - 1])
        True
    """

    offset: int = 1
    active_share: float = 0.2
    n_tokens: int = 64
    n_triggers: int = 4
    length: int = 64
    concentration: float = 0.1
    bos: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        require_seed(self.seed)
        for name, least in _LEAST.items():
            if (whole_number(getattr(self, name)) or 0) < least:
                raise InputError(f"{name} of the task is {getattr(self, name)!r}; expected a whole number from {least}")
        for name, high in (("active_share", 0.5), ("concentration", math.inf)):
            if not 0 < getattr(self, name) < high:  # NaN compares as False too
                raise InputError(
                    f"{name} of the task is {getattr(self, name)!r}; expected a number in 0 to {high:g}, between"
                )
        if self.n_tokens < self.n_triggers + 3:
            raise InputError(
                f"{self.n_tokens} tokens with {self.n_triggers} triggers and BOS leave fewer than two ordinary ones; "
                "raise n_tokens or lower n_triggers"
            )
        if self.n_tokens > self.n_triggers + 1 + len(_SYLLABLES):
            raise InputError(
                f"n_tokens of the task is {self.n_tokens}; expected at most {self.n_triggers + 1 + len(_SYLLABLES)}, as "
                "there are words for no more"
            )
        if self.offset + int(self.bos) >= self.length - 1:
            raise InputError(
                f"offset {self.offset} leaves no room in {self.length} tokens; raise length or lower offset"
            )

    @property
    def name(self) -> str:
        """``backcopy``, or ``copy-`` and the offset."""
        return "backcopy" if self.offset == 1 else f"copy-{self.offset}"

    @property
    def words(self) -> tuple[str, ...]:
        """How tokens are written, by id: ``<bos>``, triggers ``^1``, ``^2``, ..., ordinary tokens as syllables."""
        ordinary = _SYLLABLES[: self.n_tokens - 1 - self.n_triggers]
        return ("<bos>", *(f"^{number + 1}" for number in range(self.n_triggers)), *ordinary)

    @property
    def first_trigger(self) -> int:
        """The first position that can hold a trigger."""
        return self.offset + int(self.bos)

    @cached_property
    def table(self) -> Float[Tensor, "token token"]:
        """The bigram law, float64: row by the token before. The row of BOS is the unigram law; rows of triggers serve nothing."""
        law = np.random.default_rng(self.seed)
        n_ordinary = self.n_tokens - 1 - self.n_triggers
        unigram = law.dirichlet(np.ones(n_ordinary))
        # Never quite 0, for which a Dirichlet law has no meaning.
        parameters = self.concentration * n_ordinary * unigram + 1e-3
        weight = self.active_share / (1 - self.active_share if self.offset == 1 else 1)
        rows = [
            np.concatenate([
                [0.0], law.dirichlet(np.ones(self.n_triggers)) * weight, law.dirichlet(parameters) * (1 - weight)
            ])
            for _ in range(self.n_tokens)
        ]  # fmt: skip
        rows[BOS] = np.concatenate([np.zeros(1 + self.n_triggers), unigram])
        return torch.from_numpy(np.stack(rows))

    @cached_property
    def early_table(self) -> Float[Tensor, "token token"]:
        """The law of the first tokens, which are no triggers: rows of :attr:`table` without them."""
        rows = self.table.clone()
        rows[:, 1 : self.n_triggers + 1] = 0.0
        return rows / rows.sum(-1, keepdim=True)

    def sample(self, n: int, seed: int | torch.Generator) -> Int[Tensor, "sequence position"]:
        """Draw ``n`` sequences.

        Args:
            n: how many.
            seed: of the draw, or a generator that goes on; not the seed of the table.

        Returns:
            Token ids ``[sequence, position]``.
        """
        generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        steps = torch.rand(n, self.length, generator=generator, dtype=torch.float64)
        tokens = torch.empty(n, self.length, dtype=torch.long)
        before = torch.full((n,), BOS)
        start = int(self.bos)
        tokens[:, :start] = BOS
        for position in range(start, self.length):
            law = self._late_steps if position >= self.first_trigger else self._early_steps
            drawn = torch.searchsorted(law[before], steps[:, position : position + 1].contiguous(), right=True)[:, 0]
            if position > self.first_trigger:
                drawn = torch.where(self._is_trigger(before), tokens[:, position - 1 - self.offset], drawn)
            tokens[:, position] = before = drawn
        return tokens

    @cached_property
    def _late_steps(self) -> Tensor:
        return _cumulative(self.table)

    @cached_property
    def _early_steps(self) -> Tensor:
        return _cumulative(self.early_table)

    def _is_trigger(self, tokens: Tensor) -> Tensor:
        return (tokens >= 1) & (tokens <= self.n_triggers)

    def active(self, tokens: Int[Tensor, "sequence position"]) -> Bool[Tensor, "sequence position"]:
        """Which queries are active: those of triggers, whose next token is the copy.

        Args:
            tokens: token ids.
        """
        return self._is_trigger(tokens)

    def target_attention(self, pattern: Pattern) -> PerQuery:
        """Attention of every query on the key ``offset`` before it, ``A_i,i-offset``, which an active query has to read.

        Args:
            pattern: ``[batch, head, query, key]``.

        Returns:
            ``[batch, head, query]``, 0 where there is no such key.
        """
        return torch.nn.functional.pad(pattern.diagonal(-self.offset, -2, -1), (self.offset, 0))

    def optimal_loss(self, tokens: Int[Tensor, "sequence position"]) -> Float[Tensor, "sequence position"]:
        """The least expected loss of predicting the token after each position, by who knows the laws: their entropy, nats.

        0 for active queries; for a dormant one the entropy of its token's row.

        Args:
            tokens: token ids of sequences of this task.

        Returns:
            Float64; the last position has no next token and counts as any other.
        """
        entropy = torch.special.entr(self.table).sum(-1)[tokens]
        early = torch.arange(1, tokens.shape[1] + 1) < self.first_trigger
        entropy = torch.where(early, torch.special.entr(self.early_table).sum(-1)[tokens], entropy)
        return entropy.masked_fill(self.active(tokens), 0.0)

    def texts(self, n: int, seed: int) -> list[str]:
        """The sequences of :meth:`sample` as words with spaces, without BOS, which the toy's tokenizer puts in front.

        Args:
            n: how many.
            seed: of the draw.

        Example:
            >>> CopyTask(length=6).texts(1, seed=1)
            ['fa ^4 fa ne ^3']
        """
        rows = self.sample(n, seed)[:, int(self.bos) :].tolist()
        return [" ".join(self.words[token] for token in row) for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "CopyTask":
        """The inverse of :meth:`to_dict`."""
        return cls(**fields)


TASKS = {"backcopy": CopyTask(), "copy": CopyTask(offset=3, active_share=0.3)}


def copy_task(task: str | CopyTask) -> CopyTask:
    """A task by name: ``"backcopy"``, or ``"copy"``, the same with the token three before and a share of 0.3 active.

    Raises:
        InputError: there is no such task.

    Example:
        >>> copy_task("backcopy") == CopyTask()
        True
    """
    if isinstance(task, CopyTask):
        return task
    if task not in TASKS:
        raise InputError(f"no task {task!r}; expected {' or '.join(TASKS)}, or a sinklens.toy.CopyTask")
    return TASKS[task]


def _cumulative(table: Tensor) -> Tensor:
    """Ends of the steps of a row's distribution function; the last is above every number that is drawn."""
    steps = table.cumsum(-1)
    last = table.shape[-1] - 1 - (table.flip(-1) > 0).double().argmax(-1, keepdim=True)
    return torch.where(torch.arange(table.shape[-1]) >= last, 1.0, steps)

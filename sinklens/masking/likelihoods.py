"""Log-likelihoods of the ends of token sequences, with any hooks on the model: what tasks are scored by."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from sinklens.ablation.passes import logits_of
from sinklens.errors import HookNotFiredError, InputError, NoEffectError
from sinklens.interventions import Intervention, InterventionRecord, intervene
from sinklens.masking.hooks import RankMasking
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import Hook
from sinklens.models.running import running
from sinklens.models.tokens import TokenBatch

# Interventions take a pass over a single position for a step of generation from a cache, and refuse it.
_SHORTEST_BATCH = 2


class Scored(NamedTuple):
    """Token ids, and how many of them, at the end, are scored. The last may lie one beyond the model's context."""

    token_ids: list[int]
    n_scored: int


class Likelihood(NamedTuple):
    """Σ log p of the scored tokens, in nats, and whether each of them is the most probable one."""

    total: float
    is_greedy: bool


class EditedPasses:
    """Forward passes under hooks, each of which must fire once in every pass; made by :func:`edited_passes`.

    Attributes:
        attention: the model's.
        record: what became of the hooks.
    """

    def __init__(self, attention: ModelAttention, hooks: Iterable[Hook], record: InterventionRecord):
        self.attention, self.record = attention, record
        self._use = getattr(hooks, "use", None)

    def logits(self, batch: TokenBatch) -> Tensor:
        """The logits ``[batch, position, vocabulary]`` of right-padded sequences.

        Raises:
            HookNotFiredError: a hook did not fire exactly once.
        """
        if self._use is not None:
            self._use(batch.tokens, batch.mask)
        with running(batch.tokens, batch.mask):
            logits = logits_of(self.attention, batch)
        for hook in self.record.hooks:
            if hook.fired != self.record.passes[0]:
                raise HookNotFiredError(
                    f"the hook {hook.name!r} fired {hook.fired} times in {self.record.passes[0]} forward passes; expected "
                    "once in each. The attention is not run eagerly (load the model with eager attention), or a flag "
                    "turns the hook off"
                )
        return logits

    def likelihoods(self, sequences: Sequence[Scored]) -> list[Likelihood]:
        """The likelihood of each sequence's end, in one pass; in float32 from the logits, summed in float64."""
        longest = self.attention.model.cfg.n_ctx
        logits = self.logits(padded([sequence.token_ids[:longest] for sequence in sequences]))
        return [_likelihood(row, sequence) for row, sequence in zip(logits, sequences, strict=True)]


@contextmanager
def edited_passes(attention: ModelAttention, hooks: Iterable[Hook]) -> Iterator[EditedPasses]:
    """Hooks on the model for a block of code; the model is as before afterwards.

    Raises:
        InputError: the hooks are no ``(hook_name, function)`` pairs.
        HookNotFiredError: the model has no such hook; in a pass, it did not fire exactly once.
        NoEffectError: at the end of the block, an edit has changed nothing in any pass.
    """
    with _no_effect_told(), intervene(attention.model, hooks) as record:
        yield EditedPasses(attention, hooks, record)


@contextmanager
def _no_effect_told() -> Iterator[None]:
    try:
        yield
    except NoEffectError as error:
        what = str(error).partition(";")[0]
        raise NoEffectError(
            f"{what} in any text; there is no such sink in them, or the tensor already was what the edit makes of it; "
            "leave it out"
        ) from error


def described_hooks(hooks: Sequence[Hook]) -> str:
    """What is done to the model, in words.

    Example:
        >>> described_hooks([]), described_hooks([("blocks.0.hook_resid_pre", print)])
        ('none', '1 hooks')
    """
    if isinstance(hooks, Intervention):
        return hooks.title
    return repr(hooks) if isinstance(hooks, RankMasking) else f"{len(hooks)} hooks" if hooks else "none"


def require_batch_size(batch_size: int) -> None:
    """Refuse what is no number of sequences.

    Raises:
        InputError: it is no whole number of at least 1.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size is {batch_size!r}; expected a whole number of at least 1")


def padded(sequences: Sequence[Sequence[int]]) -> TokenBatch:
    """A batch, padded on the right.

    Example:
        >>> padded([[3, 4, 5], [6]]).tokens.tolist()
        [[3, 4, 5], [6, 0, 0]]
    """
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    tokens = torch.zeros(len(sequences), max(int(lengths.max()), _SHORTEST_BATCH), dtype=torch.long)
    for row, sequence in zip(tokens, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    mask = torch.arange(tokens.shape[1]) < lengths.unsqueeze(-1)
    return TokenBatch(tokens, mask, tuple(range(len(sequences))))


def require_in_vocabulary(attention: ModelAttention, token_ids: Iterable[int], place: str) -> None:
    """Refuse token ids that the model does not know.

    Raises:
        InputError: there is one.
    """
    known = attention.model.cfg.d_vocab
    if (highest := max(token_ids, default=0)) >= known:
        raise InputError(
            f"{place} has the token id {highest}; the model's vocabulary has ids 0 to {known - 1}. Use the model's own tokenizer"
        )


def require_rows(hooks: Sequence[Hook], sequences: Sequence[Scored]) -> None:
    """Find the sinks of sequences before they are run, where that can be done: better than to fail half-way.

    Raises:
        InputError: a sink position lies beyond one, or positions belong to a batch of the user's.
    """
    choice = getattr(getattr(hooks, "recipe", None), "choice", None)
    if choice is None or choice.needs_pattern or not sequences:
        return
    batch = padded([min(sequences, key=lambda sequence: len(sequence.token_ids)).token_ids])
    with running(batch.tokens, batch.mask):
        choice.find(tuple(batch.tokens.shape), batch.tokens.device)


def _likelihood(logits: Tensor, sequence: Scored) -> Likelihood:
    end, n_scored = len(sequence.token_ids), sequence.n_scored
    rows = logits[end - n_scored - 1 : end - 1].float()
    targets = torch.tensor(sequence.token_ids[-n_scored:], device=rows.device)
    chosen = rows.log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    total = chosen.cpu().double().sum().item()
    if math.isnan(total):
        raise InputError(
            "a log-likelihood is NaN: the model, or an edit of it, leaves the range of its dtype; load it in float32"
        )
    return Likelihood(total, bool((rows.argmax(-1) == targets).all()))

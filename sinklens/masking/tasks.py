"""Multiple-choice accuracy by the likelihood of the options, with any hooks on the model."""

import zlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from sinklens.ablation.passes import require_causal
from sinklens.errors import InputError
from sinklens.interventions.recipe import require_n_bootstrap, require_seed
from sinklens.masking.likelihoods import (
    EditedPasses,
    Scored,
    described_hooks,
    edited_passes,
    require_batch_size,
    require_in_vocabulary,
    require_rows,
)
from sinklens.masking.records import ChoiceItem, read_items
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import Hook
from sinklens.models.encoding import TextEncoder, text_encoder
from sinklens.results.multiple_choice import MultipleChoiceResult

Normalization = Literal["tokens", "bytes", "none"]


class _Option(NamedTuple):
    """One option of an item: what is scored, and the bytes of its text."""

    item: int
    option: int
    scored: Scored
    n_bytes: int


def multiple_choice(
    model: Any,
    records: Any,
    *,
    hooks: Sequence[Hook] = (),
    form: str = "auto",
    normalize: str = "tokens",
    max_items: int | None = None,
    batch_size: int = 8,
    prepend_bos: bool | None = None,
    seed: int = 0,
    n_bootstrap: int = 1000,
    progress: bool = True,
) -> MultipleChoiceResult:
    """Accuracy on multiple choice: the option with the highest length-normalised log-likelihood is the model's answer.

    MMLU form (``question``, ``choices``, ``answer``): ``Question: ...\\nAnswer:`` and each choice's text. BoolQ form
    (``question``, ``answer``, perhaps ``passage``): the same, with ``yes`` and ``no``. WinoGrande form (``sentence`` with a
    blank ``_``, ``option1``, ``option2``, ``answer``): the text after the blank, given the sentence up to it with each option
    in (Trinh and Le 2018). Prompts are without examples (ours).

    Args:
        model: a TransformerBridge or HookedTransformer with causal attention and a tokenizer; it is not changed.
        records: a .jsonl path, a ``datasets`` object or name (``hf:NAME``), or a list of mappings.
        hooks: ``(hook_name, function)`` pairs that are active: an intervention, or :func:`sinklens.mask_by_metric`. Each must
            fire once in every pass. Interventions and maskings, also those of an :func:`sinklens.intervene` block around
            this call, know which tokens are real; other hooks with a method ``use(tokens, mask)`` are told. Padding is on
            the right, whatever the tokenizer's ``padding_side``.
        form: ``mmlu``, ``winogrande``, ``boolq``, or ``auto``: told from the fields of each record.
        normalize: the log-likelihood is divided by the scored part's number of ``"tokens"`` or ``"bytes"``, or ``"none"``.
        max_items: at most so many.
        batch_size: options per forward pass.
        prepend_bos: True or False overrides what the model's tokenizer does.
        seed: of the resamples.
        n_bootstrap: resamples of the items for the 95 % interval.
        progress: whether to show a progress bar.

    Returns:
        A :class:`~sinklens.MultipleChoiceResult`: ``accuracy``, ``interval``, ``correct`` per item, ``compare``. A context
        longer than the model's is cut on the left, and counted.

    Raises:
        InputError: a record or an argument cannot be used; before the first pass.
        UnsupportedAttentionError: the model is not causal.
        HookNotFiredError: the model has no such hook, or it did not fire exactly once in a pass.
        NoEffectError: an edit changed nothing in any pass.
    """
    if normalize not in get_args(Normalization):
        raise InputError(f"normalize is {normalize!r}; expected 'tokens', 'bytes' or 'none'")
    require_batch_size(batch_size)
    n_bootstrap, seed = require_n_bootstrap(n_bootstrap), require_seed(seed)
    attention = ModelAttention(model)
    require_causal(attention)
    attention.require_no_dropout()
    items = read_items(records, form, max_items)
    encoder = text_encoder(model, prepend_bos)
    options, n_cut = _encoded(items, encoder, model.cfg.n_ctx)
    require_in_vocabulary(attention, (token for option in options for token in option.scored.token_ids), "the task")
    require_rows(hooks, [option.scored for option in options])
    with (
        tqdm(total=len(options), disable=not progress, unit=" options", desc=attention.name, leave=False) as bar,
        edited_passes(attention, hooks) as passes,
    ):
        scores = _scores(passes, items, options, normalize, batch_size, bar)
    provenance = attention.provenance(
        "first", context_length=model.cfg.n_ctx, n_documents=len(items), n_sequences=len(options),
        n_tokens=sum(len(option.scored.token_ids) for option in options), n_cut=n_cut,
        prepended_bos=bool(encoder.prefix), seed=seed,
        conventions={
            "items": _checksum(items), "form": form, "normalize": normalize,
            "hooks": described_hooks(hooks), "changed": passes.record.changed,
        },
    )  # fmt: skip
    return MultipleChoiceResult(scores, torch.tensor([item.answer for item in items]), provenance, n_bootstrap)


def _scores(
    passes: EditedPasses,
    items: Sequence[ChoiceItem],
    options: Sequence[_Option],
    normalize: str,
    batch_size: int,
    bar: Any,
) -> Tensor:
    """The normalised log-likelihood of every option of every item ``[item, option]``, NaN where an item has fewer."""
    scores = torch.full((len(items), max(len(item.scored) for item in items)), torch.nan, dtype=torch.float64)
    for start in range(0, len(options), batch_size):
        chunk = options[start : start + batch_size]
        found = passes.likelihoods([option.scored for option in chunk])
        for option, likelihood in zip(chunk, found, strict=True):
            scores[option.item, option.option] = likelihood.total / _length(option, normalize)
        bar.update(len(chunk))
    return scores


def _checksum(items: Sequence[ChoiceItem]) -> str:
    """Of what is read and scored, so that results on other records are told apart."""
    return f"{zlib.crc32(repr([(item.contexts, item.scored) for item in items]).encode()):08x}"


def _encoded(items: Sequence[ChoiceItem], encoder: TextEncoder, longest: int) -> tuple[list[_Option], int]:
    """Every option of every item, longest first, and how many contexts had to be cut."""
    options: list[_Option] = []
    n_cut = 0
    for number, item in enumerate(items):
        for option, (context, scored) in enumerate(zip(item.contexts, item.scored, strict=True)):
            body, n_scored = _joined(encoder, context, scored)
            room = longest - len(encoder.prefix)
            if n_scored >= room:
                raise InputError(
                    f"item {number}, option {option}: its scored part takes {n_scored} tokens, the model's context has "
                    f"{longest}; leave the item out"
                )
            n_cut += len(body) > room
            token_ids = [*encoder.prefix, *body[-room:]]
            if len(token_ids) < 2:
                raise InputError(
                    f"item {number}, option {option}: nothing stands before its scored part; use prepend_bos=True"
                )
            known = Scored(token_ids, min(n_scored, len(token_ids) - 1))
            options.append(_Option(number, option, known, len(scored.encode())))
    return sorted(options, key=lambda option: len(option.scored.token_ids), reverse=True), n_cut


def _joined(encoder: TextEncoder, context: str, scored: str) -> tuple[list[int], int]:
    """Token ids of both together, as the model would read them, and how many of them belong to the scored part."""
    # A space between belongs to the scored part: tokenizers put it in front of words.
    stripped = context.rstrip()
    scored = context[len(stripped) :] + scored
    whole, before = encoder.body(stripped + scored), encoder.body(stripped)
    same = list(takewhile(lambda pair: pair[0] == pair[1], zip(whole, before, strict=False)))
    return whole, max(len(whole) - len(same), 1)


def _length(option: _Option, normalize: str) -> int:
    return {"tokens": option.scored.n_scored, "bytes": option.n_bytes, "none": 1}[normalize]

"""The ablation study: sinks taken away by layer, by head or everywhere, each beside its controls."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor
from tqdm.auto import tqdm

from sinklens.ablation.cells import Groups, intervention, listed, make_cells, named_groups, parse_edit
from sinklens.ablation.losses import sequence_losses
from sinklens.ablation.means import value_means
from sinklens.ablation.passes import DocumentSums, clean_pass, logits_of, provenance_of, require_causal
from sinklens.errors import InputError
from sinklens.interventions import Intervention, SinkChoice, intervene
from sinklens.interventions.positions import require_in_context
from sinklens.interventions.recipe import require_n_bootstrap, require_seed
from sinklens.models.attention import ModelAttention
from sinklens.models.frames import warn_once
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import TokenBatch, TokenBatches, as_batches
from sinklens.results.ablation import AblationCell, AblationResult
from sinklens.results.files import check_savable

Path = str | os.PathLike[str] | None
ResultT = TypeVar("ResultT", bound=AblationResult)


def ablate_sinks(
    model: Any,
    texts: Any,
    groups: Groups = "all",
    *,
    edits: str | Sequence[str] = ("zero",),
    controls: str | Sequence[str] = ("position", "direction"),
    sink: Sink | SinkRule = "first",
    seed: int = 0,
    n_bootstrap: int = 1000,
    means: Mapping[int, Tensor] | None = None,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: bool = True,
    partial: Path = None,
    **tokenization: Any,
) -> AblationResult:
    """What do sinks do for the model? Take them away, and measure the next-token loss beside that of controls.

    One forward pass per batch for the clean model and one for every group, edit and control. Loss is the mean next-token
    cross-entropy in nats over real tokens, computed in float32 from the logits; divergence the mean ``KL(clean || edited)``.

    Args:
        model: a TransformerBridge or HookedTransformer with causal attention; it is not changed.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made.
        groups: ``"all"`` (every head at once), ``"layers"`` (one layer after another), ``"heads"`` (one head after
            another: many passes), layer numbers, ``(layer, head)`` pairs, or a mapping of names to such pairs.
        edits: ``"zero"`` (the sink's value), ``"mean"`` (its value set to that of the other tokens), ``"remove"`` (its
            attention, the rest of the row rescaled), ``"scale:FACTOR"`` (of its value), ``"mass:MASS"`` (its attention).
        controls: ``"position"``, the same edit at a random other position of each sequence; ``"direction"``, an edit of
            the same norm in a random direction (:func:`sinklens.placebo`).
        sink: ``"first"``, ``"token:ID"``, positions counted from the first real token.
        seed: of positions, directions and resamples; a whole number from 0 to 2^63 - 1.
        n_bootstrap: resamples of the documents for 95 % intervals, up to a million.
        means: for ``"mean"``, from :func:`sinklens.value_means` on other text; by default of these texts, in a pass before.
        context_length: the longest sequence.
        batch_size: sequences per batch.
        progress: whether to show a progress bar.
        partial: a file that holds the result so far after every batch, also when the study is interrupted
            (``AblationResult.load``); None for none.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        An :class:`~sinklens.AblationResult`: ``effect``, ``interval``, ``against_controls``, ``to_dataframe``.

    Raises:
        InputError: a head, layer, position, edit, factor, mass or text cannot be used as given; before the first pass
            where that can be known without reading files.
        UnsupportedAttentionError: the model is not causal, or its back end cannot do an edit.
        HookNotFiredError: a hook did not fire.
        ResultFileError: ``partial`` cannot be written.
    """
    edits, seed, n_bootstrap = listed(edits), require_seed(seed), require_n_bootstrap(n_bootstrap)
    cells = make_cells(named_groups(model, groups), [parse_edit(edit) for edit in edits], controls)
    attention, choice = prepare(model, cells, sink, partial)
    batches = as_batches(model, texts, tokenization, {"context_length": context_length, "batch_size": batch_size})
    require_positions(choice, batches)
    if any(cell.edit == "mean" for cell in cells) and means is None:
        layers = sorted({layer for cell in cells for layer, _ in cell.heads})
        means = value_means(model, batches, layers=layers, sink=sink, progress=progress)
    hooks = [intervention(model, cell, choice, means or {}, seed) for cell in cells]

    def result(sums: DocumentSums, changed: Sequence[bool]) -> AblationResult:
        provenance = provenance_of(attention, batches, choice.describe(), seed, edits=list(edits))
        return AblationResult(
            tuple(cells), changed=tuple(changed), provenance=provenance, n_bootstrap=n_bootstrap, **sums.fields()
        )

    return run_cells(attention, batches, choice, hooks, result, progress=progress, partial=partial)


class Watch(ABC):
    """Something that a study measures beside losses."""

    @abstractmethod
    def read(self, batch: TokenBatch) -> None:
        """Look at the clean model on a batch."""

    @abstractmethod
    def measured(self, number: int) -> AbstractContextManager[Any]:
        """A context around the pass of a cell, entered after the cell's edit."""


def run_cells(
    attention: ModelAttention, batches: TokenBatches, choice: SinkChoice, hooks: Sequence[Intervention],
    result: Callable[[DocumentSums, Sequence[bool]], ResultT], *, progress: bool, partial: Path = None,
    watch: Watch | None = None,
) -> ResultT:  # fmt: skip
    """Every batch through the clean model and then through every cell; what was measured so far is saved after a batch.

    Args:
        attention: the model's.
        batches: the text.
        choice: the sinks, told of each batch.
        hooks: the edits, one per cell.
        result: makes the result from what was added up.
        progress: whether to show a progress bar.
        partial: where the result so far is saved after every batch, or None.
        watch: what is measured beside losses.

    Raises:
        ResultFileError: ``partial`` cannot be written.
    """
    sums, changed = DocumentSums(len(hooks)), [False] * len(hooks)
    with tqdm(disable=not progress, unit=" passes", desc=attention.name, leave=False) as bar:
        for batch in batches:
            choice.use(batch.tokens, batch.mask)
            clean = clean_pass(attention, batch, sums)
            if watch is not None:
                watch.read(batch)
            bar.total = None if batches.total is None else batches.total * (1 + len(hooks))
            bar.update()
            for number, edit in enumerate(hooks):
                beside = nullcontext() if watch is None else watch.measured(number)
                with intervene(attention.model, edit, require_effect=False) as record, beside:
                    logits = logits_of(attention, batch)
                sums.add(number, batch.documents, sequence_losses(logits, batch.tokens, batch.mask, clean))
                changed[number] |= record.changed
                bar.update()
            if partial is not None:
                result(sums, changed).save(partial)
    warn_once(attention.name, attention.frame)
    return result(sums, changed)


def prepare(
    model: Any, cells: Sequence[AblationCell], sink: Sink | SinkRule, partial: Path
) -> tuple[ModelAttention, SinkChoice]:
    """Check the arguments before the first pass, every edit included; gives the model's attention and the sinks' choice.

    Raises:
        InputError: a head, layer, factor, mass or position is out of place, or the model has dropout on.
        UnsupportedAttentionError: the model is not causal, or its back end cannot do an edit.
        ResultFileError: ``partial`` cannot be written.
    """
    if partial is not None:
        check_savable(partial)
    attention, rule = ModelAttention(model), sink_rule(sink)
    require_causal(attention)
    attention.require_no_dropout()
    if rule.kind == "detect":
        raise InputError(
            "a study needs the same sinks in all layers; choose them by position or token, not by detection"
        )
    choice = SinkChoice(rule)
    require_in_context(model, choice)
    for cell in cells:
        if cell.where == "sink" and cell.edit != "mean":
            intervention(model, cell, choice, {}, 0)
    return attention, choice


def require_positions(choice: SinkChoice, batches: TokenBatches) -> None:
    """Read the texts once where a sink's position may lie beyond one of them: better than to fail after hours.

    Raises:
        InputError: it does, or no text can be used.
    """
    assert choice.rule is not None
    if choice.rule.kind == "positions" and max(choice.rule.numbers) >= batches.min_length:
        for batch in batches:
            choice.use(batch.tokens, batch.mask)

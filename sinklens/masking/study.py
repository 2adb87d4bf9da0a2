"""Faithfulness: how much the loss changes when the terms that a metric ranks highest, or lowest, are removed."""

import functools
import itertools
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from tqdm.auto import tqdm

from sinklens.ablation.losses import SequenceLosses, sequence_losses
from sinklens.ablation.passes import provenance_of, require_causal
from sinklens.errors import InputError
from sinklens.interventions.recipe import require_n_bootstrap
from sinklens.masking.hooks import LayerHooks, RankMasking
from sinklens.masking.rule import MaskingRule, check_fractions, check_metrics, check_modes, masking_rule
from sinklens.masking.scores import METRICS, Metric
from sinklens.metrics.ranking import MODES, Ranks
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import Hook, LayerReader, hooked
from sinklens.models.environment import available_memory
from sinklens.models.frames import warn_once
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import TokenBatch, TokenBatches, as_batches
from sinklens.results.faithfulness import FaithfulnessResult
from sinklens.results.faithfulness_progress import Cell, FaithfulnessProgress
from sinklens.results.provenance import Provenance

Scores = Literal["running", "clean"]
# A few tokens show whether a layer decomposes.
_VERIFIED_LENGTH = 16
_BYTES_PER_RANK = 4


def faithfulness(
    model: Any,
    texts: Any,
    metrics: str | Sequence[str] = METRICS,
    fractions: float | Iterable[float] = (0.01, 0.05, 0.1, 0.2, 0.5),
    *,
    granularity: str = "pair",
    ranking: str = "signed",
    scores: str = "running",
    modes: str | Sequence[str] = MODES,
    layers: Iterable[int] | None = None,
    exempt: str | Iterable[str] = (),
    sink: Sink | SinkRule = "first",
    renormalize: bool = False,
    seed: int = 0,
    n_bootstrap: int = 1000,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: bool = True,
    resume: str | os.PathLike[str] | None = None,
    **tokenization: Any,
) -> FaithfulnessResult:
    """Does a metric find what matters? Rank by it, remove the terms ``A_ij v_j``, and measure the next-token loss.

    In every chosen layer ``z'_i = Σ_j keep_ij A_ij v_j`` (times the gate, where there is one). Of the ``n`` rankable terms
    of a row ``floor(fraction · n)`` go, the highest for comprehensiveness, the lowest for sufficiency; keys that a query
    does not see, and padding, are not ranked; equal scores are ordered by head, then key. One forward pass per batch, metric,
    mode and fraction, and one for the unmasked model. Loss is the mean next-token cross-entropy in nats over real tokens,
    computed in float32 from the logits (arXiv 2606.07604; rounding and order of ties ours).

    Args:
        model: a TransformerBridge or HookedTransformer with causal attention; it is not changed.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made; streamed, of any amount.
        metrics: of ``attention``, ``value_weighted``, ``output_normalized`` (by the head's output), ``intra`` and ``inter``
            (contribution weights within the head and within the layer) and ``random``.
        fractions: 0 to 1.
        granularity: ``"pair"`` ranks per query over (head, key), ``"edge"`` per (query, head) over keys, ``"token"`` per
            sequence over keys, by the mean over heads and the queries that see them.
        ranking: ``"signed"`` or ``"absolute"`` contributions: signed, the bottom is what opposes the output most.
        scores: ``"running"`` ranks by the layer's own tensors in the masked pass; ``"clean"`` by those of the unmasked
            pass, whose ranks are kept for a batch at a time: 2 to 4 bytes a layer, head, query and key.
        modes: ``"comprehensiveness"``, ``"sufficiency"``.
        layers: the model's own layer numbers; None for all.
        exempt: ``"sink"`` and ``"self"`` terms are neither ranked nor removed.
        sink: which positions are sinks, for ``exempt``.
        renormalize: whether what is left of a row is scaled to the row's former sum.
        seed: of the random metric and of resamples.
        n_bootstrap: resamples of the documents for 95 % intervals.
        context_length: the longest sequence; by default 128 for text, or the model's context where that is shorter.
        batch_size: sequences per batch.
        progress: whether to show a progress bar.
        resume: a file for what is finished. An existing one, of the same settings, is picked up again: no finished pass is
            repeated, also when metrics or fractions were added; one of other weights, or begun with another number of
            hooks on the model, is refused. :func:`sinklens.partial_faithfulness` reads it.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        A :class:`~sinklens.FaithfulnessResult`: ``to_dataframe``, ``aopc``, ``differences``.

    Raises:
        InputError: an argument or a text cannot be used as given, or ``resume`` belongs to another run; before the first
            pass where that can be known without reading files.
        UnsupportedAttentionError: the model is not causal, a layer does not decompose, or its pattern comes after the head
            outputs (the Bridge's adapters of OPT and GPT-J).
        ResultFileError: ``resume`` cannot be written or holds something else.
    """
    cells: list[Cell] = list(itertools.product(check_metrics(metrics), check_modes(modes), check_fractions(fractions)))
    rule = masking_rule(granularity, ranking, exempt, renormalize, seed)
    _require_settings(scores, n_bootstrap)
    attention = ModelAttention(model, layers)
    require_causal(attention)
    attention.require_no_dropout()
    batches = as_batches(model, texts, tokenization, {"context_length": context_length, "batch_size": batch_size})
    runner = MaskedPasses(attention, rule, sink_rule(sink), clean_scores=scores == "clean")
    # Weights are read bit by bit only where numbers of an earlier run may be taken for those of this one.
    known = {} if resume is None else {"parameters": attention.fingerprint, "hooks": attention.n_hooks}
    finished = FaithfulnessProgress(resume, {**runner.settings, **known}, check_metrics(metrics))
    try:
        runner.run_all(batches, cells, finished, progress)
    finally:
        finished.save()
    warn_once(attention.name, attention.frame)
    return finished.result(cells, runner.provenance(batches), n_bootstrap)


def _require_settings(scores: str, n_bootstrap: int) -> None:
    if scores not in get_args(Scores):
        raise InputError(f"scores is {scores!r}; expected 'running' or 'clean'")
    require_n_bootstrap(n_bootstrap)


_CONVENTIONS = ("granularity", "ranking", "scores", "exempt", "renormalize", "layers")


class MaskedPasses:
    """Runs the unmasked pass of a batch, and one masked pass for every cell that is not finished."""

    def __init__(self, attention: ModelAttention, rule: MaskingRule, sink: SinkRule, clean_scores: bool = False):
        self.attention, self.rule, self.clean_scores = attention, rule, clean_scores
        self.reader = LayerReader(attention, sink)
        # Weights stand still during a run. In half precision a layer's are copied to float32, and not all layers' are kept.
        keep = attention.dtype in ("float32", "float64")
        self.weights = functools.cache(self.reader.weights) if keep else self.reader.weights

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """All that numbers depend on, as JSON has it."""
        attention, rule = self.attention, self.rule
        return {
            "model": attention.name, "backend": attention.backend, "frame": attention.frame, "dtype": attention.dtype,
            "weights": attention.checksum, "layers": list(attention.layers), "granularity": rule.granularity,
            "ranking": rule.ranking, "scores": "clean" if self.clean_scores else "running", "exempt": list(rule.exempt),
            "sink": self.reader.sink.describe(), "renormalize": rule.renormalize, "seed": rule.seed,
        }  # fmt: skip

    def provenance(self, batches: TokenBatches) -> Provenance:
        """The model, the text so far, and how terms were ranked."""
        conventions = {name: self.settings[name] for name in _CONVENTIONS}
        return provenance_of(self.attention, batches, self.reader.sink.describe(), self.rule.seed, **conventions)

    def run_all(
        self, batches: TokenBatches, cells: Sequence[Cell], finished: FaithfulnessProgress, progress: bool
    ) -> None:
        """Measure what is not finished of every batch; each finished pass is handed to ``finished``."""
        with tqdm(disable=not progress, unit=" passes", desc=self.attention.name, leave=False) as bar:
            for number, batch in enumerate(batches):
                bar.total = None if batches.total is None else batches.total * (1 + len(cells))
                finished.start_batch(number, _checksum(batch))
                finished.provenance = self.provenance(batches).to_dict()
                self.run(number, batch, cells, finished, bar)

    def run(
        self, number: int, batch: TokenBatch, cells: Sequence[Cell], finished: FaithfulnessProgress, bar: Any
    ) -> None:
        """Measure what is not finished of a batch."""
        missing = finished.missing(number, cells)
        bar.update(len(cells) - len(missing))
        if missing or not finished.has_clean(number):
            self._verify(batch)
        if not finished.has_clean(number):
            finished.add_clean(number, _clean_sums(batch, self._losses(batch, [])))
        bar.update()
        for metric, group in itertools.groupby(missing, key=lambda cell: cell[0]):
            [known] = check_metrics(metric)
            places = self._clean_ranks(batch, known) if self.clean_scores else None
            for cell in group:
                finished.add(number, cell, self._masked(batch, known, cell, places))
                bar.update()

    def _verify(self, batch: TokenBatch) -> None:
        if not self.reader.identities:
            shown = slice(0, 1), slice(0, _VERIFIED_LENGTH)
            self.reader.read(batch.tokens[shown], batch.mask[shown], lambda view: None)

    def _losses(self, batch: TokenBatch, hooks: Sequence[Hook]) -> SequenceLosses:
        logits = run_masked(self.attention, batch, hooks)
        return sequence_losses(logits, batch.tokens, batch.mask)

    def _masked(self, batch: TokenBatch, metric: Metric, cell: Cell, places: Mapping[int, Ranks] | None) -> Tensor:
        _, mode, fraction = cell
        [how] = check_modes(mode)
        masking = RankMasking(self.reader, self.rule, metric, fraction, how, self.weights, places)
        masking.use(batch.tokens, batch.mask)
        losses = self._losses(batch, masking)
        # A masking that breaks the model costs without bound; NaN would stand for a pass that was not made.
        return torch.stack([losses.loss.nan_to_num(nan=torch.inf), masking.removed, masking.rankable])

    def _clean_ranks(self, batch: TokenBatch, metric: Metric) -> dict[int, Ranks]:
        """The places of all terms in an unmasked pass, by layer: one sort for all fractions and both modes."""
        self._require_memory(batch)
        places: dict[int, Ranks] = {}

        def keep(view: LayerAttention, z: Tensor) -> None:
            places[view.layer] = self.rule.ranks(view, metric)

        layers = LayerHooks.of_all(self.reader, keep, lambda: (batch.tokens, batch.mask), self.weights)
        run_masked(self.attention, batch, [hook for layer in layers for hook in layer.hooks()])
        return places

    def _require_memory(self, batch: TokenBatch) -> None:
        n_sequences, length = batch.tokens.shape
        pairs = len(self.attention.layers) * self.attention.model.cfg.n_heads * n_sequences * length**2
        free = available_memory(self.attention.device)
        if free is not None and pairs * _BYTES_PER_RANK > free:
            raise InputError(
                f"the ranks of a clean pass over {n_sequences} sequences of {length} tokens take "
                f"{pairs * _BYTES_PER_RANK / 1e9:.1f} GB, {free / 1e9:.1f} GB are free; use a smaller batch_size, "
                "fewer layers, or scores='running'"
            )


def run_masked(attention: ModelAttention, batch: TokenBatch, hooks: Sequence[Hook]) -> Tensor:
    """The logits of a batch under hooks that must fire once each; the model is as before afterwards.

    Raises:
        HookNotFiredError: a hook did not fire exactly once.
    """
    arguments = attention.mask_arguments(batch.mask)
    with torch.no_grad(), hooked(attention.model, hooks) as forward:
        return forward(batch.tokens.to(attention.device), return_type="logits", **arguments)


def _clean_sums(batch: TokenBatch, losses: SequenceLosses) -> Tensor:
    return torch.stack([losses.loss, losses.n_predicted.double(), torch.tensor(batch.documents).double()])


def _checksum(batch: TokenBatch) -> int:
    return zlib.crc32(batch.tokens.contiguous().numpy().tobytes() + batch.mask.contiguous().numpy().tobytes())

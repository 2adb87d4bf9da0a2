"""Oversmoothing: one layer at a time in exact arithmetic, and the whole model by intervention."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from sinklens.ablation.passes import provenance_of
from sinklens.analyzers.base import Setup
from sinklens.analyzers.smoothing import SmoothingAnalyzer, unusual
from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.interventions import densify_attention, intervene
from sinklens.interventions.recipe import Number, require_fraction
from sinklens.interventions.targets import choose, uneditable
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader, hooked
from sinklens.models.hook_names import RESIDUAL_AFTER
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import TokenBatch, as_batches
from sinklens.results.labels import describe_numbers
from sinklens.results.smoothing import DEPTH, DIAGONAL, PATHS, SmoothingResult

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def oversmoothing(
    model: Any,
    texts: Any,
    strengths: Iterable[Number] = STRENGTHS,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    depth: bool = True,
    progress: bool = True,
    **tokenization: Any,
) -> SmoothingResult:
    """Does dense attention make tokens more alike than sparse attention does? Measured, and predicted (arXiv 2605.08453).

    Mean pairwise cosine of token vectors before a layer's attention, ``r_i``, and after it,
    ``y_i = r_i + W_O Σ_j A_ij v_j``, with ``A`` replaced by ``(1-λ) I + λ U`` and by ``(1-λ) A + λ U`` in that layer alone,
    ``U`` uniform over the keys that a query sees. That is linear in ``A`` and exact, gates, biases, multipliers and norms
    behind attention included; in BERT, whose norm is of the sum, ``y`` is the sum before it. Beside it the closed form
    (:func:`sinklens.theory.predicted_cosine`), which of residual and value-output matrices counters smoothing, and the
    residual stream's cosine with the attention of all layers densified at once, by intervention.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made.
        strengths: ``λ``; 0 and 1 must be among them.
        layers: those that are measured; None for all. Depth edits all layers in any case.
        sink: left out of cosines: ``"first"``, ``"token:ID"``, positions, or ``"detect"``; nothing is, where
            there is none. A query still attends to it.
        depth: whether to run the densified model, a pass for every strength and path.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`, such as ``context_length`` and ``batch_size``.

    Returns:
        A :class:`~sinklens.SmoothingResult`.

    Raises:
        InputError: a strength, a layer or a text cannot be used as given, or no sequence has two tokens beside its sinks.
        UnsupportedAttentionError: a layer does not decompose, what it adds to the residual stream is no known function of
            its output, or the back end throws edits of the pattern away (then pass ``depth=False``).
    """
    steps = check_strengths(strengths)
    attention = ModelAttention(model, layers)
    attention.require_no_dropout()
    batches = as_batches(model, texts, tokenization)
    if depth:
        _require_editable(model)
    analyzer = SmoothingAnalyzer(attention, steps, depth)
    reader = LayerReader(attention, sink_rule(sink), analyzer.templates)
    analyzer.start(Setup(attention.layers, model.cfg.n_heads, attention.name))
    with tqdm(disable=not progress, unit=" passes", desc=attention.name, leave=False) as bar:
        per_batch = 1 + (2 * (len(steps) - 1) if depth else 0)
        for batch in batches:
            bar.total = None if batches.total is None else batches.total * per_batch
            analyzer.begin(batch)
            reader.read(batch.tokens, batch.mask, analyzer.update)
            bar.update()
            if depth:
                _measure_depth(analyzer, batch, bar.update)
    _require_pairs(analyzer)
    provenance = provenance_of(
        attention, batches, reader.sink.describe(), 0, causal=attention.is_causal, steps=unusual(analyzer.kinds)
    )
    return analyzer.result(provenance)


def check_strengths(strengths: Iterable[Number]) -> tuple[float, ...]:
    """Strengths in ascending order, each once.

    Raises:
        InputError: one is no number from 0 to 1, or an end is missing.

    Example:
        >>> check_strengths([1, 0, 0.5])
        (0.0, 0.5, 1.0)
    """
    if not isinstance(strengths, Iterable):
        raise InputError(f"strengths is {strengths!r}; expected numbers from 0 to 1 such as (0, 0.5, 1)")
    steps = tuple(sorted({require_fraction(strength, "a strength") for strength in strengths}))
    if not steps or (steps[0], steps[-1]) != (0.0, 1.0):
        raise InputError(
            f"strengths are {', '.join(f'{x:g}' for x in steps) or 'empty'}; 0 and 1 must be among them, between which "
            "dense attention is compared with the start of each path"
        )
    return steps


def _require_editable(model: Any) -> None:
    targets = choose(model, None, None)
    lost = uneditable(targets)
    if lost:
        attention = targets[0].attention
        raise UnsupportedAttentionError(
            f"{attention.name}, layer {describe_numbers(lost)}: {attention.backend} computes this attention inside the wrapped "
            "module and throws an edit of the pattern away, so the whole model cannot be densified; pass depth=False (on the "
            "command line --no-depth) for the layers one by one, which need no edit"
        )


def _require_pairs(analyzer: SmoothingAnalyzer) -> None:
    if bool(analyzer.values["after_cosine"].isnan().all()):
        raise InputError(
            "no sequence has two tokens with a residual beside its sinks, so there is no cosine; pass longer texts"
        )


def _measure_depth(analyzer: SmoothingAnalyzer, batch: TokenBatch, tick: Callable[[], object]) -> None:
    """The residual stream behind every block, with all layers' attention densified."""
    found = {(PATHS[1], 0.0): analyzer.clean_depth}
    for path in PATHS:
        for strength in analyzer.strengths:
            if strength == 1 and path != DIAGONAL:
                found[path, strength] = found[DIAGONAL, strength]  # both paths end in the same attention
            elif (path, strength) not in found:
                found[path, strength] = _densified_pass(analyzer, batch, path, strength)
                tick()
    for index, layer in enumerate(analyzer.layers):
        cells = [[torch.stack(found[path, strength][layer], -1) for strength in analyzer.strengths] for path in PATHS]
        grid = torch.stack([torch.stack(row, 1) for row in cells], 1)
        analyzer.add(index, {DEPTH: grid[..., 0], f"{DEPTH}_with_sink": grid[..., 1]})


def _densified_pass(
    analyzer: SmoothingAnalyzer, batch: TokenBatch, path: str, strength: float
) -> dict[int, tuple[Tensor, Tensor]]:
    attention, found = analyzer.attention, {}

    def keep(layer: int) -> Callable[..., None]:
        def look(residual: Tensor, hook: Any) -> None:
            found[layer] = analyzer.depth_cosines(layer, residual.detach())

        return look

    base = "identity" if path == DIAGONAL else "attention"
    edit = densify_attention(attention.model, strength, base=base, attention_mask=batch.mask)
    looks = [(str(attention.hook(RESIDUAL_AFTER, layer)), keep(layer)) for layer in attention.layers]
    # A sequence of one token has no other attention than its own, and is not changed.
    edited = intervene(attention.model, edit, require_effect=False)
    with edited, torch.no_grad(), hooked(attention.model, looks) as forward:
        forward(batch.tokens.to(attention.device), return_type=None, **attention.mask_arguments(batch.mask))
    return found

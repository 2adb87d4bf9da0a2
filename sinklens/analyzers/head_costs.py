"""Head costs: norms of ``W_QK`` and ``W_VO``, set against scores, achieved margins and least costs on own embeddings."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from sinklens.analyzers.documents import DocumentsAnalyzer
from sinklens.analyzers.profile import ProfileAnalyzer
from sinklens.analyzers.run import run
from sinklens.axes import Embeddings, QueryKeys
from sinklens.errors import ConvergenceError, InputError
from sinklens.metrics.costs import pattern_margins, product_norms
from sinklens.metrics.patterns import KINDS
from sinklens.metrics.values import sink_mask
from sinklens.models.attention import ModelAttention
from sinklens.models.bilinear import CAPTURED, BilinearMaps, bilinear_maps, unestablished
from sinklens.models.capture import LayerReader
from sinklens.models.checks import check_prompt, read_prompt
from sinklens.models.frames import warn_once
from sinklens.models.hook_names import ATTENTION_INPUT
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import TokenBatch
from sinklens.results.head_costs import (
    COSTS,
    FRAMES_OF_WEIGHTS,
    MAPS,
    NORMS_OF_HEADS,
    PATTERNS,
    SOLVED_NORMS,
    HeadCosts,
    HeadMargins,
    LeastCosts,
    SpanCosts,
    cost_name,
)
from sinklens.results.head_profile import QUANTITIES, HeadProfile, KindThresholds
from sinklens.results.labels import describe_numbers, whole_number
from sinklens.results.provenance import Provenance
from sinklens.theory.arrays import checked_count, checked_positive
from sinklens.theory.least_norm import least_norm
from sinklens.theory.patterns import ScorePattern

DEFAULT_EMBEDDING_LAYERS = 5
SOLVER_TOLERANCE = 1e-3
SPAN_TOLERANCE = 1e-6  # below this share of the largest, a direction of float32 embeddings is rounding error


class Sample(NamedTuple):
    """What a layer's attention reads of one document, and what its queries see."""

    layer: int
    document: int
    X: Embeddings
    visible: QueryKeys
    sink: int


class MarginsAnalyzer(DocumentsAnalyzer):
    """Measures :class:`~sinklens.results.head_costs.HeadMargins`, and keeps what attention reads for least costs.

    Args:
        n_tokens: only the first so many tokens of every sequence count.
        sampled_layers: whose attention input is kept.
        n_sampled: of so many documents.

    Example:
        >>> MarginsAnalyzer(n_tokens=16).n_tokens
        16
    """

    kept = HeadMargins
    hooks = (ATTENTION_INPUT,)

    def __init__(self, n_tokens: int = 64, sampled_layers: Sequence[int] = (), n_sampled: int = 4):
        self.n_tokens = n_tokens
        self.sampled_layers = tuple(sampled_layers)
        self.n_sampled = n_sampled
        self.samples: dict[int, list[Sample]] = {}
        self.unknown: dict[int, str] = {}

    def begin(self, batch: TokenBatch) -> None:
        """Remember which document each row belongs to; batches are sorted by length."""
        super().begin(batch)
        self._batch = batch.documents

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        rows = slice(self.n_tokens)
        pattern, visible = attention.pattern[:, :, rows, rows], attention.visible[:, rows, rows]
        is_sink = sink_mask(attention.sink, attention.mask.shape[-1])[:, rows]
        real = attention.mask[:, rows]
        itself = torch.eye(visible.shape[-1], dtype=torch.bool, device=visible.device)
        # The sink's own query attends to itself whatever the pattern is; so does the first query.
        queries = {"sink": attention.queries[:, rows], "diagonal": real}
        targets = {"sink": is_sink.unsqueeze(1).expand_as(visible), "diagonal": itself.expand_as(visible)}
        for name in PATTERNS:
            self.add(attention.index, _figures(name, pattern, visible, targets[name], queries[name]))
        if attention.layer in self.sampled_layers:
            self._sample(attention)

    def _sample(self, attention: LayerAttention) -> None:
        if attention.input_failure is not None:
            self.unknown[attention.layer] = attention.input_failure
            return
        kept = {sample.document: sample for sample in self.samples.pop(attention.layer, [])}
        for row, document in enumerate(self._batch):
            if document not in kept:
                kept[document] = self._of_row(attention, row, document)
        # Batches come by length: the first documents are the ones with the least numbers among all that came.
        self.samples[attention.layer] = [kept[document] for document in sorted(kept)[: self.n_sampled]]

    def _of_row(self, attention: LayerAttention, row: int, document: int) -> Sample:
        rows = attention.mask[row].nonzero()[: self.n_tokens, 0]
        sinks = [int(sink) for sink in attention.sink[row] if 0 <= sink < self.n_tokens]
        visible = attention.visible[row][rows][:, rows].cpu()
        X = attention.attention_input[row][rows].cpu().double()
        return Sample(attention.layer, document, X, visible, sinks[0] if sinks else -1)

    def result(self, provenance: Provenance) -> HeadMargins:
        """The margins of every document."""
        return HeadMargins(self.values, self.layers, provenance)


def _figures(name: str, pattern: Tensor, visible: Tensor, target: Tensor, queries: Tensor) -> dict[str, Tensor]:
    """Median and least margin, and the share of queries with a positive one, ``[batch, head]``."""
    others = visible & ~target
    beaten, own = pattern * others.unsqueeze(1), (pattern * target.unsqueeze(1)).sum(-1)
    counted = (queries & others.any(-1) & (visible & target).any(-1)).unsqueeze(1)
    margins = pattern_margins(own, beaten)
    counted = counted.to(margins.device)
    margins = margins.masked_fill(~counted, torch.nan)
    least = margins.nan_to_num(nan=torch.inf).amin(-1)
    holds = ((margins > 0) & counted).sum(-1, dtype=torch.float64) / counted.sum(-1)
    return {
        f"{name}_margin": margins.nanquantile(0.5, dim=-1),
        f"{name}_margin_least": least.masked_fill(least.isinf(), torch.nan),
        f"{name}_share": holds,
    }


def head_costs(
    model: Any,
    texts: Any = None,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    margin: float = 1.0,
    embedding_layers: Iterable[int] | None = None,
    embedding_documents: int = 4,
    embedding_tokens: int = 64,
    context_length: int | None = None,
    batch_size: int = 8,
    thresholds: KindThresholds | None = None,
    progress: bool = True,
    **tokenization: Any,
) -> HeadCosts:
    """What every head's maps cost: norms of ``W_QK`` and ``W_VO``, and with texts what they are spent on (arXiv 2605.08453).

    Norms come from the factors, by QR, and never need a ``d_model x d_model`` matrix. ``W_QK = W_Q W_Kᵀ`` and ``W_VO = W_V
    W_O`` are the raw weights' products, without the factor on scores (``scale``, usually ``1/√d_head``); under
    grouped-query attention the key and value of the group. ``effective_`` names have the gain of the norm before attention
    folded in: the maps of the normalised residual stream. Rotary positions are left out: ``W_QK`` is the map at relative
    position 0. Before they count, weights are compared with the hooked queries, keys, values and scores on a short prompt;
    what cannot be established (a norm of queries and keys, a gate, latent attention) is NaN, with its reason in
    ``refused``.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes; None measures the weights alone.
        layers: the model's own layer numbers; None for all.
        sink: how sinks are chosen (:func:`sinklens.sink_rule`). Of several in a sequence, heads' margins are those of their
            joint attention, least costs those of the first.
        margin: in score units, above 0, that least costs are for; they are proportional to it.
        embedding_layers: where least costs are solved for: seconds for each layer and document. None for five layers spread
            over the model, an empty list for none.
        embedding_documents: of so many documents, the first ones.
        embedding_tokens: of the first so many tokens of each, at most 512; the heads' margins are of these too.
        context_length: the longest sequence of the head profile.
        batch_size: sequences per batch.
        thresholds: of the pattern kinds.
        progress: whether to show progress bars.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        A :class:`~sinklens.results.head_costs.HeadCosts`.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given.
        HookNotFiredError: a hook did not fire exactly once.
        UnsupportedAttentionError: with texts, a layer does not decompose into attention times values.
    """
    checked_positive("margin", margin)
    for name, value in (("embedding_documents", embedding_documents), ("embedding_tokens", embedding_tokens)):
        checked_count(name, value, 1)
    attention = ModelAttention(model, layers)
    solved = _embedding_layers(attention.layers, embedding_layers)
    rule = sink_rule(sink)
    weights = _WeightNorms(attention, solved if texts is not None else ())
    weights.measure(progress)
    warn_once(attention.name, attention.frame)
    conventions = {"margin": margin, "embedding_tokens": embedding_tokens}
    source = attention.provenance(rule.describe(), conventions=conventions)
    costs = HeadCosts(weights.norms, weights.scale, attention.layers, source, tuple(sorted(weights.refused)))
    if texts is None:
        return costs
    profiler = ProfileAnalyzer(thresholds=thresholds)
    analyzer = MarginsAnalyzer(embedding_tokens, solved, embedding_documents)
    arguments: dict[str, Any] = {"context_length": context_length, "batch_size": batch_size, **tokenization}
    profile, margins = run(
        model, texts, [profiler, analyzer], layers=attention.layers, sink=rule, progress=progress, **arguments
    )
    costs = _with_scores(costs, profile, margins, analyzer)
    return _with_least_costs(costs, analyzer.samples, weights.factors, margin, progress)


def _embedding_layers(layers: tuple[int, ...], chosen: Iterable[int] | None) -> tuple[int, ...]:
    if chosen is None:
        places = torch.linspace(0, len(layers) - 1, DEFAULT_EMBEDDING_LAYERS).round().long().unique()
        return tuple(layers[place] for place in places.tolist())
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        raise InputError(f"embedding_layers is {chosen!r}; expected a list of layer numbers, or None for a few of them")
    numbers = [whole_number(layer) for layer in chosen]
    for given in numbers:
        if given not in layers:
            raise InputError(f"embedding_layers has no layer {given!r}; the layers here are {describe_numbers(layers)}")
    return tuple(sorted({number for number in numbers if number is not None}))


class _WeightNorms:
    """Measures the weights on a short prompt, layer by layer; ``factors`` keeps ``W_Q`` and ``W_K`` of the layers asked for."""

    def __init__(self, attention: ModelAttention, kept: Sequence[int]):
        self.attention, self.kept = attention, kept
        n_layers, n_heads = len(attention.layers), int(attention.model.cfg.n_heads)
        self.norms = {name: torch.full((n_layers, n_heads), torch.nan, dtype=torch.float64) for name in COSTS}
        self.scale = torch.full((n_layers,), torch.nan, dtype=torch.float64)
        self.refused: list[tuple[int, str, str]] = []
        self.factors: dict[int, tuple[Tensor, Tensor]] = {}
        self.seen: set[int] = set()

    def measure(self, progress: bool) -> None:
        """Run the prompt."""
        attention = self.attention
        attention.require_no_dropout()
        with tqdm(
            total=len(attention.layers), disable=not progress, unit=" layers", desc="norms of the weights", leave=False
        ) as bar:
            failed: dict[int, str] = {}  # such a layer is handed over all the same

            def receive(view: LayerAttention) -> None:
                why = failed.get(view.layer)
                self.keep(view.layer, bilinear_maps(attention, view) if why is None else unestablished(why))
                bar.update()

            reader = LayerReader(attention, sink_rule("first"), CAPTURED, on_failure=failed.setdefault)
            read_prompt(reader, check_prompt(attention.model), receive)
            for layer in failed.keys() - self.seen:  # of another layout, and so not handed over
                self.keep(layer, unestablished(failed[layer]))

    def keep(self, layer: int, maps: BilinearMaps) -> None:
        """Take in one layer's maps."""
        self.seen.add(layer)
        row = self.attention.layers.index(layer)
        self.scale[row] = maps.scale
        for name, value in _norms_of(maps).items():
            self.norms[name][row] = value.cpu()
        self.refused += [(layer, what, reason) for what, reason in maps.refused.items()]
        if layer in self.kept and maps.W_Q is not None and maps.W_K is not None:
            self.factors[layer] = (maps.W_Q.cpu(), maps.W_K.cpu())


def _norms_of(maps: BilinearMaps) -> dict[str, Tensor]:
    """By name, ``[head]``: the weights' own, and with the norm's gain on whatever reads the residual stream."""
    found: dict[str, Tensor] = {}
    for frame in FRAMES_OF_WEIGHTS:
        if frame == "effective" and maps.gain is None:
            continue
        gain = 1.0 if frame == "weights" else torch.as_tensor(maps.gain).unsqueeze(-1)
        # What W_VO writes is the residual stream itself: only its reading side has the gain.
        pairs = {
            "qk": None if maps.W_Q is None or maps.W_K is None else (maps.W_Q * gain, maps.W_K * gain),
            "vo": None if maps.W_V is None or maps.W_O is None else (maps.W_V * gain, maps.W_O),
        }
        for of in MAPS:
            if (pair := pairs[of]) is not None:
                values = product_norms(*pair)
                found |= {cost_name(of, norm, frame): getattr(values, norm) for norm in NORMS_OF_HEADS}
    return found


def _with_scores(costs: HeadCosts, profile: HeadProfile, margins: HeadMargins, analyzer: MarginsAnalyzer) -> HeadCosts:
    kinds = torch.tensor([[KINDS.index(kind) for kind in row] for row in profile.kind])
    thresholds = dataclasses.asdict(profile.thresholds)
    conventions = {**profile.provenance.conventions, **costs.provenance.conventions, **thresholds}
    source = dataclasses.replace(profile.provenance, conventions=conventions)
    unknown = [(layer, "least costs", reason) for layer, reason in analyzer.unknown.items()]
    return dataclasses.replace(
        costs,
        provenance=source,
        refused=(*costs.refused, *unknown),
        scores={name: getattr(profile, name).double() for name in QUANTITIES},
        kinds=kinds,
        margins=dataclasses.replace(margins, provenance=source),
    )


def _with_least_costs(
    costs: HeadCosts,
    samples: Mapping[int, list[Sample]],
    factors: dict[int, tuple[Tensor, Tensor]],
    margin: float,
    progress: bool,
) -> HeadCosts:
    """Solved for every sampled document of every sampled layer whose scores are a multiple of ``q · k``."""
    usable = [sample for layer in sorted(factors) for sample in samples.get(layer, [])]
    if not usable:
        return costs
    scales = dict(zip(costs.layers, costs.scale.tolist(), strict=True))
    least: dict[int, list[dict[str, float]]] = {}
    spent: dict[int, list[dict[str, Tensor]]] = {}
    with tqdm(usable, disable=not progress, unit=" documents", desc="least costs", leave=False) as bar:
        for sample in bar:
            least.setdefault(sample.layer, []).append(_least_of(sample, margin / scales[sample.layer]))
            spent.setdefault(sample.layer, []).append(_span_norms(sample.X, *factors[sample.layer]))
    layers = tuple(sorted(least))
    solved = {
        name: torch.tensor([[row[name] for row in least[layer]] for layer in layers], dtype=torch.float64)
        for name in least[layers[0]][0]
    }
    spans = {
        norm: torch.stack([torch.stack([row[norm] for row in spent[layer]], -1) for layer in layers])
        for norm in SOLVED_NORMS
    }
    source = costs.provenance
    return dataclasses.replace(costs, least=LeastCosts(solved, layers, source), spans=SpanCosts(spans, layers, source))


def _span_norms(X: Embeddings, W_Q: Tensor, W_K: Tensor) -> dict[str, Tensor]:
    """Norms of every head's ``W_QK`` between the tokens at hand, ``[head]``: what it does to other vectors is left out."""
    directions, sizes, _ = torch.linalg.svd(X.mT, full_matrices=False)
    basis = directions[:, sizes > sizes.max() * SPAN_TOLERANCE].mT
    norms = product_norms(basis @ W_Q.double(), basis @ W_K.double())
    return {norm: getattr(norms, norm) for norm in SOLVED_NORMS}


def _least_of(sample: Sample, margin: float) -> dict[str, float]:
    """Least costs of one document; NaN where none exists, or the solver did not find it to its tolerance."""
    found: dict[str, float] = {}
    for name in PATTERNS:
        pattern = _score_pattern(sample, name)
        for norm in SOLVED_NORMS:
            found[f"{name}_{norm}"] = _solved(sample.X, pattern, norm, margin)
        possible = found[f"{name}_frobenius"]
        found[f"{name}_possible"] = torch.nan if possible != possible else float(possible < torch.inf)
    for norm in SOLVED_NORMS:
        sink, diagonal = (found[f"{name}_{norm}"] for name in PATTERNS)
        found[f"ratio_{norm}"] = sink / diagonal if sink < torch.inf else torch.nan
    return {name: torch.nan if value == torch.inf else value for name, value in found.items()}


def _score_pattern(sample: Sample, name: str) -> ScorePattern:
    """The pattern as constraints on what each query of the document sees."""
    n_tokens = len(sample.X)
    positions = torch.arange(n_tokens)
    target = positions if name == "diagonal" else torch.full_like(positions, sample.sink)
    reachable = (target >= 0) & sample.visible[positions, target.clamp(min=0)]
    if name == "sink":
        reachable &= positions != sample.sink
    others = sample.visible & reachable.unsqueeze(1) & (positions != target.unsqueeze(1))
    return ScorePattern(torch.where(reachable, target, -1), others)


def _solved(X: Embeddings, pattern: ScorePattern, norm: str, margin: float) -> float:
    if pattern.n_constraints == 0:
        return torch.nan
    try:
        return least_norm(X, pattern, norm, margin, tolerance=SOLVER_TOLERANCE).cost
    except ConvergenceError:
        return torch.nan

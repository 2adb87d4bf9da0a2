"""Sink geometry, measured: cosines, margins, witnesses and massive activations, before and behind the norm of every layer."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinklens.analyzers.base import Setup
from sinklens.analyzers.documents import DocumentsAnalyzer
from sinklens.analyzers.run import run
from sinklens.models.hook_names import ATTENTION_INPUT, RESIDUAL_BEFORE
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule
from sinklens.results.geometry import DIMENSION, SinkGeometry
from sinklens.results.provenance import Provenance
from sinklens.theory.arrays import checked_positive
from sinklens.theory.collapse import sink_cosines
from sinklens.theory.hulls import numerical_rank
from sinklens.theory.patterns import ScorePattern
from sinklens.theory.representability import massive_activations, sink_representation

_COSINES = {"cosine_mean": "mean", "cosine_max": "max", "opposed_share": "opposed_share"}
_MARGINS = ("query_margin", "key_margin", "witness_margin", "witness_norm", "anti_alignment_margin")
_REST = ("representable", "anti_aligned", "rank_share", "massive_count", "massive_on_sink", "largest_ratio")
QUANTITIES = (*_COSINES, *(f"{name}_without" for name in _COSINES), *_MARGINS, *_REST)


class GeometryAnalyzer(DocumentsAnalyzer):
    """Measures a :class:`~sinklens.SinkGeometry`.

    Args:
        massive_magnitude: what a massive activation must exceed.
        massive_ratio: of which multiple of the median magnitude it must exceed too.

    Raises:
        InputError: a threshold is no positive number.

    Example:
        >>> GeometryAnalyzer(massive_ratio=500.0).massive
        (100.0, 500.0)
    """

    kept = SinkGeometry
    hooks = (RESIDUAL_BEFORE, ATTENTION_INPUT)

    def __init__(self, massive_magnitude: float = 100.0, massive_ratio: float = 1000.0):
        self.massive = (
            checked_positive("massive_magnitude", massive_magnitude),
            checked_positive("massive_ratio", massive_ratio),
        )

    def start(self, setup: Setup) -> None:
        """Start with no document."""
        super().start(setup)
        self._dimensions: list[list[list[set[int]]]] = [[] for _ in setup.layers]  # of each layer, sequence and space
        self._unknown: dict[str, str] = {}

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch, a sequence at a time."""
        spaces: list[Tensor | None] = [attention.captured[RESIDUAL_BEFORE], None]
        if attention.input_failure is None:
            spaces[1] = attention.attention_input
        else:
            self._unknown[str(attention.layer)] = attention.input_failure
        figures = torch.full((len(QUANTITIES), len(attention.tokens), len(spaces)), float("nan"), dtype=torch.float64)
        for row in range(len(attention.tokens)):
            figures[:, row], dimensions = self._sequence(attention, row, spaces)
            self._dimensions[attention.index].append(dimensions)
        self.add(attention.index, dict(zip(QUANTITIES, figures, strict=True)))

    def _sequence(
        self, attention: LayerAttention, row: int, spaces: list[Tensor | None]
    ) -> tuple[Tensor, list[set[int]]]:
        """The figures of one sequence ``[quantity, space]``, and its massive dimensions in each space."""
        pattern = _pattern(attention, row)
        real = attention.mask[row].cpu()
        dimensions: list[set[int]] = [set() for _ in spaces]
        found = torch.full((len(QUANTITIES), len(spaces)), float("nan"), dtype=torch.float64)
        for column, space in enumerate(spaces):
            if space is None or pattern is None:
                continue
            rows = space[row].detach().cpu()[real].float()
            massive = massive_activations(rows, *self.massive)
            dimensions[column] = set(massive.any(0).nonzero()[:, 0].tolist())
            one = _figures(rows, pattern, massive, sorted(dimensions[0]))
            found[:, column] = torch.tensor([one[name] for name in QUANTITIES], dtype=torch.float64)
        return found, dimensions

    def result(self, provenance: Provenance) -> SinkGeometry:
        """The geometry over all batches.

        Raises:
            InputError: no sequence has a sink with a query after it, so that nothing was measured.
        """
        values = self.found("cosine_mean", provenance, "query")
        magnitude, ratio = self.massive
        conventions = {"massive_magnitude": magnitude, "massive_ratio": ratio, "unknown_inputs": self._unknown}
        provenance = dataclasses.replace(provenance, conventions=conventions)
        return SinkGeometry(values | self._massive_shares(values["cosine_mean"]), self.layers, provenance)

    def _massive_shares(self, defined: Tensor) -> dict[str, Tensor]:
        """By dimension that is ever massive, in which share of a document's sequences it is ``[layer, space, document]``."""
        every = sorted(set().union(*(each for rows in self._dimensions for spaces in rows for each in spaces)))
        documents = torch.tensor(self._documents)
        measured = ~torch.stack([torch.cat(rows) for rows in self._rows["massive_count"]]).isnan()
        shares = {}
        for dimension in every:
            is_massive = [[[float(dimension in each) for each in row] for row in rows] for rows in self._dimensions]
            counted = torch.tensor(is_massive, dtype=torch.float64).where(measured, float("nan"))
            share = self._by_document(counted, documents).movedim(1, -1)
            shares[f"{DIMENSION}{dimension}"] = share.where(~defined.isnan(), float("nan"))
        return shares


def _pattern(attention: LayerAttention, row: int) -> ScorePattern | None:
    """The constraints of a sink in one sequence, over its real tokens; None where there is none."""
    sink, real = int(attention.sink[row, 0]) if attention.sink.shape[1] else -1, attention.mask[row]
    others = attention.visible[row] & attention.queries[row].unsqueeze(1)
    if sink < 0:
        return None
    others = others.index_fill(1, torch.tensor([sink], device=others.device), False)[real][:, real].cpu()
    at = int(real[:sink].sum())
    # A query that sees no other key has nothing to prefer.
    return ScorePattern(torch.where(others.any(1), at, -1), others) if bool(others.any()) else None


def _figures(rows: Tensor, pattern: ScorePattern, massive: Tensor, left_out: list[int]) -> dict[str, float]:
    sink = int(pattern.target.max())
    found = sink_representation(rows, pattern)
    sizes = rows.abs()
    count = int(massive.sum())
    kept = torch.ones(rows.shape[1], dtype=torch.bool).index_fill(0, torch.tensor(left_out, dtype=torch.long), False)
    with_all, without = (_cosines(vectors, sink) for vectors in (rows, rows[:, kept]))
    return {
        **with_all,
        **{f"{name}_without": value for name, value in without.items()},
        **{name: getattr(found, name) for name in _MARGINS},
        "representable": float(found.representable),
        "anti_aligned": float(found.anti_alignment_margin > 0 and _opposed(rows, pattern)),
        "rank_share": numerical_rank(rows) / len(rows),
        "massive_count": float(count),
        "massive_on_sink": int(massive[sink].sum()) / count if count else float("nan"),
        "largest_ratio": (sizes.max() / float(np.median(sizes.numpy()))).item(),
    }


def _opposed(rows: Tensor, pattern: ScorePattern) -> bool:
    """Whether all constrained queries point away from the sink: ``-x_s x_sᵀ`` also serves a short sink that they point to."""
    return bool((rows[pattern.target >= 0].double() @ rows[int(pattern.target.max())].double() < 0).all())


def _cosines(rows: Tensor, sink: int) -> dict[str, float]:
    if not rows.shape[1] or not rows[sink].any():
        return dict.fromkeys(_COSINES, float("nan"))
    cosines = sink_cosines(rows, sink)
    return {name: getattr(cosines, attribute) for name, attribute in _COSINES.items()}


def sink_geometry(
    model: Any,
    texts: Any,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    massive_magnitude: float = 100.0,
    massive_ratio: float = 1000.0,
    progress: bool = True,
    **tokenization: Any,
) -> SinkGeometry:
    """Is a sink representable on what each layer's attention reads, and is its token anti-aligned with the others?

    Both on the residual stream before the layer and on attention's real input behind the norm (verified on each layer:
    ``n W_V + b_V`` must be its values). The verdict is exact and comes with its witness, plugged in. Where a sequence has
    no more tokens than the model has dimensions, tokens are mostly independent and everything is representable: the margins
    then say how easily, and ``context_length`` makes the test harder.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes.
        layers: the model's own layer numbers; None for all with a readable attention.
        sink: as in :func:`sinklens.run`; of several sinks in a sequence the first.
        massive_magnitude: a massive activation is larger than this (Sun et al. 2024).
        massive_ratio: and than this multiple of the median magnitude of the layer's activations in the sequence.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`, such as ``context_length`` and ``batch_size``.

    Returns:
        :class:`SinkGeometry`.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given; no sequence has a sink and a query after it.
        UnsupportedAttentionError: a layer does not decompose into attention times values.

    Example:
        >>> import inspect
        >>> list(inspect.signature(sink_geometry).parameters)[:4]
        ['model', 'texts', 'layers', 'sink']
    """
    analyzer = GeometryAnalyzer(massive_magnitude, massive_ratio)
    return run(model, texts, [analyzer], layers=layers, sink=sink, progress=progress, **tokenization)[0]

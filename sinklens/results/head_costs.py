"""What every head's score and value-output maps cost, beside what its pattern and its own embeddings ask for."""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.axes import LayerHead
from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS
from sinklens.results.bootstrap import percentile_interval
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.head_ranks import rank_correlations
from sinklens.results.labels import describe_numbers, known_name, layer_index
from sinklens.results.per_document import PerDocument, interval_of_mean
from sinklens.results.provenance import Provenance

MAPS = ("qk", "vo")
NORMS_OF_HEADS = ("frobenius", "nuclear", "spectral", "participation")
FRAMES_OF_WEIGHTS = ("weights", "effective")
# The four that answer to the theory's costs, and the scores that they are set against.
MAIN_COSTS = ("qk_frobenius", "qk_nuclear", "vo_frobenius", "vo_nuclear")
MAIN_SCORES = ("sink_mass", "self_mass", "previous_mass", "entropy", "sink_value_ratio")
PATTERNS = ("sink", "diagonal")
SOLVED_NORMS = ("frobenius", "nuclear")
N_BOOTSTRAP = 1000


def cost_name(of: str, norm: str, frame: str = "weights") -> str:
    """The name of a cost: ``qk_nuclear``, or with the norm's gain folded in ``effective_qk_nuclear``.

    Example:
        >>> cost_name("qk", "nuclear"), cost_name("vo", "frobenius", "effective")
        ('qk_nuclear', 'effective_vo_frobenius')
    """
    return f"{of}_{norm}" if frame == "weights" else f"{frame}_{of}_{norm}"


COSTS = tuple(
    cost_name(of, norm, frame) for frame, of, norm in itertools.product(FRAMES_OF_WEIGHTS, MAPS, NORMS_OF_HEADS)
)


@dataclass(frozen=True, repr=False)
class HeadMargins(PerDocument):
    """By how much the scores of every head favour a pattern, over the first tokens of every document; in score units.

    For ``sink`` and ``diagonal``: ``_margin``, the median over queries of ``log A_i,t(i) - max_j log A_ij``;
    ``_margin_least``, the least, which is what a pattern with that margin means in the theory; ``_share``, the share of
    queries with a positive one.
    """

    AXES: ClassVar[tuple[str, ...]] = ("layer", "head")


@dataclass(frozen=True, repr=False)
class LeastCosts(PerDocument):
    """The least norm of ``W_QK`` for a margin of 1 on what each layer's attention reads, document by document.

    ``sink_frobenius``, ``diagonal_nuclear`` and so on; NaN where no matrix at all realises the pattern.
    ``sink_possible``, ``diagonal_possible``: 1 where one does, else 0 (equal embeddings have no diagonal).
    ``ratio_frobenius``, ``ratio_nuclear``: sink over diagonal; 0 where only the sink is possible.
    """

    def sink_over_diagonal(self, norm: str = "nuclear") -> tuple[float, float, float]:
        """Least cost of a sink over that of a diagonal, mean over layers: mean over documents, and its 95 % interval.

        Raises:
            InputError: there is no such norm.
        """
        by_document = self.documents(f"ratio_{norm}").nanmean(0, keepdim=True)
        low, high = interval_of_mean(by_document, self.weights)[0].tolist()
        return by_document.nanmean().item(), low, high


@dataclass(frozen=True, repr=False)
class SpanCosts(PerDocument):
    """``frobenius`` and ``nuclear`` norm of every head's ``W_QK`` between the vectors of each document alone.

    What the head pays for its scores on these tokens; what it does to all other vectors is left out. This is what a least
    cost on the same tokens is to be compared with.
    """

    AXES: ClassVar[tuple[str, ...]] = ("layer", "head")


@dataclass(frozen=True, repr=False)
class HeadCosts:
    """Norms of ``W_QK`` and ``W_VO`` of every head; with texts also scores, margins and least costs beside them.

    Made by :func:`sinklens.head_costs`. NaN where a norm cannot be established; :attr:`refused` says why.

    Attributes:
        norms: by name (:data:`COSTS`), ``[layer, head]`` float64.
        scale: by which the model multiplies ``q · k``, measured ``[layer]``; NaN where scores are no multiple of it.
        layers: the model's own numbers of the layers.
        provenance: model, text, versions, conventions.
        refused: ``(layer, what, reason)`` for every norm that is NaN; what is ``qk``, ``vo`` or ``effective``.
        scores: quantities of the head profile, ``[layer, head]``; empty without texts.
        kinds: pattern kind of every head as an index into :data:`~sinklens.metrics.patterns.KINDS`; None without texts.
        margins: what the heads' own scores achieve; None without texts.
        least: what the patterns cost at least on the layers' own embeddings; None without texts.
        spans: what the heads of those layers pay on the same embeddings; None without texts.
    """

    norms: Mapping[str, Float[Tensor, "layer head"]]
    scale: Float[Tensor, " layer"]
    layers: tuple[int, ...]
    provenance: Provenance
    refused: tuple[tuple[int, str, str], ...] = ()
    scores: Mapping[str, Float[Tensor, "layer head"]] = dataclasses.field(default_factory=dict)
    kinds: Int[Tensor, "layer head"] | None = None
    margins: HeadMargins | None = None
    least: LeastCosts | None = None
    spans: SpanCosts | None = None

    @property
    def n_heads(self) -> int:
        """The number of query heads."""
        return next(iter(self.norms.values())).shape[1]

    @property
    def kind(self) -> list[list[str]]:
        """Pattern kind of every head, ``[layer][head]``; empty without texts."""
        return [] if self.kinds is None else [[KINDS[kind] for kind in row] for row in self.kinds.tolist()]

    def cost(self, name: str) -> LayerHead:
        """A norm of every head ``[layer, head]``, in units of the weights.

        Raises:
            InputError: there is no such norm.
        """
        return self.norms[known_name(name, self.norms, "cost")]

    def score(self, name: str) -> LayerHead:
        """A quantity of the head profile ``[layer, head]``.

        Raises:
            InputError: there is no such quantity, or no text was given.
        """
        if not self.scores:
            raise InputError("these costs were measured without a text; pass texts to sinklens.head_costs for scores")
        return self.scores[known_name(name, self.scores, "score")]

    def correlations(
        self,
        costs: Sequence[str] = MAIN_COSTS,
        scores: Sequence[str] = MAIN_SCORES,
        *,
        within_layers: bool = False,
        n_bootstrap: int = N_BOOTSTRAP,
    ) -> pd.DataFrame:
        """Spearman rank correlation of every cost with every score, with 95 % intervals from resampling heads (ours).

        Heads of one layer share their input and, grouped, their keys: intervals over heads are narrower than those over
        models would be.

        Args:
            costs: names of :attr:`norms`.
            scores: names of :attr:`scores`.
            within_layers: correlate what ranks differ from their layer's mean: depth, which moves both, is then out.
            n_bootstrap: resamples of the heads.

        Returns:
            One row per pair: ``cost``, ``score``, ``spearman``, ``low``, ``high``, ``n_heads``. NaN where fewer than three
            heads have both, or one of them is constant.

        Raises:
            InputError: there is no such cost or score.
        """
        layer = np.repeat(np.arange(len(self.layers)), self.n_heads) if within_layers else None
        rows: list[dict[str, Any]] = []
        for cost, score in itertools.product(costs, scores):
            x, y = (column.double().flatten().numpy() for column in (self.cost(cost), self.score(score)))
            found = rank_correlations(x, y, layer, n_bootstrap, self.provenance.seed or 0)
            rows.append({"cost": cost, "score": score, **found})
        return pd.DataFrame(rows, columns=["cost", "score", "spearman", "low", "high", "n_heads"])

    def sink_against_diagonal(self, costs: Sequence[str] = MAIN_COSTS, n_bootstrap: int = N_BOOTSTRAP) -> pd.DataFrame:
        """Median cost of sink heads, of diagonal heads, and their difference with a 95 % interval from resampling heads.

        Args:
            costs: names of :attr:`norms`.
            n_bootstrap: resamples of the heads, drawn within each kind.

        Returns:
            One row per cost: ``cost``, ``sink``, ``diagonal`` (medians), ``difference`` (sink minus diagonal), ``low``,
            ``high``, ``n_sink``, ``n_diagonal``. NaN where there is no head of a kind, no interval below two.

        Raises:
            InputError: there is no such cost, or no text was given.
        """
        if self.kinds is None:
            self.score("sink_mass")
        kinds = torch.as_tensor(self.kinds)
        rows: list[dict[str, Any]] = []
        for cost in costs:
            values = self.cost(cost).double()
            groups = [values[(kinds == KINDS.index(kind)) & ~values.isnan()] for kind in PATTERNS]
            rows.append({"cost": cost, **_compared(groups, n_bootstrap, self.provenance.seed or 0)})
        return pd.DataFrame(rows)

    def excess(self, pattern: str = "sink", norm: str = "nuclear") -> Float[Tensor, "layer head"]:
        """What the head's ``W_QK`` costs between the tokens at hand, over the least cost of the margin that it achieves.

        The margin is the median over queries of the same documents, the least cost that of it at every query. 1: no matrix
        could do it for less; above: the head pays for more than this pattern. Rotary positions and biases, which can carry
        part of a margin for nothing, are not counted, so that it may lie below 1.

        Args:
            pattern: ``sink`` or ``diagonal``.
            norm: ``frobenius`` or ``nuclear``.

        Returns:
            ``[layer, head]`` for the layers of :attr:`least`; NaN where the median margin is not positive.

        Raises:
            InputError: there are no least costs, or no such pattern or norm.
        """
        least, spans, margins = self._solved(pattern, norm)
        margin = self._sampled_margin(pattern, least, margins)
        unit = float(self.provenance.conventions.get("margin", 1.0))
        floor = least.mean(f"{pattern}_{norm}").unsqueeze(-1) * margin / unit
        return torch.where(margin > 0, spans.mean(norm) / floor, torch.nan)

    def _rows(self, layers: Sequence[int]) -> list[int]:
        return [layer_index(self.layers, layer) for layer in layers]

    def _solved(self, pattern: str = "sink", norm: str = "nuclear") -> tuple[LeastCosts, SpanCosts, HeadMargins]:
        if self.least is None or self.spans is None or self.margins is None:
            raise InputError("there are no least costs here; pass texts to sinklens.head_costs, and embedding_layers")
        if pattern not in PATTERNS or norm not in SOLVED_NORMS:
            raise InputError(
                f"pattern is {pattern!r} and norm {norm!r}; expected {' or '.join(PATTERNS)}, {' or '.join(SOLVED_NORMS)}"
            )
        return self.least, self.spans, self.margins

    def embedding_table(self) -> pd.DataFrame:
        """Least and actual cost by layer: one row per layer, pattern and norm.

        Columns: ``least`` for the margin that was asked for, with ``low`` and ``high`` (95 %, over documents); ``possible``,
        the share of documents on which any matrix realises the pattern; ``weights``, the median over heads of ``||W_QK||``;
        ``spent``, the same between the documents' own tokens; ``margin``, the median over heads of the median margin
        there; ``best_margin``, the largest head's; ``excess``, the median over heads with a positive margin (:meth:`excess`).

        Raises:
            InputError: there are no least costs.
        """
        tables = [self._layer_table(pattern, norm) for pattern, norm in itertools.product(PATTERNS, SOLVED_NORMS)]
        return pd.concat(tables).sort_values(["layer", "pattern", "norm"], ignore_index=True)

    def _sampled_margin(self, pattern: str, least: LeastCosts, margins: HeadMargins) -> Float[Tensor, "layer head"]:
        """The heads' margins over the documents that least costs are of: the first ones."""
        return margins.documents(f"{pattern}_margin")[self._rows(least.layers), :, : least.n_documents].nanmean(-1)

    def _layer_table(self, pattern: str, norm: str) -> pd.DataFrame:
        least, spans, margins = self._solved(pattern, norm)
        rows, name = self._rows(least.layers), f"{pattern}_{norm}"
        margin, bounds = self._sampled_margin(pattern, least, margins), least.interval(name)
        columns = {
            "least": least.mean(name), "low": bounds[:, 0], "high": bounds[:, 1],
            "possible": least.mean(f"{pattern}_possible"), "weights": _median(self.cost(f"qk_{norm}")[rows]),
            "spent": _median(spans.mean(norm)), "margin": _median(margin),
            "best_margin": margin.nan_to_num(nan=-torch.inf).amax(-1), "excess": _median(self.excess(pattern, norm)),
        }  # fmt: skip
        labels = {"layer": list(least.layers), "pattern": pattern, "norm": norm}
        return pd.DataFrame({**labels, **{key: value.numpy() for key, value in columns.items()}})

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: ``layer``, ``head``, every norm, then with texts scores, margins (means over documents), kind."""
        index = [(layer, head) for layer in self.layers for head in range(self.n_heads)]
        columns: dict[str, Any] = {}
        for group in (self.norms, self.scores):
            columns |= {name: value.flatten().numpy() for name, value in group.items()}
        if self.margins is not None:
            columns |= {name: self.margins.mean(name).flatten().numpy() for name in self.margins.quantities}
        table = pd.DataFrame(index, columns=["layer", "head"]).assign(**columns)
        return table if self.kinds is None else table.assign(kind=[kind for row in self.kind for kind in row])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        groups: dict[str, Mapping[str, Tensor]] = {
            "norms": self.norms,
            "scores": self.scores,
            "scale": {"": self.scale},
        }
        groups |= {} if self.kinds is None else {"kinds": {"": self.kinds}}
        kept = {"margins": self.margins, "least": self.least, "spans": self.spans}
        groups |= {name: part.values for name, part in kept.items() if part is not None}
        tensors = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
        metadata = {
            "layers": list(self.layers), "provenance": self.provenance.to_dict(), "refused": [list(row) for row in self.refused],
            "embedding_layers": [] if self.least is None else list(self.least.layers),
            # A safetensors file has them in another order.
            "names": {group: list(values) for group, values in groups.items()},
        }  # fmt: skip
        return save_tensors(path, "HeadCosts", tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "HeadCosts":
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, "HeadCosts")
        groups = {
            group: {name: tensors[f"{group}.{name}"] for name in names} for group, names in metadata["names"].items()
        }
        layers, source = tuple(metadata["layers"]), Provenance.from_dict(metadata["provenance"])
        solved = tuple(metadata["embedding_layers"])
        return cls(
            norms=groups["norms"], scale=groups["scale"][""], layers=layers, provenance=source,
            refused=tuple((layer, what, reason) for layer, what, reason in metadata["refused"]),
            scores=groups.get("scores", {}), kinds=groups.get("kinds", {}).get(""),
            margins=HeadMargins(groups["margins"], layers, source) if "margins" in groups else None,
            least=LeastCosts(groups["least"], solved, source) if "least" in groups else None,
            spans=SpanCosts(groups["spans"], solved, source) if "spans" in groups else None,
        )  # fmt: skip

    def __repr__(self) -> str:
        cost = self.norms["qk_nuclear"]
        known = int((~cost.isnan()).sum())
        parts = [f"median nuclear norm of W_QK {cost.nanmedian().item():.3g} over {known} of {cost.numel()} heads"]
        if self.scores:
            row = self.correlations(["qk_nuclear"], ["sink_mass"]).iloc[0]
            ends = "" if np.isnan(row.low) else f" [{row.low:+.2f}, {row.high:+.2f}]"
            value = "n/a" if np.isnan(row.spearman) else f"{row.spearman:+.2f}"
            parts.append(f"rank correlation with the sink mass {value}{ends}")
        return f"HeadCosts({self.provenance.model_name}: layers {describe_numbers(self.layers)}; {'; '.join(parts)})"


def _compared(groups: Sequence[Tensor], n_bootstrap: int, seed: int) -> dict[str, Any]:
    """Medians of two groups, their difference and its interval."""
    medians = [_median(group) for group in groups]
    low, high = np.nan, np.nan
    if min(map(len, groups)) > 1:
        generator = torch.Generator().manual_seed(seed)
        drawn = [group[torch.randint(len(group), (n_bootstrap, len(group)), generator=generator)] for group in groups]
        first, second = (_median(sample) for sample in drawn)
        low, high = percentile_interval(first - second, min(map(len, groups))).tolist()
    counts = {f"n_{kind}": len(group) for kind, group in zip(PATTERNS, groups, strict=True)}
    values = {kind: median.item() for kind, median in zip(PATTERNS, medians, strict=True)}
    return {**values, "difference": (medians[0] - medians[1]).item(), "low": low, "high": high, **counts}


def _median(values: Tensor) -> Tensor:
    """The middle one, or the mean of the middle two: with few heads ``torch.median``'s lower one is biased."""
    return values.nanquantile(0.5, dim=-1) if values.shape[-1] else torch.tensor(torch.nan, dtype=values.dtype)

"""What taking sinks away does to a model: losses per document, beside controls, with intervals over documents."""

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.bootstrap import percentile_interval, resample_weights
from sinklens.results.drift_profile import DriftProfile
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.provenance import Provenance

EFFECTS = ("delta_loss", "delta_perplexity", "divergence")

ResultT = TypeVar("ResultT", bound="AblationResult")


@dataclass(frozen=True)
class AblationCell:
    """One edit of one group of heads at one kind of place.

    Attributes:
        group: the name of the group.
        heads: its ``(layer, head)`` pairs.
        edit: ``zero``, ``mean``, ``remove``, ``scale`` or ``mass``.
        value: the factor of ``scale``, the mass of ``mass``; NaN for the others.
        where: ``sink``; or a control, ``position`` (the same edit at a random other position) or ``direction`` (an edit
            of the same norm in a random direction).
    """

    group: str
    heads: tuple[tuple[int, int], ...]
    edit: str
    value: float
    where: str

    @property
    def layer(self) -> int | float:
        """The layer that all heads are in; NaN where there are several."""
        return _single(layer for layer, _ in self.heads)

    @property
    def head(self) -> int | float:
        """The head, where the group is one; NaN otherwise."""
        return self.heads[0][1] if len(self.heads) == 1 else math.nan

    @property
    def key(self) -> tuple[str, str, str]:
        """What a control shares with its edit."""
        return self.group, self.edit, repr(float(self.value))

    @property
    def edit_name(self) -> str:
        """The edit with its number, with as many digits as tell it from every other.

        Example:
            >>> AblationCell("all", ((0, 0),), "scale", 0.5, "sink").edit_name
            'scale 0.5'
        """
        if math.isnan(self.value):
            return self.edit
        short = f"{self.value:g}"
        return f"{self.edit} {short if float(short) == self.value else repr(float(self.value))}"


@dataclass(frozen=True, repr=False)
class AblationResult:
    """Δ loss, Δ perplexity and KL divergence of every cell, with what is needed to resample documents.

    Attributes:
        cells: what was done, in the order of all tensors that follow.
        loss: summed next-token cross-entropy under each cell ``[cell, document]``, nats.
        divergence: summed ``KL(clean || edited)`` of the next-token distribution ``[cell, document]``, nats.
        clean_loss: summed cross-entropy without an edit ``[document]``.
        count: predicted tokens ``[document]``.
        changed: whether the cell's edit changed any tensor ``[cell]``.
        provenance: model, text, versions, seed.
        n_bootstrap: resamples of the documents behind an interval.
    """

    cells: tuple[AblationCell, ...]
    loss: Float[Tensor, "cell document"]
    divergence: Float[Tensor, "cell document"]
    clean_loss: Float[Tensor, " document"]
    count: Float[Tensor, " document"]
    changed: tuple[bool, ...]
    provenance: Provenance
    n_bootstrap: int = 1000

    @cached_property
    def weights(self) -> Float[Tensor, "resample document"]:
        """How often each document is in each resample; drawn from the seed of the provenance."""
        return resample_weights(len(self.count), self.n_bootstrap, self.provenance.seed or 0)

    def effect(self, name: str = "delta_loss") -> Float[Tensor, " cell"]:
        """One number per cell, over all documents' predicted tokens.

        ``delta_loss``: change of the mean next-token cross-entropy in nats. ``delta_perplexity``: change of its exponential.
        ``divergence``: mean ``KL(clean || edited)`` in nats.

        Raises:
            InputError: there is no such effect.
        """
        return self._effect(name, torch.ones(1, len(self.count), dtype=torch.float64))[:, 0]

    def interval(self, name: str = "delta_loss") -> Float[Tensor, "cell 2"]:
        """The 95 % percentile bootstrap interval over documents: low and high; NaN for a single document.

        Raises:
            InputError: there is no such effect.
        """
        return percentile_interval(self._effect(name, self.weights), len(self.count))

    def _effect(self, name: str, weights: Tensor) -> Tensor:
        if name not in EFFECTS:
            raise InputError(f"no effect {name!r}; there are {', '.join(EFFECTS)}")
        count = weights @ self.count
        if name == "divergence":
            return (self.divergence @ weights.T) / count
        edited, clean = (self.loss @ weights.T) / count, (weights @ self.clean_loss) / count
        return edited.exp() - clean.exp() if name == "delta_perplexity" else edited - clean

    @property
    def mean_loss(self) -> float:
        """Mean next-token cross-entropy of the clean model, nats."""
        return (self.clean_loss.sum() / self.count.sum()).item()

    def to_dataframe(self) -> pd.DataFrame:
        """One row per cell: what was done, and every effect with its interval.

        ``layer`` and ``head`` are missing where a group spans several.
        """
        columns = ("group", "layer", "head", "edit", "value", "where")
        table = pd.DataFrame([[getattr(cell, name) for name in columns] for cell in self.cells], columns=list(columns))
        table = table.astype({"layer": "Int64", "head": "Int64"})  # whole numbers that may be missing
        for name in EFFECTS:
            low, high = self.interval(name).T
            table = table.assign(
                **{name: self.effect(name).numpy(), f"{name}_low": low.numpy(), f"{name}_high": high.numpy()}
            )
        return table.assign(changed=list(self.changed))

    def against_controls(self, name: str = "delta_loss") -> pd.DataFrame:
        """Effect at the sink minus effect of each control, paired by document, with its 95 % interval.

        Raises:
            InputError: there is no such effect.
        """
        resampled, whole = self._effect(name, self.weights), self.effect(name)
        at_sink = {cell.key: row for row, cell in enumerate(self.cells) if cell.where == "sink"}
        rows: list[dict[str, Any]] = []
        for row, cell in enumerate(self.cells):
            if cell.where == "sink" or cell.key not in at_sink:
                continue
            mine = at_sink[cell.key]
            low, high = percentile_interval(resampled[mine] - resampled[row], len(self.count)).tolist()
            difference = (whole[mine] - whole[row]).item()
            rows.append(
                {"group": cell.group, "edit": cell.edit, "value": cell.value, "control": cell.where,
                 "difference": difference, "low": low, "high": high}
            )  # fmt: skip
        return pd.DataFrame(rows, columns=["group", "edit", "value", "control", "difference", "low", "high"])

    def merge(self: ResultT, other: ResultT) -> ResultT:
        """The result over both texts together; intervals then resample all documents.

        Raises:
            InputError: the two differ in what was done or in the model.
        """
        if [_plain(cell) for cell in self.cells] != [_plain(cell) for cell in other.cells]:
            raise InputError(
                "cannot merge ablations of other groups or edits; measure both parts with the same settings"
            )
        return dataclasses.replace(
            self,
            loss=torch.cat([self.loss, other.loss], 1),
            divergence=torch.cat([self.divergence, other.divergence], 1),
            clean_loss=torch.cat([self.clean_loss, other.clean_loss]),
            count=torch.cat([self.count, other.count]),
            changed=tuple(a or b for a, b in zip(self.changed, other.changed, strict=True)),
            provenance=self.provenance.merge(other.provenance),
            **self._merged(other),
        )

    def _merged(self, other: Any) -> dict[str, Any]:
        return {}

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f.name: getattr(self, f.name) for f in dataclasses.fields(self) if isinstance(getattr(self, f.name), Tensor)
        }

    def _settings(self) -> dict[str, Any]:
        """Fields beside the base's that are no tensors, as JSON has them."""
        return {}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        metadata = {
            "cells": [_plain(cell) for cell in self.cells],
            "changed": list(self.changed),
            "n_bootstrap": self.n_bootstrap,
            "provenance": self.provenance.to_dict(),
            "settings": self._settings(),
        }
        return save_tensors(path, type(self).__name__, self._tensors(), metadata)

    @classmethod
    def load(cls: type[ResultT], path: str | os.PathLike[str]) -> ResultT:
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, cls.__name__)
        arguments: dict[str, Any] = {
            **tensors,
            "cells": tuple(_cell(fields) for fields in metadata["cells"]),
            "changed": tuple(metadata["changed"]),
            "provenance": Provenance.from_dict(metadata["provenance"]),
            "n_bootstrap": metadata["n_bootstrap"],
            **{name: tuple(value) for name, value in metadata["settings"].items()},
        }
        return cls(**arguments)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.provenance.model_name}: loss {self.mean_loss:.3f} on {len(self.count)} documents; "
            f"{self._largest()})"
        )

    def _largest(self) -> str:
        """The largest effect at the sink, by its size, beside its controls."""
        effects, at_sink = self.effect(), [row for row, cell in enumerate(self.cells) if cell.where == "sink"]
        if not any(self.changed[row] for row in at_sink):
            return "no edit changed anything"
        row = max(at_sink, key=lambda r: effects[r].abs().item())
        cell, (low, high) = self.cells[row], self.interval()[row].tolist()
        bounds = "" if math.isnan(low) else f" [{low:.3f}, {high:.3f}]"
        controls = [f"{c.where} {effects[r]:+.3f}" for r, c in enumerate(self.cells) if c.key == cell.key and r != row]
        beside = f"; controls: {', '.join(controls)}" if controls else ""
        return f"largest effect {cell.edit_name} in {cell.group}: {effects[row]:+.3f} nats{bounds}{beside}"


@dataclass(frozen=True, repr=False)
class SweepResult(AblationResult):
    """A sweep of the sink's value scale or of its mass: effects per value, and the norm of head outputs.

    Sums of squares run over queries after the sink where the mixture ``ō`` of FORMULAS is defined.

    Attributes:
        layers: the model's own numbers of the layers that were measured.
        measured: summed ``||o_i||²`` under each cell at the sink ``[cell, layer, head]``; NaN for controls.
        closed: the same by the closed form from the clean pass, ``N(α)²``, or for a scale ``f`` of the value
            ``||f a ṽ_s + (1-a) ō||²``.
        clean: summed ``||o_i||²`` without an edit ``[layer, head]``.
        queries: how many queries a sum has ``[layer, head]``.
        mass: summed present mass ``a`` ``[layer, head]``.
    """

    layers: tuple[int, ...] = ()
    measured: Float[Tensor, "cell layer head"] = dataclasses.field(default_factory=lambda: torch.zeros(0, 0, 0))
    closed: Float[Tensor, "cell layer head"] = dataclasses.field(default_factory=lambda: torch.zeros(0, 0, 0))
    clean: Float[Tensor, "layer head"] = dataclasses.field(default_factory=lambda: torch.zeros(0, 0))
    queries: Float[Tensor, "layer head"] = dataclasses.field(default_factory=lambda: torch.zeros(0, 0))
    mass: Float[Tensor, "layer head"] = dataclasses.field(default_factory=lambda: torch.zeros(0, 0))

    def norms(self) -> pd.DataFrame:
        """Root mean square output norm of every swept head: measured, by the closed form, clean; and the present mass."""
        rows: list[dict[str, Any]] = []
        for number, cell in enumerate(self.cells):
            for layer, head in cell.heads if cell.where == "sink" else ():
                at = (self.layers.index(layer), head)
                queries = self.queries[at].item() or math.nan
                rows.append(
                    {"group": cell.group, "layer": layer, "head": head, "edit": cell.edit, "value": cell.value,
                     "measured": math.sqrt(self.measured[(number, *at)].item() / queries),
                     "closed_form": math.sqrt(max(self.closed[(number, *at)].item(), 0.0) / queries),
                     "clean": math.sqrt(self.clean[at].item() / queries), "mass": self.mass[at].item() / queries}
                )  # fmt: skip
        return pd.DataFrame(rows)

    def _merged(self, other: Any) -> dict[str, Any]:
        names = ("measured", "closed", "clean", "queries", "mass")
        return {name: getattr(self, name) + getattr(other, name) for name in names}

    def _settings(self) -> dict[str, Any]:
        return {"layers": list(self.layers)}


@dataclass(frozen=True)
class AblatedDrift:
    """Semantic drift of head outputs in the clean model and in one whose sinks' values are zero.

    Attributes:
        clean: the clean pass; its ``cone_without`` takes the sink's term away in arithmetic only.
        ablated: a pass under the intervention, where later layers see what earlier ones have become.
    """

    clean: DriftProfile
    ablated: DriftProfile

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: cosine with the semantic axis and pairwise cosine, clean, in arithmetic, and ablated."""
        table = self.clean.to_dataframe()
        ablated = self.ablated.to_dataframe()
        return table.assign(cone_ablated=ablated["cone_with"], pairwise_ablated=ablated["pairwise_with"])

    def __repr__(self) -> str:
        means = self.to_dataframe()[["cone_with", "cone_without", "cone_ablated"]].mean()
        return (
            f"AblatedDrift({self.clean.provenance.model_name}: mean cosine with the semantic axis {means['cone_with']:.3f}, "
            f"without the sink's term {means['cone_without']:.3f}, with sinks ablated {means['cone_ablated']:.3f})"
        )


def _single(numbers: Iterable[int]) -> int | float:
    different = set(numbers)
    return different.pop() if len(different) == 1 else math.nan


def _plain(cell: AblationCell) -> dict[str, Any]:
    # JSON has no NaN, and NaN is not equal to itself.
    value = None if math.isnan(cell.value) else cell.value
    return {**dataclasses.asdict(cell), "heads": [list(pair) for pair in cell.heads], "value": value}


def _cell(fields: Mapping[str, Any]) -> AblationCell:
    heads: Sequence[Sequence[int]] = fields["heads"]
    value = math.nan if fields["value"] is None else float(fields["value"])
    pairs = tuple((layer, head) for layer, head in heads)
    return AblationCell(fields["group"], pairs, fields["edit"], value, fields["where"])

"""Figures that are kept for each document, so that means come with intervals over documents and parts can be joined."""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.bootstrap import percentile_interval, resample_weights
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.labels import known_name
from sinklens.results.provenance import Provenance

N_BOOTSTRAP = 1000

# Not typing.Self: beartype, which checks shapes in the tests, knows it inside classes that it decorates only.
PerDocumentT = TypeVar("PerDocumentT", bound="PerDocument")


@dataclass(frozen=True, repr=False)
class PerDocument:
    """Named figures of every layer, head or other cell, one for each document; every document counts equally.

    A subclass says in ``AXES`` what its cells are, and in :meth:`labels` their names.

    Attributes:
        values: by quantity, ``[*AXES, document]`` float64; NaN where a document has no such figure.
        layers: the model's own numbers of the layers that were measured.
        provenance: model, text, versions, conventions.
    """

    values: Mapping[str, Float[Tensor, "*cell document"]]
    layers: tuple[int, ...]
    provenance: Provenance

    AXES: ClassVar[tuple[str, ...]] = ("layer",)

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names that :meth:`mean` and :meth:`interval` know."""
        return tuple(self.values)

    @property
    def n_documents(self) -> int:
        """The number of documents."""
        return next(iter(self.values.values())).shape[-1]

    def labels(self, axis: str) -> Sequence[Any]:
        """What the cells along an axis are called: layers by the model's own numbers, all else counted from 0."""
        if axis == "layer":
            return self.layers
        return range(next(iter(self.values.values())).shape[self.AXES.index(axis)])

    def documents(self, name: str) -> Float[Tensor, "*cell document"]:
        """A quantity of every document.

        Raises:
            InputError: there is no such quantity.
        """
        # Not only what is listed: a subclass may keep further figures under names of its own.
        return self.values[name if name in self.values else known_name(name, self.quantities)]

    def mean(self, name: str) -> Float[Tensor, "*cell"]:
        """Mean of a quantity over the documents that have it; NaN where none has.

        Raises:
            InputError: there is no such quantity.
        """
        return self.documents(name).nanmean(-1)

    def interval(self, name: str) -> Float[Tensor, "*cell 2"]:
        """The 95 % percentile bootstrap interval of the mean over documents: low and high; NaN for a single document.

        Raises:
            InputError: there is no such quantity.
        """
        return interval_of_mean(self.documents(name), self.weights)

    @cached_property
    def weights(self) -> Float[Tensor, "resample document"]:
        """How often each document is in each resample; drawn from the provenance's seed, or from 0."""
        return resample_weights(self.n_documents, N_BOOTSTRAP, self.provenance.seed or 0)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per cell: its labels, then the mean of every quantity with ``_low`` and ``_high`` of its interval."""
        cells = list(itertools.product(*(self.labels(axis) for axis in self.AXES)))
        columns: dict[str, Any] = {}
        for name in self.quantities:
            low, high = self.interval(name).flatten(0, -2).T
            ends = {f"{name}_low": low.numpy(), f"{name}_high": high.numpy()}
            columns |= {name: self.mean(name).flatten().numpy(), **ends}
        # Not by assign, which puts in one column after the other, and warns when there are a hundred.
        return pd.concat([pd.DataFrame(cells, columns=list(self.AXES)), pd.DataFrame(columns)], axis=1)

    def merge(self: PerDocumentT, other: PerDocumentT) -> PerDocumentT:
        """The figures of both texts together.

        Raises:
            InputError: the two differ in the model, the layers or the settings.
        """
        if type(self) is not type(other):
            raise InputError(f"cannot merge a {type(self).__name__} with a {type(other).__name__}")
        mine, theirs = (self.layers, self._settings()), (other.layers, other._settings())
        if mine != theirs:
            raise InputError(f"cannot merge results with other layers or settings: {mine} here, {theirs} there")
        return dataclasses.replace(
            self,
            values=self._joined(other),
            provenance=self.provenance.merge(other.provenance),
        )

    def _joined(self, other: "PerDocument") -> dict[str, Tensor]:
        """The figures of both, this one's documents first."""
        return {name: torch.cat([value, other.documents(name)], -1) for name, value in self.values.items()}

    def _settings(self) -> dict[str, Any]:
        """Fields beside the base's, in the form that JSON has them."""
        base = {field.name for field in dataclasses.fields(PerDocument)}
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in base}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        metadata = {"layers": list(self.layers), "provenance": self.provenance.to_dict(), "settings": self._settings()}
        return save_tensors(path, type(self).__name__, self.values, metadata)

    @classmethod
    def load(cls: type[PerDocumentT], path: str | os.PathLike[str]) -> PerDocumentT:
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        values, metadata = load_tensors(path, cls.__name__)
        settings = {
            name: tuple(value) if isinstance(value, list) else value for name, value in metadata["settings"].items()
        }
        provenance = Provenance.from_dict(metadata["provenance"])
        return cls(values=values, layers=tuple(metadata["layers"]), provenance=provenance, **settings)


def interval_of_mean(
    values: Float[Tensor, "*cell document"], weights: Float[Tensor, "resample document"]
) -> Float[Tensor, "*cell 2"]:
    """The 95 % percentile bootstrap interval of a mean over the documents that have a figure.

    Args:
        values: NaN where a document has none.
        weights: how often each document is in each resample.

    Example:
        >>> interval_of_mean(torch.tensor([[1.0, 1.0]]).double(), torch.tensor([[2.0, 0.0], [1.0, 1.0]]).double()).tolist()
        [[1.0, 1.0]]
    """
    known = ~values.isnan()
    sums = torch.where(known, values, 0.0) @ weights.T
    return percentile_interval(sums / (known.double() @ weights.T), values.shape[-1])

"""Means per head that are kept as sums and counts, so that parts of a measurement can be added without loss."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pandas as pd
import torch
from torch import Tensor

from sinklens.axes import LayerHead
from sinklens.errors import InputError
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.labels import known_name
from sinklens.results.provenance import Provenance

# Not typing.Self: beartype, which checks shapes in the tests, knows it inside classes that it decorates only.
MeansT = TypeVar("MeansT", bound="HeadMeans")


@dataclass(frozen=True, repr=False)
class HeadMeans:
    """Means over queries or documents, each ``[layer, head]``; ``sums`` and ``counts`` are float64.

    Attributes:
        sums: sum of each quantity.
        counts: how many queries or documents a sum has.
        layers: the model's own numbers of the layers that were measured.
        provenance: model, text, versions, conventions.
    """

    sums: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]
    layers: tuple[int, ...]
    provenance: Provenance

    # What each quantity is a mean over.
    COUNT_OF: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def empty(cls, n_layers: int, n_heads: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Zero sums and counts to start from."""
        shape = (n_layers, n_heads)
        sums = {name: torch.zeros(shape, dtype=torch.float64) for name in cls.COUNT_OF}
        counts = dict.fromkeys(cls.COUNT_OF.values())
        return sums, {name: torch.zeros(shape, dtype=torch.float64) for name in counts}

    @property
    def n_heads(self) -> int:
        """The number of query heads."""
        return next(iter(self.sums.values())).shape[1]

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names that :meth:`mean` and :meth:`to_dataframe` know."""
        return tuple(self.COUNT_OF)

    def mean(self, name: str) -> LayerHead:
        """Mean of a quantity, ``sum / count``, as float32; NaN where nothing was counted.

        Raises:
            InputError: there is no such quantity.
        """
        known_name(name, sorted(self.sums))
        return (self.sums[name] / self.counts[self.COUNT_OF[name]]).float()

    def merge(self: MeansT, other: MeansT) -> MeansT:
        """The means over both texts together: sums and counts add up.

        Raises:
            InputError: the two differ in the model, the layers, the thresholds or the conventions.
        """
        if type(self) is not type(other):
            raise InputError(f"cannot merge a {type(self).__name__} with a {type(other).__name__}")
        mine, theirs = (self.layers, self._settings()), (other.layers, other._settings())
        if mine != theirs:
            raise InputError(f"cannot merge results with other layers or thresholds: {mine} here, {theirs} there")
        return dataclasses.replace(
            self,
            sums={name: value + other.sums[name] for name, value in self.sums.items()},
            counts={name: value + other.counts[name] for name, value in self.counts.items()},
            provenance=self.provenance.merge(other.provenance),
        )

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: ``layer``, ``head`` and every quantity."""
        index = [(layer, head) for layer in self.layers for head in range(self.n_heads)]
        columns = {name: self._column(name).flatten().numpy() for name in self.quantities}
        return pd.DataFrame(index, columns=["layer", "head"]).assign(**columns)

    def _column(self, name: str) -> LayerHead:
        return self.mean(name)

    def _settings(self) -> dict[str, Any]:
        """Fields beside the base's, in the form that JSON has them."""
        base = {field.name for field in dataclasses.fields(HeadMeans)}
        return {name: value for name, value in _plain(self).items() if name not in base}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        groups = {"sums": self.sums, "counts": self.counts}
        tensors = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
        metadata = {"layers": list(self.layers), "provenance": self.provenance.to_dict(), "settings": self._settings()}
        return save_tensors(path, type(self).__name__, tensors, metadata)

    @classmethod
    def load(cls: type[MeansT], path: str | os.PathLike[str]) -> MeansT:
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, cls.__name__)
        groups: dict[str, dict[str, Tensor]] = {"sums": {}, "counts": {}}
        for key, tensor in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = tensor
        provenance = Provenance.from_dict(metadata["provenance"])
        return cls(
            **groups, layers=tuple(metadata["layers"]), provenance=provenance, **cls._restore(metadata["settings"])
        )

    @classmethod
    def _restore(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The inverse of :meth:`_settings`."""
        return settings


def _plain(result: HeadMeans) -> dict[str, Any]:
    fields: dict[str, Any] = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    nested: dict[str, Any] = {name: value for name, value in fields.items() if dataclasses.is_dataclass(value)}
    return fields | {name: dataclasses.asdict(value) for name, value in nested.items()}

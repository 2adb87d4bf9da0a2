"""What every key gives, summed over the queries that read it: per position, over any amount of text."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from torch import Tensor
from torch.nn.functional import pad

from sinklens.axes import LayerHeadKey
from sinklens.errors import InputError
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.provenance import Provenance

QUANTITIES = ("attention", "intra", "inter")


@dataclass(frozen=True, repr=False)
class KeyContributions:
    """Attention and contributions that a key receives, summed over queries, mean over documents ``[layer, head, key]``.

    Keys are counted from the first real token. A key near the end is read by few queries; divide by ``readers`` for a
    mean per query.

    Attributes:
        sums: by quantity, ``[layer, head, key]``, float64.
        documents: how many sequences reach each position ``[key]``.
        readers: how many queries, over all sequences, can see each position ``[layer, key]``.
        layers: the model's own numbers.
        provenance: model, text, versions, conventions.
    """

    sums: Mapping[str, Tensor]
    documents: Tensor
    readers: Tensor
    layers: tuple[int, ...]
    provenance: Provenance

    @property
    def attention(self) -> LayerHeadKey:
        """``Σ_i A_ij`` per document."""
        return self._per_document("attention")

    @property
    def intra(self) -> LayerHeadKey:
        """``Σ_i c_ij``, intra-head, per document; queries with a degenerate output give nothing."""
        return self._per_document("intra")

    @property
    def inter(self) -> LayerHeadKey:
        """``Σ_i c^h_ij``, inter-head, per document."""
        return self._per_document("inter")

    def _per_document(self, name: str) -> LayerHeadKey:
        return (self.sums[name] / self.documents).float()

    def merge(self, other: "KeyContributions") -> "KeyContributions":
        """Both texts together.

        Raises:
            InputError: they differ in the model, the layers or the settings.
        """
        if self.layers != other.layers:
            raise InputError(f"cannot merge results with other layers: {self.layers} here, {other.layers} there")
        return dataclasses.replace(
            self,
            sums={name: _padded_sum(value, other.sums[name]) for name, value in self.sums.items()},
            documents=_padded_sum(self.documents, other.documents),
            readers=_padded_sum(self.readers, other.readers),
            provenance=self.provenance.merge(other.provenance),
        )

    def to_dataframe(self) -> pd.DataFrame:
        """One row per (layer, head, key)."""
        _, n_heads, n_keys = self.attention.shape
        rows = pd.MultiIndex.from_product([self.layers, range(n_heads), range(n_keys)], names=["layer", "head", "key"])
        return pd.DataFrame(
            {name: getattr(self, name).flatten().numpy() for name in QUANTITIES}, index=rows
        ).reset_index()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all."""
        tensors = {**self.sums, "documents": self.documents, "readers": self.readers}
        metadata = {"layers": list(self.layers), "provenance": self.provenance.to_dict()}
        return save_tensors(path, type(self).__name__, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "KeyContributions":
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, cls.__name__)
        documents, readers = tensors.pop("documents"), tensors.pop("readers")
        return cls(tensors, documents, readers, tuple(metadata["layers"]), Provenance.from_dict(metadata["provenance"]))

    def __repr__(self) -> str:
        share = (self.intra[..., 0].sum() / self.intra.nansum()).item()
        return (
            f"KeyContributions({self.provenance.model_name}: {len(self.layers)} layers, {len(self.documents)} positions; "
            f"the first token gives {share:.0%} of all intra-head contributions)"
        )


def _padded_sum(one: Tensor, other: Tensor) -> Tensor:
    """The sum over key positions, where the longest sequences of two texts need not be equally long."""
    length = max(one.shape[-1], other.shape[-1])
    first, second = (pad(tensor, (0, length - tensor.shape[-1])) for tensor in (one, other))
    return first + second

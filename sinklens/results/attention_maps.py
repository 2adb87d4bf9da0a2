"""Attention maps: every importance metric of every head for one prompt."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from torch import Tensor

from sinklens.axes import (
    LayerHeadKey,
    LayerHeadQuery,
    LayerHeadQueryKey,
    LayerHeadQuerySpace,
    LayerHeadValue,
    LayerQuery,
    LayerVisible,
)
from sinklens.errors import InputError
from sinklens.metrics.contributions import degenerate, inner_products, value_cosines
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.labels import check_head, layer_index
from sinklens.results.provenance import Provenance

METRICS = ("attention", "value_weighted", "output_normalized", "intra", "inter", "cosine")
_TENSORS = (
    "attention", "value", "direction", "layer_direction", "value_norm", "output_norm", "layer_norm", "visible",
)  # fmt: skip
_LABELS = ("tokens", "token_ids", "layers", "sink_positions")


# Not typing.Self: beartype, which checks shapes in the tests, knows it inside classes that it decorates only.
MapsT = TypeVar("MapsT", bound="AttentionMaps")


@dataclass(frozen=True, repr=False)
class AttentionMaps:
    """Attention and contributions of every (layer, head, query, key) of one prompt. Made by :func:`sinklens.attention_maps`.

    Only attention is stored for every pair. The other metrics follow from vectors of the head's own space, by
    ``<o_i, ṽ_j> = <u_i, v_j>``, and are computed when asked for: all layers take a while and ``4 T²`` bytes a head,
    ``maps.layer(l)`` first makes it one layer. Rows with a degenerate output are NaN; keys that a query cannot see are 0
    (their cosine is NaN).

    Attributes:
        attention: ``A`` ``[layer, head, query, key]``.
        value: ``v_j``, one per query head ``[layer, key, head, d_head]``.
        direction: ``u^h_i = o^h_i W_Oᵀ`` of the head's output, times the gate if there is one ``[layer, query, head, d_head]``.
        layer_direction: ``u_i = o_i W_Oᵀ`` of the layer's output, likewise.
        value_norm: ``||ṽ_j||`` ``[layer, head, key]``; under a gate ``[layer, head, query, key]``.
        output_norm: ``||o^h_i||`` ``[layer, head, query]``.
        layer_norm: ``||o_i||`` of the layer's output without ``b_O`` ``[layer, query]``.
        visible: which keys each query sees ``[layer, query, key]``.
        tokens: a label per position.
        token_ids: the ids, empty where they are not known.
        layers: the model's own numbers of the layers.
        sink_positions: the positions taken as sinks, in any layer.
        provenance: model, versions, conventions.
        learned_sink: whether a learned null key takes part in the softmax (gpt-oss), so that rows sum to less than 1.
    """

    attention: LayerHeadQueryKey
    value: LayerHeadValue
    direction: LayerHeadQuerySpace
    layer_direction: LayerHeadQuerySpace
    value_norm: LayerHeadKey | LayerHeadQueryKey
    output_norm: LayerHeadQuery
    layer_norm: LayerQuery
    visible: LayerVisible
    tokens: tuple[str, ...]
    token_ids: tuple[int, ...]
    layers: tuple[int, ...]
    sink_positions: tuple[int, ...]
    provenance: Provenance
    learned_sink: bool = False

    @property
    def n_heads(self) -> int:
        """The number of query heads."""
        return self.attention.shape[1]

    @property
    def value_weighted(self) -> LayerHeadQueryKey:
        """``A_ij ||ṽ_j||``, in units of the residual stream (Kobayashi et al. 2020)."""
        return self.attention * self._norms_per_pair()

    @property
    def output_normalized(self) -> LayerHeadQueryKey:
        """``A_ij ||ṽ_j|| / ||o^h_i||`` (arXiv 2606.07604)."""
        return self.value_weighted / _safe(self.output_norm).unsqueeze(-1)

    @property
    def intra(self) -> LayerHeadQueryKey:
        """Intra-head contribution weights; the keys of each (layer, head, query) sum to 1 (arXiv 2606.07604)."""
        return self._contribution(self.direction, self.output_norm)

    @property
    def inter(self) -> LayerHeadQueryKey:
        """Inter-head contribution weights; heads and keys of each (layer, query) sum to 1 (arXiv 2606.07604)."""
        return self._contribution(self.layer_direction, self.layer_norm.unsqueeze(1))

    @property
    def cosine(self) -> LayerHeadQueryKey:
        """``cos(o^h_i, ṽ_j)``, with the head's output; NaN where the query cannot see the key."""
        return self._cosine(self.direction, self.output_norm)

    @property
    def layer_cosine(self) -> LayerHeadQueryKey:
        """``cos(o_i, ṽ_j)``, with the layer's output; NaN where the query cannot see the key."""
        return self._cosine(self.layer_direction, self.layer_norm.unsqueeze(1))

    @property
    def learned_sink_mass(self) -> LayerHeadQuery:
        """Mass on a learned null key (gpt-oss), ``1 - Σ_j A_ij``; 0 up to rounding for models without one."""
        return 1 - self.attention.sum(-1)

    @property
    def n_degenerate(self) -> int:
        """Rows (layer, head, query) whose head output is too short to divide by; NaN in the contribution maps."""
        return int(degenerate(self.output_norm.square()).sum())

    def _norms_per_pair(self) -> Tensor:
        return self.value_norm if self.value_norm.ndim == 4 else self.value_norm.unsqueeze(-2)

    def _contribution(self, direction: Tensor, norm: Tensor) -> Tensor:
        # Normed before the product: the square of a short output is not a normal number any more.
        unit = direction / _safe(norm).transpose(1, 2).unsqueeze(-1)
        return inner_products(unit, self.value).mul_(self.attention).div_(norm.unsqueeze(-1))

    def _cosine(self, direction: Tensor, norm: Tensor) -> Tensor:
        cosine = value_cosines(direction, self.value, self.value_norm, norm)
        return cosine.masked_fill_(~self.visible.unsqueeze(1), float("nan"))

    def metric(self, name: str) -> LayerHeadQueryKey:
        """A metric by its name: one of ``attention, value_weighted, output_normalized, intra, inter, cosine``.

        Raises:
            InputError: there is no such metric.
        """
        if name not in METRICS:
            raise InputError(f"no metric {name!r}; the metrics are {', '.join(METRICS)}")
        return getattr(self, name)

    def layer(self: MapsT, layer: int) -> MapsT:
        """The maps of one layer only, by the model's own number.

        Raises:
            InputError: these maps do not hold the layer.
        """
        row = layer_index(self.layers, layer)
        kept = {name: getattr(self, name)[row : row + 1] for name in _TENSORS}
        return type(self)(
            **kept, tokens=self.tokens, token_ids=self.token_ids, layers=(layer,),
            sink_positions=self.sink_positions, provenance=self.provenance, learned_sink=self.learned_sink,
        )  # fmt: skip

    def to_dataframe(self, layer: int, head: int) -> pd.DataFrame:
        """One row per visible (query, key) pair of a head, with every metric.

        Raises:
            InputError: there is no such layer or head.
        """
        check_head(self.n_heads, head)
        one = self.layer(layer)
        query, key = one.visible[0].nonzero(as_tuple=True)
        table = pd.DataFrame({"layer": layer, "head": head, "query": query.numpy(), "key": key.numpy()})
        table["query_token"] = [self.tokens[i] for i in query.tolist()]
        table["key_token"] = [self.tokens[j] for j in key.tolist()]
        for name in METRICS:
            table[name] = one.metric(name)[0, head, query, key].numpy()
        return table

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        labels = {name: list(getattr(self, name)) for name in _LABELS}
        metadata = {**labels, "provenance": self.provenance.to_dict(), "learned_sink": self.learned_sink}
        return save_tensors(path, type(self).__name__, {name: getattr(self, name) for name in _TENSORS}, metadata)

    @classmethod
    def load(cls: type[MapsT], path: str | os.PathLike[str]) -> MapsT:
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, cls.__name__)
        fields: dict[str, Any] = {**tensors, **{name: tuple(metadata[name]) for name in _LABELS}}
        learned_sink = bool(metadata.get("learned_sink", False))  # files of earlier versions do not say
        return cls(**fields, provenance=Provenance.from_dict(metadata["provenance"]), learned_sink=learned_sink)

    def __repr__(self) -> str:
        layers, heads, length = len(self.layers), self.n_heads, len(self.tokens)
        return (
            f"AttentionMaps({self.provenance.model_name}: {layers} layers x {heads} heads, {length} tokens; "
            f"sinks at {list(self.sink_positions)}, {self.n_degenerate} degenerate rows)"
        )


def _safe(norm: Tensor) -> Tensor:
    return norm.masked_fill(degenerate(norm.square()), float("nan"))

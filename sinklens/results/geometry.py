"""Sink geometry: how the sink's vector lies to the others, and whether a sink is representable, in two spaces per layer."""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.per_document import PerDocument

RESIDUAL, ATTENTION_INPUT = "residual", "attention_input"
SPACES = (RESIDUAL, ATTENTION_INPUT)
DIMENSION = "dimension."


@dataclass(frozen=True, repr=False)
class SinkGeometry(PerDocument):
    """The sink's geometry (arXiv 2605.08453, operational form ours), ``[layer, space]``, from :func:`sinklens.sink_geometry`.

    The spaces are ``"residual"``, the residual stream before the layer, and ``"attention_input"``, what ``W_Q``, ``W_K`` and
    ``W_V`` multiply: behind the norm, where one comes before attention. Quantities:

    - ``cosine_mean``, ``cosine_max``: of the sink's vector with every other token's; ``opposed_share``: how many of these
      cosines are at most 0. With ``_without`` behind the name: without the dimensions that are massive in the residual
      stream of this layer and document (the same number where there is none).
    - ``query_margin``, ``key_margin``, ``witness_margin``, ``witness_norm``, ``anti_alignment_margin``: of
      :class:`sinklens.theory.SinkRepresentation`, for the queries after the sink that see it and the keys they see.
    - ``representable``: 1 where some ``W`` makes all these queries attend to the sink, else 0; ``anti_aligned``: 1 where
      they all point away from the sink and ``W = -x_s x_sᵀ`` already does.
    - ``rank_share``: numerical rank over the number of tokens; at 1 the tokens are linearly independent, and then *every*
      pattern is representable, so that only the margins say anything.
    - ``massive_count``: massive activations (:func:`sinklens.theory.massive_activations`) in the space; ``massive_on_sink``:
      the share of them at the sink, NaN without any; ``largest_ratio``: largest magnitude over the median one.

    Attributes:
        values: by quantity ``[layer, space, document]``; NaN where a document has no sink or no query after it, and in the
            attention input of layers where that is not known (``provenance.conventions["unknown_inputs"]`` says why).
        layers: the model's own numbers of the layers that were measured.
        provenance: model, text, versions; its conventions hold the thresholds of massive activations.
    """

    AXES: ClassVar[tuple[str, ...]] = ("layer", "space")

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names that :meth:`mean` and :meth:`interval` know; massive dimensions have a table of their own."""
        return tuple(name for name in self.values if not name.startswith(DIMENSION))

    def labels(self, axis: str) -> Sequence[Any]:
        """Layers by the model's own numbers, spaces by name."""
        return SPACES if axis == "space" else super().labels(axis)

    def curve(self, name: str, space: str) -> pd.DataFrame:
        """One quantity over depth: ``layer``, ``mean``, ``low``, ``high``.

        Raises:
            InputError: there is no such quantity or space.
        """
        column = space_index(space)
        low, high = self.interval(name)[:, column].T.numpy()
        return pd.DataFrame(
            {"layer": self.layers, "mean": self.mean(name)[:, column].numpy(), "low": low, "high": high}
        )

    def over_layers(self, name: str, space: str) -> Float[Tensor, " document"]:
        """Each document's mean over the layers that have the quantity.

        Raises:
            InputError: there is no such quantity or space.
        """
        return self.documents(name)[:, space_index(space)].nanmean(0)

    def representable(self, space: str = ATTENTION_INPUT) -> pd.DataFrame:
        """Is a sink representable here: ``layer``, ``share`` of documents, and the ``answer``: yes, no, in some or unknown.

        Raises:
            InputError: there is no such space.
        """
        return self._answers("representable", space)

    def anti_aligned(self, space: str = ATTENTION_INPUT) -> pd.DataFrame:
        """Is the sink anti-aligned, so that ``W = -x_s x_sᵀ`` makes it one: as :meth:`representable`.

        Raises:
            InputError: there is no such space.
        """
        return self._answers("anti_aligned", space)

    def _answers(self, name: str, space: str) -> pd.DataFrame:
        share = self.mean(name)[:, space_index(space)].tolist()
        words = {0.0: "no", 1.0: "yes"}
        answers = ["unknown" if s != s else words.get(s, "in some") for s in share]
        return pd.DataFrame({"layer": self.layers, "share": share, "answer": answers})

    def massive_dimensions(self, space: str = RESIDUAL) -> pd.DataFrame:
        """The dimensions that are massive: ``layer``, ``dimension``, and the ``share`` of documents in which they are.

        Raises:
            InputError: there is no such space.
        """
        column = space_index(space)
        rows = [
            (layer, int(name.removeprefix(DIMENSION)), share)
            for name, figures in self.values.items()
            if name.startswith(DIMENSION)
            for layer, share in zip(self.layers, figures[:, column].nanmean(-1).tolist(), strict=True)
            if share > 0
        ]
        return pd.DataFrame(
            sorted(rows, key=lambda row: (row[0], -row[2], row[1])), columns=["layer", "dimension", "share"]
        )

    def _joined(self, other: PerDocument) -> dict[str, Tensor]:
        """A dimension that is massive in one of two texts only is not in the other."""
        names = dict.fromkeys(name for part in (self, other) for name in part.values if name.startswith(DIMENSION))
        first, second = (
            dataclasses.replace(part, values={**_zeros(part, names), **part.values}) for part in (self, other)
        )
        return PerDocument._joined(first, second)

    def __repr__(self) -> str:
        yes = [self.representable(space)["answer"].to_list().count("yes") for space in SPACES]
        opposed = self.anti_aligned()["answer"].to_list().count("yes")
        return (
            f"SinkGeometry({self.provenance.model_name}, {self.n_documents} documents: a sink is representable in every document "
            f"in {yes[0]} of {len(self.layers)} layers on the residual stream, in {yes[1]} on attention's input; there the sink "
            f"is anti-aligned in {opposed})"
        )


def _zeros(part: PerDocument, names: Iterable[str]) -> dict[str, Tensor]:
    """Shares of 0 where a document has figures at all."""
    like = part.documents("cosine_mean")
    return {name: torch.where(like.isnan(), like, 0.0) for name in names}


def space_index(space: str) -> int:
    """The column of a space.

    Raises:
        InputError: there is no such space.

    Example:
        >>> space_index("attention_input")
        1
    """
    if space not in SPACES:
        raise InputError(f"space is {space!r}; expected {' or '.join(SPACES)}")
    return SPACES.index(space)

"""What analyzers share that keep a figure for every document: rows of sequences, joined to documents at the end."""

from typing import ClassVar

import torch
from torch import Tensor

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.errors import InputError
from sinklens.models.tokens import TokenBatch
from sinklens.results.per_document import PerDocument
from sinklens.results.provenance import Provenance


class DocumentsAnalyzer(Analyzer):
    """An analyzer whose result is a :class:`~sinklens.results.per_document.PerDocument`; ``kept`` says which.

    A document that was cut into several sequences has the mean of their figures, NaN left out.

    Example:
        >>> DocumentsAnalyzer.kept.__name__
        'PerDocument'
    """

    kept: ClassVar[type[PerDocument]] = PerDocument

    def start(self, setup: Setup) -> None:
        """Start with no document."""
        self.layers = setup.layers
        self._documents: list[int] = []
        self._rows: dict[str, list[list[Tensor]]] = {}

    def begin(self, batch: TokenBatch) -> None:
        """Remember which document each row belongs to."""
        self._documents += batch.documents

    def add(self, index: int, figures: dict[str, Tensor]) -> None:
        """Add one layer of one batch.

        Args:
            index: the layer's row.
            figures: by quantity, ``[batch, ...]``: the sequence first, then whatever cells a layer has.
        """
        for name, figure in figures.items():
            layers = self._rows.setdefault(name, [[] for _ in self.layers])
            layers[index].append(figure.detach().double().cpu())

    @property
    def values(self) -> dict[str, Tensor]:
        """What was added, ``[layer, ..., document]``."""
        stacked = {name: torch.stack([torch.cat(rows) for rows in layers]) for name, layers in self._rows.items()}
        documents = torch.tensor(self._documents)
        return {name: self._by_document(rows, documents).movedim(1, -1) for name, rows in stacked.items()}

    def found(self, name: str, provenance: Provenance, after: str) -> dict[str, Tensor]:
        """:attr:`values`, where any sequence had a sink with something after it to measure.

        Args:
            name: of a quantity that every such sequence has.
            provenance: of the run.
            after: what has to stand behind the sink, in words.

        Raises:
            InputError: none had.
        """
        values = self.values
        if values[name].isnan().all():
            raise InputError(
                f"sink {provenance.sink!r} was found in none of {provenance.n_sequences} sequences with a {after} after it; "
                "choose another sink, or longer text"
            )
        return values

    def _by_document(self, rows: Tensor, documents: Tensor) -> Tensor:
        chosen = documents.unique()
        if len(chosen) == len(documents):
            return rows[:, documents.argsort()]  # batches hold them by length, not as they were given
        return torch.stack([rows[:, documents == document].nanmean(1) for document in chosen], 1)

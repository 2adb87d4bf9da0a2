"""Forward passes of a study, and the sums that they add up per document."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sinklens.ablation.losses import SequenceLosses, sequence_losses
from sinklens.errors import UnsupportedAttentionError
from sinklens.models.attention import ModelAttention
from sinklens.models.tokens import TokenBatch, TokenBatches
from sinklens.results.provenance import Provenance


def require_causal(attention: ModelAttention) -> None:
    """Next-token loss needs a model that predicts the next token.

    Raises:
        UnsupportedAttentionError: it sees it instead.
    """
    if not attention.is_causal:
        raise UnsupportedAttentionError(
            f"{attention.name} sees later tokens, so it has no next-token loss; expected a causal language model"
        )


def logits_of(attention: ModelAttention, batch: TokenBatch) -> Tensor:
    """The model's logits ``[batch, position, vocabulary]``, without gradients."""
    arguments = attention.mask_arguments(batch.mask)
    with torch.no_grad():
        return attention.model(batch.tokens.to(attention.device), return_type="logits", **arguments)


class DocumentSums:
    """Sums per document of loss and divergence, for the clean model and every cell.

    Example:
        >>> sums = DocumentSums(2)
        >>> sums.documents
        {}
    """

    def __init__(self, n_cells: int):
        self.n_cells = n_cells
        # By document: clean loss, predicted tokens, then loss and divergence of each cell.
        self.documents: dict[int, Tensor] = {}

    def _add(self, document: int, slot: int, amount: Tensor) -> None:
        empty = torch.zeros(2 + 2 * self.n_cells, dtype=torch.float64)
        self.documents.setdefault(document, empty)[slot] += amount

    def add_clean(self, documents: Sequence[int], losses: SequenceLosses) -> None:
        """Add a batch of the clean model."""
        for row, document in enumerate(documents):
            self._add(document, 0, losses.loss[row])
            self._add(document, 1, losses.n_predicted[row])

    def add(self, cell: int, documents: Sequence[int], losses: SequenceLosses) -> None:
        """Add a batch under a cell's edit."""
        for row, document in enumerate(documents):
            self._add(document, 2 + cell, losses.loss[row])
            self._add(document, 2 + self.n_cells + cell, losses.divergence[row])

    def fields(self) -> dict[str, Tensor]:
        """The tensors of an :class:`~sinklens.results.ablation.AblationResult`, documents in the order of the text."""
        table = torch.stack([self.documents[document] for document in sorted(self.documents)], dim=1)
        return {
            "clean_loss": table[0],
            "count": table[1],
            "loss": table[2 : 2 + self.n_cells],
            "divergence": table[2 + self.n_cells :],
        }


def clean_pass(attention: ModelAttention, batch: TokenBatch, sums: DocumentSums) -> Tensor:
    """Run the clean model on a batch, add its losses, and give its logits."""
    logits = logits_of(attention, batch)
    sums.add_clean(batch.documents, sequence_losses(logits, batch.tokens, batch.mask))
    return logits


def provenance_of(
    attention: ModelAttention, batches: TokenBatches, sink: str, seed: int, **conventions: Any
) -> Provenance:
    """Where the result comes from."""
    return attention.provenance(sink, seed=seed, conventions=conventions, **batches.counts)

"""Forward passes of a study, and the sums that they add up per document."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sinklens.ablation.losses import SequenceLosses, sequence_losses
from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.models.attention import ModelAttention
from sinklens.models.tokens import TokenBatch, TokenBatches, tokenize
from sinklens.results.provenance import Provenance


def as_batches(model: Any, texts: Any, tokenization: dict[str, Any]) -> TokenBatches:
    """The batches of texts, or those that were made before.

    Raises:
        InputError: the texts cannot be used, or settings are given beside batches.
    """
    if not isinstance(texts, TokenBatches):
        return tokenize(model, texts, **tokenization)
    given = {name for name, value in tokenization.items() if value is not None}
    if given - {"context_length", "batch_size"}:
        raise InputError(f"the texts are batches already; pass {', '.join(sorted(given))} to sinklens.tokenize instead")
    return texts


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
    # HookedTransformer makes a mask of its own for a tokenizer that pads on the left: real tokens at the start of a
    # sequence whose id is the padding's would be hidden. Causal attention never looks at padding on the right.
    left = getattr(getattr(attention.model, "tokenizer", None), "padding_side", "right") == "left"
    arguments = {"attention_mask": batch.mask.long().to(attention.device)} if left else {}
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
    names = ("context_length", "n_documents", "n_sequences", "n_tokens", "n_cut", "n_skipped", "prepended_bos")
    return Provenance(
        model_name=attention.name, backend=attention.backend, frame=attention.frame, dtype=attention.dtype, sink=sink,
        hooks=attention.n_hooks, seed=seed, weights=attention.checksum, conventions=conventions,
        **{name: getattr(batches, name) for name in names},
    )  # fmt: skip

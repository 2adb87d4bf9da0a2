"""Next-token loss and divergence, per sequence, in float32 whatever the model's dtype."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.axes import RealTokens, Tokens

Logits = Float[Tensor, "batch position vocabulary"]


class SequenceLosses(NamedTuple):
    """Sums over the predicted tokens of each sequence, and how many there are.

    Attributes:
        loss: sum of the cross-entropies ``-log q(next token)``, in nats.
        divergence: sum of ``KL(p || q)``, in nats; zeros where there is no other model to compare with.
        n_predicted: how many tokens were predicted.
    """

    loss: Float[Tensor, " batch"]
    divergence: Float[Tensor, " batch"]
    n_predicted: Int[Tensor, " batch"]


def sequence_losses(logits: Logits, tokens: Tokens, mask: RealTokens, clean: Logits | None = None) -> SequenceLosses:
    """Sums of next-token cross-entropy, and of ``KL(p || q)`` from the clean model's distribution ``p``.

    A position is scored where it and the next one are real tokens; padding on either side is not. One sequence at a
    time, so that memory holds one sequence's distributions.

    Args:
        logits: of the model under the intervention, ``q``.
        tokens: ``[batch, position]``.
        mask: True on real tokens.
        clean: logits of the clean model, ``p``.

    Returns:
        :class:`SequenceLosses` in float64, on the CPU.

    Example:
        >>> tokens, mask = torch.tensor([[0, 1, 1]]), torch.ones(1, 3) > 0
        >>> losses = sequence_losses(torch.zeros(1, 3, 2), tokens, mask)
        >>> round(losses.loss.item(), 4), losses.n_predicted.item()
        (1.3863, 2)
    """
    loss, divergence = torch.zeros(2, len(tokens), dtype=torch.float64)
    scored = (mask[:, :-1] & mask[:, 1:]).to(logits.device)
    targets = tokens[:, 1:].to(logits.device)
    for row in range(len(tokens)):
        log_q = logits[row, :-1][scored[row]].float().log_softmax(-1)
        loss[row] = -log_q.gather(-1, targets[row][scored[row]].unsqueeze(-1)).sum(dtype=torch.float64)
        if clean is not None:
            log_p = clean[row, :-1][scored[row]].float().log_softmax(-1)
            divergence[row] = (log_p.exp() * (log_p - log_q)).sum(dtype=torch.float64)
    return SequenceLosses(loss, divergence, scored.sum(-1).cpu())

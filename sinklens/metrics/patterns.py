"""What kind of pattern a head shows: sink, learned sink, diagonal, previous token, dense or mixed (ours), and its scores."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.axes import Pattern, PerQuery

Entropy = Literal["collision", "shannon"]
KINDS = ("sink", "learned sink", "diagonal", "previous", "dense", "mixed")


def self_attention(pattern: Pattern) -> PerQuery:
    """Self mass ``A_ii``: the attention of each query on its own position.

    Args:
        pattern: ``[batch, head, query, key]``, as many queries as keys.

    Returns:
        ``[batch, head, query]`` in 0 to 1. A view.

    Example:
        >>> self_attention(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])).flatten().tolist()
        [1.0, 0.75]
    """
    return pattern.diagonal(dim1=-2, dim2=-1)


def previous_attention(pattern: Pattern) -> PerQuery:
    """Previous-token mass ``A_i,i-1``; 0 at position 0, which has no previous token.

    Args:
        pattern: ``[batch, head, query, key]``, as many queries as keys.

    Returns:
        ``[batch, head, query]`` in 0 to 1.

    Example:
        >>> previous_attention(torch.tensor([[[[1.0, 0.0], [0.25, 0.75]]]])).flatten().tolist()
        [0.0, 0.25]
    """
    return torch.nn.functional.pad(pattern.diagonal(offset=-1, dim1=-2, dim2=-1), (1, 0))


def row_entropy(
    pattern: Pattern, visible: Int[Tensor, "batch query"], kind: Entropy = "collision", total: PerQuery | None = None
) -> PerQuery:
    """Entropy of each row over ``log(#visible keys)``: 0 for one key, 1 for uniform attention.

    ``"collision"`` is the Rényi entropy of order 2, ``-log Σ_j A_ij²``, one pass over the pattern; ``"shannon"`` is
    ``-Σ_j A_ij log A_ij``, never smaller, and about as dear as the softmax itself. Both agree at 0 and at 1.

    Args:
        pattern: ``[batch, head, query, key]``.
        visible: how many keys each query sees ``[batch, query]``.
        kind: which entropy.
        total: ``Σ_j A_ij`` ``[batch, head, query]`` where a learned sink takes the rest: the entropy is that of the shares
            ``A_ij / Σ_j A_ij`` (ours). Without it rows are taken to sum to 1.

    Returns:
        ``[batch, head, query]`` in 0 to 1; 0 where fewer than two keys are visible.

    Example:
        >>> uniform = torch.full((1, 1, 1, 4), 0.25)
        >>> row_entropy(uniform, torch.tensor([[4]])).item(), row_entropy(uniform, torch.tensor([[4]]), "shannon").item()
        (1.0, 1.0)
    """
    if kind == "collision":
        tiny = torch.finfo(pattern.dtype).tiny
        entropy = -2 * torch.linalg.vector_norm(pattern, dim=-1).clamp(min=tiny).log()
    elif kind == "shannon":
        entropy = torch.special.entr(pattern).sum(-1)
    else:
        raise ValueError(f"unknown entropy {kind!r}; expected 'collision' or 'shannon'")
    if total is not None:
        safe = total.clamp(min=torch.finfo(total.dtype).tiny)
        entropy = entropy + 2 * safe.log() if kind == "collision" else entropy / safe + safe.log()
    scale = visible.clamp(min=2).to(pattern.dtype).log().unsqueeze(1)
    return (entropy / scale).clamp(min=0) * (visible > 1).unsqueeze(1)


def pattern_kind(
    sink_mass: Float[Tensor, "*heads"],
    self_mass: Float[Tensor, "*heads"],
    previous_mass: Float[Tensor, "*heads"],
    entropy: Float[Tensor, "*heads"],
    sink_threshold: float = 0.3,
    self_threshold: float = 0.3,
    previous_threshold: float = 0.3,
    dense_threshold: float = 0.7,
    learned_sink_mass: Float[Tensor, "*heads"] | None = None,
    learned_sink_threshold: float = 0.3,
) -> Int[Tensor, "*heads"]:
    """The kind of each head (ours): the first of sink, learned sink, diagonal, previous above its threshold, else dense or mixed.

    Args:
        sink_mass: mean attention on the sink, any shape.
        self_mass: mean ``A_ii``.
        previous_mass: mean ``A_i,i-1``.
        entropy: mean normalised row entropy.
        sink_threshold: strict, as the others.
        self_threshold: for diagonal heads.
        previous_threshold: for previous-token heads.
        dense_threshold: entropy above which a head is dense.
        learned_sink_mass: mean mass on a learned null key, which is no token's; None where the model has none.
        learned_sink_threshold: for heads that rest on it.

    Returns:
        Indices into :data:`KINDS`, of the same shape. A NaN mass exceeds no threshold.

    Example:
        >>> scores = [torch.tensor(x) for x in ([0.9, 0.0], [0.5, 0.0], [0.0, 0.0], [0.1, 0.9])]
        >>> [KINDS[kind] for kind in pattern_kind(*scores).tolist()]
        ['sink', 'dense']
    """
    kind = torch.where(entropy > dense_threshold, KINDS.index("dense"), KINDS.index("mixed"))
    kind = torch.where(previous_mass > previous_threshold, KINDS.index("previous"), kind)
    kind = torch.where(self_mass > self_threshold, KINDS.index("diagonal"), kind)
    if learned_sink_mass is not None:
        kind = torch.where(learned_sink_mass > learned_sink_threshold, KINDS.index("learned sink"), kind)
    return torch.where(sink_mass > sink_threshold, KINDS.index("sink"), kind)

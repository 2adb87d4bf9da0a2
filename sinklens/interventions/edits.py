"""What an intervention does to numbers: pure functions of a pattern, of a value, of a change of the head's output."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import KeyMask, Pattern, Visible

Mass = Float[Tensor, "*#rows"]
Masked = Bool[Tensor, "*#pairs"]


def with_sink_mass(
    pattern: Pattern, is_sink: KeyMask, visible: Visible, mass: float | Mass, learned_sink: bool = False
) -> Pattern:
    """``A_is := α`` and the rest of the row rescaled to ``1 - α`` (arXiv 2606.07604, operational form ours).

    Several sinks share ``α`` as they share their present attention, evenly where they have none. A learned sink logit is
    a part of the rest. Rows that see no sink, or nothing but sinks, stay as they are: there is no rest to rescale.

    Args:
        pattern: ``[batch, head, query, key]``.
        is_sink: ``[batch, key]``.
        visible: ``[batch, query, key]``.
        mass: ``α`` in 0 to 1, a number or a tensor that broadcasts to ``[batch, head, query]``.
        learned_sink: whether a row lacks to 1 what a learned sink logit takes.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> pattern = torch.tensor([[[[0.8, 0.1, 0.1]]]])
        >>> sink, visible = torch.tensor([[True, False, False]]), torch.ones(1, 1, 3) > 0
        >>> with_sink_mass(pattern, sink, visible, 0.2).flatten().tolist()
        [0.20000000298023224, 0.4000000059604645, 0.4000000059604645]
    """
    wanted = mass.to(pattern).unsqueeze(-1) if isinstance(mass, Tensor) else mass
    sink_keys = is_sink[:, None, None, :]
    seen_sinks = (visible.unsqueeze(1) & sink_keys).to(pattern.dtype)
    on_sinks, others = torch.where(sink_keys, pattern, 0.0), torch.where(sink_keys, 0.0, pattern)
    present, n_sinks = on_sinks.sum(-1, keepdim=True), seen_sinks.sum(-1, keepdim=True)
    rest = others.sum(-1, keepdim=True)
    if learned_sink:
        rest = rest + (1 - pattern.sum(-1, keepdim=True)).clamp(min=0)
    share = torch.where(
        present > 0, on_sinks / present.masked_fill(present == 0, 1.0), seen_sinks / n_sinks.clamp(min=1)
    )
    edited = wanted * share + (1 - wanted) * (others / rest.masked_fill(rest == 0, 1.0))
    # A row that already has this mass stays bitwise: rescaling by a number near 1 would round.
    return torch.where((rest > 0) & (n_sinks > 0) & (present != wanted), edited, pattern)


def without_sinks(pattern: Pattern, is_sink: KeyMask) -> Pattern:
    """``A_is := 0``, the rest as it is, so that rows sum to less than 1.

    Args:
        pattern: ``[batch, head, query, key]``.
        is_sink: ``[batch, key]``.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> without_sinks(torch.tensor([[[[0.75, 0.25]]]]), torch.tensor([[True, False]])).flatten().tolist()
        [0.0, 0.25]
    """
    return torch.where(is_sink[:, None, None, :], 0.0, pattern)


def densified(pattern: Pattern, visible: Visible, strength: float, base: str = "attention") -> Pattern:
    """``(1-λ) A + λ U``, or ``(1-λ) I + λ U``, with ``U`` uniform over what a query sees (arXiv 2605.08453).

    Args:
        pattern: ``[batch, head, query, key]``.
        visible: ``[batch, query, key]``; rows of padding see nothing and stay as they are.
        strength: ``λ`` in 0 to 1.
        base: ``"attention"`` for ``A``, ``"identity"`` for ``I``.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> seen = torch.ones(1, 2, 2).tril() > 0
        >>> densified(torch.eye(2)[None, None], seen, 0.5).flatten().tolist()
        [1.0, 0.0, 0.25, 0.75]
    """
    count = visible.sum(-1, keepdim=True)
    uniform = (visible / count.clamp(min=1)).to(pattern.dtype).unsqueeze(1)
    start = pattern if base == "attention" else _identity(pattern)
    return torch.where((count > 0).unsqueeze(1), (1 - strength) * start + strength * uniform, pattern)


def diagonalized(pattern: Pattern, visible: Visible, strength: float) -> Pattern:
    """``(1-λ) A + λ I``: a share of the attention moved to the query's own token (arXiv 2605.08453).

    Args:
        pattern: ``[batch, head, query, key]``.
        visible: ``[batch, query, key]``; rows of padding stay as they are.
        strength: ``λ`` in 0 to 1.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> diagonalized(torch.full((1, 1, 2, 2), 0.5), torch.ones(1, 2, 2) > 0, 0.5).flatten().tolist()
        [0.75, 0.25, 0.25, 0.75]
    """
    real = visible.any(-1)[:, None, :, None]
    return torch.where(real, (1 - strength) * pattern + strength * _identity(pattern), pattern)


def _identity(pattern: Tensor) -> Tensor:
    return torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device).expand_as(pattern)


def masked(pattern: Pattern, removed: Masked, renormalize: bool = False) -> Pattern:
    """Contributions taken out of ``A v``: ``A_ij := 0`` where removed.

    Args:
        pattern: ``[batch, head, query, key]``.
        removed: True on what is taken out, broadcasts to the pattern's shape.
        renormalize: rescale what is left of a row to the row's former sum; a row of which nothing is left is zero.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> pattern, removed = torch.tensor([[[[0.5, 0.25, 0.25]]]]), torch.tensor([True, False, False])
        >>> masked(pattern, removed).flatten().tolist(), masked(pattern, removed, renormalize=True).flatten().tolist()
        ([0.0, 0.25, 0.25], [0.0, 0.5, 0.5])
    """
    left = torch.where(removed, 0.0, pattern)
    if not renormalize:
        return left
    remaining = left.sum(-1, keepdim=True)
    scale = pattern.sum(-1, keepdim=True) / remaining.masked_fill(remaining == 0, 1.0)
    return torch.where(removed.expand_as(pattern).any(-1, keepdim=True), left * scale, pattern)


def value_change(value: Tensor, factor: float, offset: Tensor | None = None) -> Tensor:
    """What is added to a value so that it becomes ``factor * v + offset``; exactly 0 for factor 1 and no offset.

    Args:
        value: ``[..., head, d_head]``.
        factor: any finite number.
        offset: ``[head, d_head]``, or None for 0.

    Returns:
        The change, of the value's shape.

    Example:
        >>> value_change(torch.tensor([[2.0]]), 0.0, torch.tensor([[5.0]])).item()
        3.0
    """
    change = (factor - 1) * value
    return change if offset is None else change + offset.to(value)


def in_direction(change: Tensor, direction: Tensor, factor: Tensor) -> Tensor:
    """A change of the same length after ``W_O``, in another direction: the norm-matched control.

    ``r · ||Δ||_W / ||r||_W`` with ``||x||_W² = Σ_h ||x W_O^h||²`` over the query heads that read the vector.

    Args:
        change: ``Δ`` ``[..., head, d_head]``, one vector per (key/value) head.
        direction: ``r`` ``[head, d_head]``, not zero.
        factor: ``[head, readers, d_head, d_head]``, the factors ``F`` of the query heads that read each.

    Returns:
        The shape of ``change``.

    Example:
        >>> one = torch.eye(2).reshape(1, 1, 2, 2)
        >>> in_direction(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 1.0]]), one).tolist()
        [[0.0, 5.0]]
    """
    wanted = torch.einsum("...hd,hrde->...hre", change, factor).flatten(-2).norm(dim=-1)
    length = torch.einsum("hd,hrde->hre", direction, factor).flatten(-2).norm(dim=-1)
    return (wanted / length).unsqueeze(-1) * direction

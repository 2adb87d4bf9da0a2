"""Contribution weights and the importance metrics beside them (arXiv 2606.07604), as pure functions of one layer's tensors.

Every function works in head space or with ``u = o W_Oᵀ``; none builds a ``[query, key, d_model]`` tensor.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.axes import (
    HeadOutput,
    HeadValue,
    LayerOutput,
    OutputWeight,
    Pattern,
    PerKey,
    PerQuery,
    Value,
)
from sinklens.metrics.head_space import expand_kv_heads, head_factor, to_head_space

# One per head (intra), or one for the layer (inter).
SquaredNorm = Float[Tensor, "batch #head query"]
OutputNorm = SquaredNorm


def degenerate(squared_norm: Tensor) -> Tensor:
    """True where an output is too short to divide by: ``||o||² <= tiny`` of its dtype.

    Such rows are NaN in maps, left out of averages, and counted in results.

    Args:
        squared_norm: any shape, not negative.

    Returns:
        Booleans of the same shape.

    Example:
        >>> degenerate(torch.tensor([0.0, 1.0])).tolist()
        [True, False]
    """
    return squared_norm <= torch.finfo(squared_norm.dtype).tiny


def layer_output(z: HeadOutput, W_O: OutputWeight) -> LayerOutput:
    """The layer's output ``o_i = Σ_h z^h_i W_O^h``, without ``b_O``, which is common to all sources.

    Args:
        z: head outputs ``[batch, query, head, d_head]``, after a gate if the model has one.
        W_O: ``[head, d_head, d_model]``.

    Returns:
        ``[batch, query, d_model]``.

    Example:
        >>> layer_output(torch.ones(1, 1, 2, 1), torch.ones(2, 1, 3)).flatten().tolist()
        [2.0, 2.0, 2.0]
    """
    return z.flatten(2) @ W_O.flatten(0, 1)


def inner_products(directions: HeadOutput, value: HeadValue, gate: HeadOutput | None = None) -> Pattern:
    """``<γ_i ⊙ u_i, v_j>`` for every head, query and key; without a gate ``<u_i, v_j>``.

    Args:
        directions: ``u`` ``[batch, query, head, d_head]``, for example ``z W_O W_Oᵀ`` (intra) or ``o W_Oᵀ`` (inter).
        value: ``v`` ``[batch, key, head, d_head]``, one per query head.
        gate: ``γ`` ``[batch, query, head, d_head]`` of a gated attention, which multiplies every value a query reads.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> inner_products(torch.full((1, 1, 1, 2), 2.0), torch.ones(1, 3, 1, 2)).flatten().tolist()
        [4.0, 4.0, 4.0]
    """
    gated = directions if gate is None else directions * gate
    return gated.transpose(1, 2) @ value.permute(0, 2, 3, 1)


def _shares(pattern: Pattern, products: Pattern, squared_norm: SquaredNorm) -> Pattern:
    safe = squared_norm.masked_fill(degenerate(squared_norm), float("nan"))
    return pattern * products / safe.unsqueeze(-1)


def intra_directions(z: HeadOutput, W_O: OutputWeight) -> tuple[HeadOutput, SquaredNorm]:
    """``u_i = z_i W_O W_Oᵀ`` and ``||o^h_i||²``: what one head's contributions are measured along and divided by.

    Args:
        z: ``[batch, query, head, d_head]``.
        W_O: ``[head, d_head, d_model]``.

    Returns:
        ``u`` ``[batch, query, head, d_head]`` and squared norms ``[batch, head, query]``.

    Example:
        >>> u, squared = intra_directions(torch.ones(1, 1, 1, 2), torch.eye(2).unsqueeze(0) * 2)
        >>> u.flatten().tolist(), squared.item()
        ([4.0, 4.0], 8.0)
    """
    factor = head_factor(W_O)
    output = to_head_space(z, factor)
    return to_head_space(output, factor.mT), output.square().sum(-1).transpose(1, 2)


def inter_directions(output: LayerOutput, W_O: OutputWeight) -> tuple[HeadOutput, SquaredNorm]:
    """``u^h_i = o_i (W_O^h)ᵀ`` and ``||o_i||²``: what all heads' contributions to the layer are measured along and divided by.

    Args:
        output: ``[batch, query, d_model]``, without ``b_O``.
        W_O: ``[head, d_head, d_model]``.

    Returns:
        ``u`` ``[batch, query, head, d_head]`` and squared norms ``[batch, 1, query]``.

    Example:
        >>> u, squared = inter_directions(torch.ones(1, 1, 2), torch.eye(2).unsqueeze(0) * 2)
        >>> u.flatten().tolist(), squared.item()
        ([2.0, 2.0], 2.0)
    """
    directions = (output @ W_O.flatten(0, 1).mT).unflatten(-1, W_O.shape[:2])
    return directions, output.square().sum(-1).unsqueeze(1)


def intra_contributions(
    pattern: Pattern, value: Value, z: HeadOutput, W_O: OutputWeight, gate: HeadOutput | None = None
) -> Pattern:
    """Intra-head contribution weights ``c_ij = <o^h_i, A_ij ṽ_j> / ||o^h_i||²`` (arXiv 2606.07604).

    ``ṽ_j = v_j W_O`` is the projected value and ``o^h_i = Σ_j A_ij ṽ_j`` the head's output. Each row sums to 1.
    Negative weights are destructive interference and are kept; rows with a degenerate output are NaN.

    Args:
        pattern: ``A`` ``[batch, head, query, key]``.
        value: ``v`` ``[batch, key, kv_head or head, d_head]``, with its bias.
        z: ``[batch, query, head, d_head]``.
        W_O: ``[head, d_head, d_model]``.
        gate: ``[batch, query, head, d_head]`` for a gated attention.

    Returns:
        ``[batch, head, query, key]``, no unit, any sign.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> value = torch.tensor([[[[3.0]], [[1.0]]]])
        >>> z = torch.einsum("bhqk,bkhd->bqhd", pattern, value)
        >>> intra_contributions(pattern, value, z, torch.ones(1, 1, 1)).flatten().tolist()
        [1.0, 0.0, 0.75, 0.25]
    """
    directions, squared_norm = intra_directions(z, W_O)
    expanded = expand_kv_heads(value, pattern.shape[1])
    return _shares(pattern, inner_products(directions, expanded, gate), squared_norm)


def inter_contributions(
    pattern: Pattern, value: Value, output: LayerOutput, W_O: OutputWeight, gate: HeadOutput | None = None
) -> Pattern:
    """Inter-head contribution weights ``c^h_ij = <o_i, A^h_ij ṽ^h_j> / ||o_i||²`` (arXiv 2606.07604).

    ``o_i = Σ_h o^h_i`` is the layer's output without ``b_O``. For each query the weights of all heads and keys sum to 1.

    Args:
        pattern: ``[batch, head, query, key]``.
        value: ``[batch, key, kv_head or head, d_head]``, with its bias.
        output: ``[batch, query, d_model]``, without ``b_O`` (:func:`layer_output`).
        W_O: ``[head, d_head, d_model]``.
        gate: ``[batch, query, head, d_head]`` for a gated attention.

    Returns:
        ``[batch, head, query, key]``, no unit, any sign.

    Example:
        >>> pattern, value = torch.ones(1, 2, 1, 1), torch.tensor([[[[3.0], [1.0]]]])
        >>> W_O = torch.ones(2, 1, 1)
        >>> output = layer_output(torch.tensor([[[[3.0], [1.0]]]]), W_O)
        >>> inter_contributions(pattern, value, output, W_O).flatten().tolist()
        [0.75, 0.25]
    """
    directions, squared_norm = inter_directions(output, W_O)
    expanded = expand_kv_heads(value, pattern.shape[1])
    return _shares(pattern, inner_products(directions, expanded, gate), squared_norm)


def value_weighted(pattern: Pattern, value_norm: PerKey | Pattern) -> Pattern:
    """Value-weighted attention ``A_ij ||ṽ_j||`` (Kobayashi et al. 2020).

    Args:
        pattern: ``[batch, head, query, key]``.
        value_norm: ``||ṽ_j||`` ``[batch, head, key]``, or ``[batch, head, query, key]`` under a gate.

    Returns:
        ``[batch, head, query, key]``, not negative, in units of the residual stream.

    Example:
        >>> value_weighted(torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[[4.0, 2.0]]])).flatten().tolist()
        [1.0, 1.5]
    """
    return pattern * (value_norm if value_norm.ndim == 4 else value_norm.unsqueeze(-2))


def output_normalized(pattern: Pattern, value_norm: PerKey | Pattern, output_norm: PerQuery) -> Pattern:
    """Output-normalised attention ``A_ij ||ṽ_j|| / ||o_i||`` (arXiv 2606.07604).

    It ranks the keys of one query as :func:`value_weighted` does, and differs where queries are pooled.

    Args:
        pattern: ``[batch, head, query, key]``.
        value_norm: ``[batch, head, key]``, or ``[batch, head, query, key]`` under a gate.
        output_norm: ``||o_i||`` ``[batch, head, query]``.

    Returns:
        ``[batch, head, query, key]``, not negative, no unit; NaN where the output is degenerate.

    Example:
        >>> output_normalized(torch.tensor([[[[0.5]]]]), torch.tensor([[[4.0]]]), torch.tensor([[[8.0]]])).item()
        0.25
    """
    safe = output_norm.masked_fill(degenerate(output_norm.square()), float("nan"))
    return value_weighted(pattern, value_norm) / safe.unsqueeze(-1)


def gated_value_norms(value: HeadValue, W_O: OutputWeight, gate: HeadOutput) -> Pattern:
    """``||(γ_i ⊙ v_j) W_O||`` per query and key: under a gate the projected value depends on the query that reads it.

    Args:
        value: ``[batch, key, head, d_head]``, one per query head.
        W_O: ``[head, d_head, d_model]``.
        gate: ``[batch, query, head, d_head]``.

    Returns:
        ``[batch, head, query, key]``. One query at a time: no ``[query, key, d_head]`` tensor.

    Example:
        >>> gate = torch.tensor([0.5, 1.0]).reshape(1, 2, 1, 1)
        >>> gated_value_norms(torch.ones(1, 1, 1, 1), torch.full((1, 1, 1), 4.0), gate).flatten().tolist()
        [2.0, 4.0]
    """
    factor = head_factor(W_O)
    rows = [to_head_space(value * row.unsqueeze(1), factor).norm(dim=-1) for row in gate.unbind(1)]
    return torch.stack(rows, dim=-1).permute(0, 2, 3, 1)


def contribution_factors(
    pattern: Pattern, products: Pattern, value_norm: PerKey | Pattern, output_norm: SquaredNorm
) -> tuple[Pattern, Pattern, Pattern]:
    """Split contributions into ``c = A · ρ · cos`` (arXiv 2606.07604).

    ``ρ_ij = ||ṽ_j|| / ||o_i||`` and ``cos_ij = cos(o_i, ṽ_j)``; ``o`` is the head's output (intra) or the layer's (inter).

    Args:
        pattern: ``[batch, head, query, key]``.
        products: ``<o_i, ṽ_j>`` from :func:`inner_products`.
        value_norm: ``[batch, head, key]``, or ``[batch, head, query, key]`` under a gate.
        output_norm: ``[batch, head, query]``, or ``[batch, 1, query]`` for the layer's output.

    Returns:
        ``A``, ``ρ`` and ``cos``, each ``[batch, head, query, key]``; ``ρ`` and ``cos`` are NaN on degenerate rows, and
        ``cos`` is 0 for a value of norm 0, which has no direction.

    Example:
        >>> A, ratio, cosine = contribution_factors(
        ...     torch.ones(1, 1, 1, 1), torch.full((1, 1, 1, 1), -6.0), torch.tensor([[[3.0]]]), torch.tensor([[[2.0]]]))
        >>> A.item(), ratio.item(), cosine.item()
        (1.0, 1.5, -1.0)
    """
    norms = value_norm if value_norm.ndim == 4 else value_norm.unsqueeze(-2)
    safe = output_norm.masked_fill(degenerate(output_norm.square()), float("nan")).unsqueeze(-1)
    direction = products / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    return pattern, norms / safe, direction / safe


def value_cosines(
    directions: HeadOutput,
    value: HeadValue,
    value_norm: PerKey | Pattern,
    output_norm: OutputNorm,
    gate: HeadOutput | None = None,
) -> Pattern:
    """``cos(o_i, ṽ_j)``, the direction factor of a contribution; vectors are divided by norms, not the pairs they make.

    Args:
        directions: ``u`` from :func:`intra_directions` or :func:`inter_directions` ``[batch, query, head, d_head]``.
        value: ``v`` ``[batch, key, head, d_head]``, one per query head.
        value_norm: ``||ṽ_j||`` ``[batch, head, key]``, or ``[batch, head, query, key]`` under a gate.
        output_norm: ``||o_i||`` ``[batch, head, query]``, or ``[batch, 1, query]`` for the layer's output.
        gate: ``[batch, query, head, d_head]`` for a gated attention.

    Returns:
        ``[batch, head, query, key]`` in -1 to 1; NaN where the output is degenerate, 0 for a value of norm 0.

    Example:
        >>> u, squared = intra_directions(torch.ones(1, 1, 1, 2), torch.eye(2).unsqueeze(0))
        >>> value = torch.tensor([[[[-1.0, -1.0]]]])
        >>> round(value_cosines(u, value, value.norm(dim=-1).transpose(1, 2), squared.sqrt()).item(), 4)
        -1.0
    """
    tiny = torch.finfo(value_norm.dtype).tiny
    safe = output_norm.masked_fill(degenerate(output_norm.square()), float("nan"))
    unit_directions = directions / safe.transpose(1, 2).unsqueeze(-1)
    if value_norm.ndim == 4:
        return inner_products(unit_directions, value, gate) / value_norm.clamp(min=tiny)
    unit_value = value / value_norm.clamp(min=tiny).transpose(1, 2).unsqueeze(-1)
    return inner_products(unit_directions, unit_value, gate)


def contributions_per_key(
    pattern: Pattern,
    value: HeadValue,
    directions: HeadOutput,
    squared_norm: SquaredNorm,
    gate: HeadOutput | None = None,
) -> PerKey:
    """Contributions summed over queries, ``Σ_i c_ij = <v_j, (Aᵀ û)_j>`` with ``û_i = u_i / ||o_i||²``.

    No ``[query, key]`` temporary is built. Queries with a degenerate output are left out of the sum.

    Args:
        pattern: ``[batch, head, query, key]``.
        value: ``[batch, key, head, d_head]``, one per query head.
        directions: ``u`` from :func:`intra_directions` or :func:`inter_directions`.
        squared_norm: the norm that goes with it.
        gate: ``[batch, query, head, d_head]`` for a gated attention.

    Returns:
        ``[batch, head, key]``, any sign.

    Example:
        >>> pattern = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
        >>> value = torch.tensor([[[[3.0]], [[1.0]]]])
        >>> u, squared = intra_directions(torch.tensor([[[[3.0]], [[2.0]]]]), torch.ones(1, 1, 1))
        >>> contributions_per_key(pattern, value, u, squared).flatten()
        tensor([1.7500, 0.2500])
    """
    gated = directions if gate is None else directions * gate
    weight = squared_norm.reciprocal().masked_fill(degenerate(squared_norm), 0.0)
    scaled = gated.transpose(1, 2) * weight.unsqueeze(-1)
    return ((pattern.mT @ scaled) * value.transpose(1, 2)).sum(-1)

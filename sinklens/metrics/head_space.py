"""The exact change of coordinates that lets contributions be computed without a ``d_model``-sized vector per key.

All inner products of one head's projected values and outputs live in the row space of its output weight ``W_O`` (``d_head``
by ``d_model``). A square factor ``F`` with ``F Fᵀ = W_O W_Oᵀ`` keeps every norm and every angle: ``<x W_O, y W_O> = <x F, y F>``.
Working with ``v F`` instead of ``v W_O`` costs ``d_head`` numbers a key instead of ``d_model``.
"""

import torch

from sinklens.axes import Factor, HeadOutput, HeadValue, OutputWeight, PerKey, Value


def expand_kv_heads(value: Value, n_heads: int) -> HeadValue:
    """Give every query head its own copy of its key/value head (grouped-query attention).

    Head ``h`` of ``H`` reads key/value head ``h // (H / G)`` of ``G``: each key/value head is repeated in place, never tiled.

    Args:
        value: ``[batch, key, kv_head, d_head]``.
        n_heads: the number of query heads, a multiple of ``kv_head``.

    Returns:
        ``[batch, key, head, d_head]``.

    Example:
        >>> value = torch.tensor([[[[1.0], [2.0]]]])
        >>> expand_kv_heads(value, 4).flatten().tolist()
        [1.0, 1.0, 2.0, 2.0]
    """
    n_kv_heads = value.shape[2]
    if n_kv_heads == n_heads:
        return value
    return value.repeat_interleave(n_heads // n_kv_heads, dim=2)


def head_factor(W_O: OutputWeight) -> Factor:
    """Square factors ``F`` of each head with ``F Fᵀ = W_O W_Oᵀ``, so that ``||x F|| = ||x W_O||`` for every ``x``.

    Ours. Computed in float64 by Cholesky, by eigenvalues where a head's ``W_O`` is rank-deficient, and returned in
    ``W_O``'s dtype, but float32 at least.

    Args:
        W_O: ``[head, d_head, d_model]``.

    Returns:
        ``[head, d_head, d_head]``.

    Example:
        >>> W_O = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
        >>> F = head_factor(W_O)
        >>> torch.allclose(F @ F.mT, W_O @ W_O.mT, atol=1e-5)
        True
    """
    dtype = torch.promote_types(W_O.dtype, torch.float32)
    # MPS has no float64; everywhere else the squared condition number would cost half of float32's digits.
    weight = W_O.to(dtype if W_O.device.type == "mps" else torch.float64)
    gram = weight @ weight.mT
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed.any()):
        eigenvalues, eigenvectors = torch.linalg.eigh(gram)
        factor = eigenvectors * eigenvalues.clamp(min=0).sqrt().unsqueeze(-2)
    return factor.to(dtype)


def to_head_space(vectors: HeadOutput | HeadValue, factor: Factor) -> HeadOutput | HeadValue:
    """Map per-head vectors ``x`` to ``x F``, which has the norms and angles of ``x W_O`` (ours).

    Args:
        vectors: ``[batch, position, head, d_head]``, values per query head or head outputs ``z``.
        factor: ``[head, d_head, d_head]`` from :func:`head_factor`.

    Returns:
        ``[batch, position, head, d_head]``, same units as the residual stream.

    Example:
        >>> W_O = torch.eye(2).unsqueeze(0) * 3
        >>> to_head_space(torch.ones(1, 1, 1, 2), head_factor(W_O)).flatten().tolist()
        [3.0, 3.0]
    """
    # One product per head over all positions at once, on strided views: nothing is copied on the way in.
    heads_first = vectors.flatten(0, 1).transpose(0, 1)
    return torch.bmm(heads_first, factor).transpose(0, 1).unflatten(0, vectors.shape[:2])


def projected_value_norms(value: HeadValue, factor: Factor) -> PerKey:
    """Norms of the projected values, ``||v_j W_O||``, per head and key (Kobayashi et al. 2020; arXiv 2606.07604).

    Args:
        value: ``[batch, key, head, d_head]``, with its bias, one per query head (:func:`expand_kv_heads`).
        factor: ``[head, d_head, d_head]`` from :func:`head_factor`.

    Returns:
        ``[batch, head, key]``, not negative, in units of the residual stream.

    Example:
        >>> W_O = torch.eye(2).unsqueeze(0) * 2
        >>> projected_value_norms(torch.ones(1, 1, 1, 2), head_factor(W_O))
        tensor([[[2.8284]]])
    """
    return to_head_space(value, factor).norm(dim=-1).transpose(1, 2)

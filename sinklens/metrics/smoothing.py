"""Attention of any shape put in the place of a layer's own: linear in the pattern, so that a few outputs give all mixtures."""

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.axes import LayerOutput, Value, Visible


def uniform_attention(visible: Visible) -> Float[Tensor, "batch query key"]:
    """``U_ij = 1 / n_i`` over the ``n_i`` keys that query ``i`` sees; rows of padding are 0.

    Args:
        visible: ``[batch, query, key]``.

    Returns:
        ``[batch, query, key]``; rows sum to 1, or to 0 where nothing is seen.

    Example:
        >>> uniform_attention(torch.ones(1, 2, 2).tril() > 0).tolist()
        [[[1.0, 0.0], [0.5, 0.5]]]
    """
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


def attended_values(attention: Float[Tensor, "batch query key"], value: Value) -> Value:
    """``Σ_j A_ij v_j`` for one pattern that all heads share.

    Args:
        attention: ``[batch, query, key]``.
        value: ``[batch, key, kv_head, d_head]``.

    Returns:
        ``[batch, query, kv_head, d_head]``.

    Example:
        >>> value = torch.tensor([[[[2.0]], [[4.0]]]])
        >>> attended_values(uniform_attention(torch.ones(1, 2, 2) > 0), value).flatten().tolist()
        [3.0, 3.0]
    """
    return torch.einsum("bqk,bkhd->bqhd", attention, value)


def directed_as_residual(residual: LayerOutput, update: LayerOutput) -> LayerOutput:
    """``||s_i|| r_i / ||r_i||``: an update of each token's real length that says nothing but what its residual says (ours).

    In the place of ``s_i`` it switches the value-output matrices off and keeps how much each token sends; a sink that is
    drained stays drained, and one with a massive residual does not drown the rest.

    Args:
        residual: ``r`` ``[batch, token, d_model]``.
        update: ``s`` ``[batch, token, d_model]``.

    Returns:
        ``[batch, token, d_model]``; 0 where the residual is 0.

    Example:
        >>> directed_as_residual(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 10.0]]])).flatten().tolist()
        [6.0, 8.0]
    """
    length = residual.norm(dim=-1, keepdim=True)
    unit = residual / length.masked_fill(length == 0, 1.0)
    return update.norm(dim=-1, keepdim=True) * unit


def largest_share(vectors: Float[Tensor, "*batch token d_model"]) -> Float[Tensor, "*batch"]:
    """The share of ``Σ_i ||x_i - x̄||²`` that the token farthest from the mean has.

    Args:
        vectors: ``[..., token, d_model]``.

    Returns:
        ``[...]`` in ``1/n`` to 1; NaN where all tokens are equal.

    Example:
        >>> round(largest_share(torch.tensor([[0.0], [0.0], [3.0]])).item(), 3)
        0.667
    """
    square = (vectors - vectors.mean(-2, keepdim=True)).square().sum(-1)
    total = square.sum(-1)
    return square.amax(-1) / total.masked_fill(total == 0, float("nan"))

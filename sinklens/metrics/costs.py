"""What a head's two bilinear maps cost: norms of ``W_QK`` and ``W_VO`` from their factors (arXiv 2605.08453)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Tall = Float[Tensor, "head d_model d_head"]
Spectrum = Float[Tensor, "head singular_value"]
PerHeadCost = Float[Tensor, " head"]


class Norms(NamedTuple):
    """Norms of one matrix a head, each ``[head]``, in units of the weights.

    Attributes:
        frobenius: ``sqrt(Σ σ²)``.
        nuclear: ``Σ σ``: the least ``(||A||² + ||B||²) / 2`` over all factors ``A Bᵀ``, what weight decay pays.
        spectral: the largest ``σ``.
        participation: ``(Σ σ)² / Σ σ²``, from 1 (one direction, all that a sink needs) to the rank (ours); NaN for zero.
    """

    frobenius: PerHeadCost
    nuclear: PerHeadCost
    spectral: PerHeadCost
    participation: PerHeadCost


def exact(tensor: Tensor) -> Tensor:
    """The tensor in float64; on the CPU where its device has none (mps).

    Example:
        >>> exact(torch.ones(1)).dtype
        torch.float64
    """
    return tensor.to("cpu" if tensor.device.type == "mps" else tensor.device, torch.float64)


def product_spectrum(left: Tall, right: Tall) -> Spectrum:
    """Singular values of ``left rightᵀ`` without forming it: both factors are reduced to their own span first (QR).

    Args:
        left: ``[head, d_model, d_head]``, any float type.
        right: the same shape.

    Returns:
        ``[head, min(d_model, d_head)]``, descending, float64; all other singular values are 0.

    Example:
        >>> left = torch.tensor([[[3.0], [4.0]]])
        >>> product_spectrum(left, left).tolist()
        [[25.0]]
    """
    triangles = [torch.linalg.qr(exact(factor), mode="r").R for factor in (left, right)]
    return torch.linalg.svdvals(triangles[0] @ triangles[1].mT)


def product_norms(left: Tall, right: Tall) -> Norms:
    """Norms of ``left rightᵀ``: for example of ``W_QK = W_Q W_Kᵀ``, or of ``W_VO = W_V W_O`` with ``W_Oᵀ`` on the right.

    Args:
        left: ``[head, d_model, d_head]``.
        right: the same shape.

    Returns:
        :class:`Norms`, float64.

    Example:
        >>> norms = product_norms(torch.eye(4, 2)[None], torch.eye(4, 2)[None])
        >>> [round(norm.item(), 4) for norm in norms]
        [1.4142, 2.0, 1.0, 2.0]
    """
    spectrum = product_spectrum(left, right)
    squares, nuclear = spectrum.square().sum(-1), spectrum.sum(-1)
    return Norms(squares.sqrt(), nuclear, spectrum[:, 0], nuclear.square() / squares)


def pattern_margins(
    target: Float[Tensor, "batch head query"], others: Float[Tensor, "batch head query key"]
) -> Float[Tensor, "batch head query"]:
    """By how much the target's score beats the best other one: ``log A_i,t(i) - max_j log A_ij``, in score units (ours).

    Softmax keeps differences of scores, so this is exactly the margin of the scores that the model really uses, biases,
    positions and all. Weights that float32 rounds to 0 count as the least number above 0, so a margin near 87 is a lower
    bound.

    Args:
        target: ``A_i,t(i)``.
        others: ``A_ij`` of the keys that have to be beaten, 0 elsewhere.

    Returns:
        ``[batch, head, query]``, float64; positive where the pattern holds.

    Example:
        >>> pattern = torch.tensor([[[[0.8, 0.2]]]])
        >>> round(pattern_margins(pattern[..., 0], pattern * torch.tensor([0.0, 1.0])).item(), 4)
        1.3863
    """
    least = torch.finfo(target.dtype).tiny
    return exact(target).clamp(min=least).log() - exact(others.amax(-1)).clamp(min=least).log()

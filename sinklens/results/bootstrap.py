"""Resampling documents, for the intervals of every result that keeps numbers per document."""

import torch
from jaxtyping import Float
from torch import Tensor


def resample_weights(n_documents: int, n_bootstrap: int, seed: int) -> Float[Tensor, "resample document"]:
    """How often each document is in each resample, drawn with replacement; float64, each row sums to ``n_documents``.

    Example:
        >>> resample_weights(3, 2, seed=0).sum(-1).tolist()
        [3.0, 3.0]
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, n_documents, (n_bootstrap, n_documents), generator=generator)
    empty = torch.zeros(n_bootstrap, n_documents, dtype=torch.float64)
    return empty.scatter_add_(1, drawn, torch.ones_like(drawn, dtype=torch.float64))


TAIL = 0.025  # of a 95 % interval, on each side


def percentile_interval(resampled: Float[Tensor, "*cell resample"], n_documents: int) -> Float[Tensor, "*cell 2"]:
    """The 95 % percentile interval of a statistic over its resamples: low and high.

    NaN for a single document, whose resamples are all that document. Resamples without a value are left out.

    Example:
        >>> percentile_interval(torch.arange(101.0), n_documents=5).tolist()
        [2.5, 97.5]
    """
    if n_documents < 2:
        return torch.full((*resampled.shape[:-1], 2), torch.nan, dtype=resampled.dtype)
    levels = torch.tensor([TAIL, 1 - TAIL], dtype=resampled.dtype)
    return resampled.nanquantile(levels, dim=-1).movedim(0, -1)

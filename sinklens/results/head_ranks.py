"""Rank correlation of two quantities of heads, with an interval from resampling heads."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import rankdata

from sinklens.results.bootstrap import TAIL

Column = Float[np.ndarray, " head"]
FEWEST = 3


def rank_correlations(
    x: Column, y: Column, group: Int[np.ndarray, " head"] | None, n_bootstrap: int, seed: int
) -> dict[str, Any]:
    """Spearman's ``ρ`` of two quantities, and the 95 % percentile interval over resampled heads (ours).

    Args:
        x: one number a head; a head with a NaN or an infinite number is left out.
        y: the same.
        group: of each head, such as its layer: ranks are then taken as differences from their group's mean. Heads are
            resampled within their groups.
        n_bootstrap: resamples.
        seed: of them.

    Returns:
        ``spearman``, ``low``, ``high``, ``n_heads``; NaN below three heads or where a quantity is constant.

    Example:
        >>> x = np.arange(5.0)
        >>> round(rank_correlations(x, x**3, None, 100, seed=0)["spearman"], 6)
        1.0
    """
    known = np.isfinite(x) & np.isfinite(y)
    pairs = np.stack([x[known], y[known]])
    groups = None if group is None else group[known]
    n_heads = int(known.sum())
    if n_heads < FEWEST:
        return {"spearman": np.nan, "low": np.nan, "high": np.nan, "n_heads": n_heads}
    value = float(_correlation(pairs[:, None], groups)[0])
    drawn = _draws(n_heads, groups, n_bootstrap, np.random.default_rng(seed))
    # A resample of one head over and over has no correlation: it is left out.
    resampled = _correlation(pairs[:, drawn], groups)
    resampled = resampled[~np.isnan(resampled)]
    low, high = np.quantile(resampled, [TAIL, 1 - TAIL]).tolist() if resampled.size else (np.nan, np.nan)
    return {"spearman": value, "low": low, "high": high, "n_heads": n_heads}


def _draws(n_heads: int, groups: np.ndarray | None, n_bootstrap: int, generator: np.random.Generator) -> np.ndarray:
    if groups is None:
        return generator.integers(n_heads, size=(n_bootstrap, n_heads))
    drawn = np.empty((n_bootstrap, n_heads), dtype=int)
    for one in np.unique(groups):
        members = np.flatnonzero(groups == one)
        drawn[:, members] = members[generator.integers(len(members), size=(n_bootstrap, len(members)))]
    return drawn


def _correlation(samples: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Of ``[2, sample, head]``, one number a sample; NaN where a quantity is constant."""
    ranks = rankdata(samples, axis=-1)
    labels = np.zeros(ranks.shape[-1], dtype=int) if groups is None else groups
    for one in np.unique(labels):
        members = labels == one
        ranks[..., members] -= ranks[..., members].mean(-1, keepdims=True)
    lengths = np.sqrt((ranks**2).sum(-1)).prod(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        # To the rounding error of ranks: beyond it nothing is left of a constant quantity.
        return np.where(lengths > 1e-9, (ranks[0] * ranks[1]).sum(-1).clip(-lengths, lengths) / lengths, np.nan)

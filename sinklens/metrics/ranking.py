"""Ranking the terms of an attention layer by a metric, and choosing the fraction of them that is removed.

One total order is behind everything: from the highest score to the lowest, equal scores by index (head, then key). The
top fraction is its beginning, the bottom fraction its end, so that a top and a bottom fraction that add up to 1 part
the terms without overlap, and no result depends on how a tensor lies in memory.

Scores are compared to 16 significant bits. A query that sees one key has the contribution 1 there in every head, but for
rounding in the last bits, which must not decide which heads lose their only term.
"""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.axes import Pattern

Granularity = Literal["pair", "edge", "token"]
Mode = Literal["comprehensiveness", "sufficiency"]
GRANULARITIES: tuple[Granularity, ...] = ("pair", "edge", "token")
MODES: tuple[Mode, ...] = ("comprehensiveness", "sufficiency")

Rows = Float[Tensor, "batch row candidate"]
Candidates = Bool[Tensor, "batch row candidate"]
Counts = Int[Tensor, "batch row"]
Ranks = Int[Tensor, "batch row candidate"]
Terms = Bool[Tensor, "batch head query key"]

# Products such as 0.29 * 100 = 28.999... are meant as 29.
_ROUNDING = 1e-6
_SIGNIFICANT_BITS = 16
# Below this share of a row, selecting the largest values beats sorting all of them.
_SELECT_SHARE = 1 / 20
_LARGEST_INT16 = torch.iinfo(torch.int16).max


def removal_counts(n_candidates: Counts, fraction: float) -> Counts:
    """How many of ``n`` candidates a fraction removes: ``floor(fraction · n)``, never more than the fraction says.

    Early queries see few keys, and small fractions remove nothing there: a least count of 1 would take the sink from
    every one of them and measure that instead.

    Args:
        n_candidates: ``[batch, row]``.
        fraction: 0 to 1.

    Returns:
        ``[batch, row]``.

    Example:
        >>> removal_counts(torch.tensor([[9, 99, 100]]), 0.29).tolist()
        [[2, 28, 29]]
    """
    return (n_candidates.double() * fraction + _ROUNDING).floor().long()


def to_rows(scores: Pattern, rankable: Terms, granularity: Granularity) -> tuple[Rows, Candidates]:
    """The rows within which terms are ranked, and which of their entries are candidates.

    ``pair``: one row per query over (head, key). ``edge``: one row per (head, query) over keys. ``token``: one row per
    sequence over keys; a key's score is the mean over the heads and queries whose term with it is rankable.

    Args:
        scores: any metric ``[batch, head, query, key]``; NaN (a degenerate output) counts as 0.
        rankable: True on terms that may be removed.
        granularity: ``pair``, ``edge`` or ``token``.

    Returns:
        ``[batch, row, candidate]``, twice.

    Example:
        >>> scores = torch.tensor([[[[1.0, 0.0], [2.0, 4.0]]]])
        >>> rows, candidates = to_rows(scores, torch.ones(2, 2).tril().bool().expand(1, 1, 2, 2), "token")
        >>> rows.tolist(), candidates.tolist()
        ([[[1.5, 4.0]]], [[[True, True]]])
    """
    if granularity == "pair":
        return scores.transpose(1, 2).flatten(2), rankable.transpose(1, 2).flatten(2)
    if granularity == "edge":
        return scores.flatten(1, 2), rankable.flatten(1, 2)
    counted = rankable.sum((1, 2)).unsqueeze(1)
    total = scores.nan_to_num(nan=0.0).masked_fill(~rankable, 0.0).double().sum((1, 2)).unsqueeze(1)
    return (total / counted.clamp(min=1)).to(scores.dtype), counted > 0


def to_terms(removed: Candidates, rankable: Terms, granularity: Granularity) -> Terms:
    """The inverse of :func:`to_rows` for a choice of candidates: which terms ``A_ij v_j`` it removes.

    Args:
        removed: ``[batch, row, candidate]``.
        rankable: as in :func:`to_rows`; a removed token loses its rankable terms only.
        granularity: ``pair``, ``edge`` or ``token``.

    Returns:
        ``[batch, head, query, key]``.

    Example:
        >>> to_terms(torch.tensor([[[False, True]]]), torch.ones(1, 1, 2, 2).tril().bool(), "token").int().tolist()
        [[[[0, 0], [0, 1]]]]
    """
    n_heads, n_keys = rankable.shape[1], rankable.shape[-1]
    if granularity == "pair":
        return removed.unflatten(-1, (n_heads, n_keys)).transpose(1, 2)
    if granularity == "edge":
        return removed.unflatten(1, (n_heads, -1))
    return removed.unsqueeze(1) & rankable


def select(rows: Rows, candidates: Candidates, count: Counts, mode: Mode) -> Candidates:
    """Choose ``count`` candidates of each row: the first of the order, or for sufficiency the last.

    The order is from the highest score to the lowest, equal scores by index. Found by a threshold per row: only values
    are sorted, not indices.

    Args:
        rows: float32 or float64 ``[batch, row, candidate]``; NaN counts as 0.
        candidates: True on entries that may be chosen.
        count: ``[batch, row]``, at most the number of candidates.
        mode: ``comprehensiveness`` chooses the highest, ``sufficiency`` the lowest.

    Returns:
        ``[batch, row, candidate]``.

    Example:
        >>> rows, all_of_them, two = torch.tensor([[[1.0, 3.0, 1.0, 2.0]]]), torch.ones(1, 1, 4).bool(), torch.tensor([[3]])
        >>> select(rows, all_of_them, two, "comprehensiveness").int().tolist()
        [[[1, 1, 0, 1]]]
        >>> select(rows, all_of_them, two, "sufficiency").int().tolist()
        [[[1, 0, 1, 1]]]
    """
    keyed = _oriented(rows, candidates, mode)
    threshold = _nth_largest(keyed, count)
    chosen = (keyed >= threshold) & candidates
    chosen &= (count > 0).unsqueeze(-1)
    excess = chosen.sum(-1) - count
    tied = excess > 0
    if bool(tied.any()):
        chosen[tied] = _without_excess(keyed[tied], threshold[tied], chosen[tied], excess[tied], mode)
    return chosen


def _oriented(rows: Rows, candidates: Candidates, mode: Mode) -> Rows:
    """Scores of which the largest are wanted; those that are no candidates lie below all others."""
    largest = torch.finfo(rows.dtype).max / 4  # room for rounding up
    rounded = _rounded(rows.nan_to_num(nan=0.0, posinf=largest, neginf=-largest))
    signed = rounded if mode == "comprehensiveness" else rounded.neg_()
    return signed.masked_fill_(~candidates, -torch.inf)


def _rounded(values: Tensor) -> Tensor:
    """Numbers to the nearest with :data:`_SIGNIFICANT_BITS`, in place where they are in one piece of memory."""
    values = values.contiguous()
    bits, dropped = (
        (values.view(torch.int64), 53 - _SIGNIFICANT_BITS)
        if values.dtype == torch.float64
        else (values.view(torch.int32), 24 - _SIGNIFICANT_BITS)
    )
    bits.add_(1 << (dropped - 1)).bitwise_and_(-(1 << dropped))
    return values


def _nth_largest(rows: Rows, n: Counts) -> Float[Tensor, "batch row 1"]:
    """The ``n``-th largest value of each row ``[batch, row, 1]``; the largest where ``n`` is 0."""
    most, length = int(n.max()), rows.shape[-1]
    at = (n - 1).clamp(min=0).unsqueeze(-1)
    if most <= length * _SELECT_SHARE:
        return rows.topk(max(most, 1), dim=-1).values.gather(-1, at)
    if rows.device.type == "cpu":
        # NumPy sorts values alone, with vector instructions: several times faster than PyTorch.
        ascending = torch.from_numpy(np.sort(rows.contiguous().numpy(), axis=-1))
    else:
        ascending = rows.sort(dim=-1).values
    return ascending.gather(-1, length - 1 - at)


def _without_excess(keyed: Tensor, threshold: Tensor, chosen: Tensor, excess: Tensor, mode: Mode) -> Tensor:
    """Give up as many of the equal scores as are too many: the last by index, for sufficiency the first."""
    equal = (keyed == threshold) & chosen
    directed = equal.flip(-1) if mode == "comprehensiveness" else equal
    given_up = directed & (directed.long().cumsum(-1) <= excess.unsqueeze(-1))
    return chosen & ~(given_up.flip(-1) if mode == "comprehensiveness" else given_up)


def ranks(rows: Rows, candidates: Candidates) -> Ranks:
    """The place of each candidate in the order of its row, from 0 for the highest score; equal scores by index.

    One sort that serves every fraction and both modes (:func:`select_by_rank`), for scores that do not change between.

    Args:
        rows: ``[batch, row, candidate]``; NaN counts as 0.
        candidates: True on entries that have a place; the others come after them.

    Returns:
        ``[batch, row, candidate]``, int16 where the numbers fit.

    Example:
        >>> ranks(torch.tensor([[[1.0, 3.0, 1.0, 9.0]]]), torch.tensor([[[True, True, True, False]]])).tolist()
        [[[1, 0, 2, 3]]]
    """
    order = _oriented(rows, candidates, "comprehensiveness").sort(dim=-1, descending=True, stable=True).indices
    dtype = torch.int16 if rows.shape[-1] <= _LARGEST_INT16 else torch.int32
    places = torch.arange(rows.shape[-1], dtype=dtype, device=rows.device).expand(order.shape)
    return torch.empty(order.shape, dtype=dtype, device=rows.device).scatter_(-1, order, places)


def select_by_rank(places: Ranks, candidates: Candidates, count: Counts, mode: Mode) -> Candidates:
    """What :func:`select` chooses, from the places of :func:`ranks`.

    Args:
        places: ``[batch, row, candidate]``.
        candidates: the same as for :func:`ranks`.
        count: ``[batch, row]``.
        mode: ``comprehensiveness`` or ``sufficiency``.

    Returns:
        ``[batch, row, candidate]``.

    Example:
        >>> rows, real = torch.tensor([[[1.0, 3.0, 1.0]]]), torch.ones(1, 1, 3).bool()
        >>> select_by_rank(ranks(rows, real), real, torch.tensor([[1]]), "sufficiency").int().tolist()
        [[[0, 0, 1]]]
    """
    chosen = count.unsqueeze(-1)
    if mode == "comprehensiveness":
        return (places < chosen) & candidates
    return (places >= candidates.sum(-1, keepdim=True) - chosen) & candidates

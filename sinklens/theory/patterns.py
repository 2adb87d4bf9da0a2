"""Which keys the scores of each query have to favour: sink, diagonal, previous-token and back-copy patterns as constraints."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sinklens.axes import QueryKeys, QueryTargets
from sinklens.errors import InputError
from sinklens.theory.arrays import checked_choice, checked_count, checked_position

COST_KINDS = ("sink", "diagonal", "previous", "backcopy")
SWITCHES = ("hard", "soft")


@dataclass(frozen=True)
class ScorePattern:
    """A pattern as linear constraints on scores: ``S_{i,target(i)} - S_ij ≥ margin`` for every ``j`` in ``others[i]``.

    Args:
        target: ``[query]``, the key that the query attends to; -1 leaves the query free.
        others: ``[query, key]``, True on the keys that the target has to beat: visible, and not the target.

    Raises:
        InputError: the shapes disagree, a target lies outside, or a query has to beat its own target.

    Example:
        >>> ScorePattern(torch.tensor([0, 0]), torch.tensor([[False, False], [False, True]])).n_constraints
        1
    """

    target: QueryTargets
    others: QueryKeys

    def __post_init__(self) -> None:
        n_queries, n_keys = self.others.shape
        if self.target.shape != (n_queries,):
            raise InputError(f"target must have one entry a query ({n_queries}), got shape {list(self.target.shape)}")
        if n_queries and not -1 <= int(self.target.min()) <= int(self.target.max()) < n_keys:
            raise InputError(
                f"a target must be a key from 0 to {n_keys - 1}, or -1 for a free query, got {self.target.tolist()}"
            )
        free = self.target < 0
        if bool(self.others[free].any()) or bool(self.others[~free, self.target[~free]].any()):
            raise InputError(
                "others must be False on a query's own target and on every key of a free query; mask them out"
            )

    @property
    def n_constraints(self) -> int:
        """How many (query, key) pairs are constrained."""
        return int(self.others.sum())


def active_positions(n_tokens: int, active_share: float) -> Tensor:
    """The active (trigger) positions of a copy task: a share of positions 2 to T - 1, evenly spread (ours).

    Positions 0 and 1 are never active: the token before them is absent, or is the sink, which has nothing to copy.

    Args:
        n_tokens: ``T``.
        active_share: ``p`` in 0 to 1; ``round(p (T - 2))`` positions are active.

    Returns:
        Positions, ascending.

    Raises:
        InputError: the share lies outside 0 to 1.

    Example:
        >>> active_positions(10, 0.5).tolist()
        [3, 5, 7, 9]
    """
    if not 0.0 <= active_share <= 1.0:
        raise InputError(f"active_share must lie in 0 to 1, got {active_share}")
    eligible = max(n_tokens - 2, 0)
    n_active = round(active_share * eligible)
    return 2 + ((torch.arange(n_active) + 0.5) * eligible / max(n_active, 1)).long()


def _targets(n_tokens: int, kind: str, sink: int, active_share: float, switch: str) -> Tensor:
    positions = torch.arange(n_tokens)
    if kind == "diagonal":
        return positions
    if kind == "previous":
        return positions - 1
    if kind == "sink":
        return torch.full((n_tokens,), sink)
    target = torch.full((n_tokens,), sink) if switch == "hard" else positions.clone()
    active = active_positions(n_tokens, active_share)
    target[active] = active - 1
    return target


def score_pattern(
    n_tokens: int,
    kind: str = "sink",
    causal: bool = True,
    sink: int = 0,
    active_share: float = 0.5,
    switch: str = "hard",
) -> ScorePattern:
    """The constraints of a named pattern (arXiv 2605.08453; which queries are free: ours).

    - ``sink``: every query attends to the sink. A causal query before the sink is free.
    - ``diagonal``: every query attends to itself.
    - ``previous``: query ``i`` attends to ``i - 1``. Query 0 is free.
    - ``backcopy``: active queries attend to the token before them, ``π(i) = i - 1``; dormant ones to the sink
      (``switch="hard"``: their output is the sink's value, which can be zero) or to themselves (``"soft"``).

    Args:
        n_tokens: ``T``.
        kind: ``sink``, ``diagonal``, ``previous`` or ``backcopy``.
        causal: query ``i`` sees keys ``j ≤ i`` only; otherwise all.
        sink: the sink's position.
        active_share: ``p``, for ``backcopy`` (:func:`active_positions`).
        switch: ``hard`` or ``soft``, for ``backcopy``.

    Returns:
        A :class:`ScorePattern` of ``T`` queries and keys.

    Raises:
        InputError: an unknown kind or switch, no tokens, a sink or a share out of range.

    Example:
        >>> score_pattern(4, "previous").target.tolist()
        [-1, 0, 1, 2]
        >>> score_pattern(6, "backcopy", active_share=0.5, switch="soft").target.tolist()
        [0, 1, 2, 2, 4, 4]
    """
    checked_count("n_tokens", n_tokens, 1)
    checked_choice("kind", kind, COST_KINDS)
    checked_choice("switch", switch, SWITCHES)
    checked_position("sink", sink, n_tokens)
    target = _targets(n_tokens, kind, sink, active_share, switch)
    visible = torch.ones(n_tokens, n_tokens, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    positions = torch.arange(n_tokens)
    reachable = (target >= 0) & visible[positions, target.clamp(min=0)]
    target = torch.where(reachable, target, -1)
    others = visible & reachable.unsqueeze(1) & (positions != target.unsqueeze(1))
    return ScorePattern(target, others)

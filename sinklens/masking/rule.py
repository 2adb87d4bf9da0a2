"""What is ranked, how, and what may not be removed; checked before the first forward pass."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from sinklens.errors import InputError
from sinklens.interventions.recipe import require_seed
from sinklens.masking.scores import METRICS, Metric, metric_scores
from sinklens.metrics.ranking import (
    GRANULARITIES,
    MODES,
    Candidates,
    Granularity,
    Mode,
    Ranks,
    Rows,
    Terms,
    ranks,
    removal_counts,
    select,
    select_by_rank,
    to_rows,
    to_terms,
)
from sinklens.metrics.values import sink_mask
from sinklens.models.layer import LayerAttention

Ranking = Literal["signed", "absolute"]
Exempt = Literal["sink", "self"]


@dataclass(frozen=True)
class MaskingRule:
    """How terms are ranked and which may be removed; made by :func:`masking_rule`.

    Attributes:
        granularity: what is removed at once: ``pair`` (per query over heads and keys), ``edge`` (per head and query over
            keys) or ``token`` (per sequence over keys).
        ranking: ``signed`` or ``absolute`` scores; they differ for contributions only.
        exempt: terms that are neither ranked nor removed: with a ``sink``, or of a token with itself (``self``).
        renormalize: whether what is left of a row is scaled to the row's former sum.
        seed: of the random metric.
    """

    granularity: Granularity
    ranking: Ranking
    exempt: tuple[Exempt, ...]
    renormalize: bool
    seed: int

    def rankable(self, view: LayerAttention) -> Terms:
        """True on terms that may be removed: visible, of real tokens, not exempt ``[batch, head, query, key]``."""
        allowed = view.visible
        length = allowed.shape[-1]
        if "self" in self.exempt:
            allowed = allowed & ~torch.eye(length, dtype=torch.bool, device=allowed.device)
        if "sink" in self.exempt:
            allowed = allowed & ~sink_mask(view.sink, length).unsqueeze(1)
        return allowed.unsqueeze(1).expand(view.pattern.shape)

    def rows(self, view: LayerAttention, metric: Metric, rankable: Terms) -> tuple[Rows, Candidates]:
        """The scores, laid out in the rows within which they are ranked.

        Raises:
            InputError: a score is not what a ranking can use.
        """
        scores = metric_scores(view, metric, self.seed)
        scores = scores.abs() if self.ranking == "absolute" and metric in ("intra", "inter") else scores
        return to_rows(scores, rankable, self.granularity)

    def ranks(self, view: LayerAttention, metric: Metric) -> Ranks:
        """The places of all candidates, to be kept for other passes."""
        return ranks(*self.rows(view, metric, self.rankable(view)))

    def removed(
        self,
        view: LayerAttention,
        metric: Metric,
        fraction: float,
        mode: Mode,
        rankable: Terms,
        places: Ranks | None = None,
    ) -> Terms:
        """Which terms go, by this layer's scores in this pass, or by the places that were kept from another."""
        if places is not None:
            _, candidates = to_rows(view.pattern, rankable, self.granularity)
            chosen = select_by_rank(places, candidates, removal_counts(candidates.sum(-1), fraction), mode)
        else:
            rows, candidates = self.rows(view, metric, rankable)
            chosen = select(rows, candidates, removal_counts(candidates.sum(-1), fraction), mode)
        return to_terms(chosen, rankable, self.granularity)


def masking_rule(
    granularity: str = "pair",
    ranking: str = "signed",
    exempt: str | Iterable[str] = (),
    renormalize: bool = False,
    seed: int = 0,
) -> MaskingRule:
    """A rule, if the arguments are good (:class:`MaskingRule`).

    Raises:
        InputError: an argument is none of those that there are.

    Example:
        >>> masking_rule("edge", exempt="self").exempt
        ('self',)
    """
    names = (exempt,) if isinstance(exempt, str) else tuple(exempt)
    _one_of("granularity", granularity, GRANULARITIES)
    _one_of("ranking", ranking, get_args(Ranking))
    for name in names:
        _one_of("exempt", name, get_args(Exempt))
    chosen: dict[str, Any] = {"granularity": granularity, "ranking": ranking, "exempt": tuple(sorted(set(names)))}
    return MaskingRule(**chosen, renormalize=bool(renormalize), seed=require_seed(seed))


def check_metrics(metrics: str | Sequence[str]) -> tuple[Metric, ...]:
    """The metrics, each once.

    Raises:
        InputError: there is no such metric, or none at all.

    Example:
        >>> check_metrics("inter")
        ('inter',)
    """
    return _several("metrics", (metrics,) if isinstance(metrics, str) else metrics, METRICS)


def check_modes(modes: str | Sequence[str]) -> tuple[Mode, ...]:
    """The modes, each once.

    Raises:
        InputError: there is no such mode, or none at all.
    """
    return _several("modes", (modes,) if isinstance(modes, str) else modes, MODES)


def check_fractions(fractions: float | Iterable[float]) -> tuple[float, ...]:
    """The fractions, ascending, each once.

    Raises:
        InputError: one is not a number from 0 to 1, or there is none.

    Example:
        >>> check_fractions([0.5, 0.1])
        (0.1, 0.5)
    """
    given = [fractions] if isinstance(fractions, (int, float)) else list(fractions)
    for fraction in given:
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InputError(f"fraction {fraction!r} is not a number from 0 to 1; 0.05 removes 5 %")
    if not given:
        raise InputError("no fraction was given; expected at least one number from 0 to 1")
    return tuple(sorted({float(fraction) for fraction in given}))


def _several(what: str, given: Sequence[str], known: Sequence[Any]) -> tuple[Any, ...]:
    for name in given:
        _one_of(what, name, known)
    if not given:
        raise InputError(f"{what} is empty; expected at least one of {', '.join(known)}")
    return tuple(dict.fromkeys(given))


def _one_of(what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise InputError(f"{what}: there is no {given!r}; expected one of {', '.join(known)}")

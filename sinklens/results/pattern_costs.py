"""What patterns cost by number of tokens, with the exponents of their growth: the theory alone, without a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from sinklens.theory import COST_KINDS, NORMS, ScalingFit, cost_scaling


@dataclass(frozen=True, repr=False)
class PatternCosts:
    """Least costs of the patterns on orthonormal embeddings and their power laws; margin 1. Made by :meth:`of`.

    Attributes:
        fits: by norm and kind.
        causal: query ``i`` sees keys ``j ≤ i`` only.
        scaled: scores are divided by ``√d`` with ``d = T``.

    Example:
        >>> costs = PatternCosts.of([256, 1024, 4096], causal=False, kinds=("sink", "diagonal"))
        >>> [round(fit.exponent, 2) for fit in costs.fits["nuclear"].values()]
        [1.0, 1.5]
    """

    fits: Mapping[str, Mapping[str, ScalingFit]]
    causal: bool
    scaled: bool

    @classmethod
    def of(
        cls, lengths: Sequence[int], causal: bool = True, scaled: bool = True, kinds: Sequence[str] = COST_KINDS
    ) -> "PatternCosts":
        """Costs in both norms.

        Args:
            lengths: three or more different ``T``; causal nuclear norms are solved for, up to 512.
            causal: as the attribute.
            scaled: as the attribute.
            kinds: patterns.

        Raises:
            InputError: too few lengths, or an unknown pattern.
            ConvergenceError: the solver did not reach its tolerance.
        """
        fits = {norm: {kind: cost_scaling(lengths, kind, norm, causal, scaled) for kind in kinds} for norm in NORMS}
        return cls(fits, causal, scaled)

    @property
    def setting(self) -> str:
        """In words, for a figure or a table."""
        return ", ".join(["causal" if self.causal else "full", "scaled by √d" if self.scaled else "unscaled"])

    def to_dataframe(self) -> pd.DataFrame:
        """One row per norm, pattern and length: ``cost``, and the fit's ``exponent``, ``low`` and ``high``."""
        rows: list[dict[str, Any]] = []
        for norm, by_kind in self.fits.items():
            for kind, fit in by_kind.items():
                ends = {"exponent": fit.exponent, "low": fit.low, "high": fit.high}
                for length, cost in zip(fit.lengths, fit.costs, strict=True):
                    rows.append({"norm": norm, "pattern": kind, "tokens": length, "cost": cost, **ends})
        return pd.DataFrame(rows)

    def __repr__(self) -> str:
        exponents = ", ".join(f"{kind} {fit.exponent:.2f}" for kind, fit in self.fits["nuclear"].items())
        return f"PatternCosts({self.setting}; exponents of the nuclear norm: {exponents})"

"""Accuracy on a multiple-choice task, item by item, with an interval over items."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.bootstrap import percentile_interval, resample_weights
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.provenance import Provenance


@dataclass(frozen=True, repr=False)
class MultipleChoiceResult:
    """The score of every option of every item; the highest is the model's answer, the first of equal ones.

    Attributes:
        scores: length-normalised log-likelihoods, nats ``[item, option]``; NaN where an item has fewer options.
        answers: the right option ``[item]``.
        provenance: model, task form, versions, seed.
        n_bootstrap: resamples of the items behind an interval.

    Example:
        >>> scores = torch.tensor([[-1.0, -2.0], [-1.0, -2.0]]).double()
        >>> result = MultipleChoiceResult(scores, torch.tensor([0, 1]), Provenance("tiny", seed=0))
        >>> result.accuracy, result.correct.tolist(), result.chance
        (0.5, [True, False], 0.5)
    """

    scores: Float[Tensor, "item option"]
    answers: Int[Tensor, " item"]
    provenance: Provenance
    n_bootstrap: int = 1000

    @property
    def predictions(self) -> Int[Tensor, " item"]:
        """The option that the model prefers."""
        return self.scores.nan_to_num(nan=-torch.inf).argmax(-1)

    @property
    def correct(self) -> Bool[Tensor, " item"]:
        """Whether the model's answer is right, by item."""
        return self.predictions == self.answers

    @property
    def accuracy(self) -> float:
        """Share of right answers, 0 to 1."""
        return self.correct.double().mean().item()

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return (1 / (~self.scores.isnan()).sum(-1).double()).mean().item()

    @cached_property
    def _weights(self) -> Tensor:
        return resample_weights(len(self.answers), self.n_bootstrap, self.provenance.seed or 0)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % percentile bootstrap interval of the accuracy over items."""
        return self._bounds(self.correct.double())

    def _bounds(self, per_item: Tensor) -> tuple[float, float]:
        means = self._weights @ per_item / len(per_item)
        low, high = percentile_interval(means, len(self.answers)).tolist()
        return low, high

    def compare(self, other: "MultipleChoiceResult") -> dict[str, float]:
        """This accuracy minus another's on the same items, paired, with its 95 % interval.

        Returns:
            ``difference``, ``low``, ``high``.

        Raises:
            InputError: the items are not the same.
        """
        mine, theirs = (result.provenance.conventions for result in (self, other))
        differ = [name for name in ("items", "form", "normalize") if mine.get(name) != theirs.get(name)]
        if differ or not torch.equal(self.answers, other.answers):
            raise InputError(
                "cannot compare results on other items; run both on the same records, form and normalization"
            )
        gained = self.correct.double() - other.correct.double()
        low, high = self._bounds(gained)
        return {"difference": gained.mean().item(), "low": low, "high": high}

    def to_dataframe(self) -> pd.DataFrame:
        """One row per item: right option, the model's, whether they agree, and the margin between right and best wrong."""
        filled = self.scores.nan_to_num(nan=-torch.inf)
        right = filled.gather(-1, self.answers.unsqueeze(-1)).squeeze(-1)
        wrong = filled.scatter(-1, self.answers.unsqueeze(-1), -torch.inf).amax(-1)
        columns = {
            "answer": self.answers,
            "prediction": self.predictions,
            "correct": self.correct,
            "margin": right - wrong,
        }
        return pd.DataFrame({name: column.numpy() for name, column in columns.items()})

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        metadata = {"provenance": self.provenance.to_dict(), "n_bootstrap": self.n_bootstrap}
        return save_tensors(path, "MultipleChoiceResult", {"scores": self.scores, "answers": self.answers}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "MultipleChoiceResult":
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, "MultipleChoiceResult")
        arguments: dict[str, Any] = {**tensors, "n_bootstrap": metadata["n_bootstrap"]}
        return cls(**arguments, provenance=Provenance.from_dict(metadata["provenance"]))

    def __repr__(self) -> str:
        low, high = self.interval
        cut = f", {self.provenance.n_cut} contexts cut" if self.provenance.n_cut else ""
        return (
            f"MultipleChoiceResult({self.provenance.model_name}: accuracy {self.accuracy:.3f} [{low:.3f}, {high:.3f}] "
            f"on {len(self.answers)} items, chance {self.chance:.3f}{cut})"
        )

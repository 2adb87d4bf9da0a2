"""What masking by a metric does to the loss: curves over fractions with intervals over documents, and paired differences."""

import dataclasses
import itertools
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.bootstrap import percentile_interval, resample_weights
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.provenance import Provenance

FaithfulnessEffect = Literal["delta_loss", "delta_perplexity"]
EFFECTS: tuple[FaithfulnessEffect, ...] = get_args(FaithfulnessEffect)

PerCell = Float[Tensor, "metric mode fraction"]
Resampled = Float[Tensor, "metric mode fraction resample"]
PerDocument = Float[Tensor, "metric mode fraction document"]


@dataclass(frozen=True, repr=False)
class FaithfulnessResult:
    """Δ loss and Δ perplexity of every metric, mode and fraction, with what is needed to resample documents.

    Comprehensiveness: the top fraction was removed, more loss means that the metric found what matters. Sufficiency: the
    bottom fraction was removed, less loss means so (arXiv 2606.07604, after DeYoung et al. 2020). AOPC is the plain mean
    over the fractions.

    Attributes:
        metrics: that ranked.
        modes: ``comprehensiveness``, ``sufficiency``.
        fractions: ascending, 0 to 1.
        loss: summed next-token cross-entropy, nats ``[metric, mode, fraction, document]``; NaN where not yet
            measured, infinite where the masked model gave NaN.
        removed: terms removed, of all layers and heads, in the same shape.
        rankable: terms that could have been, in the same shape.
        clean_loss: summed cross-entropy of the unmasked model ``[document]``.
        count: predicted tokens ``[document]``.
        provenance: model, text, versions, seed, how terms were ranked.
        n_bootstrap: resamples of the documents behind an interval.

    Example:
        >>> loss = torch.tensor([12.0, 26.0]).double().reshape(1, 1, 1, 2)
        >>> counts = {"clean_loss": torch.tensor([10.0, 20.0]).double(), "count": torch.tensor([10.0, 10.0]).double()}
        >>> result = FaithfulnessResult(("inter",), ("comprehensiveness",), (0.05,), loss, loss, loss, **counts,
        ...     provenance=Provenance("tiny", seed=0))
        >>> round(result.effect().item(), 4), [round(bound, 4) for bound in result.interval().flatten().tolist()]
        (0.4, [0.2, 0.6])
    """

    metrics: tuple[str, ...]
    modes: tuple[str, ...]
    fractions: tuple[float, ...]
    loss: PerDocument
    removed: PerDocument
    rankable: PerDocument
    clean_loss: Float[Tensor, " document"]
    count: Float[Tensor, " document"]
    provenance: Provenance
    n_bootstrap: int = 1000

    @cached_property
    def weights(self) -> Float[Tensor, "resample document"]:
        """How often each document is in each resample; drawn from the seed of the provenance."""
        return resample_weights(len(self.count), self.n_bootstrap, self.provenance.seed or 0)

    def effect(self, name: FaithfulnessEffect = "delta_loss") -> PerCell:
        """One number per cell, over the predicted tokens of all documents measured in it ``[metric, mode, fraction]``.

        ``delta_loss``: change of the mean next-token cross-entropy, nats. ``delta_perplexity``: change of its exponential.

        Raises:
            InputError: there is no such effect.
        """
        return self._effect(name, torch.ones(1, len(self.count), dtype=torch.float64))[..., 0]

    def interval(self, name: FaithfulnessEffect = "delta_loss") -> Float[Tensor, "metric mode fraction 2"]:
        """The 95 % percentile bootstrap interval over documents: low and high; NaN for a single document.

        Raises:
            InputError: there is no such effect.
        """
        return self._bounds(self._effect(name, self.weights))

    def _effect(self, name: str, weights: Tensor) -> Resampled:
        if name not in EFFECTS:
            raise InputError(f"no effect {name!r}; there are {', '.join(EFFECTS)}")
        measured = (~self.loss.isnan()).double()
        count = (measured * self.count) @ weights.T
        masked = (self.loss.masked_fill(self.loss.isnan(), 0.0) @ weights.T) / count
        clean = ((measured * self.clean_loss) @ weights.T) / count
        return masked.exp() - clean.exp() if name == "delta_perplexity" else masked - clean

    def _bounds(self, resampled: Tensor) -> Tensor:
        return percentile_interval(resampled, len(self.count))

    @property
    def mean_loss(self) -> float:
        """Mean next-token cross-entropy of the unmasked model, nats."""
        return (self.clean_loss.sum() / self.count.sum()).item()

    @property
    def removed_share(self) -> PerCell:
        """The share of the rankable terms that was really removed; a little less than the fraction, by rounding down."""
        return self.removed.nansum(-1) / self.rankable.nansum(-1)

    @property
    def is_complete(self) -> bool:
        """Whether every cell was measured on every document."""
        return not bool(self.loss.isnan().any())

    def to_dataframe(self) -> pd.DataFrame:
        """One row per metric, mode and fraction: every effect with its interval, and what was really removed."""
        cells = list(itertools.product(self.metrics, self.modes, self.fractions))
        table = pd.DataFrame(cells, columns=["metric", "mode", "fraction"])
        for name in EFFECTS:
            low, high = self.interval(name).flatten(0, 2).unbind(-1)
            table = table.assign(
                **{name: self.effect(name).flatten().numpy(), f"{name}_low": low.numpy(), f"{name}_high": high.numpy()}
            )
        documents = (~self.loss.isnan()).sum(-1).flatten().numpy()
        return table.assign(removed_share=self.removed_share.flatten().numpy(), n_documents=documents)

    def aopc(self, name: FaithfulnessEffect = "delta_loss") -> pd.DataFrame:
        """Area over the perturbation curve, as the plain mean of an effect over the fractions, with its interval.

        Raises:
            InputError: there is no such effect.
        """
        whole = self.effect(name).mean(-1)
        low, high = self._bounds(self._effect(name, self.weights).mean(-2)).flatten(0, 1).unbind(-1)
        table = pd.DataFrame(list(itertools.product(self.metrics, self.modes)), columns=["metric", "mode"])
        return table.assign(aopc=whole.flatten().numpy(), low=low.numpy(), high=high.numpy())

    def differences(
        self, reference: str | None = None, name: FaithfulnessEffect = "delta_loss", *, aopc: bool = False
    ) -> pd.DataFrame:
        """An effect of one metric minus that of another, paired by document, with its 95 % interval.

        Args:
            reference: the metric that is subtracted; None for every pair, the earlier subtracted from the later.
            name: ``delta_loss`` or ``delta_perplexity``.
            aopc: of the mean over fractions instead of each.

        Returns:
            One row per pair, mode and fraction. Positive: the metric costs more than the reference, which is better for
            comprehensiveness and worse for sufficiency.

        Raises:
            InputError: there is no such metric or effect.
        """
        resampled, whole = self._effect(name, self.weights), self.effect(name)
        if aopc:
            resampled, whole = resampled.mean(-2, keepdim=True), whole.mean(-1, keepdim=True)
        rows: list[dict[str, Any]] = []
        for mine, theirs in self._pairs(reference):
            difference, bounds = whole[mine] - whole[theirs], self._bounds(resampled[mine] - resampled[theirs])
            for mode, part in itertools.product(range(len(self.modes)), range(difference.shape[-1])):
                row = {"metric": self.metrics[mine], "reference": self.metrics[theirs], "mode": self.modes[mode]}
                row |= {} if aopc else {"fraction": self.fractions[part]}
                low, high = bounds[mode, part].tolist()
                rows.append({**row, "difference": difference[mode, part].item(), "low": low, "high": high})
        place = [] if aopc else ["fraction"]
        return pd.DataFrame(rows, columns=["metric", "reference", "mode", *place, "difference", "low", "high"])

    def _pairs(self, reference: str | None) -> list[tuple[int, int]]:
        if reference is None:
            return [(later, earlier) for earlier, later in itertools.combinations(range(len(self.metrics)), 2)]
        if reference not in self.metrics:
            raise InputError(f"no metric {reference!r} in this result; there are {', '.join(self.metrics)}")
        theirs = self.metrics.index(reference)
        return [(mine, theirs) for mine in range(len(self.metrics)) if mine != theirs]

    def merge(self, other: "FaithfulnessResult") -> "FaithfulnessResult":
        """The result over the documents of both; intervals then resample all of them.

        Raises:
            InputError: the two differ in what was measured or in the model.
        """
        for name in ("metrics", "modes", "fractions"):
            if getattr(self, name) != getattr(other, name):
                raise InputError(
                    f"cannot merge results that differ in {name}: {getattr(self, name)} here, {getattr(other, name)} there; "
                    "measure both parts with the same settings"
                )
        joined = {name: torch.cat([mine, getattr(other, name)], -1) for name, mine in self._tensors().items()}
        return dataclasses.replace(self, **joined, provenance=self.provenance.merge(other.provenance))

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("loss", "removed", "rankable", "clean_loss", "count")}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        metadata = {name: list(getattr(self, name)) for name in ("metrics", "modes", "fractions")}
        metadata |= {"n_bootstrap": self.n_bootstrap, "provenance": self.provenance.to_dict()}  # type: ignore[dict-item]
        return save_tensors(path, "FaithfulnessResult", self._tensors(), metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FaithfulnessResult":
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, "FaithfulnessResult")
        labels = {name: tuple(metadata[name]) for name in ("metrics", "modes", "fractions")}
        provenance = Provenance.from_dict(metadata["provenance"])
        arguments: dict[str, Any] = {**labels, **tensors}
        return cls(**arguments, provenance=provenance, n_bootstrap=metadata["n_bootstrap"])

    def __repr__(self) -> str:
        means = self.effect().mean(-1)
        parts = [
            f"{mode} AOPC "
            + ", ".join(f"{metric} {means[row, column]:+.3f}" for row, metric in enumerate(self.metrics))
            for column, mode in enumerate(self.modes)
        ]
        state = "" if self.is_complete else "; not all cells are measured"
        return (
            f"FaithfulnessResult({self.provenance.model_name}: loss {self.mean_loss:.3f} on {len(self.count)} documents; "
            f"{'; '.join(parts)} nats{state})"
        )

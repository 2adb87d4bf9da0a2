"""Oversmoothing: how alike tokens are before and after each attention, over how dense it is made."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError
from sinklens.results.per_document import PerDocument, interval_of_mean

DIAGONAL, OWN = "diagonal", "own"
PATHS = (DIAGONAL, OWN)
DEPTH = "depth_cosine"
ROUNDING = 1e-6  # of cosines between float32 vectors: below it tokens are as alike as before


@dataclass(frozen=True, repr=False)
class SmoothingResult(PerDocument):
    """Mean pairwise cosine of token vectors (arXiv 2605.08453, operational form ours), ``[layer, path, strength]``.

    On the path ``"diagonal"`` attention is ``(1-λ) I + λ U``, on ``"own"`` it is ``(1-λ) A + λ U``, with ``U`` uniform over
    visible keys; the layer is edited alone, everything before it is the model's own. Quantities:

    - ``before_cosine``: of the residual stream that comes in, ``after_cosine``: of residual plus what attention adds; both
      without the sinks, ``…_with_sink`` with them; ``before_rank_collapse`` and ``after_rank_collapse``:
      ``||X - 1 x̄ᵀ||_F / ||X||_F``, without the sinks.
    - ``predicted_cosine``: :func:`sinklens.theory.predicted_cosine` of ``after_cosine``, diagonal path only; NaN where the
      closed form does not hold: a gate, a norm behind attention, a sliding window shorter than the text.
    - ``criterion``: ``(2 tr Cov(r, s) + tr Cov(s, s)) / tr Cov(r, r)``, positive where dense should smooth more.
    - ``largest_token_share``: of ``tr Cov(r, r)``, what the token farthest from the mean has; the closed form is a ratio of
      means, and is off where one token is heavy.
    - ``update_only_cosine``: the residual switched off, ``y_i = Σ_j A_ij s_j``.
    - ``own_direction_cosine``: the value-output matrices switched off (ours): every token sends its residual's direction at
      its update's length, ``y_i = r_i + Σ_j A_ij ||s_j|| r_j / ||r_j||``; on the path ``"own"`` with the heads' mean pattern.
    - ``depth_cosine`` and ``depth_cosine_with_sink``, if measured: of the residual stream behind the block, with the
      attention of *all* layers edited at once.

    Attributes:
        strengths: ``λ``, ascending, from 0 to 1.
    """

    strengths: tuple[float, ...] = ()

    AXES: ClassVar[tuple[str, ...]] = ("layer", "path", "strength")

    def labels(self, axis: str) -> Sequence[Any]:
        """Layers by the model's own numbers, paths by name, strengths as numbers."""
        return {"path": PATHS, "strength": self.strengths}.get(axis) or super().labels(axis)

    @property
    def has_depth(self) -> bool:
        """Whether the whole model was densified too."""
        return DEPTH in self.values

    def curve(self, name: str, layer: int, path: str = DIAGONAL) -> pd.DataFrame:
        """One quantity of one layer over the strength: ``strength``, ``mean``, ``low``, ``high``.

        Raises:
            InputError: there is no such quantity, layer or path.
        """
        row, column = self._row(layer), path_index(path)
        low, high = self.interval(name)[row, column].T.numpy()
        return pd.DataFrame(
            {"strength": self.strengths, "mean": self.mean(name)[row, column].numpy(), "low": low, "high": high}
        )

    def _row(self, layer: int) -> int:
        if layer not in self.layers:
            raise InputError(f"layer {layer} was not measured; there are {', '.join(map(str, self.layers))}")
        return self.layers.index(layer)

    def dense_minus(self, name: str = "after_cosine", path: str = DIAGONAL) -> Float[Tensor, "layer document"]:
        """A quantity under uniform attention minus that at the start of the path, document by document.

        Raises:
            InputError: there is no such quantity or path.
        """
        whole = self.documents(name)[:, path_index(path)]
        return whole[:, -1] - whole[:, 0]

    def dense_minus_diagonal(self) -> pd.DataFrame:
        """Whether dense attention smooths more than attention to oneself: measured, predicted, and the criterion's sign.

        Returns:
            A row per layer: ``difference`` with ``low`` and ``high`` of its 95 % interval over documents, ``verdict``
            (``"more"``, ``"less"``, or ``"undecided"`` where the interval holds 0), ``predicted``, ``criterion`` with its
            interval, and ``agrees``, whether the criterion has the measured sign; None where there is no criterion.
        """
        difference = self.dense_minus()
        table = self._by_layer({"difference": difference})
        criterion = self.documents("criterion")[:, 0, 0]
        table["verdict"] = [_verdict(low, high) for low, high in zip(table["low"], table["high"], strict=True)]
        table["predicted"] = self.dense_minus("predicted_cosine").nanmean(-1).numpy()
        table["criterion"] = criterion.nanmean(-1).numpy()
        low, high = interval_of_mean(criterion, self.weights).T.numpy()
        table["criterion_low"], table["criterion_high"] = low, high
        signs = zip(table["difference"], table["criterion"], strict=True)
        table["agrees"] = [None if math.isnan(a + b) else (a > 0) == (b > 0) for a, b in signs]
        return table

    def counters(self) -> pd.DataFrame:
        """What keeps dense attention from smoothing: dense minus diagonal as it is, and with one part switched off.

        Returns:
            A row per layer and part (``"residual"``, ``"value-output"``): ``whole``, dense minus diagonal of the real layer;
            ``without``, the same without the part; ``countered``, ``without - whole`` with ``low`` and ``high``, paired by
            document; ``verdict``: ``"counters"`` smoothing, ``"adds to it"``, or ``"undecided"``.
        """
        whole = self.dense_minus()
        tables = []
        for part, name in (("residual", "update_only_cosine"), ("value-output", "own_direction_cosine")):
            without = self.dense_minus(name)
            table = self._by_layer({"countered": without - whole})
            table.insert(1, "part", part)
            table.insert(2, "whole", whole.nanmean(-1).numpy())
            table.insert(3, "without", without.nanmean(-1).numpy())
            words = {"more": "counters", "less": "adds to it", "undecided": "undecided"}
            table["verdict"] = [words[_verdict(*ends)] for ends in zip(table["low"], table["high"], strict=True)]
            tables.append(table)
        return pd.concat(tables, ignore_index=True)

    def prediction_error(self) -> pd.DataFrame:
        """How far the closed form is off, ``predicted - measured``, on the path from diagonal to dense.

        Returns:
            A row per layer that has a prediction: ``mean`` over strengths of the error of the mean over documents,
            ``largest`` in size over strengths, ``largest_document`` in size over strengths and documents, and
            ``largest_token_share``.
        """
        error = (self.documents("predicted_cosine") - self.documents("after_cosine"))[:, 0]
        known = ~error.isnan().all(-1).all(-1)
        mean = error.nanmean(-1)
        rows = {
            "layer": torch.tensor(self.layers),
            "mean": mean.nanmean(-1),
            "largest": mean.abs().amax(-1),
            "largest_document": error.abs().nan_to_num(0.0).amax((-2, -1)),
            "largest_token_share": self.mean("largest_token_share")[:, 0, 0],
        }
        return pd.DataFrame({name: column[known].numpy() for name, column in rows.items()})

    def over_layers(self, figures: Float[Tensor, "layer document"]) -> tuple[float, float, float]:
        """Mean over layers of a figure per document, and its 95 % interval over documents."""
        per_document = figures.nanmean(0, keepdim=True)
        low, high = interval_of_mean(per_document, self.weights)[0].tolist()
        return per_document.nanmean().item(), low, high

    def _by_layer(self, figure: dict[str, Tensor]) -> pd.DataFrame:
        [(name, values)] = figure.items()
        low, high = interval_of_mean(values, self.weights).T.numpy()
        return pd.DataFrame({"layer": self.layers, name: values.nanmean(-1).numpy(), "low": low, "high": high})

    def error_in_words(self) -> str:
        """The prediction's error in one clause."""
        error = self.prediction_error()
        if error.empty:
            return "no layer has a closed form"
        worst = error.loc[error["largest"].idxmax()]
        typical = error["largest"].median()
        return f"prediction off by {typical:.3f} in the median layer, at most {worst['largest']:.3f} (layer {worst['layer']:.0f})"

    def __repr__(self) -> str:
        verdicts = list(self.dense_minus_diagonal()["verdict"])
        mean, low, high = self.over_layers(self.dense_minus())
        return (
            f"SmoothingResult({self.provenance.model_name}, {self.n_documents} documents: dense minus diagonal {mean:+.3f} "
            f"[{low:+.3f}, {high:+.3f}] in cosine, mean over layers; dense smooths more in {verdicts.count('more')}, less in "
            f"{verdicts.count('less')} of {len(verdicts)} layers; {self.error_in_words()})"
        )


def path_index(path: str) -> int:
    """The row of a path.

    Raises:
        InputError: there is no such path.

    Example:
        >>> path_index("own")
        1
    """
    if path not in PATHS:
        raise InputError(f"path is {path!r}; expected {' or '.join(map(repr, PATHS))}")
    return PATHS.index(path)


def _verdict(low: float, high: float) -> str:
    if low > ROUNDING:
        return "more"
    return "less" if high < -ROUNDING else "undecided"

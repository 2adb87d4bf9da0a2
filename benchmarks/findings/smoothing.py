"""Oversmoothing (arXiv 2605.08453): does dense attention smooth more, what counters it, how good is the prediction."""

from pathlib import Path
from typing import Any

import torch

import sinklens as sl
from benchmarks.findings.claims import Finding
from benchmarks.findings.measure import BATCH, kept
from sinklens.results.smoothing import DEPTH, DIAGONAL, OWN, SmoothingResult

CLOSE = 0.02  # an error of the predicted cosine up to which the prediction is called good


def measure_smoothing(model: Any, tokens: torch.Tensor, folder: Path) -> SmoothingResult:
    """The study of all layers and of the depth, from a file where it was measured before."""
    return kept(
        folder / "smoothing.safetensors", SmoothingResult,
        lambda: sl.oversmoothing(model, tokens, context_length=None, batch_size=BATCH),
    )  # fmt: skip


def smoothing_findings(measured: SmoothingResult) -> list[Finding]:
    """The lines of the table; every interval is over documents."""
    return [*_by_layer(measured), *_counters(measured), *_prediction(measured), *_depth(measured)]


def _by_layer(measured: SmoothingResult) -> list[Finding]:
    difference = measured.dense_minus()
    # A document's layers are counted each: the share of layers is a figure per document, as the mean is.
    own = measured.dense_minus(path=OWN)
    criterion = measured.documents("criterion")[:, 0, 0]
    agrees = ((criterion > 0) == (difference > 0)).double()
    return [
        _finding(measured, "Dense attention smooths more than attention to oneself",
                 "cosine with uniform attention − with attention to oneself, mean over layers, one layer edited at a time",
                 difference),
        _finding(measured, "… in most layers", "share of layers where that is positive", (difference > 0).double(), 0.5),
        _finding(measured, "… and more than the model's own attention",
                 "cosine with uniform attention − with the model's own, mean over layers", own),
        _finding(measured, "The sign of `2 tr(WΣ) + tr(WΣWᵀ)` tells which smooths more", "share of layers with that sign",
                 agrees, 0.5),
    ]  # fmt: skip


def _counters(measured: SmoothingResult) -> list[Finding]:
    whole = measured.dense_minus()
    figure = "dense − diagonal without it, minus the same with it, mean over layers"
    return [
        _finding(measured, "The residual counters smoothing", figure, measured.dense_minus("update_only_cosine") - whole),
        _finding(measured, "The value-output matrices counter smoothing", f"{figure} (each token sends its own direction)",
                 measured.dense_minus("own_direction_cosine") - whole),
    ]  # fmt: skip


def _prediction(measured: SmoothingResult) -> list[Finding]:
    """The largest error over λ in the median layer, and in the worst one, document by document."""
    error = (measured.documents("predicted_cosine") - measured.documents("after_cosine"))[:, 0].abs().amax(1)
    median = error.nanmedian(0, keepdim=True).values
    claim = f"The closed form predicts the cosine to {CLOSE:g}"
    return [
        _finding(measured, claim, "largest error over λ, median layer", median, CLOSE, above=False),
        _finding(measured, "… in every layer", "largest error over λ, worst layer", error.nan_to_num(0.0).amax(0, keepdim=True),
                 CLOSE, above=False),
    ]  # fmt: skip


def _depth(measured: SmoothingResult) -> list[Finding]:
    claim = "Uniform attention in all layers smooths more than"
    figure = "cosine of the residual stream, mean over layers, minus that of"
    return [
        _finding(measured, f"{claim} the model's own", f"{figure} the model itself", measured.dense_minus(DEPTH, OWN)),
        _finding(measured, f"{claim} attention to oneself in all layers", f"{figure} the model with attention to oneself",
                 measured.dense_minus(DEPTH, DIAGONAL)),
    ]  # fmt: skip


def _finding(
    measured: SmoothingResult, claim: str, figure: str, per_document: torch.Tensor, boundary: float = 0.0, above: bool = True
) -> Finding:  # fmt: skip
    value, low, high = measured.over_layers(per_document)
    return Finding(claim, figure, value, low, high, boundary=boundary, above=above)

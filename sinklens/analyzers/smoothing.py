"""One attention step with denser and denser attention in the place of a layer's own, in exact arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sinklens.analyzers.base import Setup
from sinklens.analyzers.documents import DocumentsAnalyzer
from sinklens.errors import UnsupportedAttentionError
from sinklens.metrics.contributions import layer_output
from sinklens.metrics.head_space import expand_kv_heads
from sinklens.metrics.smoothing import attended_values, directed_as_residual, largest_share, uniform_attention
from sinklens.metrics.values import sink_mask
from sinklens.models.additions import PLAIN, Addition, find_addition
from sinklens.models.attention import ModelAttention
from sinklens.models.hook_names import ADDED, RESIDUAL_AFTER, RESIDUAL_BEFORE
from sinklens.models.layer import LayerAttention, at_least_float32
from sinklens.models.verify import TOLERANCE
from sinklens.results.provenance import Provenance
from sinklens.results.smoothing import DIAGONAL, PATHS, SmoothingResult
from sinklens.theory import (
    SmoothingMoments,
    predicted_cosine,
    rank_collapse,
    smoothing_criterion,
    smoothing_moments,
    token_cosine,
)

GATED = "gated"


@dataclass(frozen=True)
class AttentionStep:
    """What one layer's attention makes of the residual stream, with any of the mixtures in the place of its own pattern.

    Attributes:
        residual: ``r`` ``[batch, token, d_model]``, what came into the block.
        own: the layer's real output with its bias ``[batch, token, d_model]``.
        diagonal: its output if every token attended to itself only.
        dense: its output with uniform attention over visible keys.
        mean_pattern: the mean of its pattern over heads ``[batch, query, key]``.
        uniform: ``U`` ``[batch, query, key]``.
        addition: what of an output is added to the residual stream.
    """

    residual: Tensor
    own: Tensor
    diagonal: Tensor
    dense: Tensor
    mean_pattern: Tensor
    uniform: Tensor
    addition: Addition

    def update(self, path: str, strength: float) -> Tensor:
        """What is added to the residual stream under ``(1-λ) I + λ U`` or ``(1-λ) A + λ U``."""
        start = self.diagonal if path == DIAGONAL else self.own
        return self.addition((1 - strength) * start + strength * self.dense)

    def without_value_output(self, path: str, strength: float) -> Tensor:
        """The residual stream where each token sends its residual's direction at its update's length, the same to all heads."""
        sent = directed_as_residual(self.residual, self.addition(self.diagonal))
        start = sent if path == DIAGONAL else self.mean_pattern @ sent
        return self.residual + (1 - strength) * start + strength * (self.uniform @ sent)


def attention_step(view: LayerAttention, addition: Addition) -> AttentionStep:
    """The outputs that all mixtures are made of.

    Args:
        view: of a layer, with ``RESIDUAL_BEFORE`` captured.
        addition: of the layer.
    """
    uniform = uniform_attention(view.visible).to(view.value.dtype)
    dense = expand_kv_heads(attended_values(uniform, view.value), view.n_heads)
    bias = 0.0 if view.weights.b_O is None else view.weights.b_O

    def output(heads: Tensor) -> Tensor:
        return layer_output(heads if view.gate is None else heads * view.gate, view.W_O) + bias

    return AttentionStep(
        residual=_captured(view, RESIDUAL_BEFORE),
        own=view.output + bias,
        diagonal=output(view.head_value),
        dense=output(dense),
        mean_pattern=view.pattern.mean(1),
        uniform=uniform,
        addition=addition,
    )


def _captured(view: LayerAttention, template: str) -> Tensor:
    return at_least_float32(view.captured[template]).to(view.pattern.device)


class SmoothingAnalyzer(DocumentsAnalyzer):
    """Measures a :class:`~sinklens.results.smoothing.SmoothingResult`, all but the depth.

    Args:
        attention: the model's.
        strengths: ``λ``, ascending, from 0 to 1.
        depth: whether the residual stream behind the whole block is captured too.

    Example:
        >>> SmoothingAnalyzer.kept.__name__
        'SmoothingResult'
    """

    kept = SmoothingResult
    # An instance adds the stream behind the block, which is far behind the attention, only where it is asked for.
    hooks: ClassVar[tuple[str, ...]] = (RESIDUAL_BEFORE, ADDED)

    def __init__(self, attention: ModelAttention, strengths: Sequence[float], depth: bool = False):
        self.attention = attention
        self.strengths = tuple(strengths)
        self.additions: dict[int, Addition] = {}
        self.kinds: dict[int, str] = {}
        self.templates = (*self.hooks, RESIDUAL_AFTER) if depth else self.hooks

    def start(self, setup: Setup) -> None:
        """Start with no document."""
        super().start(setup)
        # Of the batch that was looked at last: which positions count, and its residual stream behind each block.
        self.counted: dict[int, Tensor] = {}
        self.real: dict[int, Tensor] = {}
        self.clean_depth: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        counted = attention.mask & ~sink_mask(attention.sink, attention.mask.shape[-1])
        self.counted[attention.layer], self.real[attention.layer] = counted, attention.mask
        step = attention_step(attention, self._addition(attention))
        figures = {**self._before(step, attention.mask, counted), **self._after(step, attention.mask, counted)}
        self.add(attention.index, figures | self._predicted(attention, step, counted))
        if RESIDUAL_AFTER in attention.captured:
            self.clean_depth[attention.layer] = self.depth_cosines(
                attention.layer, attention.captured[RESIDUAL_AFTER].to(counted.device)
            )

    def depth_cosines(self, layer: int, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine of the residual stream behind a block ``[batch]``, without the sinks and with them."""
        counted, real = self.counted[layer], self.real[layer]
        rows = at_least_float32(residual).to(counted.device)
        return token_cosine(rows, counted).cpu(), token_cosine(rows, real).cpu()

    def _addition(self, view: LayerAttention) -> Addition:
        if view.layer not in self.additions:
            bias = 0.0 if view.weights.b_O is None else view.weights.b_O
            rows = view.mask[0]
            found, failure = find_addition(
                self.attention.model.blocks[view.layer],
                _captured(view, RESIDUAL_BEFORE)[0, rows],
                (view.output + bias)[0, rows],
                _captured(view, ADDED)[0, rows],
                TOLERANCE.get(self.attention.dtype, TOLERANCE["float32"]),
            )
            if failure is not None:
                raise UnsupportedAttentionError(
                    f"{self.attention.name}, layer {view.layer}: {failure}; leave the layer out with layers=[...]"
                )
            self.additions[view.layer] = found
            self.kinds[view.layer] = found.kind if view.gate is None else GATED
        return self.additions[view.layer]

    def _cells(self, figure: Tensor) -> Tensor:
        """A figure that no strength changes, in the shape of those that one does ``[batch, path, strength]``."""
        return figure[:, None, None].expand(-1, len(PATHS), len(self.strengths))

    def _before(self, step: AttentionStep, real: Tensor, counted: Tensor) -> dict[str, Tensor]:
        measured = _measures(step.residual, real, counted)
        return {f"before_{name}": self._cells(figure) for name, figure in measured.items()}

    def _after(self, step: AttentionStep, real: Tensor, counted: Tensor) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for path in PATHS:
            for strength in self.strengths:
                update = step.update(path, strength)
                measured = _measures(step.residual + update, real, counted)
                named = {f"after_{name}": figure for name, figure in measured.items()}
                named["update_only_cosine"] = token_cosine(update, counted)
                named["own_direction_cosine"] = token_cosine(step.without_value_output(path, strength), counted)
                for name, figure in named.items():
                    found.setdefault(name, []).append(figure)
        return {name: self._grid(figures) for name, figures in found.items()}

    def _grid(self, figures: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(figures), -1).unflatten(-1, (len(PATHS), len(self.strengths)))

    def _predicted(self, view: LayerAttention, step: AttentionStep, counted: Tensor) -> dict[str, Tensor]:
        """By sequence: the closed form on the path from diagonal to dense, its criterion, and how heavy one token is."""
        cosine = torch.full((len(counted), len(PATHS), len(self.strengths)), torch.nan, dtype=torch.float64)
        single = torch.full((2, len(counted)), torch.nan, dtype=torch.float64)
        sent = step.addition(step.diagonal)
        for row, kept in enumerate(counted):
            if int(kept.sum()) < 2:
                continue
            residual = step.residual[row, kept]
            single[1, row] = largest_share(residual.double())
            if self._has_closed_form(view, row):
                moments = smoothing_moments(residual, sent[row, kept])
                single[0, row] = _relative_criterion(moments)
                cosine[row, PATHS.index(DIAGONAL)] = torch.tensor(
                    [predicted_cosine(moments, x, int(kept.sum()), view.weights.causal) for x in self.strengths]
                )
        criterion, share = (self._cells(figure) for figure in single)
        return {"predicted_cosine": cosine, "criterion": criterion, "largest_token_share": share}

    def _has_closed_form(self, view: LayerAttention, row: int) -> bool:
        """Whether a token sends the same to every query, all of it is added as it is, and every earlier key is seen."""
        window, length = view.weights.window, int(view.mask[row].sum())
        is_plain = view.gate is None and self.additions[view.layer].is_linear
        return is_plain and (window is None or length <= window)

    def result(self, provenance: Provenance) -> SmoothingResult:
        """The figures of all documents."""
        return SmoothingResult(self.values, self.layers, provenance, self.strengths)


def _measures(rows: Tensor, real: Tensor, counted: Tensor) -> dict[str, Tensor]:
    return {
        "cosine": token_cosine(rows, counted),
        "cosine_with_sink": token_cosine(rows, real),
        "rank_collapse": rank_collapse(rows, counted),
    }


def _relative_criterion(moments: SmoothingMoments) -> float:
    spread = moments.residual_variance
    return smoothing_criterion(moments) / spread if spread > 0 else float("nan")


def unusual(kinds: dict[int, str]) -> dict[str, str]:
    """The layers whose step is not ``r + o``, in a form that JSON keeps."""
    return {str(layer): kind for layer, kind in kinds.items() if kind != PLAIN}

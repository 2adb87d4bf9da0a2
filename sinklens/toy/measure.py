"""What is measured of a toy: sinklens' own head profile, the same apart for active and dormant queries, and losses."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sinklens.analyzers.means import MeansAnalyzer
from sinklens.analyzers.profile import ProfileAnalyzer
from sinklens.analyzers.run import run
from sinklens.metrics.costs import product_norms
from sinklens.metrics.patterns import KINDS, pattern_kind, previous_attention, row_entropy, self_attention
from sinklens.metrics.sinks import attention_on
from sinklens.models.layer import LayerAttention
from sinklens.results.head_means import HeadMeans
from sinklens.results.head_profile import KindThresholds
from sinklens.results.provenance import Provenance
from sinklens.results.toy_history import NORMS
from sinklens.toy.tasks import CopyTask

_PER_QUERY = (
    "sink_mass",
    "learned_sink_mass",
    "self_mass",
    "previous_mass",
    "target_mass",
    "entropy",
    "output_norm",
    "gate",
)
_SIDES = ("active", "dormant")
HELD_OUT_SEQUENCES, HELD_OUT_SEED = 64, 2**31  # far from the seeds of training data


@dataclass(frozen=True, repr=False)
class CopyMasses(HeadMeans):
    """Means over the active and over the dormant queries, under ``sink_mass_active``, ``sink_mass_dormant`` and so on."""

    COUNT_OF: ClassVar[Mapping[str, str]] = {f"{name}_{side}": side for name in _PER_QUERY for side in _SIDES}


class CopyAnalyzer(MeansAnalyzer):
    """Measures :class:`CopyMasses` of any model on the sequences of a copy-paste task.

    Args:
        task: which says what queries are active and where they have to look.

    Example:
        >>> CopyAnalyzer(CopyTask()).kept.__name__
        'CopyMasses'
    """

    kept = CopyMasses

    def __init__(self, task: CopyTask):
        self.task = task

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        active = self.task.active(attention.tokens).to(attention.mask.device)
        learned = 1 - attention.pattern.sum(-1) if attention.weights.learned_sink else None
        masses = self._masses(attention, learned)
        rows = {"active": attention.queries & active, "dormant": attention.queries & ~active}
        quantities = {f"{name}_{side}": mass for name, mass in masses.items() for side in _SIDES}
        self.add(attention.index, quantities, {side: mask.unsqueeze(1) for side, mask in rows.items()})

    def _masses(self, attention: LayerAttention, learned: Tensor | None) -> dict[str, Tensor]:
        pattern = attention.pattern
        unknown = pattern.new_full(pattern.shape[:-1], torch.nan)
        return {
            "sink_mass": attention_on(pattern, attention.sink).sum(-1),
            "learned_sink_mass": torch.zeros_like(unknown) if learned is None else learned,
            "self_mass": self_attention(pattern),
            "previous_mass": previous_attention(pattern),
            "target_mass": self.task.target_attention(pattern),
            "entropy": row_entropy(
                pattern, attention.visible_count, "collision", None if learned is None else 1 - learned
            ),
            "output_norm": attention.head_output.norm(dim=-1).transpose(1, 2),
            "gate": unknown if attention.gate is None else attention.gate.mean(-1).transpose(1, 2),
        }

    def result(self, provenance: Provenance) -> CopyMasses:
        """The means over all batches."""
        return CopyMasses(self.sums, self.counts, self.layers, provenance)


def held_out(task: CopyTask) -> Tensor:
    """The sequences on which a toy is measured, the same whenever the task is."""
    return task.sample(HELD_OUT_SEQUENCES, HELD_OUT_SEED)


def measure_toy(
    model: Any, task: CopyTask, tokens: Tensor, thresholds: KindThresholds | None = None
) -> tuple[dict[str, float], dict[str, int], Provenance]:
    """All figures of a :class:`~sinklens.results.toy_history.ToyHistory` for the first head of the first layer.

    Args:
        model: a toy.
        task: that it learns.
        tokens: sequences of the task.
        thresholds: of the pattern kinds.

    Returns:
        Values by quantity, indices of kinds by name, and the provenance.
    """
    thresholds = thresholds or KindThresholds()
    analyzers = [ProfileAnalyzer(thresholds=thresholds), CopyAnalyzer(task)]
    profile, masses = run(model, tokens, analyzers, batch_size=len(tokens), progress=False)
    values = {name: masses.mean(name)[0, 0].item() for name in masses.quantities}
    drain = profile.sink_value_ratio[0, 0].item()
    kinds = {f"kind_{side}": _kind(masses, side, thresholds) for side in _SIDES}
    kinds["kind"] = KINDS.index(profile.kind[0][0])
    values = values | task_losses(model, task, tokens) | weight_norms(model) | {"value_drain": drain}
    return values, kinds, profile.provenance


def _kind(masses: CopyMasses, side: str, thresholds: KindThresholds) -> int:
    """The kind that :func:`~sinklens.metrics.patterns.pattern_kind` gives the queries of one side alone."""
    names = ("sink_mass", "self_mass", "previous_mass", "entropy")
    scores: list[Any] = [masses.mean(f"{name}_{side}")[0, 0] for name in names]
    learned = masses.mean(f"learned_sink_mass_{side}")[0, 0]
    return int(pattern_kind(*scores, **dataclasses.asdict(thresholds), learned_sink_mass=learned))


@torch.no_grad()
def task_losses(model: Any, task: CopyTask, tokens: Tensor) -> dict[str, float]:
    """Next-token cross-entropy over active and over dormant queries, and the least that can be expected of the latter, nats."""
    logits = model(tokens)[:, :-1].float()
    loss = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").double()
    active, optimal = task.active(tokens)[:, :-1], task.optimal_loss(tokens)[:, :-1]
    return {
        "loss_active": loss[active].mean().item(),
        "loss_dormant": loss[~active].mean().item(),
        "optimal_dormant": optimal[~active].mean().item(),
    }


def weight_norms(model: Any) -> dict[str, float]:
    """Norms of ``W_Q W_Kᵀ`` and ``W_V W_O`` of the first head; NaN where a norm or a gate keeps them from being one map."""
    attention = model.blocks[0].attn
    gated = bool(getattr(model.cfg, "gated_q_proj", False))  # this attention also has a norm of queries and keys
    found: dict[str, float] = dict.fromkeys(NORMS, float("nan"))
    if gated:
        return found
    weights = {name: getattr(attention, f"W_{name}").detach()[:1] for name in "QKVO"}
    for name, norms in (
        ("qk", product_norms(weights["Q"], weights["K"])),
        ("vo", product_norms(weights["V"], weights["O"].mT)),
    ):
        found[f"{name}_frobenius"], found[f"{name}_nuclear"] = norms.frobenius.item(), norms.nuclear.item()
    return found

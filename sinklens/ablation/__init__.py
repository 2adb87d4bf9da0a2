"""Ablation studies: what taking sinks away does to the loss, to the norms of head outputs and to their drift."""

from sinklens.ablation.drift import drift_without_sinks
from sinklens.ablation.means import value_means
from sinklens.ablation.smoothing import oversmoothing
from sinklens.ablation.study import ablate_sinks
from sinklens.ablation.sweep import sweep_sinks

__all__ = ["ablate_sinks", "drift_without_sinks", "oversmoothing", "sweep_sinks", "value_means"]

"""Interventions as ``(hook_name, function)`` pairs, their controls, and the context that proves that they worked."""

from sinklens.errors import NoEffectError
from sinklens.interventions.context import InterventionRecord, intervene
from sinklens.interventions.controls import placebo
from sinklens.interventions.hooks import Intervention
from sinklens.interventions.learned_sinks import scale_learned_sink
from sinklens.interventions.patterns import (
    densify_attention,
    diagonalize_attention,
    mask_contributions,
    remove_sink_attention,
    set_sink_mass,
)
from sinklens.interventions.positions import SinkChoice
from sinklens.interventions.values import mean_sink_values, scale_sink_values, zero_sink_values

__all__ = [
    "Intervention",
    "InterventionRecord",
    "NoEffectError",
    "SinkChoice",
    "densify_attention",
    "diagonalize_attention",
    "intervene",
    "mask_contributions",
    "mean_sink_values",
    "placebo",
    "remove_sink_attention",
    "scale_learned_sink",
    "scale_sink_values",
    "set_sink_mass",
    "zero_sink_values",
]

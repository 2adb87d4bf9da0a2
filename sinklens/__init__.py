"""sinklens: which tokens really move an attention head's output, what its attention sinks do, and what happens without them.

Names are loaded when they are first used: ``import sinklens`` loads neither plotly nor transformer_lens.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinklens import metrics, theory, toy, viz
    from sinklens.ablation import (
        ablate_sinks,
        drift_without_sinks,
        oversmoothing,
        sweep_sinks,
        value_means,
    )
    from sinklens.analyzers.base import Analyzer, Setup
    from sinklens.analyzers.drift import DriftAnalyzer
    from sinklens.analyzers.drivers import DriversAnalyzer
    from sinklens.analyzers.geometry import GeometryAnalyzer, sink_geometry
    from sinklens.analyzers.head_costs import MarginsAnalyzer, head_costs
    from sinklens.analyzers.keys import KeysAnalyzer
    from sinklens.analyzers.maps import AttentionMaps, MapsAnalyzer, attention_maps
    from sinklens.analyzers.profile import ProfileAnalyzer, head_profile
    from sinklens.analyzers.run import run
    from sinklens.analyzers.switch import SwitchAnalyzer, attention_switch
    from sinklens.errors import (
        ConvergenceError,
        FrameWarning,
        HookNotFiredError,
        InputError,
        ModelLoadError,
        NoEffectError,
        ResultFileError,
        SinklensError,
        UnsupportedAttentionError,
    )
    from sinklens.interventions import (
        Intervention,
        InterventionRecord,
        SinkChoice,
        densify_attention,
        diagonalize_attention,
        intervene,
        mask_contributions,
        mean_sink_values,
        placebo,
        remove_sink_attention,
        scale_learned_sink,
        scale_sink_values,
        set_sink_mass,
        zero_sink_values,
    )
    from sinklens.masking import RankMasking, faithfulness, mask_by_metric, multiple_choice
    from sinklens.masking.harness import harness_model
    from sinklens.models.checks import check_model
    from sinklens.models.labels import token_labels
    from sinklens.models.layer import LayerAttention
    from sinklens.models.loading import load_model
    from sinklens.models.sinks import SinkRule, sink_rule
    from sinklens.models.tokens import TokenBatch, TokenBatches, tokenize
    from sinklens.reports.report import report
    from sinklens.results import (
        DriftProfile,
        DriverProfile,
        HeadProfile,
        KeyContributions,
        KindThresholds,
        ModelCheck,
        Provenance,
    )
    from sinklens.results.ablation import (
        AblatedDrift,
        AblationResult,
        SweepResult,
    )
    from sinklens.results.faithfulness import FaithfulnessResult
    from sinklens.results.faithfulness_progress import partial_faithfulness
    from sinklens.results.geometry import SinkGeometry
    from sinklens.results.head_costs import HeadCosts
    from sinklens.results.multiple_choice import MultipleChoiceResult
    from sinklens.results.smoothing import SmoothingResult
    from sinklens.results.switch import AttentionSwitch, SwitchThresholds
    from sinklens.results.toy_history import ToyHistory
    from sinklens.theory import embedding_cost, pattern_cost

__version__ = "0.1.0"

_HOME = {
    "sinklens.ablation": (
        "ablate_sinks",
        "drift_without_sinks",
        "oversmoothing",
        "sweep_sinks",
        "value_means",
    ),
    "sinklens.analyzers.base": ("Analyzer", "Setup"),
    "sinklens.analyzers.drift": ("DriftAnalyzer",),
    "sinklens.analyzers.drivers": ("DriversAnalyzer",),
    "sinklens.analyzers.head_costs": ("MarginsAnalyzer", "head_costs"),
    "sinklens.analyzers.geometry": ("GeometryAnalyzer", "sink_geometry"),
    "sinklens.analyzers.keys": ("KeysAnalyzer",),
    "sinklens.analyzers.maps": ("AttentionMaps", "MapsAnalyzer", "attention_maps"),
    "sinklens.analyzers.profile": ("ProfileAnalyzer", "head_profile"),
    "sinklens.analyzers.run": ("run",),
    "sinklens.analyzers.switch": ("SwitchAnalyzer", "attention_switch"),
    "sinklens.errors": (
        "ConvergenceError",
        "FrameWarning",
        "HookNotFiredError",
        "InputError",
        "ModelLoadError",
        "NoEffectError",
        "ResultFileError",
        "SinklensError",
        "UnsupportedAttentionError",
    ),
    "sinklens.interventions": (
        "Intervention",
        "InterventionRecord",
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
    ),
    "sinklens.masking": (
        "RankMasking",
        "faithfulness",
        "mask_by_metric",
        "multiple_choice",
    ),
    "sinklens.masking.harness": ("harness_model",),
    "sinklens.models.checks": ("check_model",),
    "sinklens.models.labels": ("token_labels",),
    "sinklens.models.layer": ("LayerAttention",),
    "sinklens.models.loading": ("load_model",),
    "sinklens.models.sinks": ("SinkRule", "sink_rule"),
    "sinklens.models.tokens": ("TokenBatch", "TokenBatches", "tokenize"),
    "sinklens.reports.report": ("report",),
    "sinklens.results": (
        "DriftProfile",
        "DriverProfile",
        "HeadProfile",
        "KeyContributions",
        "KindThresholds",
        "ModelCheck",
        "Provenance",
    ),
    "sinklens.results.ablation": (
        "AblatedDrift",
        "AblationResult",
        "SweepResult",
    ),
    "sinklens.results.faithfulness": ("FaithfulnessResult",),
    "sinklens.results.faithfulness_progress": ("partial_faithfulness",),
    "sinklens.results.head_costs": ("HeadCosts",),
    "sinklens.results.geometry": ("SinkGeometry",),
    "sinklens.results.multiple_choice": ("MultipleChoiceResult",),
    "sinklens.results.switch": ("AttentionSwitch", "SwitchThresholds"),
    "sinklens.results.smoothing": ("SmoothingResult",),
    "sinklens.results.toy_history": ("ToyHistory",),
    "sinklens.theory": ("embedding_cost", "pattern_cost"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBPACKAGES = ("metrics", "theory", "toy", "viz")

__all__ = [
    "AblatedDrift",
    "AblationResult",
    "Analyzer",
    "AttentionMaps",
    "AttentionSwitch",
    "ConvergenceError",
    "DriftAnalyzer",
    "DriftProfile",
    "DriverProfile",
    "DriversAnalyzer",
    "FaithfulnessResult",
    "FrameWarning",
    "GeometryAnalyzer",
    "HeadCosts",
    "HeadProfile",
    "HookNotFiredError",
    "InputError",
    "Intervention",
    "InterventionRecord",
    "KeyContributions",
    "KeysAnalyzer",
    "KindThresholds",
    "LayerAttention",
    "MapsAnalyzer",
    "MarginsAnalyzer",
    "ModelCheck",
    "ModelLoadError",
    "MultipleChoiceResult",
    "NoEffectError",
    "ProfileAnalyzer",
    "Provenance",
    "RankMasking",
    "ResultFileError",
    "Setup",
    "SinkChoice",
    "SinkGeometry",
    "SinkRule",
    "SinklensError",
    "SmoothingResult",
    "SweepResult",
    "SwitchAnalyzer",
    "SwitchThresholds",
    "TokenBatch",
    "TokenBatches",
    "ToyHistory",
    "UnsupportedAttentionError",
    "ablate_sinks",
    "attention_maps",
    "attention_switch",
    "check_model",
    "densify_attention",
    "diagonalize_attention",
    "drift_without_sinks",
    "embedding_cost",
    "faithfulness",
    "harness_model",
    "head_costs",
    "head_profile",
    "intervene",
    "load_model",
    "mask_by_metric",
    "mask_contributions",
    "mean_sink_values",
    "metrics",
    "multiple_choice",
    "oversmoothing",
    "partial_faithfulness",
    "pattern_cost",
    "placebo",
    "remove_sink_attention",
    "report",
    "run",
    "scale_learned_sink",
    "scale_sink_values",
    "set_sink_mass",
    "sink_geometry",
    "sink_rule",
    "sweep_sinks",
    "theory",
    "token_labels",
    "tokenize",
    "toy",
    "value_means",
    "viz",
    "zero_sink_values",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"sinklens.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sinklens' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

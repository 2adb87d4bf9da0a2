"""What measurements return: frozen results with labels and provenance, which save, load, merge and become tables."""

from sinklens.results.attention_maps import METRICS, AttentionMaps
from sinklens.results.drift_profile import DriftProfile
from sinklens.results.driver_profile import DriverProfile
from sinklens.results.head_means import HeadMeans
from sinklens.results.head_profile import QUANTITIES, HeadProfile, KindThresholds
from sinklens.results.key_contributions import KeyContributions
from sinklens.results.model_check import LayerCheck, ModelCheck
from sinklens.results.provenance import Provenance

__all__ = [
    "METRICS",
    "QUANTITIES",
    "AttentionMaps",
    "DriftProfile",
    "DriverProfile",
    "HeadMeans",
    "HeadProfile",
    "KeyContributions",
    "KindThresholds",
    "LayerCheck",
    "ModelCheck",
    "Provenance",
]

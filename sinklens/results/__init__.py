"""What measurements return: frozen results with labels and provenance, which save, load, merge and become tables."""

from sinklens.results.attention_maps import METRICS, AttentionMaps
from sinklens.results.head_profile import QUANTITIES, HeadProfile, KindThresholds
from sinklens.results.provenance import Provenance

__all__ = ["METRICS", "QUANTITIES", "AttentionMaps", "HeadProfile", "KindThresholds", "Provenance"]

"""Pure tensor to tensor functions: contributions, sinks, values, patterns, suppression, drift and drivers."""

from sinklens.metrics.contributions import (
    contribution_factors,
    contributions_per_key,
    degenerate,
    gated_value_norms,
    inner_products,
    inter_contributions,
    inter_directions,
    intra_contributions,
    intra_directions,
    layer_output,
    output_normalized,
    value_cosines,
    value_weighted,
)
from sinklens.metrics.drift import cone_cosine, mean_pairwise_cosine
from sinklens.metrics.drivers import Drivers, contribution_drivers, key_groups
from sinklens.metrics.head_space import expand_kv_heads, head_factor, projected_value_norms, to_head_space
from sinklens.metrics.patterns import KINDS, pattern_kind, previous_attention, row_entropy, self_attention
from sinklens.metrics.sinks import attention_on, detect_sinks, received_attention, sink_mass, sink_rate
from sinklens.metrics.suppression import Mixture, alpha_star, is_interior, norm_curve, split_output
from sinklens.metrics.values import cosine, mean_sink_cosine, mean_value, sink_alignment, sink_mask, value_drain
from sinklens.metrics.visibility import queries_after, visible_counts, visible_keys

__all__ = [
    "KINDS",
    "Drivers",
    "Mixture",
    "alpha_star",
    "attention_on",
    "cone_cosine",
    "contribution_drivers",
    "contribution_factors",
    "contributions_per_key",
    "cosine",
    "degenerate",
    "detect_sinks",
    "expand_kv_heads",
    "gated_value_norms",
    "head_factor",
    "inner_products",
    "inter_contributions",
    "inter_directions",
    "intra_contributions",
    "intra_directions",
    "is_interior",
    "key_groups",
    "layer_output",
    "mean_pairwise_cosine",
    "mean_sink_cosine",
    "mean_value",
    "norm_curve",
    "output_normalized",
    "pattern_kind",
    "previous_attention",
    "projected_value_norms",
    "queries_after",
    "received_attention",
    "row_entropy",
    "self_attention",
    "sink_alignment",
    "sink_mask",
    "sink_mass",
    "sink_rate",
    "split_output",
    "to_head_space",
    "value_cosines",
    "value_drain",
    "value_weighted",
    "visible_counts",
    "visible_keys",
]

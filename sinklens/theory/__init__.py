"""Pure closed forms and solvers: what a pattern costs, when a sink is representable, how attention smooths (arXiv 2605.08453)."""

from sinklens.theory.closed_forms import (
    causal_sink_nuclear_cost,
    frobenius_cost,
    full_nuclear_cost,
    value_output_cost,
)
from sinklens.theory.collapse import SinkCosines, rank_collapse, sink_cosines, token_cosine
from sinklens.theory.cost import embedding_cost, pattern_cost
from sinklens.theory.exclusion import ZeroExclusion, zero_exclusion
from sinklens.theory.feasibility import Feasibility, pattern_feasibility
from sinklens.theory.hulls import (
    HullPoint,
    RankOneWitness,
    anti_alignment_margin,
    half_space_margin,
    key_separability,
    nearest_in_hull,
    numerical_rank,
    rank_one_witness,
)
from sinklens.theory.least_norm import LeastNorm, achieved_margin, constraint_combination, least_norm
from sinklens.theory.patterns import COST_KINDS, SWITCHES, ScorePattern, active_positions, score_pattern
from sinklens.theory.representability import SinkRepresentation, massive_activations, sink_representation
from sinklens.theory.scaling import ScalingFit, cost_scaling, scaling_fit
from sinklens.theory.smoothing import (
    SmoothingMoments,
    population_moments,
    predicted_cosine,
    smoothing_criterion,
    smoothing_moments,
)
from sinklens.theory.splitting import NORMS

__all__ = [
    "COST_KINDS",
    "NORMS",
    "SWITCHES",
    "Feasibility",
    "HullPoint",
    "LeastNorm",
    "RankOneWitness",
    "ScalingFit",
    "ScorePattern",
    "SinkCosines",
    "SinkRepresentation",
    "SmoothingMoments",
    "ZeroExclusion",
    "achieved_margin",
    "active_positions",
    "anti_alignment_margin",
    "causal_sink_nuclear_cost",
    "constraint_combination",
    "cost_scaling",
    "embedding_cost",
    "frobenius_cost",
    "full_nuclear_cost",
    "half_space_margin",
    "key_separability",
    "least_norm",
    "massive_activations",
    "nearest_in_hull",
    "numerical_rank",
    "pattern_cost",
    "pattern_feasibility",
    "population_moments",
    "predicted_cosine",
    "rank_collapse",
    "rank_one_witness",
    "scaling_fit",
    "score_pattern",
    "sink_cosines",
    "sink_representation",
    "smoothing_criterion",
    "smoothing_moments",
    "token_cosine",
    "value_output_cost",
    "zero_exclusion",
]

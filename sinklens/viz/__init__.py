"""Figures: each function takes a result and returns a plotly Figure; none shows or writes anything.

In a notebook, the figure as the last line of a cell is shown; ``figure.write_html(path)`` keeps one.
"""

from sinklens.viz.ablation import ablation_effects, ablation_map, sweep_effects, sweep_norms
from sinklens.viz.curves import strongest_sink_heads, suppression_curves
from sinklens.viz.faithfulness import faithfulness_curves, faithfulness_differences
from sinklens.viz.geometry import geometry_cosines, geometry_margins, massive_lines
from sinklens.viz.head_costs import cost_correlations, cost_map, cost_scatter, least_costs
from sinklens.viz.heads import head_map, head_maps
from sinklens.viz.images import image_maps
from sinklens.viz.lines import drift_lines, layer_lines
from sinklens.viz.maps import attention_heatmaps, token_contributions
from sinklens.viz.pattern_costs import pattern_costs
from sinklens.viz.scatter import head_scatter
from sinklens.viz.size import check_size, figure_bytes
from sinklens.viz.smoothing import dense_minus_diagonal, smoothing_counters, smoothing_curves, smoothing_depth
from sinklens.viz.switch import communication_lines, switch_carriers, switch_maps, switch_scatter
from sinklens.viz.theme import Theme, template
from sinklens.viz.toy import toy_comparison, toy_costs, toy_losses, toy_masses

__all__ = [
    "Theme",
    "ablation_effects",
    "ablation_map",
    "attention_heatmaps",
    "check_size",
    "communication_lines",
    "cost_correlations",
    "cost_map",
    "cost_scatter",
    "dense_minus_diagonal",
    "drift_lines",
    "faithfulness_curves",
    "faithfulness_differences",
    "figure_bytes",
    "geometry_cosines",
    "geometry_margins",
    "head_map",
    "head_maps",
    "head_scatter",
    "image_maps",
    "layer_lines",
    "least_costs",
    "massive_lines",
    "pattern_costs",
    "smoothing_counters",
    "smoothing_curves",
    "smoothing_depth",
    "strongest_sink_heads",
    "suppression_curves",
    "sweep_effects",
    "sweep_norms",
    "switch_carriers",
    "switch_maps",
    "switch_scatter",
    "template",
    "token_contributions",
    "toy_comparison",
    "toy_costs",
    "toy_losses",
    "toy_masses",
]

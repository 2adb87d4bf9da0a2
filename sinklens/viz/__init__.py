"""Figures: each function takes a result and returns a plotly Figure; none shows or writes anything.

In a notebook, the figure as the last line of a cell is shown; ``figure.write_html(path)`` keeps one.
"""

from sinklens.viz.ablation import ablation_effects, ablation_map, sweep_effects, sweep_norms
from sinklens.viz.curves import strongest_sink_heads, suppression_curves
from sinklens.viz.faithfulness import faithfulness_curves, faithfulness_differences
from sinklens.viz.heads import head_map, head_maps
from sinklens.viz.lines import drift_lines, layer_lines
from sinklens.viz.maps import attention_heatmaps, token_contributions
from sinklens.viz.scatter import head_scatter
from sinklens.viz.size import check_size, figure_bytes
from sinklens.viz.theme import Theme, template

__all__ = [
    "Theme",
    "ablation_effects",
    "ablation_map",
    "attention_heatmaps",
    "check_size",
    "drift_lines",
    "faithfulness_curves",
    "faithfulness_differences",
    "figure_bytes",
    "head_map",
    "head_maps",
    "head_scatter",
    "layer_lines",
    "strongest_sink_heads",
    "suppression_curves",
    "sweep_effects",
    "sweep_norms",
    "template",
    "token_contributions",
]

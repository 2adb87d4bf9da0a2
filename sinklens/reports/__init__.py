"""Reports: results and figures as one self-contained HTML page."""

from sinklens.reports.ablation import render_ablation
from sinklens.reports.faithfulness import render_faithfulness
from sinklens.reports.render import render_report, write_report
from sinklens.reports.smoothing import render_smoothing

__all__ = ["render_ablation", "render_faithfulness", "render_report", "render_smoothing", "write_report"]

"""Reports: results and figures as one self-contained HTML page."""

from sinklens.reports.render import render_report, write_report

__all__ = ["render_report", "write_report"]

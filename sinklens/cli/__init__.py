"""The command line: ``sinklens report | profile | check | ablate | faithfulness | geometry | smoothing | switch | toy``.

A user's mistake gives one line and exit code 2, Ctrl-C exit code 130; what is written is whole or absent.
"""

# Importing a module of commands is what registers them, in the order of the help page.
from sinklens.cli import heads, ablate, faithfulness, geometry, cost, smoothing, switch, toy  # noqa: F401 -- isort:skip
from sinklens.cli.app import app, main

__all__ = ["app", "main"]

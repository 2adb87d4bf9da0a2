"""Every notebook runs from top to bottom, on a tiny model in the place of the real one, and is kept without outputs."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
TINY = """
import sys; sys.path.insert(0, {root!r})
import sinklens.models.loading
from tests.families import bridge
sinklens.models.loading.load_model = lambda name, **options: bridge("llama_3x5")
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    root = str(Path(__file__).parents[1])
    notebook.cells.insert(0, nbformat.v4.new_code_cell(TINY.format(root=root)))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells[1:] if cell.cell_type == "code" and "sl.viz." in cell.source]
    assert shown
    assert all("application/vnd.plotly.v1+json" in output[-1].data for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)

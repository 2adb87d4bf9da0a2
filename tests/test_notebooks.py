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
sinklens.models.loading.load_model = lambda name, **options: bridge({family!r})
"""
# Unequal numbers of layers and heads, except where heads that share a value are the subject.
FAMILIES = {"first_look": "llama_3x5", "ablation": "llama", "faithfulness": "llama_3x5"}
# Run in the kernel after the last cell: what must hold of the notebook's own numbers, on any model.
HOLDS = {
    "first_look": """
assert profile.provenance.n_documents == len(texts) and ((profile.sink_mass > 0) & (profile.sink_mass < 1)).all()
assert (maps.intra.sum(-1) - 1).abs().max() < 1e-4
assert (layer, head) == divmod(int(profile.sink_mass.argmax()), profile.sink_mass.shape[1])
""",
    "ablation": """
by_level = table_of_levels["KL from clean"]
assert abs(by_level["its key/value head"] - by_level["the group's heads one by one"]) < 1e-5
assert abs(by_level["its key/value head"] - by_level["this head only"]) > 1e-5
assert all(study.provenance.n_documents == len(texts) for study in (everywhere, by_layer, masses, scales))
assert all(by_layer.changed) and len(by_layer.cells) == 2 * model.cfg.n_layers
assert len(by_head.cells) == model.cfg.n_layers * model.cfg.n_heads and {cell.heads[0] for cell in confirmed.cells} == set(chosen)
norms = masses.norms()
assert (norms["measured"] / norms["closed_form"] - 1).abs().max() < 1e-3
unscaled = scales.to_dataframe().query("value == 1")
assert len(unscaled) and (unscaled["delta_loss"].abs() < 1e-9).all()
cosines = drift.to_dataframe()
assert (cosines["cone_without"] - cosines["cone_with"]).abs().max() > 1e-3
""",
    "faithfulness": """
assert abs(last["intra"].sum() - 1) < 1e-4 and abs(last["attention"].sum() - 1) < 1e-4
assert by_hand.loc["nothing", "loss"] == clean_loss and (by_hand["loss"].drop("nothing") != clean_loss).all()
assert by_hand["share removed"].between(0, 0.1).all() and (by_hand["share removed"].drop("nothing") > 0.05).all()
assert study.is_complete and len(study.count) == len(texts) and study.fractions == fractions
assert again.aopc().equals(study.aopc())
assert len(passes) == 3 and more.is_complete  # a short check of the model and the two new cells, not all five passes
assert more.loss[:, :, 0].equal(first.loss[:, :, 0])
assert set(answers) == set(conditions) and all(len(found.answers) == len(records) for found in answers.values())
assert not answers["clean"].scores.equal(answers["sinks zeroed"].scores)
""",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    tiny = TINY.format(root=str(Path(__file__).parents[1]), family=FAMILIES[path.stem])
    notebook.cells.insert(0, nbformat.v4.new_code_cell(tiny))
    notebook.cells.append(nbformat.v4.new_code_cell(HOLDS[path.stem]))
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [cell.outputs for cell in notebook.cells[1:] if cell.cell_type == "code" and "sl.viz." in cell.source]
    assert shown
    assert all("application/vnd.plotly.v1+json" in output[-1].data for output in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)

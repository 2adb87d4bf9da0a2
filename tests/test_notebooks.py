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
FAMILIES = {
    "first_look": "llama_3x5",
    "ablation": "llama",
    "faithfulness": "llama_3x5",
    "oversmoothing": "llama_3x5",
    "representability": "llama_3x5",
    "toy": "llama_3x5",  # loads no model by name: it has its own
}
# Run in the kernel after the last cell: what must hold of the notebook's own numbers, on any model.
HOLDS = {
    "toy": """
assert by_side.loc["sink_mass", "dormant"] > 0.5 > 0.05 > by_side.loc["sink_mass", "active"]
assert by_side.loc["target_mass", "active"] > 0.6 and profile.sink_value_ratio.item() < 0.3
change = losses.loc["without the sink"] - losses.loc["as it is"]
assert change["loss_dormant"] > 1e-3 > abs(change["loss_active"]) and change["optimal_dormant"] == 0
assert history.labels == ("bos", "learned_sink", "no_learned_sink") and history.steps == (0, 20, 40, 60, 80, 100)
assert history.final("learned_sink_mass_dormant").argmax() == 1
""",
    "representability": """
assert geometry.provenance.n_documents == len(texts) and len(cosines) == 2 * model.cfg.n_layers
assert (geometry.mean("witness_margin") > 0).equal(geometry.mean("representable") == 1)
assert not sink_representation(crowded, score_pattern(4)).representable
assert sink_representation(opposed, score_pattern(4)).anti_alignment_margin > 0
assert abs(fits["sink"].exponent - 1) < 0.02 and abs(fits["diagonal"].exponent - 1.5) < 0.02
assert costs.refused == () and costs.least.n_documents == len(texts) and 0 < low <= sink_over_diagonal <= high < 1
least = costs.embedding_table().query("pattern == 'sink' and norm == 'nuclear'")
assert (least["least"] < least["spent"]).all() and set(costs.sink_against_diagonal()["n_sink"]) == {int((costs.kinds == 0).sum())}
""",
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
    "oversmoothing": """
assert (drawn["simulated"] - drawn["predicted"]).abs().max() < 0.015
by_matrix = drawn.groupby("W")
gains = by_matrix["criterion"].first().to_frame().assign(gain=by_matrix["simulated"].last() - by_matrix["simulated"].first())
assert ((gains["gain"] > 0) == (gains["criterion"] > 0)).all() and gains.loc["opposes", "gain"] < 0
assert study.n_documents == len(texts) and study.has_depth
measured = study.mean("after_cosine")
assert (measured[:, 0, -1] - measured[:, 1, -1]).abs().max() < 1e-6  # both paths end in the same attention
assert error["layer"].tolist() == list(study.layers) and set(countered.index) == {"residual", "value-output"}
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

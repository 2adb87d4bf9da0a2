"""Sink geometry of every family and back end against a literal computation, and planted geometries whose answer is known."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.errors import InputError, ResultFileError
from sinklens.models.hook_names import ATTENTION_INPUT, RESIDUAL_BEFORE
from sinklens.results.geometry import SPACES
from sinklens.results.provenance import Provenance
from sinklens.theory import ScorePattern, massive_activations, pattern_feasibility, score_pattern, sink_representation
from tests.captured import BACKENDS, MODELS, load, new, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import geometry as reference

NAMES = ("cosine_mean", "cosine_max", "opposed_share", "query_margin", "key_margin", "witness_margin")


class Spaces(sl.Analyzer):
    """Keeps both spaces of one sequence in float64."""

    hooks = (RESIDUAL_BEFORE, ATTENTION_INPUT)

    def start(self, setup: Any) -> None:
        self.kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def update(self, attention: sl.LayerAttention) -> None:
        both = (attention.captured[RESIDUAL_BEFORE], attention.attention_input)
        first, second = (tensor[0].double().numpy().copy() for tensor in both)
        self.kept[attention.layer] = (first, second)

    def result(self, provenance: Provenance) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return self.kept


def measured(model: Any, texts: Any, **arguments: Any) -> sl.SinkGeometry:
    return sl.sink_geometry(model, texts, **{"progress": False, "min_length": 1} | arguments)


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_every_family_against_the_literal_figures(backend: str, name: str) -> None:
    model, family = load(backend, name), FAMILIES[name]
    tokens = inputs(name)[:, :11]
    found = measured(model, tokens)
    spaces = sl.run(model, tokens, [Spaces()], progress=False)[0]
    for index, layer in enumerate(family.attention_layers):
        visible = raw_layers(model, name, tokens)[layer].visible[0].numpy()
        pairs = reference.constrained(visible, 0, family.causal)
        queries, keys = sorted({i for i, _ in pairs}), sorted({j for _, j in pairs})
        for column, rows in enumerate(spaces[layer]):
            one = {quantity: figures[index, column, 0].item() for quantity, figures in found.values.items()}
            cosines = reference.cosines(rows, 0)
            assert one["cosine_mean"] == pytest.approx(np.mean(cosines), abs=1e-6)
            assert one["cosine_max"] == pytest.approx(max(cosines), abs=1e-6)
            assert one["opposed_share"] == pytest.approx(np.mean(np.array(cosines) <= 0), abs=1e-9)
            normalised = rows[queries] / np.linalg.norm(rows[queries], axis=1, keepdims=True)
            differences = rows[0] - rows[keys]
            unit = np.linalg.norm(differences, axis=1).mean()
            assert one["query_margin"] == pytest.approx(reference.hull_distance(normalised), abs=1e-4)
            assert one["key_margin"] == pytest.approx(reference.hull_distance(differences / unit), abs=1e-4)
            opposed = -np.outer(rows[0], rows[0]) / (rows[0] @ rows[0])
            assert one["anti_alignment_margin"] == pytest.approx(reference.least(opposed, rows, 0, pairs), abs=1e-5)
            assert one["witness_margin"] == pytest.approx(one["query_margin"] * one["key_margin"], rel=1e-2, abs=1e-6)
            assert one["representable"] == float(one["witness_margin"] > 0)
            assert one["massive_count"] == 0
            assert one["cosine_mean_without"] == one["cosine_mean"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("causal", [True, False])
def test_the_verdict_is_that_of_a_linear_program_over_all_forms(seed: int, causal: bool) -> None:
    """Few dimensions and a shift between none and much: both answers, and every reason, come up."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    X[1:] += 1.5 * (seed % 4)
    found = sink_representation(X, score_pattern(7, "sink", causal))
    pairs = [(i, j) for i, j in score_pattern(7, "sink", causal).others.nonzero().tolist()]
    assert found.representable == reference.feasible(X.numpy(), 0, pairs)
    assert found.representable == pattern_feasibility(X, score_pattern(7, "sink", causal)).feasible
    assert (found.witness_margin > 0) == (found.reason == "witness")


def test_all_reasons() -> None:
    reasons = {
        "witness": torch.tensor([[-1.0, 0.0], [1.0, 1.0], [1.0, -1.0]]),
        "keys": torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]),
        "queries": torch.tensor([[0.0, 5.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 0.1]]),
    }
    for reason, X in reasons.items():
        assert sink_representation(X, score_pattern(len(X))).reason == reason


@pytest.mark.parametrize("seed", range(6))
def test_windows_ask_the_solver_where_neither_proof_holds(seed: int) -> None:
    """No query sees all keys and no key is seen by all queries: the converse does not hold, and the program decides."""
    others = torch.zeros(5, 5, dtype=torch.bool)
    others[[1, 2, 3, 4], [1, 2, 3, 4]] = True
    pattern = ScorePattern(torch.tensor([-1, 0, 0, 0, 0]), others)
    X = torch.randn(5, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    X[3], X[4] = -X[1], -X[2]
    found = sink_representation(X, pattern)
    assert found.reason == "solver"
    assert found.representable == reference.feasible(X.numpy(), 0, others.nonzero().tolist())


def test_the_witness_norm_is_what_a_margin_of_one_needs() -> None:
    X = torch.randn(5, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 1
    found = sink_representation(X, score_pattern(5))
    from sinklens.theory import achieved_margin, rank_one_witness

    W = rank_one_witness(X).W
    assert achieved_margin(found.witness_norm * W, X, score_pattern(5)) == pytest.approx(1.0)


def test_degenerate_vectors_have_a_stated_answer() -> None:
    pattern = score_pattern(3)
    duplicate = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]])
    found = sink_representation(duplicate, pattern)
    assert (found.representable, found.key_margin, found.reason) == (False, 0, "keys")
    no_direction = torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    assert sink_representation(no_direction, pattern).reason == "queries"
    zero_sink = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]])
    assert sink_representation(zero_sink, pattern).representable
    assert sink_representation(zero_sink, pattern).anti_alignment_margin == 0
    alike = torch.ones(3, 2)
    assert not sink_representation(alike, pattern).representable
    with pytest.raises(InputError, match="NaN or infinity in row 1"):
        sink_representation(torch.tensor([[1.0], [float("nan")], [0.0]]), pattern)
    with pytest.raises(InputError, match="constrain at least one query"):
        sink_representation(torch.ones(1, 2), score_pattern(1))
    with pytest.raises(InputError, match="the pattern is of 3 tokens and X holds 2"):
        sink_representation(torch.ones(2, 2), pattern)


def test_massive_needs_both_thresholds_strictly() -> None:
    X = torch.ones(4, 5)
    X[0, 3], X[1, 1] = 2000.0, -1000.0
    assert massive_activations(X).nonzero().tolist() == [[0, 3]]
    assert massive_activations(X, ratio=999.0).nonzero().tolist() == [[0, 3], [1, 1]]
    assert massive_activations(X / 100).sum() == 0
    with pytest.raises(InputError, match="ratio must be a finite number above 0"):
        massive_activations(X, ratio=0.0)


def planted(model: Any, dimension: int, size: float) -> Any:
    """The first token's residual stream before layer 0 has one huge entry."""

    def plant(tensor: Tensor, hook: Any) -> Tensor:
        tensor = tensor.clone()
        tensor[:, 0, dimension] = size
        return tensor

    return model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", plant)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_planted_massive_dimension_is_found_and_left_out(backend: str) -> None:
    model = new(backend, "llama")
    tokens = inputs("llama")
    clean = measured(model, tokens)
    # Of one sign, the entry pulls every cosine with a token that has that sign there.
    with planted(model, 7, 5000.0):
        found = measured(model, tokens, layers=[0])
    table = found.massive_dimensions()
    assert table.to_dict("records") == [{"layer": 0, "dimension": 7, "share": 1.0}]
    assert found.mean("massive_on_sink")[0, 0] == 1
    rows = sl.run(model, tokens, [Spaces()], layers=[0], progress=False)[0][0][0]
    expected = np.mean(reference.cosines(np.delete(rows, 7, axis=1), 0))
    assert found.mean("cosine_mean_without")[0, 0].item() == pytest.approx(expected, abs=1e-5)
    assert abs(found.mean("cosine_mean")[0, 0].item() - expected) > 1e-3
    assert clean.massive_dimensions().empty


TEXTS = ["the cat sat on the mat and the dog", "a dog sat", "the mat and the cat and a dog slept on it"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_batches_and_padding_do_not_count(backend: str) -> None:
    model = load(backend, "llama_3x5")
    together = measured(model, TEXTS, batch_size=3)
    for document, text in enumerate(TEXTS):
        alone = measured(model, [text])
        for name in NAMES:
            torch.testing.assert_close(
                together.documents(name)[..., document], alone.documents(name)[..., 0], rtol=1e-3, atol=1e-5
            )


def test_halves_merge_to_the_whole_and_files_hold_all(tmp_path: Path) -> None:
    model = new("bridge", "llama")
    whole = measured(model, TEXTS, massive_magnitude=0.5, massive_ratio=5.0)
    assert len(whole.massive_dimensions())
    half = [measured(model, part, massive_magnitude=0.5, massive_ratio=5.0) for part in (TEXTS[:1], TEXTS[1:])]
    merged = half[0].merge(half[1])
    assert set(merged.values) == set(whole.values)
    for name, figures in whole.values.items():
        torch.testing.assert_close(merged.values[name], figures, rtol=1e-3, atol=1e-5, equal_nan=True)
    loaded = sl.SinkGeometry.load(merged.save(tmp_path / "geometry.safetensors"))
    assert loaded.massive_dimensions().equals(merged.massive_dimensions())
    with pytest.raises(InputError, match="cannot merge results that differ in conventions"):
        whole.merge(measured(model, TEXTS))
    with pytest.raises(ResultFileError):
        sl.SinkGeometry.load(tmp_path / "none.safetensors")


def test_a_document_in_pieces_has_the_mean_of_them() -> None:
    model = load("bridge", "llama")
    tokens = inputs("llama")[0]
    text = [torch.cat([tokens, tokens[1:]])]
    pieces = measured(model, text, context_length=13)
    assert pieces.n_documents == 1
    assert pieces.provenance.n_sequences == 2
    whole = measured(model, text, context_length=13, overflow="cut")
    assert not pieces.mean("cosine_mean").equal(whole.mean("cosine_mean"))


def test_an_unknown_input_is_nan_and_says_why() -> None:
    model = new("bridge", "llama")
    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_v", lambda tensor, hook: 1.5 * tensor)]):
        found = measured(model, inputs("llama"))
    assert found.mean("cosine_mean").isnan().tolist() == [[False, False], [False, True]]
    assert found.representable()["answer"].to_list()[1] == "unknown"
    assert "attention's input is not known" in found.provenance.conventions["unknown_inputs"]["1"]
    from sinklens.reports.geometry import render_geometry

    assert "Layer 1: attention" in render_geometry(found)


def test_without_a_sink_or_a_query_after_it() -> None:
    model = load("bridge", "llama")
    with pytest.raises(InputError, match="found in none of 1 sequences with a query after it"):
        measured(model, [torch.tensor([5])])
    both = measured(model, [torch.tensor([5]), torch.tensor([5, 6, 7])])
    assert both.documents("cosine_mean").isnan().any(1).any(0).tolist() == [True, False]
    assert both.mean("cosine_mean").isfinite().all()
    with pytest.raises(InputError, match="found in none"):
        measured(model, inputs("llama"), sink="token:3")


def test_a_document_without_figures_has_no_massive_dimensions_either() -> None:
    loose = {"massive_magnitude": 0.5, "massive_ratio": 5.0}
    texts = [torch.tensor([5]), inputs("llama")[0]]
    both, one = (measured(load("bridge", "llama"), part, **loose) for part in (texts, texts[1:]))
    assert len(one.massive_dimensions())
    assert both.massive_dimensions().equals(one.massive_dimensions())


def test_a_piece_without_a_sink_takes_no_part_in_the_share_of_massive_dimensions() -> None:
    loose = {"massive_magnitude": 0.5, "massive_ratio": 5.0, "sink": "token:5"}
    tokens = inputs("llama")[0]
    first, rest = torch.cat([torch.tensor([5]), tokens[1:10]]), tokens[1:9]
    assert 5 not in rest
    model = load("bridge", "llama")
    whole = measured(model, [torch.cat([first, rest])], context_length=len(first), **loose)
    alone = measured(model, [first], **loose)
    assert whole.provenance.n_sequences == 2
    assert len(alone.massive_dimensions())
    assert whole.massive_dimensions().equals(alone.massive_dimensions())


def test_the_largest_ratio_is_over_the_median_of_all_entries() -> None:
    model, tokens = load("bridge", "llama"), inputs("llama")
    rows = sl.run(model, tokens, [Spaces()], progress=False)[0][0][0]
    assert rows.size % 2 == 0
    expected = np.abs(rows).max() / np.median(np.abs(rows))
    assert measured(model, tokens).mean("largest_ratio")[0, 0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", ["llama", "granite"])
def test_tokens_that_differ_by_rounding_are_not_told_apart(name: str) -> None:
    """Without absolute positions equal tokens stay equal in every layer, but for the last bits of float32."""
    found = measured(load("bridge", name), torch.full((1, 10), 7))
    assert found.mean("representable").unique().tolist() == [0.0]
    assert found.mean("key_margin").unique().tolist() == [0.0]


def test_a_short_sink_that_all_tokens_point_to_is_not_anti_aligned() -> None:
    model, tokens = new("bridge", "llama"), inputs("llama")
    along = torch.nn.functional.one_hot(torch.tensor(3), 64).float()

    def plant(tensor: Tensor, hook: Any) -> Tensor:
        tensor = 0.1 * tensor + 5 * along
        tensor[:, 0] = sign * along
        return tensor

    for sign, expected in ((1.0, 0.0), (-1.0, 1.0)):
        with model.hooks(fwd_hooks=[("blocks.0.hook_resid_pre", plant)]):
            found = measured(model, tokens, layers=[0])
        assert found.mean("anti_alignment_margin")[0, 0] > 0  # W = -x_s x_sᵀ makes a sink of both
        assert found.mean("cosine_mean")[0, 0].sign() == sign
        assert found.mean("anti_aligned")[0, 0] == expected


def test_a_sink_in_the_middle_is_read_by_the_queries_after_it() -> None:
    model = load("bridge", "llama")
    tokens = inputs("llama")
    found = measured(model, tokens, sink=[4])
    rows = sl.run(model, tokens, [Spaces()], progress=False)[0][0][1]
    pairs = reference.constrained(np.tril(np.ones((13, 13), dtype=bool)), 4, True)
    opposed = -np.outer(rows[4], rows[4]) / (rows[4] @ rows[4])
    assert found.mean("anti_alignment_margin")[0, 1].item() == pytest.approx(
        reference.least(opposed, rows, 4, pairs), abs=1e-5
    )


def test_the_repr_and_the_table() -> None:
    found = measured(load("bridge", "llama"), TEXTS)
    assert "a sink is representable in every document in" in repr(found)
    table = found.to_dataframe()
    assert list(table["space"]) == list(SPACES) * 2
    assert not [column for column in table if column.startswith("dimension")]
    assert math.isfinite(table["query_margin_low"].iloc[0])
    with pytest.raises(InputError, match="space is 'stream'; expected residual or attention_input"):
        found.curve("cosine_mean", "stream")
    with pytest.raises(InputError, match="massive_ratio must be a finite number above 0"):
        sl.GeometryAnalyzer(massive_ratio=-1.0)


def test_the_model_is_left_as_it_was() -> None:
    model = new("bridge", "llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    measured(model, TEXTS)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

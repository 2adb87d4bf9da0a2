"""The arithmetic of one attention step: equal to the real intervention in every family, and to the slow reference."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.analyzers.smoothing import AttentionStep, SmoothingAnalyzer, attention_step
from sinklens.errors import UnsupportedAttentionError
from sinklens.interventions.targets import choose, uneditable
from sinklens.models.additions import Addition, find_addition
from sinklens.models.attention import ModelAttention
from sinklens.models.layer import LayerAttention
from sinklens.results.smoothing import PATHS
from tests.captured import BACKENDS, MODELS, TEXT_FAMILIES, RawLayer, load, n_hooks, new, raw_layers
from tests.families import FAMILIES, bridge, hf_model
from tests.gaps import prompt
from tests.reference import smoothing as reference

STRENGTHS = (0.0, 0.4, 1.0)
KINDS = {"granite": "multiple", "qwen3_next": "gated", "bert": "norm of the sum"}


class Steps(SmoothingAnalyzer):
    """Keeps every layer's step instead of its figures."""

    steps: dict[int, AttentionStep]

    def update(self, attention: LayerAttention) -> None:
        self.steps = getattr(self, "steps", {})
        self.steps[attention.layer] = attention_step(attention, self._addition(attention))

    def result(self, provenance: Any) -> Any:
        return self


def steps_of(model: Any, tokens: Tensor) -> Steps:
    analyzer = Steps(ModelAttention(model), STRENGTHS)
    sl.run(model, tokens, [analyzer], context_length=None, progress=False)
    return analyzer


def kind(name: str) -> str:
    return KINDS.get(name, "norm" if FAMILIES[name].post_norm else "plain")


def densify(model: Any, layer: int, path: str, strength: float) -> sl.Intervention:
    base = "identity" if path == "diagonal" else "attention"
    return sl.densify_attention(model, strength, base=base, layers=[layer])


def around_attention(model: Any, tokens: Tensor, layer: int, edit: list[Any]) -> dict[str, Tensor]:
    """The residual stream before and after the attention of a layer under an intervention."""
    names = {end: f"blocks.{layer}.{end}" for end in ("hook_resid_pre", "hook_resid_mid", "hook_attn_out")}
    seen: dict[str, Tensor] = {}
    keep = [
        (hook, lambda tensor, hook, end=end: seen.__setitem__(end, tensor.detach().clone()))
        for end, hook in names.items()
        if hook in model.hook_dict
    ]
    with sl.intervene(model, edit, require_effect=False), torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=keep)
    return seen


def post_attention(name: str, seen: dict[str, Tensor]) -> Tensor:
    """``y``; parallel blocks have no hook of it."""
    return seen.get("hook_resid_mid", seen["hook_resid_pre"] + seen["hook_attn_out"])


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_arithmetic_is_the_real_intervention(backend: str, name: str) -> None:
    model, tokens = load(backend, name), prompt(name)
    hooks_before = n_hooks(model)
    found = steps_of(model, tokens)
    lost = uneditable(choose(model, None, None))
    for layer, step in found.steps.items():
        assert found.kinds[layer] == kind(name)
        # A pattern that cannot be edited can be compared as it is: own attention, nothing made dense.
        cells = [("own", 0.0)] if layer in lost else [(path, strength) for path in PATHS for strength in STRENGTHS]
        for path, strength in cells:
            edit = [] if layer in lost else densify(model, layer, path, strength)
            seen = around_attention(model, tokens, layer, edit)
            after = step.residual + step.update(path, strength)
            if name == "bert":  # what its hook holds is behind the norm of the sum
                norm = hf_model(name).bert.encoder.layer[layer].attention.output.LayerNorm  # type: ignore[union-attr]
                after, wanted = norm(after), seen["hook_attn_out"]
            else:
                wanted = post_attention(name, seen)
            torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-5)
    assert n_hooks(model) == hooks_before


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_outputs_are_those_of_patterns_written_out(backend: str, name: str) -> None:
    """For families whose pattern cannot be edited too: gates, windows, shared values, latent values."""
    model, tokens = load(backend, name), prompt(name)
    found = steps_of(model, tokens)
    for layer, one in raw_layers(model, name, tokens).items():
        step = found.steps[layer]
        bias = step.own[0].double() - reference_own(one)
        torch.testing.assert_close(bias, bias[:1].expand_as(bias), atol=2e-5, rtol=0)
        for path in PATHS:
            for strength in STRENGTHS:
                start = step.diagonal if path == "diagonal" else step.own
                output = ((1 - strength) * start + strength * step.dense)[0].double()
                wanted = reference.mixed_output(one, path, strength) + bias[0]
                torch.testing.assert_close(output, wanted, atol=2e-5, rtol=1e-4)


def reference_own(one: RawLayer) -> Tensor:
    projected = one.projected[0].expand(-1, one.pattern.shape[-1], -1, -1)
    return torch.einsum("hqk,hqkm->qm", one.pattern[0], projected)


@pytest.mark.parametrize("name", ["llama_3x5", "mistral", "granite", "bert"])
def test_figures_are_those_of_the_slow_reference(name: str) -> None:
    model, tokens = load("bridge", name), prompt(name)
    result = sl.oversmoothing(model, tokens, STRENGTHS, depth=False, progress=False, context_length=None)
    found = steps_of(model, tokens)
    for row, (layer, one) in enumerate(raw_layers(model, name, tokens).items()):
        step = found.steps[layer]
        residual, bias = step.residual[0].double(), step.own[0].double() - reference_own(one)
        factor = step.addition.multiplier
        sent = factor * (reference.mixed_output(one, "diagonal", 0.0) + bias)
        for column, path in enumerate(PATHS):
            for cell, strength in enumerate(STRENGTHS):
                update = factor * (reference.mixed_output(one, path, strength) + bias)
                turned = reference.own_direction(residual, sent, one, path, strength)
                before, after = reference.cosines(residual), reference.cosines(residual + update)
                wanted = {
                    "before_cosine": before[0], "before_cosine_with_sink": before[1], "before_rank_collapse": before[2],
                    "after_cosine": after[0], "after_cosine_with_sink": after[1], "after_rank_collapse": after[2],
                    "update_only_cosine": reference.cosines(update)[0],
                    "own_direction_cosine": reference.cosines(turned)[0],
                }  # fmt: skip
                for quantity, value in wanted.items():
                    measured = result.documents(quantity)[row, column, cell].item()
                    assert measured == pytest.approx(value, abs=1e-5), (quantity, layer, path, strength)
        if name in ("llama_3x5", "bert"):
            expect_prediction(result, row, residual[1:], sent[1:], causal=name != "bert")


def expect_prediction(result: sl.SmoothingResult, row: int, residual: Tensor, sent: Tensor, causal: bool) -> None:
    centred_r, centred_s = residual - residual.mean(0), sent - sent.mean(0)
    n = len(residual)
    rr, rs, ss = (
        (a * b).sum() / (n - 1) for a, b in ((centred_r, centred_r), (centred_r, centred_s), (centred_s,) * 2)
    )
    criterion = result.documents("criterion")[row]
    assert criterion.flatten().tolist() == pytest.approx([((2 * rs + ss) / rr).item()] * criterion.numel(), rel=1e-4)
    moments = sl.theory.smoothing_moments(residual, sent)
    wanted = [sl.theory.predicted_cosine(moments, strength, n, causal) for strength in STRENGTHS]
    assert result.documents("predicted_cosine")[row, 0, :, 0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert result.documents("predicted_cosine")[row, 1].isnan().all()
    share = centred_r.square().sum(1).max() / centred_r.square().sum()
    assert result.documents("largest_token_share")[row, 0, 0].item() == pytest.approx(share.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "length", "known"),
    [("llama", 13, True), ("granite", 13, True), ("mistral", 13, False), ("mistral", 6, True), ("gemma2", 6, False),
     ("qwen3_next", 13, False)],
)  # fmt: skip
def test_no_prediction_where_the_closed_form_does_not_hold(name: str, length: int, known: bool) -> None:
    if name not in TEXT_FAMILIES:
        pytest.skip("this back end does not run the family")
    tokens = torch.randint(5, 300, (2, length), generator=torch.Generator().manual_seed(0))
    result = sl.oversmoothing(load("bridge", name), tokens, STRENGTHS, depth=False, progress=False)
    assert result.documents("predicted_cosine")[-1, 0].isnan().all().item() is not known
    assert result.documents("criterion")[-1].isnan().all().item() is not known
    assert result.documents("after_cosine").isfinite().all()
    words = "no layer has a closed form" if not known and name != "qwen3_next" else "dense minus diagonal"
    assert words in repr(result)


@pytest.mark.parametrize("backend", BACKENDS)
def test_depth_is_the_model_with_all_patterns_replaced(backend: str) -> None:
    model, tokens = load(backend, "llama_3x5"), prompt("llama_3x5")
    result = sl.oversmoothing(model, tokens, STRENGTHS, progress=False, context_length=None)
    for column, path in enumerate(PATHS):
        for cell, strength in enumerate(STRENGTHS):
            behind = behind_blocks(model, tokens, path, strength)
            wanted = [reference.cosines(rows[0].double()) for rows in behind]
            for place, name in enumerate(("depth_cosine", "depth_cosine_with_sink")):
                measured = result.documents(name)[:, column, cell, 0].tolist()
                assert measured == pytest.approx([each[place] for each in wanted], abs=1e-4)
    assert n_hooks(model) == 0


def behind_blocks(model: Any, tokens: Tensor, path: str, strength: float) -> list[Tensor]:
    """The residual stream behind each of three blocks, every pattern written out and replaced."""
    visible = torch.ones(tokens.shape[1], tokens.shape[1]).tril() > 0
    kept: list[Tensor] = []

    def replace(pattern: Tensor, hook: Any) -> Tensor:
        return reference.mixed_pattern(pattern[0].double(), visible, path, strength)[None].to(pattern.dtype)

    def keep(residual: Tensor, hook: Any) -> None:
        kept.append(residual.detach().clone())

    edits = [(f"blocks.{layer}.attn.hook_pattern", replace) for layer in range(3)]
    looks = [(f"blocks.{layer}.hook_resid_post", keep) for layer in range(3)]
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[*edits, *looks])
    return kept


def test_depth_edits_all_layers_whichever_are_measured() -> None:
    model, tokens = load("bridge", "llama_3x5"), prompt("llama_3x5")
    whole = sl.oversmoothing(model, tokens, STRENGTHS, progress=False)
    part = sl.oversmoothing(model, tokens, STRENGTHS, layers=[2], progress=False)
    for name in whole.quantities:
        torch.testing.assert_close(part.documents(name)[0], whole.documents(name)[2], equal_nan=True)


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
def test_padding_and_batches_change_nothing(name: str) -> None:
    model = load("bridge", name)
    texts = ["The cat sat on the mat, and the dog sat.", "A dog ran; the cat did not.", "The mat."]
    depth = name != "bert"
    one = sl.oversmoothing(model, texts, STRENGTHS, depth=depth, progress=False, batch_size=1)
    other = sl.oversmoothing(model, texts, STRENGTHS, depth=depth, progress=False, batch_size=3)
    assert one.n_documents == 3
    for quantity in one.quantities:
        torch.testing.assert_close(
            one.documents(quantity), other.documents(quantity), atol=1e-5, rtol=1e-5, equal_nan=True
        )


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_model_in_float64_gives_the_same(name: str) -> None:
    double, single = (
        sl.oversmoothing(bridge(name, dtype), prompt(name), STRENGTHS, progress=False)
        for dtype in (torch.float64, torch.float32)
    )
    for quantity, values in single.values.items():
        torch.testing.assert_close(double.values[quantity], values, rtol=1e-4, atol=1e-6, equal_nan=True)


def test_a_pattern_that_cannot_be_edited_has_no_depth() -> None:
    tokens = prompt("opt")
    if not uneditable(choose(load("bridge", "opt"), None, None)):
        pytest.skip("this back end lets it be edited")
    with pytest.raises(UnsupportedAttentionError, match=r"layer 0.*pass depth=False"):
        sl.oversmoothing(load("bridge", "opt"), tokens, progress=False)
    assert sl.oversmoothing(load("bridge", "opt"), tokens, depth=False, progress=False).has_depth is False


def test_an_unknown_norm_behind_attention_is_refused() -> None:
    output = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    residual = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    centred = torch.nn.functional.layer_norm(output, (8,))
    _, failure = find_addition(torch.nn.LayerNorm(8), residual, output, centred, 1e-4)
    assert failure is not None
    assert "neither its output, a multiple of it nor a root-mean-square norm" in failure
    # A right direction with another length is no norm that is known either.
    _, failure = find_addition(torch.nn.LayerNorm(8), residual, output, output / output.norm(dim=1, keepdim=True), 1e-4)
    assert failure is not None
    assert find_addition(torch.nn.Module(), residual, 0 * output, 0 * output, 1e-4) == (Addition(), None)


def test_a_refusal_names_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.analyzers.smoothing.find_addition", lambda *_: (Addition(), "it adds something else"))
    with pytest.raises(
        UnsupportedAttentionError, match=r"tiny-llama, layer 0: it adds something else; leave the layer"
    ):
        sl.oversmoothing(load("bridge", "llama"), prompt("llama"), progress=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_update_that_opposes_the_residual_smooths_less_when_dense(backend: str) -> None:
    """Tokens with an update of ``-0.5 n``, as value-output matrices can write it: measured, predicted, and by its sign."""
    model = new(backend, "gpt2")
    attention = model.blocks[1].attn
    weight = getattr(attention, "o", None)
    if backend != "bridge" or weight is None:
        pytest.skip("weights are written through the wrapped module")
    d_model = 64
    with torch.no_grad():
        joint = attention.original_component.c_attn
        joint.weight[:, 2 * d_model :] = torch.eye(d_model)
        joint.bias[2 * d_model :] = 0
        attention.o.original_component.weight.copy_(-0.03 * torch.eye(d_model))
        attention.o.original_component.bias.zero_()
    tokens = torch.randint(5, 300, (4, 40), generator=torch.Generator().manual_seed(0))
    result = sl.oversmoothing(model, tokens, STRENGTHS, layers=[1], depth=False, progress=False)
    [row] = result.dense_minus_diagonal().to_dict("records")
    assert row["verdict"] == "less"
    assert row["criterion"] < 0
    assert row["agrees"] is True
    assert row["predicted"] < 0

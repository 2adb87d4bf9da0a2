"""Attention's real input: what the weights multiply, on every family and both back ends."""

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import sinklens as sl
from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.models.hook_names import ATTENTION_INPUT
from tests.captured import BACKENDS, MODELS, family_of, load, new
from tests.families import inputs


class Inputs(sl.Analyzer):
    """Keeps the input of every layer of one batch."""

    hooks = (ATTENTION_INPUT,)

    def start(self, setup):
        self.inputs: dict[int, Tensor] = {}
        self.views: dict[int, object] = {}

    def update(self, attention):
        self.inputs[attention.layer] = attention.attention_input.clone()

    def result(self, provenance):
        return self.inputs


class Failures(Inputs):
    def update(self, attention):
        self.inputs[attention.layer] = attention.input_failure
        with pytest.raises(UnsupportedAttentionError, match="layer 0: attention's input is not known"):
            _ = attention.attention_input


class Unasked(Inputs):
    hooks = ()


def norm_reference(model: object, name: str, x: Float[Tensor, "position d_model"], layer: int) -> Tensor | None:
    """The norm before attention by hand, from the Hugging Face model's own module; None where there is none."""
    from tests.families import hf_model

    original = hf_model(name)
    body = next(
        getattr(original, part) for part in ("model", "transformer", "gpt_neox", "bert") if hasattr(original, part)
    )
    stack = next((getattr(body, part) for part in ("layers", "h") if hasattr(body, part)), None)
    stack = body.decoder.layers if stack is None and hasattr(body, "decoder") else stack
    stack = body.encoder.layer if stack is None else stack
    names = ("input_layernorm", "ln_1", "self_attn_layer_norm")
    norm = next((getattr(stack[layer], n) for n in names if hasattr(stack[layer], n)), None)
    return None if norm is None else norm(x)


@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_it_is_the_norm_of_the_residual_stream_or_the_stream_itself(backend: str, name: str) -> None:
    model = load(backend, name)
    family, tokens = family_of(model), inputs(name)
    seen: dict[str, Tensor] = {}
    names = [f"blocks.{layer}.hook_resid_pre" for layer in family.attention_layers]
    with torch.no_grad():
        model.run_with_hooks(
            tokens, fwd_hooks=[(n, lambda tensor, hook, n=n: seen.__setitem__(n, tensor.clone())) for n in names]
        )
    found = sl.run(model, tokens, [Inputs()], progress=False)[0]
    assert set(found) == set(family.attention_layers)
    for layer, tensor in found.items():
        stream = seen[f"blocks.{layer}.hook_resid_pre"]
        expected = norm_reference(model, name, stream, layer)
        torch.testing.assert_close(tensor, stream if expected is None else expected, rtol=1e-4, atol=1e-5)
        reads_stream = name in ("olmo2", "olmo3", "bert")
        assert (expected is None) == reads_stream


class ByDocument(sl.Analyzer):
    """Keeps the real rows of every document, in the order of layers."""

    hooks = (ATTENTION_INPUT,)

    def start(self, setup):
        self.rows: dict[int, list[Tensor]] = {}

    def begin(self, batch):
        self.documents = batch.documents

    def update(self, attention):
        for document, tensor, mask in zip(self.documents, attention.attention_input, attention.mask, strict=True):
            self.rows.setdefault(document, []).append(tensor[mask].clone())

    def result(self, provenance):
        return self.rows


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "olmo2"])
def test_later_batches_and_padding_read_the_same(backend: str, name: str) -> None:
    model = load(backend, name)
    texts = ["the cat sat on the mat", "the dog", "a cat and a dog sat on the mat and slept", "the mat"]
    together = sl.run(model, texts, [ByDocument()], progress=False, batch_size=2)[0]
    for document, text in enumerate(texts):
        alone = sl.run(model, [text], [ByDocument()], progress=False)[0][0]
        for found, expected in zip(together[document], alone, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_are_not_of_the_input_are_never_taken(backend: str) -> None:
    model = new(backend, "llama")
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_v", lambda tensor, hook: 1.5 * tensor)]):
        found = sl.run(model, inputs("llama"), [Failures()], layers=[0], progress=False)[0]
    assert "or a hook of yours edits values" in found[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma"])
def test_other_dtypes(backend: str, name: str, dtype: torch.dtype) -> None:
    exact = sl.run(load(backend, name), inputs(name), [Inputs()], progress=False)[0]
    found = sl.run(load(backend, name, dtype), inputs(name), [Inputs()], progress=False)[0]
    tolerance = 1e-5 if dtype == torch.float64 else 0.1
    for layer, tensor in found.items():
        assert tensor.dtype in (torch.float32, torch.float64)
        assert (tensor - exact[layer]).abs().max() <= tolerance * exact[layer].abs().max()


def test_images_have_one_too() -> None:
    found = sl.run(load("bridge", "vit"), inputs("vit"), [Inputs()], progress=False)[0]
    assert {layer: tuple(tensor.shape) for layer, tensor in found.items()} == {0: (1, 17, 64), 1: (1, 17, 64)}


def test_an_analyzer_that_did_not_ask_is_told_so() -> None:
    with pytest.raises(InputError, match="was not captured; name sinklens"):
        sl.run(load("bridge", "llama"), inputs("llama"), [Unasked()], progress=False)

"""TransformerLens' own small models (``attn-only-2l``): a stand-in for the hub, and a literal forward pass beside it."""

import importlib
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.models import own_format
from tests.gaps import relative_gap
from tests.reference import attention as reference
from tests.test_loading import message_of

SETTINGS = {
    "d_model": 24, "n_layers": 2, "d_mlp": 40, "d_head": 8, "n_heads": 3, "n_ctx": 32, "d_vocab": 50, "act_fn": "gelu",
    "attn_only": True, "normalization_type": "LN",
}  # fmt: skip
TOKENS = torch.tensor([[7, 3, 44, 3, 12, 30, 1]])
NAME = "NeelNanda/Attn_Only_2L512W_C4_Code"
HAS_BRIDGE_LOADER = not version("transformer_lens").startswith("3.")
needs_4x = pytest.mark.skipif(not HAS_BRIDGE_LOADER, reason="TransformerLens 3's bridge does not read its own format")
needs_3x = pytest.mark.skipif(HAS_BRIDGE_LOADER, reason="HookedTransformer is in TransformerLens 3.x only")


def state() -> dict[str, Tensor]:
    """Random weights under the names and in the shapes that such a checkpoint has."""
    n, d, h = SETTINGS["d_model"], SETTINGS["d_head"], SETTINGS["n_heads"]
    shapes: dict[str, tuple[Any, ...]] = {"embed.W_E": (50, n), "pos_embed.W_pos": (32, n), "unembed.W_U": (n, 50)}
    for layer in range(2):
        here = f"blocks.{layer}.attn."
        shapes |= {f"{here}W_{name}": (h, n, d) for name in "QKV"} | {f"{here}b_{name}": (h, d) for name in "QKV"}
        shapes |= {f"{here}W_O": (h, d, n), f"{here}b_O": (n,)}
    for norm in ("blocks.0.ln1", "blocks.1.ln1", "ln_final"):
        shapes |= {f"{norm}.w": (n,), f"{norm}.b": (n,)}
    generator = torch.Generator().manual_seed(0)
    return {name: 0.4 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """TransformerLens' two ways to the hub answer with the tiny model."""
    monkeypatch.setattr(own_format, "is_offline", lambda: False)
    if HAS_BRIDGE_LOADER:
        legacy: Any = importlib.import_module("transformer_lens.model_bridge.sources.tl_legacy")
        monkeypatch.setattr(legacy, "_fetch_json", lambda name, file: SETTINGS)
        monkeypatch.setattr(legacy, "fetch_tl_legacy_state_dict", lambda *_, **__: state())


def layer_norm(rows: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    centred = rows - rows.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return scaled * weights[f"{name}.w"] + weights[f"{name}.b"]


def literal(tokens: Tensor) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Pattern and projected values of each layer, and logits, in float64 from the checkpoint alone."""
    weights = {name: tensor.double() for name, tensor in state().items()}
    stream = weights["embed.W_E"][tokens[0]] + weights["pos_embed.W_pos"][: tokens.shape[1]]
    hidden = torch.ones(tokens.shape[1], tokens.shape[1]).triu(1).bool()
    layers = []
    for layer in range(2):
        here, normed = f"blocks.{layer}.attn.", layer_norm(stream, weights, f"blocks.{layer}.ln1")
        q, k, v = (normed @ weights[f"{here}W_{n}"] + weights[f"{here}b_{n}"][:, None] for n in "QKV")
        pattern = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        projected = (v @ weights[f"{here}W_O"])[None, :, None]
        layers.append((pattern[None], projected.expand(-1, -1, tokens.shape[1], -1, -1)))
        stream = stream + ((pattern @ v) @ weights[f"{here}W_O"]).sum(0) + weights[f"{here}b_O"]
    return layers, layer_norm(stream, weights, "ln_final") @ weights["unembed.W_U"]


@needs_4x
@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("name", ["attn-only-2l", NAME])
def test_maps_and_logits_are_those_of_the_checkpoint(name: str) -> None:
    model = sl.load_model(name, device="cpu")
    layers, logits = literal(TOKENS)
    torch.testing.assert_close(model(TOKENS)[0].double(), logits, atol=1e-4, rtol=1e-4)
    maps = sl.attention_maps(model, TOKENS[0])
    for row, (pattern, projected) in enumerate(layers):
        assert relative_gap(maps.attention[row], pattern[0]) < 1e-5
        assert relative_gap(maps.intra[row], reference.intra(pattern, projected)[0]) < 1e-4
        assert relative_gap(maps.inter[row], reference.inter(pattern, projected)[0]) < 1e-4
    assert maps.provenance.model_name == NAME
    assert [layer.verdict for layer in sl.check_model(model).layers] == ["exact", "exact"]


@needs_4x
@pytest.mark.usefixtures("hub")
def test_an_edit_of_the_sink_changes_what_it_should() -> None:
    model = sl.load_model(NAME, device="cpu")
    (pattern, projected), *_ = literal(TOKENS)[0]
    name = "blocks.0.attn.hook_out"
    _, before = model.run_with_cache(TOKENS, names_filter=name)
    with sl.intervene(model, sl.zero_sink_values(model, layers=[0], heads=None)):
        _, after = model.run_with_cache(TOKENS, names_filter=name)
    term = torch.einsum("hq,hm->qm", pattern[0, :, :, 0], projected[0, :, 0, 0])
    torch.testing.assert_close((before[name] - after[name])[0].double(), term, atol=1e-5, rtol=0)


@needs_4x
@pytest.mark.usefixtures("hub")
def test_a_shortformer_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    legacy: Any = importlib.import_module("transformer_lens.model_bridge.sources.tl_legacy")
    monkeypatch.setattr(legacy, "_fetch_json", lambda name, file: SETTINGS | {"shortformer_pos": True})
    message = message_of("attn-only-2l-demo")
    assert "shortformer positional embeddings" in message
    assert "backend='hooked' of transformer-lens<4" in message


@needs_3x
@pytest.mark.usefixtures("hub")
def test_transformer_lens_3_reads_it_with_its_own_class(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    loader: Any = SimpleNamespace(from_pretrained_no_processing=lambda *names, **_: asked.extend(names))
    monkeypatch.setattr(own_format, "hooked_transformer", lambda: loader)
    own_format.load_own_format(NAME, torch.device("cpu"), torch.float32, is_hooked=True)
    assert asked == [NAME]
    assert "pass backend='hooked', or install transformer-lens>=4" in message_of("gelu-1l")


def test_without_a_network_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_format, "is_offline", lambda: True)
    backend = None if HAS_BRIDGE_LOADER else "hooked"
    assert "the hub cannot be reached; check the network" in message_of("solu-1l", backend=backend)
    assert "this model takes no device_map" in message_of("solu-1l", backend=backend, device_map="auto")

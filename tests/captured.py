"""A model's attention tensors captured without sinklens, and the models that tests run over."""

import importlib.metadata
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.families import FAMILIES, HOOKED_FAMILIES, Family, bridge, hooked
from tests.reference import attention as reference

MAJOR = int(importlib.metadata.version("transformer-lens").split(".")[0])
BRIDGE_FAMILIES = [name for name, family in FAMILIES.items() if MAJOR >= 4 or not family.bridge_needs_4x]
TEXT_FAMILIES = [name for name in BRIDGE_FAMILIES if FAMILIES[name].text and not FAMILIES[name].refused]
BACKENDS = ["bridge"] if MAJOR >= 4 else ["bridge", "hooked"]
MODELS = [("bridge", name) for name in TEXT_FAMILIES]
MODELS += [] if MAJOR >= 4 else [("hooked", name) for name in HOOKED_FAMILIES]


class RawLayer(NamedTuple):
    """One layer's tensors in float64, as the model's own hooks gave them for one sequence."""

    pattern: Tensor
    value: Tensor
    z: Tensor
    gate: Tensor | None
    W_O: Tensor
    projected: Tensor
    visible: Tensor


def load(backend: str, name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The family's model, one per process: do not change it."""
    return bridge(name, dtype) if backend == "bridge" else hooked(name, dtype)


def new(backend: str, name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A fresh model, for a test that changes it."""
    from tests.families import new_bridge

    if backend == "bridge":
        return new_bridge(name, dtype)
    from tests.hooked_families import new_hooked

    return new_hooked(name, dtype)


def n_hooks(model: Any) -> int:
    """How many hooks are on the model, counted once at every hook point, which may have several names."""
    points = {id(point): point for point in model.hook_dict.values()}
    return sum(len(point.fwd_hooks) + len(point.bwd_hooks) for point in points.values())


def raw_layers(model: Any, name: str, tokens: Tensor) -> dict[int, RawLayer]:
    """Every softmax layer of the model for one sequence ``[1, position]``, by layer number."""
    family = FAMILIES[name]
    ends = ["hook_pattern", family.value_end, "hook_z", *(["hook_q_gate"] if family.gated else [])]
    wanted = [f"blocks.{layer}.attn.{end}" for layer in family.attention_layers for end in ends]
    seen: dict[str, Tensor] = {}

    def keep(hook_name: str) -> Any:
        def hook_function(tensor: Tensor, hook: Any) -> None:
            seen[hook_name] = tensor.detach().double().clone()

        return hook_function

    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=[(hook, keep(hook)) for hook in wanted])
    assert set(seen) == set(wanted)
    return {
        layer: _raw_layer(
            model, family, layer, *(apart(model, end, seen[f"blocks.{layer}.attn.{end}"]) for end in ends)
        )
        for layer in family.attention_layers
    }


def family_of(model: Any) -> Family:
    """The table's entry of a tiny model."""
    return FAMILIES[model.cfg.model_name.removeprefix("tiny-")]


def apart(model: Any, end: str, tensor: Tensor) -> Tensor:
    """A tensor of a hook whose name ends so; latent attention's values and z as all others have them, heads apart."""
    family = family_of(model)
    if family.latent and end.endswith("hook_v"):
        return tensor.transpose(1, 2)
    if family.latent and end.endswith("hook_z"):
        return tensor.reshape(*tensor.shape[:2], family.n_heads, family.d_head)
    return tensor


def output_weight(model: Any, layer: int) -> Tensor:
    """``W_O`` ``[head, d_head, d_model]`` as the model stores it."""
    family, attention = family_of(model), model.blocks[layer].attn
    if family.latent or family.unlike:
        weight = attention.o.original_component.weight.detach()
        return weight.T.reshape(family.n_heads, family.geometry(layer)[1], family.d_model)
    return attention.W_O.detach()


def _raw_layer(
    model: Any, family: Family, layer: int, pattern: Tensor, value: Tensor, z: Tensor, gate: Tensor | None = None
) -> RawLayer:
    W_O = output_weight(model, layer).double()
    opened = None if gate is None else gate.sigmoid().reshape(z.shape)
    length = pattern.shape[-1]
    real = torch.ones(1, length, dtype=torch.bool)
    visible = reference.visible_keys(real, family.causal, family.windows[layer])
    projected = reference.projected_values(value, W_O, length, opened)
    return RawLayer(pattern, value, z, opened, W_O, projected, visible)

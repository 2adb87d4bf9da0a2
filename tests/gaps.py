"""How far sinklens' maps are from the slow float64 reference, by family and back end."""

import functools

import torch
from torch import Tensor

import sinklens as sl
from tests.captured import RawLayer, load, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import attention as reference

METRICS = ("attention", "value_weighted", "output_normalized", "intra", "inter")


def prompt(name: str) -> Tensor:
    """Longer than a window, short for the reference's sake; an image is whole."""
    return inputs(name)[:, :9] if FAMILIES[name].text else inputs(name)


@functools.cache
def raw(backend: str, name: str) -> dict[int, RawLayer]:
    """The tensors of every softmax layer on the prompt, as the model's own hooks gave them."""
    return raw_layers(load(backend, name), name, prompt(name))


@functools.cache
def expected(backend: str, name: str, layer: int) -> dict[str, Tensor]:
    """Every metric of a layer ``[head, query, key]`` in float64."""
    one = raw(backend, name)[layer]
    arguments = one.pattern, one.projected
    found = {
        "attention": reference.attention(one.pattern, one.visible),
        "value_weighted": reference.value_weighted(*arguments),
        "output_normalized": reference.output_normalized(*arguments),
        "intra": reference.intra(*arguments),
        "inter": reference.inter(*arguments),
    }
    return {metric: tensor[0] for metric, tensor in found.items()}


def relative_gap(actual: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest entry of the same query."""
    assert not wanted.isnan().any()
    scale = wanted.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    return float(((actual.double() - wanted).abs() / scale).nan_to_num(torch.inf).max())


def largest_gap(maps: sl.AttentionMaps, backend: str, name: str) -> float:
    """Of all metrics and layers; infinite where the maps say that other keys are visible."""
    layers = zip(maps.visible, maps.layers, strict=True)
    if not all(torch.equal(visible, raw(backend, name)[layer].visible[0]) for visible, layer in layers):
        return torch.inf
    return max(
        relative_gap(maps.metric(metric)[row], expected(backend, name, layer)[metric])
        for row, layer in enumerate(maps.layers)
        for metric in METRICS
    )


def measure(backend: str, name: str) -> float:
    """The worst gap of a family's maps.

    Raises:
        UnsupportedAttentionError: the family is refused.
    """
    shown = prompt(name)
    maps = sl.attention_maps(load(backend, name), shown[0] if FAMILIES[name].text else shown)
    return largest_gap(maps, backend, name)

"""Models in which every position sees every other: sinks are found wherever they are, and nothing counts as hidden."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.results.head_profile import COUNT_OF
from tests.captured import load, raw_layers
from tests.families import inputs
from tests.reference.profile import document_quantities
from tests.test_profile import EPS, measured

TOKENS = inputs("bert")[:, :9]


@pytest.fixture
def model() -> Any:
    return load("bridge", "bert")


def received(pattern: Tensor) -> Tensor:
    """The largest mean attention over heads that a key gets from all other queries, before it and after it."""
    length = pattern.shape[-1]
    means = [
        [sum(float(head[i, j]) for i in range(length) if i != j) / (length - 1) for j in range(length)]
        for head in pattern[0]
    ]
    return torch.tensor(means).max(0).values


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("count", [1, 3])
def test_detected_sinks_are_those_that_all_others_look_at(model: Any, layer: int, count: int) -> None:
    one = raw_layers(model, "bert", TOKENS)[layer]
    ranked = received(one.pattern[0:1]).sort(descending=True)
    threshold = float(ranked.values[count - 1 : count + 1].mean())
    sinks = sorted(ranked.indices[:count].tolist())
    rule = f"detect:{threshold:.6f}"
    assert list(sl.attention_maps(model, TOKENS[0], layers=[layer], sink=rule).sink_positions) == sinks
    profile = measured(model, TOKENS, layers=[layer], sink=rule)
    for head, values in enumerate(document_quantities(one.pattern, one.projected, one.visible, sinks, EPS)):
        for quantity, numbers in values.items():
            assert profile.counts[COUNT_OF[quantity]][0, head] == len(numbers)
            expected = sum(numbers) / len(numbers)
            assert profile.mean(quantity)[0, head].item() == pytest.approx(expected, rel=1e-5, abs=1e-5), quantity


def test_a_sink_at_the_end_is_read_by_all_before_it(model: Any) -> None:
    last = TOKENS.shape[1] - 1
    profile = measured(model, TOKENS, sink=last)
    assert (profile.counts["queries"] == last).all()
    for row, one in enumerate(raw_layers(model, "bert", TOKENS).values()):
        expected = one.pattern[0, :, :last, last].mean(-1)
        torch.testing.assert_close(profile.sink_mass[row].double(), expected, atol=1e-6, rtol=0)


def test_a_value_at_the_end_moves_what_comes_before(model: Any) -> None:
    last, name = TOKENS.shape[1] - 1, "blocks.1.attn.hook_z"
    with torch.no_grad(), sl.intervene(model, sl.zero_sink_values(model, heads=[(1, 2)], sink=last)):
        _, cache = model.run_with_cache(TOKENS, names_filter=name)
    one = raw_layers(model, "bert", TOKENS)[1]
    expected = one.z[0].clone()
    expected[:, 2] -= one.pattern[0, 2, :, last, None] * one.value[0, last, 2]
    torch.testing.assert_close(cache[name][0].double(), expected, atol=1e-5, rtol=0)
    assert (cache[name][0, :last, 2] - one.z[0, :last, 2]).abs().max() > 1e-3

"""Hundreds of calls in one notebook: no tensor, no hook and no memory is left behind."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from tests.captured import BACKENDS, n_hooks, new

N_CALLS = 200
TEXTS = ["The cat sat on the mat.", "A dog ran home."]
SETTINGS: dict[str, Any] = {"context_length": 8, "progress": False}
RECORD = {"question": "Where did the cat sit?", "choices": ["on the mat", "at home"], "answer": 0}


def masked_pass(model: Any) -> None:
    with torch.no_grad(), sl.intervene(model, sl.mask_by_metric(model, "inter", 0.2)):
        model(torch.tensor([[0, 3, 4, 5]]))


CALLS: dict[str, Callable[[Any], object]] = {
    "head_profile": lambda model: sl.head_profile(model, TEXTS, **SETTINGS),
    "attention_maps": lambda model: sl.attention_maps(model, TEXTS[0]).intra,
    "ablate_sinks": lambda model: sl.ablate_sinks(model, TEXTS, n_bootstrap=5, **SETTINGS),
    "sweep_sinks": lambda model: sl.sweep_sinks(model, TEXTS, values=(0.5,), n_bootstrap=5, **SETTINGS),
    "drift_without_sinks": lambda model: sl.drift_without_sinks(model, TEXTS, **SETTINGS),
    "faithfulness": lambda model: sl.faithfulness(model, TEXTS, "inter", 0.2, n_bootstrap=5, **SETTINGS),
    "mask_by_metric": masked_pass,
    "multiple_choice": lambda model: sl.multiple_choice(model, [RECORD], progress=False),
}


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


def resident_memory() -> int:
    """In bytes; 0 where the system does not tell."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_hundred_calls_leave_nothing_behind(backend: str) -> None:
    model = new(backend, "llama")
    hooks = n_hooks(model)
    counts: list[tuple[int, int]] = []
    for cycle in range(N_CALLS // len(CALLS) + 1):
        for call in CALLS.values():
            call(model)
        if cycle in (2, N_CALLS // len(CALLS)):
            counts.append((live_tensors(), resident_memory()))
    (tensors, memory), (tensors_later, memory_later) = counts
    assert tensors_later <= tensors
    assert n_hooks(model) == hooks
    assert memory_later - memory < 8 * 2**20  # what an allocator may keep; kept results would be seen as tensors

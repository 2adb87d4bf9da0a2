"""Interleaved timing: every round runs every workload once, so that a machine that slows down slows all of them."""

import gc
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.workloads import FRACTIONS, workloads

FLOOR = {
    "head_profile": "forward",
    "attention_maps": "forward of one",
    "maps and contributions": "forward of one",
    "masked pass": "forward",
    "sink_geometry": "forward",
    "oversmoothing, layers": "forward",
    "attention_switch, no hulls": "forward",
    "textbook": "forward of one",
}


def timing_rows(model: Any, length: int, rounds: int) -> dict[str, str]:
    """One row of the table: the median over rounds of each ratio to its floor."""
    chosen = workloads(model, length)
    for work in chosen.values():
        work()
    taken = [{name: _seconds(work) for name, work in chosen.items()} for _ in range(rounds)]
    ratios = {
        name: median(_ratio(one, name, floor) for one in taken) for name, floor in FLOOR.items() if name in chosen
    }
    return {"T": str(length), **{name: f"{ratios[name]:.2f}" if name in ratios else "–" for name in FLOOR}}


def _ratio(taken: dict[str, float], name: str, floor: str) -> float:
    ratio = taken[name] / taken[floor]
    # A clean pass comes first, then one for every fraction.
    return (ratio - 1) / len(FRACTIONS) if name == "masked pass" else ratio


def _seconds(work: Callable[[], object]) -> float:
    gc.collect()
    start = perf_counter()
    work()
    return perf_counter() - start

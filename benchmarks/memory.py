"""Peak memory of one workload, each in a process of its own, above what the loaded model takes."""

import multiprocessing
import resource
from typing import Any

from benchmarks.workloads import workloads

NAMES = ("forward", "head_profile", "attention_maps")


def memory_rows(model_name: str, length: int) -> dict[str, str]:
    """One row of the table: peak memory of each workload, and one layer's patterns for comparison."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, maxtasksperchild=1) as pool:
        peaks = {name: pool.apply(_peak, (model_name, length, name)) for name in NAMES}
        patterns = pool.apply(_pattern_bytes, (model_name, length))
    row = {name: "–" if peak is None else f"{peak:.0f}" for name, peak in peaks.items()}
    return {"T": str(length), **row, "one layer's patterns": f"{patterns:.0f}"}


def _loaded(model_name: str) -> Any:
    from sinklens import load_model

    return load_model(model_name)


def _peak(model_name: str, length: int, name: str) -> float | None:
    model = _loaded(model_name)
    if name not in workloads(model, length):
        return None
    workloads(model, 8)["forward"]()
    _reset_peak()
    before = _peak_memory()
    workloads(model, length)[name]()
    return _peak_memory() - before


def _pattern_bytes(model_name: str, length: int) -> float:
    model = _loaded(model_name)
    return max(1, 1024 // length) * model.cfg.n_heads * length**2 * 4 / 2**20


def _reset_peak() -> None:
    """Linux keeps the high-water mark until it is told to forget it."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def _peak_memory() -> float:
    """High-water mark of the process in MiB."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

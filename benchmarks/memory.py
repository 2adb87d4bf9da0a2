"""Peak memory of one workload, each in a process of its own, above what the loaded model takes."""

import resource
import subprocess
import sys

from benchmarks.workloads import rows_of, workloads

NAMES = ("forward", "head_profile", "attention_maps")


def memory_rows(model_name: str, n_heads: int, length: int) -> dict[str, str]:
    """One row of the table: peak memory of each workload, and one layer's patterns for comparison."""
    patterns = rows_of(length) * n_heads * length**2 * 4 / 2**20
    return {
        "T": str(length),
        **{name: _in_own_process(model_name, length, name) for name in NAMES},
        "one layer's patterns": f"{patterns:.0f}",
    }


def _in_own_process(model_name: str, length: int, name: str) -> str:
    command = [sys.executable, "-m", "benchmarks.memory", model_name, str(length), name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def peak(model_name: str, length: int, name: str) -> str:
    """Peak memory of a workload in MiB, or a dash where it is not run at this length."""
    from sinklens import load_model

    model = load_model(model_name)
    if name not in workloads(model, length):
        return "–"
    workloads(model, 8)[name]()  # imports and caches are not part of the peak
    _reset_peak()
    before = _peak_memory()
    workloads(model, length)[name]()
    return f"{_peak_memory() - before:.0f}"


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


if __name__ == "__main__":
    print(peak(sys.argv[1], int(sys.argv[2]), sys.argv[3]))

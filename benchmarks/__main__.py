"""Ratios to the plain eager forward pass, interleaved in one run, and peak memory: ``python -m benchmarks``."""

import argparse

import torch

from benchmarks.memory import memory_rows
from benchmarks.timing import timing_rows
from sinklens import load_model


def table(rows: list[dict[str, str]]) -> str:
    """Rows as a Markdown table."""
    head = list(rows[0])
    lines = [head, ["---"] * len(head), *([row[name] for name in head] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model(arguments.model)
    print(f"{arguments.model}, {arguments.threads} threads, median of {arguments.rounds} interleaved rounds\n")
    print("Time, as a ratio to the plain forward pass\n")
    print(table([timing_rows(model, length, arguments.rounds) for length in arguments.lengths]))
    print("\nPeak memory above the loaded model, in MiB\n")
    print(table([memory_rows(arguments.model, model.cfg.n_heads, length) for length in arguments.lengths]))


if __name__ == "__main__":
    main()

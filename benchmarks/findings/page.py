"""The part of the page on the first paper: tables of findings, how each figure is made, the command."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.findings.claims import SINK_HEAD, Finding
from benchmarks.findings.measure import FRACTIONS

PART = """## What sinks do, and which metric finds what matters

What *Contribution Weights* (arXiv 2606.07604) says of sinks and of importance metrics, and *Sink vs. diagonal patterns*
(arXiv 2605.08453) of the sink's part in a head's output, measured on {model} with {documents} documents each of
{corpora}, {length} tokens a document with BOS.

```
{command}
```

{sections}

### How each figure is made

- Δ loss: mean next-token cross-entropy in nats with the edit minus without it, every head of every layer at once
  (`sinklens.ablate_sinks`); the loss of the unedited model is {losses}.
- `‖o‖/‖ō‖`: the norm of a head's output over that of the mixture of the other tokens, mean over queries
  (`sinklens.head_profile`). A sink head gives the sink more than {sink_head:g} of its attention on that document.
- α*: the sink mass at which the norm of a head's output is least; the measured curve comes from `sinklens.sweep_sinks`.
  With one layer edited at a time it equals the closed form (the tests prove it); with all at once, later layers also answer
  to what earlier ones have become.
- `cos(o, m)`: cosine of a head's output with the mean direction of the other tokens' values, mean over heads
  (`sinklens.drift_without_sinks`; operational form ours).
- AOPC: mean over fractions {fractions} of Δ loss with that share of the terms `A v` removed, the highest for
  comprehensiveness, the lowest for sufficiency; pairs of (head, key) ranked per query, scores from the running pass
  (`sinklens.faithfulness`). `output_normalized` divides by the norm of the head's own output; by that of the layer's output it
  would rank the pairs of a query exactly as `value_weighted` does. `inter` is the contribution to the layer's output, ranked
  with its sign, or by size where the line says so: with the sign, sufficiency removes first what opposes the output, and
  that hurts.
"""

HEADER = """| Claim | Measured | Figure | 95 % interval | Verdict |
| --- | --- | --- | --- | --- |"""
SECTION = """### {name}

{header}
{rows}

AOPC in nats:

| | {metrics} |
| --- | {rule} |
{aopc}
"""


def page(lines: Mapping[str, Sequence[Finding]], measured: Mapping[str, Any], arguments: argparse.Namespace) -> str:
    """The part as Markdown."""
    losses = ", ".join(f"{one['ablation'].mean_loss:.3f} ({name})" for name, one in measured.items())
    command = (
        "python -m benchmarks.findings contributions --gsm8k test.jsonl --wikitext test.txt "
        f"--model {arguments.model} --documents {arguments.documents} --length {arguments.length}"
    )
    return PART.format(
        model=_model_name(measured), documents=arguments.documents, corpora=" and ".join(lines), length=arguments.length,
        command=command, losses=losses, sink_head=SINK_HEAD, fractions=", ".join(f"{part:.0%}" for part in FRACTIONS),
        sections="\n".join(_section(name, lines[name], measured[name]) for name in lines),
    )  # fmt: skip


def _model_name(measured: Mapping[str, Any]) -> str:
    return next(iter(measured.values()))["ablation"].provenance.model_name


def _section(name: str, lines: Sequence[Finding], measured: Mapping[str, Any]) -> str:
    signed, absolute = measured["signed"].aopc(), measured["absolute"].aopc()
    columns = [*measured["signed"].metrics, "inter by size"]
    rows = []
    for mode in measured["signed"].modes:
        cells = [f"{value:.3f}" for value in (*_of(signed, mode), *_of(absolute, mode))]
        rows.append(f"| {mode} | {' | '.join(cells)} |")
    return SECTION.format(
        name=name, header=HEADER, rows="\n".join(row(line) for line in lines), metrics=" | ".join(columns),
        rule=" | ".join(["---"] * len(columns)), aopc="\n".join(rows),
    )  # fmt: skip


def _of(table: Any, mode: str) -> list[float]:
    return table[table["mode"] == mode].aopc.tolist()


def row(line: Finding) -> str:
    """A line of the table."""
    # A bar inside a table's cell would end the cell.
    form = "+.3f" if line.boundary == 0 else ".3f"  # changes have a sign; shares and ratios do not
    interval = f"{line.low:{form}} to {line.high:{form}}"
    cells = (line.claim, line.figure, f"{line.value:{form}}", interval, line.verdict)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

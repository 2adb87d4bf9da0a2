"""The part of the page on the second paper (arXiv 2605.08453): geometry, smoothing, switches and cost on texts, then toys."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.findings.claims import Finding
from benchmarks.findings.cost import cost_findings, measure_cost, scaling_findings
from benchmarks.findings.geometry import geometry_findings, measure_geometry
from benchmarks.findings.page import HEADER, row
from benchmarks.findings.smoothing import measure_smoothing, smoothing_findings
from benchmarks.findings.switch import measure_switch, switch_findings
from benchmarks.findings.toy import SEEDS, measure_toys, toy_findings

TOPICS = {
    "Geometry": (measure_geometry, geometry_findings),
    "Smoothing": (measure_smoothing, smoothing_findings),
    "Switch": (measure_switch, switch_findings),
    "Cost": (measure_cost, cost_findings),
}
PART = """## Sink against diagonal

What *Sink vs. diagonal patterns* (arXiv 2605.08453) says of sinks, measured on {model} with {documents} documents each of
{corpora}, {length} tokens a document with BOS, and on toys trained from {seeds} seeds.

```
{command}
```

{sections}

### How each figure is made

- Geometry (`sinklens.sink_geometry`): cosines, margins and witnesses on the residual stream and on what attention really
  reads, behind the norm. A sink is representable where some `W` gives every query more score on BOS than on any other key;
  with fewer tokens than dimensions that is nearly always so, hence the rows of joined documents.
- Smoothing (`sinklens.oversmoothing`): mean pairwise cosine of tokens behind one attention layer, BOS left out, with
  attention to oneself, uniform, and the model's own; depth edits all layers by intervention.
- Switch (`sinklens.attention_switch`): a query is hard-switched where the head's output is short beside the mean projected
  value; exclusion tests use rows of joined documents, since a few values are always in an open half-space.
- Cost (`sinklens.head_costs`, `sinklens.theory`): norms of `W_QK` and `W_VO` from the factors; least norms by closed form
  and solver, on orthonormal embeddings and on what the layer's attention reads.
- Toys (`sinklens toy`): Bigram-Backcopy, one layer and one head; active queries have to copy, dormant ones have nothing to
  read.
"""


def measure_patterns(model: Any, tokens: Any, folder: Path) -> dict[str, Any]:
    """Everything that the claims of one corpus are read from, from files where it was measured before."""
    return {name: measure(model, tokens, folder) for name, (measure, _) in TOPICS.items()}


def patterns_findings(measured: Mapping[str, Any]) -> dict[str, list[Finding]]:
    """The lines of one corpus, by topic."""
    return {name: lines_of(measured[name]) for name, (_, lines_of) in TOPICS.items()}


def patterns_page(
    lines: Mapping[str, Mapping[str, Sequence[Finding]]], measured: Mapping[str, Any], arguments: argparse.Namespace
) -> str:
    """The part as Markdown; theory and toys, which need no text, are measured here."""
    toys = measure_toys(arguments.work / "toy")
    own = {
        "Scaling in theory": scaling_findings(),
        "Toys": toy_findings(toys),
    }
    topics = [f"### {corpus}: {name.lower()}\n\n{_table(found)}" for corpus, by_topic in lines.items()
              for name, found in by_topic.items()]  # fmt: skip
    topics += [f"### {name}\n\n{_table(found)}" for name, found in own.items()]
    command = (
        "python -m benchmarks.findings patterns --gsm8k test.jsonl --wikitext test.txt "
        f"--model {arguments.model} --documents {arguments.documents} --length {arguments.length}"
    )
    return PART.format(
        model=next(iter(measured.values()))["Geometry"]["geometry"].provenance.model_name, documents=arguments.documents,
        corpora=" and ".join(lines), length=arguments.length, seeds=len(SEEDS), command=command,
        sections="\n\n".join(topics),
    )  # fmt: skip


def _table(lines: Sequence[Finding]) -> str:
    return "\n".join([HEADER, *map(row, lines)])

"""Measure the papers' claims and write them: ``python -m benchmarks.findings PART --gsm8k FILE --wikitext FILE``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.findings.claims import findings
from benchmarks.findings.measure import measure
from benchmarks.findings.page import page
from benchmarks.findings.parts import PARTS, with_part
from benchmarks.findings.patterns import measure_patterns, patterns_findings, patterns_page
from benchmarks.findings.texts import CORPORA, first_sequences
from sinklens import load_model

# Of each part: what is measured on one corpus, its lines, and the Markdown of all corpora.
PART_OF: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., str]]] = {
    "contributions": (measure, findings, page),
    "patterns": (measure_patterns, patterns_findings, patterns_page),
}


def main() -> None:
    """Run it."""
    arguments = _arguments()
    measure_one, lines_of, page_of = PART_OF[arguments.part]
    model = load_model(arguments.model)
    files = dict(zip(CORPORA, (arguments.gsm8k, arguments.wikitext), strict=True))
    measured = {}
    for name, path in files.items():
        tokens = first_sequences(model, CORPORA[name](path), arguments.documents, arguments.length)
        measured[name] = measure_one(model, tokens, arguments.work / name.lower())
    lines = {name: lines_of(one) for name, one in measured.items()}
    before = arguments.out.read_text(encoding="utf-8") if arguments.out.exists() else ""
    written = with_part(before, arguments.part, page_of(lines, measured, arguments))
    arguments.out.write_text(written, encoding="utf-8")
    print(arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--gsm8k", type=Path, required=True, help="test.jsonl of GSM8K")
    parser.add_argument("--wikitext", type=Path, required=True, help="test text of WikiText-2")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="tokens a document, BOS included")
    parser.add_argument("--work", type=Path, default=Path("out/findings"), help="results kept between runs")
    parser.add_argument("--out", type=Path, default=Path("docs/findings.md"))
    return parser.parse_args()


if __name__ == "__main__":
    main()

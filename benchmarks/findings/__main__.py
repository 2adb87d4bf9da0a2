"""Measure the papers' claims and write the table: ``python -m benchmarks.findings --gsm8k FILE --wikitext FILE``."""

import argparse
from pathlib import Path

from benchmarks.findings.claims import findings
from benchmarks.findings.measure import measure
from benchmarks.findings.page import page
from benchmarks.findings.texts import CORPORA, first_sequences
from sinklens import load_model


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gsm8k", type=Path, required=True, help="test.jsonl of GSM8K")
    parser.add_argument("--wikitext", type=Path, required=True, help="test text of WikiText-2")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--documents", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="tokens a document, BOS included")
    parser.add_argument("--work", type=Path, default=Path("out/findings"), help="results kept between runs")
    parser.add_argument("--out", type=Path, default=Path("docs/findings.md"))
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    files = dict(zip(CORPORA, (arguments.gsm8k, arguments.wikitext), strict=True))
    measured = {}
    for name, path in files.items():
        tokens = first_sequences(model, CORPORA[name](path), arguments.documents, arguments.length)
        measured[name] = measure(model, tokens, arguments.work / name.lower())
    lines = {name: findings(one) for name, one in measured.items()}
    arguments.out.write_text(page(lines, measured, arguments), encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()

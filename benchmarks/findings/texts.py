"""Documents of the two corpora, as lists of strings."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sinklens import tokenize

# Shorter paragraphs have too few tokens; the rest is cut to the context.
SHORTEST_PARAGRAPH = 200


def gsm8k(path: Path) -> list[str]:
    """Question, newline, answer of every line of GSM8K's test file (Cobbe et al. 2021)."""
    records = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return [f"{record['question']}\n{record['answer']}" for record in records]


def wikitext(path: Path) -> list[str]:
    """Paragraphs of WikiText-2's test file (Merity et al. 2016), without headings and short ones."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if len(line) >= SHORTEST_PARAGRAPH and not line.startswith("= ")]


def first_sequences(model: Any, documents: list[str], n_documents: int, length: int) -> Any:
    """The first documents of at least ``length`` tokens with BOS, cut to it: ``[document, position]``."""
    batches = tokenize(
        model, documents, context_length=length, min_length=length, overflow="cut", max_documents=n_documents
    )
    rows = [row for batch in batches for row in batch.tokens]
    if len(rows) < n_documents:
        raise SystemExit(f"only {len(rows)} documents have {length} tokens; {n_documents} were asked for")
    return torch.stack(rows)


def joined_rows(tokens: Tensor, n_positions: int, n_rows: int, longest: int) -> Tensor:
    """Documents one after the other, BOS in front only, until a row has about ``n_positions`` tokens: ``[row, position]``.

    Few tokens are linearly independent, and then nearly everything can be represented and excluded.

    Args:
        tokens: ``[document, position]`` with BOS.
        n_positions: wanted; fewer where there are not two rows of so many.
        n_rows: at most so many rows.
        longest: what the model takes.
    """
    own = tokens.shape[1] - 1
    per_row = max(1, min(-(-n_positions // own), len(tokens) // 2, (longest - 1) // own))
    groups = tokens[: len(tokens) // per_row * per_row].unflatten(0, (-1, per_row))[:n_rows]
    return torch.cat([groups[:, 0, :1], groups[:, :, 1:].flatten(1)], 1)


CORPORA: dict[str, Callable[[Path], list[str]]] = {"GSM8K": gsm8k, "WikiText-2": wikitext}

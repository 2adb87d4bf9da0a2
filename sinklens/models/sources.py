"""Where documents come from: strings, token tensors, .txt and .jsonl files, Hugging Face datasets. Read
lazily, one at a time.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sinklens.errors import InputError

JSON_LINES_SUFFIXES = (".jsonl", ".ndjson")
FILE_SUFFIXES = (".txt", *JSON_LINES_SUFFIXES)
LONGEST_PATH = 1024
DATASET_PREFIX = "hf:"

Document = str | Int[Tensor, " position"]


@dataclass(frozen=True)
class DocumentSource:
    """Documents that can be read again and again, one at a time.

    ``name`` is for messages and provenance, ``count`` the number of documents where it is known beforehand,
    ``holds_text`` tells text from token ids, and ``read`` starts a new pass.
    """

    name: str
    count: int | None
    holds_text: bool
    read: Callable[[], Iterator[Document]]


def document_source(
    texts: Any,
    fields: str | Sequence[str] | None = None,
    attention_mask: Bool[Tensor, "batch position"] | Int[Tensor, "batch position"] | None = None,
) -> DocumentSource:
    """Turn whatever the user passed as ``texts`` into a :class:`DocumentSource`; see ``tokenize`` for what is
    accepted.
    """
    if attention_mask is not None and not isinstance(texts, Tensor):
        raise InputError(
            "attention_mask belongs to a tensor of token ids; got it together with texts of another kind. Leave it out."
        )
    if is_file_name(texts):
        return _file_source(Path(texts), _field_names(fields))
    if is_dataset_name(texts):
        return _dataset_source(load_dataset_by_name(texts), texts, _field_names(fields))
    if _is_dataset(texts):
        return _dataset_source(texts, "datasets object", _field_names(fields))
    if fields is not None:
        raise InputError(
            f"fields={fields!r} names columns of a .jsonl file or a dataset; the texts given are a "
            f"{type(texts).__name__}. Leave it out."
        )
    return _memory_source(texts, attention_mask)


def is_file_name(texts: object) -> TypeGuard[str | os.PathLike[str]]:
    """Whether ``texts`` is to be read as a file: a path object, or one line of text that ends in a known file
    suffix.

    >>> is_file_name("corpus.txt"), is_file_name("Read corpus.txt first.")
    (True, False)
    """
    if isinstance(texts, os.PathLike):
        return True
    if not isinstance(texts, str) or "\n" in texts:
        return False
    if len(texts) > LONGEST_PATH:
        return False
    # a path that exists is never meant as a text to measure, whatever its suffix
    return texts.lower().endswith((*FILE_SUFFIXES, ".json")) or (os.sep in texts and os.path.exists(texts))


def is_dataset_name(texts: object) -> TypeGuard[str]:
    """Whether ``texts`` names a Hugging Face dataset: ``hf:NAME``, ``hf:NAME:CONFIG``,
    ``hf:NAME:CONFIG@SPLIT``.
    """
    return isinstance(texts, str) and texts.startswith(DATASET_PREFIX) and " " not in texts and "\n" not in texts


def parse_dataset_name(name: str) -> tuple[str, str | None, str]:
    """Split ``hf:NAME[:CONFIG][@SPLIT]`` into name, configuration (None where absent) and split (``train``
    where absent).

    >>> parse_dataset_name("hf:HuggingFaceFW/fineweb-edu:sample-10BT")
    ('HuggingFaceFW/fineweb-edu', 'sample-10BT', 'train')
    >>> parse_dataset_name("hf:rotten_tomatoes@test")
    ('rotten_tomatoes', None, 'test')
    """
    body, _, split = name.removeprefix(DATASET_PREFIX).partition("@")
    repository, _, configuration = body.partition(":")
    if not repository:
        raise InputError(f"{name!r} names no dataset; expected hf:NAME, hf:NAME:CONFIG or hf:NAME:CONFIG@SPLIT")
    return repository, configuration or None, split or "train"


def load_dataset_by_name(name: str) -> Any:
    """Open a Hugging Face dataset as a stream, without downloading it whole."""
    repository, configuration, split = parse_dataset_name(name)
    try:
        import datasets

        return datasets.load_dataset(repository, configuration, split=split, streaming=True)
    except ImportError as error:
        raise InputError(
            f"{name!r} needs the package `datasets`, which is not installed: pip install datasets"
        ) from error
    except Exception as error:  # the hub, the network and dataset scripts raise a great many unrelated types
        reason = _first_line(error)
        raise InputError(
            f"dataset {repository!r} (configuration {configuration}, split {split}) cannot be opened: "
            f"{reason}. "
            "Check the name and the network, or pass a .txt or .jsonl file."
        ) from error


def _field_names(fields: str | Sequence[str] | None) -> tuple[str, ...]:
    names = ("text",) if fields is None else (fields,) if isinstance(fields, str) else tuple(fields)
    if not names:
        raise InputError("fields is empty; expected the names of one or more text fields")
    return names


def _file_source(path: Path, fields: tuple[str, ...]) -> DocumentSource:
    suffix = path.suffix.lower()
    if suffix not in FILE_SUFFIXES:
        raise InputError(
            f"{path} has the unknown suffix {suffix!r}; expected .txt (one document) or .jsonl (one "
            "document per line). Convert it."
        )
    if not path.is_file():
        raise InputError(f"there is no file {path}; expected a .txt or .jsonl file. Check the path.")
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; expected text in it")
    if suffix == ".txt":
        return DocumentSource(str(path), 1, True, lambda: _read_text_file(path))
    return DocumentSource(str(path), None, True, lambda: _read_json_lines(path, fields))


def _read_text_file(path: Path) -> Iterator[Document]:
    try:
        yield path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {_first_line(error)}") from error


def _read_json_lines(path: Path, fields: tuple[str, ...]) -> Iterator[Document]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _joined_fields(_parse_line(line, f"{path} line {number}"), fields, f"{path} line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {_first_line(error)}") from error


def _parse_line(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{place} is not valid JSON: {error.msg} at column {error.colno}. Mend or remove the line."
        ) from error
    except ValueError as error:  # a number with too many digits
        raise InputError(f"{place} cannot be read: {_first_line(error)}. Mend or remove the line.") from error
    except RecursionError as error:
        raise InputError(f"{place} is nested too deeply to be read. Mend or remove the line.") from error


def _joined_fields(record: Any, fields: tuple[str, ...], place: str) -> str:
    if not isinstance(record, Mapping):
        raise InputError(
            f"{place} holds a {type(record).__name__}; expected an object with the fields {_listed(fields)}"
        )
    for field in fields:
        if field not in record:
            raise InputError(
                f"{place} has no field {field!r}; it has {_listed(record)}. Name the text fields with fields=."
            )
        if not isinstance(record[field], str):
            raise InputError(f"{place}: field {field!r} holds a {type(record[field]).__name__}; expected text")
    return "\n".join(record[field] for field in fields)


def _is_dataset(texts: object) -> bool:
    return type(texts).__module__.split(".")[0] == "datasets"


def _dataset_source(dataset: Any, name: str, fields: tuple[str, ...]) -> DocumentSource:
    if isinstance(dataset, dict):
        raise InputError(
            f"the dataset has several splits ({_listed(dataset)}); pass one of them, for example dataset['train']"
        )

    def read() -> Iterator[Document]:
        for index, record in enumerate(dataset):
            yield _joined_fields(record, fields, f"{name} row {index}")

    count = len(dataset) if hasattr(dataset, "__len__") else None
    return DocumentSource(name, count, True, read)


def _memory_source(texts: Any, attention_mask: Tensor | None) -> DocumentSource:
    documents = _documents_in_memory(texts, attention_mask)
    if not documents:
        raise InputError("texts is empty; expected at least one document")
    holds_text = isinstance(documents[0], str)
    for document in documents:
        if isinstance(document, str) != holds_text:
            raise InputError("texts mixes strings and token ids; expected one kind only")
    return DocumentSource("text" if holds_text else "tokens", len(documents), holds_text, lambda: iter(documents))


def _documents_in_memory(texts: Any, attention_mask: Tensor | None) -> list[Document]:
    if isinstance(texts, str):
        if not texts:
            raise InputError("the text is empty; expected at least one character")
        return [texts]
    if isinstance(texts, Tensor):
        return _tensor_rows(texts, attention_mask)
    if not isinstance(texts, Sequence) or isinstance(texts, (bytes, bytearray)):
        raise InputError(
            f"texts is a {type(texts).__name__}; expected a string, a list of strings, an int tensor "
            "[document, position], "
            "a .txt or .jsonl path, or a datasets object"
        )
    if texts and all(isinstance(item, int) and not isinstance(item, bool) for item in texts):
        return [_token_ids(texts)]
    return [item if isinstance(item, str) else _token_ids(item) for item in texts]


def _token_ids(item: Any) -> Tensor:
    if isinstance(item, Tensor):
        _require_integers(item)
        if item.ndim != 1:
            raise InputError(
                f"a document of token ids has shape {tuple(item.shape)}; expected one dimension [position]"
            )
        return item
    if isinstance(item, Sequence) and all(isinstance(token, int) and not isinstance(token, bool) for token in item):
        return torch.tensor(list(item), dtype=torch.long)
    raise InputError(
        f"a document is a {type(item).__name__}; expected a string, a list of token ids or an int tensor [position]"
    )


def _tensor_rows(tokens: Tensor, attention_mask: Tensor | None) -> list[Document]:
    _require_integers(tokens)
    if tokens.ndim not in (1, 2) or tokens.numel() == 0:
        raise InputError(
            f"the token tensor has shape {tuple(tokens.shape)}; expected [position] or [document, position], not empty"
        )
    rows = tokens if tokens.ndim == 2 else tokens[None]
    if attention_mask is None:
        return list(rows)
    if attention_mask.shape != tokens.shape:
        raise InputError(
            f"attention_mask has shape {tuple(attention_mask.shape)}; expected that of the tokens, "
            f"{tuple(tokens.shape)}"
        )
    masks = attention_mask.bool().reshape(rows.shape)
    return [_real_tokens(row, mask, index) for index, (row, mask) in enumerate(zip(rows, masks, strict=True))]


def _real_tokens(row: Tensor, mask: Tensor, index: int) -> Tensor:
    real = mask.nonzero().flatten()
    if len(real) and int(real[-1] - real[0]) + 1 != len(real):
        raise InputError(
            f"attention_mask row {index} has padding between real tokens; expected padding at one or both ends only"
        )
    return row[real.to(row.device)]


def _require_integers(tokens: Tensor) -> None:
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise InputError(f"the token tensor has dtype {tokens.dtype}; expected integers")


def _listed(names: Iterable[object]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__

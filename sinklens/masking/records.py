"""Records of multiple-choice tasks: what is read, and what is asked of the model for each."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinklens.errors import InputError
from sinklens.models.environment import one_line
from sinklens.models.sources import is_dataset_name, is_file_name, load_dataset_by_name

FORMS = {
    "mmlu": ("question", "choices", "answer"),
    "winogrande": ("sentence", "option1", "option2", "answer"),
    "boolq": ("question", "answer"),
}
_BLANK = "_"
_LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class ChoiceItem:
    """One question: the text before each option's scored part, the scored part itself, and which option is right.

    Example:
        >>> choice_item({"question": "is water wet", "answer": True}, "boolq", "here").scored
        (' no', ' yes')
    """

    contexts: tuple[str, ...]
    scored: tuple[str, ...]
    answer: int


def read_items(records: Any, form: str = "auto", max_items: int | None = None) -> list[ChoiceItem]:
    """All items of a task, checked.

    Args:
        records: a .jsonl path, a ``datasets`` object or name (``hf:NAME``), or a sequence of mappings.
        form: ``mmlu``, ``winogrande``, ``boolq``, or ``auto``: told from the fields of each record.
        max_items: at most so many.

    Returns:
        The items, in order.

    Raises:
        InputError: a file is missing or broken, a record lacks a field or holds something else in it, or there is none.
    """
    if form != "auto" and form not in FORMS:
        raise InputError(f"form is {form!r}; expected 'auto', {', '.join(repr(name) for name in FORMS)}")
    if max_items is not None and (isinstance(max_items, bool) or not isinstance(max_items, int) or max_items < 1):
        raise InputError(f"max_items is {max_items!r}; expected a whole number of at least 1, or None")
    items: list[ChoiceItem] = []
    for place, record in _records(records):
        if len(items) == max_items:
            break
        items.append(choice_item(record, form, place))
    if not items:
        raise InputError("the task holds no record; expected at least one question")
    return items


def _records(records: Any) -> Iterator[tuple[str, Any]]:
    if is_file_name(records):
        yield from _file_records(Path(records))
        return
    if is_dataset_name(records):
        records = load_dataset_by_name(records)
    if isinstance(records, Mapping) and type(records).__module__.split(".")[0] == "datasets":
        names = ", ".join(repr(name) for name in records)
        raise InputError(f"the dataset has several splits ({names}); pass one of them, such as dataset['validation']")
    if isinstance(records, (str, bytes, Mapping)) or not hasattr(records, "__iter__"):
        raise InputError(
            f"the records are a {type(records).__name__}; "
            "expected a .jsonl path, hf:NAME, a datasets object or a list of mappings"
        )
    yield from ((f"record {number}", record) for number, record in enumerate(records))


def _file_records(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        raise InputError(f"{path} is no .jsonl file; expected one JSON record per line")
    if not path.is_file():
        raise InputError(f"no file {path}; check the path")
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{path}, line {number}", _parsed(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {one_line(error)}") from error


def _parsed(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} is no JSON: {one_line(error)}; expected one record per line") from error


def choice_item(record: Any, form: str, place: str) -> ChoiceItem:
    """The item of one record.

    Args:
        record: its fields.
        form: of :data:`FORMS`, or ``auto``.
        place: for messages.

    Raises:
        InputError: a field is missing or holds something that it cannot hold.
    """
    if not isinstance(record, Mapping):
        raise InputError(f"{place} is a {type(record).__name__}; expected a mapping of field names")
    kind = _form_of(record) if form == "auto" else form
    for field in FORMS[kind]:
        if field not in record:
            raise InputError(
                f"{place} has no field {field!r}; a record of the {kind} form has {', '.join(FORMS[kind])}"
            )
    return _MAKERS[kind](record, place)


def _form_of(record: Mapping[str, Any]) -> str:
    if "choices" in record:
        return "mmlu"
    is_winogrande = any(field in record for field in ("sentence", "option1", "option2"))
    # Not a bare 0 or 1: that may as well be an index into choices that are missing.
    answer = _plain(record.get("answer"))
    has_boolean = isinstance(answer, bool) or (
        isinstance(answer, str) and answer.lower() in ("yes", "no", "true", "false")
    )
    return "winogrande" if is_winogrande else "boolq" if has_boolean else "mmlu"


def _mmlu(record: Mapping[str, Any], place: str) -> ChoiceItem:
    choices, answer = _plain(record["choices"]), _plain(record["answer"])
    if not isinstance(choices, Sequence) or isinstance(choices, str) or len(choices) < 2:
        raise InputError(f"{place}: choices is {choices!r}; expected a list of at least two")
    options = tuple(f" {_option(choice, f'{place}: choices[{index}]')}" for index, choice in enumerate(choices))
    number = _LETTERS.find(answer.strip().upper()) if isinstance(answer, str) and len(answer.strip()) == 1 else answer
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(choices):
        raise InputError(
            f"{place}: answer is {answer!r}; expected the index of a choice, 0 to {len(choices) - 1}, or its letter"
        )
    context = f"Question: {_text(record, 'question', place)}\nAnswer:"
    return ChoiceItem((context,) * len(options), options, number)


def _plain(value: Any) -> Any:
    """What numpy wraps, as Python has it: tables hand out such choices and answers."""
    return value.tolist() if hasattr(value, "tolist") else value


def _option(choice: Any, place: str) -> str:
    text = str(choice).strip() if isinstance(choice, str | int | float) and not isinstance(choice, bool) else ""
    if not text:
        raise InputError(f"{place} is {choice!r}; expected text")
    return text


def _winogrande(record: Mapping[str, Any], place: str) -> ChoiceItem:
    before, blank, after = _text(record, "sentence", place).partition(_BLANK)
    if not blank or not after.strip():
        raise InputError(
            f"{place}: the sentence has no '_' with text after it; expected such as 'Ann thanked _ for it.'"
        )
    if _BLANK in after:
        raise InputError(f"{place}: the sentence has several '_'; expected one blank, such as 'Ann thanked _ for it.'")
    if str(record["answer"]) not in ("1", "2"):
        raise InputError(f"{place}: answer is {record['answer']!r}; expected '1' or '2'")
    options = (_text(record, "option1", place), _text(record, "option2", place))
    return ChoiceItem(tuple(before + option for option in options), (after, after), int(record["answer"]) - 1)


def _boolq(record: Mapping[str, Any], place: str) -> ChoiceItem:
    answer = _YES_NO.get(str(_plain(record["answer"])).lower())
    if answer is None:
        raise InputError(f"{place}: answer is {record['answer']!r}; expected true or false")
    question = _text(record, "question", place).strip()
    question = question if question.endswith("?") else f"{question}?"
    passage = f"{record['passage'].strip()}\n" if isinstance(record.get("passage"), str) else ""
    return ChoiceItem((f"{passage}Question: {question}\nAnswer:",) * 2, (" no", " yes"), answer)


_YES_NO = {"false": 0, "no": 0, "0": 0, "true": 1, "yes": 1, "1": 1}
_MAKERS: dict[str, Callable[[Mapping[str, Any], str], ChoiceItem]] = {
    "mmlu": _mmlu,
    "winogrande": _winogrande,
    "boolq": _boolq,
}


def _text(record: Mapping[str, Any], field: str, place: str) -> str:
    text = record[field]
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"{place}: {field} is {text!r}; expected text")
    return text

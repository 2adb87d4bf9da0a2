"""Token labels for people: one per position, whitespace visible, nothing that could disturb the text around
it.
"""

import unicodedata
from typing import Any

from jaxtyping import Int
from torch import Tensor

CONTINUATION = "⋯"
REPLACEMENT = "\ufffd"
LONGEST_CHARACTER_GROUP = 12
_WHITESPACE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍", "\u2028": "↵", "\u2029": "↵", "\xa0": "⍽"}
_ZERO_WIDTH_JOINER = "\u200d"
_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"


def token_labels(model: Any, tokens: Int[Tensor, " position"]) -> list[str]:
    r"""Label every token of one sequence for display.

    Each label is the token decoded, with a space shown as ``·``, a newline as ``↵`` and a tab as ``⇥``.
    Special tokens keep their spelling (``<s>``, ``<|im_start|>``). A character that is spread over several
    byte-level tokens stands at the first of them and the others read ``⋯``. Control characters and invisible
    formatting are spelled out (``⟨U+202E⟩``), and right-to-left text is isolated. Labels are plain text: a
    renderer escapes them for HTML. They need not be unique, so plot them as tick text over integer positions.

    Args:
        model: anything with a ``tokenizer``; where that is None, the labels are the token ids.
        tokens: token ids of one sequence.

    Returns:
        As many labels as there are tokens.

    Example:
        >>> from types import SimpleNamespace
        >>> import torch
        >>> token_labels(SimpleNamespace(tokenizer=None), torch.tensor([5, 7]))
        ['5', '7']
    """
    token_ids = [int(token) for token in tokens]
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        return [str(token) for token in token_ids]
    labels: list[str] = []
    while len(labels) < len(token_ids):
        text, length = _character_group(tokenizer, token_ids, len(labels))
        labels += [visible(text), *[CONTINUATION] * (length - 1)]
    return labels


def visible(text: str) -> str:
    r"""Make text safe and readable as a label: whitespace visible, control and formatting characters spelled
    out.

    >>> visible(" a\n"), visible("\x00"), visible("\u202e")
    ('·a↵', '␀', '⟨U+202E⟩')
    """
    shown = "".join(_visible_character(character, alone=len(text) == 1) for character in text)
    if shown and unicodedata.category(shown[0]).startswith("M"):
        shown = "◌" + shown
    if any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in shown):
        return f"{_FIRST_STRONG_ISOLATE}{shown}{_POP_ISOLATE}"
    return shown or "∅"


def _visible_character(character: str, alone: bool) -> str:
    if character in _WHITESPACE:
        return _WHITESPACE[character]
    if character == _ZERO_WIDTH_JOINER and not alone:
        return character  # it holds an emoji of several parts together
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character)[0] in "CZ":
        return f"⟨U+{code:04X}⟩"
    return character


def _character_group(tokenizer: Any, token_ids: list[int], start: int) -> tuple[str, int]:
    """The shortest run of tokens from ``start`` that ends on a whole character: its text, its length."""
    first = _decode(tokenizer, token_ids[start : start + 1])
    if REPLACEMENT not in first:
        return _with_leading_space(tokenizer, token_ids[start], first), 1
    for end in range(start + 2, min(start + LONGEST_CHARACTER_GROUP, len(token_ids)) + 1):
        text = _decode(tokenizer, token_ids[start:end])
        if REPLACEMENT not in text:
            return text, end - start
    return first, 1


def _decode(tokenizer: Any, token_ids: list[int]) -> str:
    return tokenizer.decode(token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _with_leading_space(tokenizer: Any, token: int, text: str) -> str:
    """SentencePiece tokenizers drop the space of a word that is decoded alone; its piece still has it, as
    ``▁``.
    """
    to_pieces = getattr(tokenizer, "convert_ids_to_tokens", None)
    piece = to_pieces([token])[0] if to_pieces else None
    if isinstance(piece, str) and piece.startswith("▁") and not text.startswith(" "):
        return " " + text
    return text

"""Token labels: one per position, readable, safe."""

import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinklens.models.labels import CONTINUATION, token_labels, visible
from tests.tiny_tokenizer import tiny_tokenizer


def labels(text: str) -> list[str]:
    tokenizer = tiny_tokenizer()
    return token_labels(
        SimpleNamespace(tokenizer=tokenizer), torch.tensor(tokenizer(text)["input_ids"], dtype=torch.long)
    )


def test_whitespace_is_visible_and_special_tokens_keep_their_spelling() -> None:
    assert labels("zz\n\tz z") == ["<bos>", "z", "z", "↵", "⇥", "z", "·", "z"]


@pytest.mark.parametrize("character", ["á", "🙂", "न", "中"])
def test_a_character_over_several_tokens_stands_once(character: str) -> None:
    pieces = len(character.encode())
    assert pieces > 1
    assert labels(f"z{character}z") == ["<bos>", "z", character, *[CONTINUATION] * (pieces - 1), "z"]


def test_an_unfinished_character_is_marked_and_swallows_nothing() -> None:
    tokenizer = tiny_tokenizer()
    half = tokenizer("🙂", add_special_tokens=False)["input_ids"][:2]
    z = tokenizer("z", add_special_tokens=False)["input_ids"]
    assert token_labels(SimpleNamespace(tokenizer=tokenizer), torch.tensor([*half, *z])) == [
        "\ufffd",
        "\ufffd",
        "z",
    ]


@given(text=st.text(max_size=40))
def test_there_is_one_printable_label_per_position(text: str) -> None:
    tokenizer = tiny_tokenizer()
    token_ids = tokenizer(text)["input_ids"]
    found = token_labels(SimpleNamespace(tokenizer=tokenizer), torch.tensor(token_ids, dtype=torch.long))
    assert len(found) == len(token_ids)
    assert all(found)
    isolates = {"\u2068", "\u2069", "\u200d"}
    assert all(unicodedata.category(c)[0] not in "CZ" for label in found for c in label if c not in isolates)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00", "␀"),
        ("\x1b[31m", "␛[31m"),
        ("\x7f", "␡"),
        ("\x85", "⟨U+0085⟩"),
        ("a\u202eb", "a⟨U+202E⟩b"),
        ("\u200b", "⟨U+200B⟩"),
        ("\u200d", "⟨U+200D⟩"),
        ("👩\u200d👧", "👩\u200d👧"),
        ("\u0301", "◌\u0301"),
        (" مر", "\u2068·مر\u2069"),
        ("\xa0", "⍽"),
        ("", "∅"),
        ("<b>&", "<b>&"),
    ],
)
def test_what_cannot_be_seen_is_spelled_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_the_space_that_sentencepiece_drops_is_shown() -> None:
    class SentencePieceLike:
        pieces = ("<s>", "▁the", "cat", "▁")
        texts = ("<s>", "the", "cat", "")

        def decode(self, token_ids: list[int], **_: Any) -> str:
            return "".join(self.texts[token] for token in token_ids)

        def convert_ids_to_tokens(self, token_ids: list[int]) -> list[str]:
            return [self.pieces[token] for token in token_ids]

    found = token_labels(SimpleNamespace(tokenizer=SentencePieceLike()), torch.tensor([0, 1, 2, 3]))
    assert found == ["<s>", "·the", "cat", "·"]


def test_without_tokenizer_the_labels_are_the_ids() -> None:
    assert token_labels(SimpleNamespace(tokenizer=None), torch.tensor([3, 1])) == ["3", "1"]

"""Texts to token batches: nothing lost, nothing added twice, padding masked, every mistake one clear line."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sinklens.errors import InputError
from sinklens.models.tokens import TokenBatches, first_real_position, tokenize
from tests.tiny_tokenizer import BOS, VOCAB_SIZE, tiny_tokenizer

BOS_ID = 0


def make_model(n_ctx: int = 64, tokenizer: Any = "tiny", **settings: Any) -> SimpleNamespace:
    cfg = SimpleNamespace(n_ctx=n_ctx, d_vocab=VOCAB_SIZE, default_prepend_bos=True)
    vars(cfg).update(settings)
    return SimpleNamespace(cfg=cfg, tokenizer=tiny_tokenizer() if tokenizer == "tiny" else tokenizer)


def sequences(batches: TokenBatches) -> dict[int, list[list[int]]]:
    """The real tokens of every sequence, by document, in order of first token positions within the text."""
    found: dict[int, list[list[int]]] = {}
    for batch in batches:
        for row, mask, document in zip(batch.tokens, batch.mask, batch.documents, strict=True):
            found.setdefault(document, []).append(row[mask].tolist())
    return found


def encode(text: str) -> list[int]:
    return tiny_tokenizer()(text, add_special_tokens=False)["input_ids"]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_bos_is_prepended_once() -> None:
    batches = tokenize(make_model(), ["the cat", f"{BOS}the cat"])
    assert sequences(batches) == {0: [[BOS_ID, *encode("the cat")]], 1: [[BOS_ID, *encode("the cat")]]}
    assert batches.prepended_bos


@pytest.mark.parametrize("prepends_bos", [True, False])
def test_bos_does_not_depend_on_the_tokenizers_own_template(prepends_bos: bool) -> None:
    model = make_model(tokenizer=tiny_tokenizer(prepends_bos))
    assert sequences(tokenize(model, "the cat"))[0] == [[BOS_ID, *encode("the cat")]]


def test_bos_can_be_left_out_and_is_left_out_where_the_model_does_without() -> None:
    without = {0: [encode("the cat")]}
    assert sequences(tokenize(make_model(), "the cat", prepend_bos=False)) == without
    qwen_like = make_model(default_prepend_bos=False)
    assert sequences(tokenize(qwen_like, "the cat")) == without
    assert not tokenize(qwen_like, "the cat").prepended_bos
    assert sequences(tokenize(qwen_like, "the cat", prepend_bos=True)) == {0: [[BOS_ID, *encode("the cat")]]}


@pytest.mark.parametrize("bos_id", [None, VOCAB_SIZE, 3])  # 3: unknown
def test_a_bos_that_the_vocabulary_lacks_is_not_used(bos_id: int | None) -> None:
    class WithoutBos:
        bos_token, bos_token_id, unk_token, unk_token_id = "<|endoftext|>", bos_id, "<unk>", 3

        def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": encode(text)}

    model = make_model(tokenizer=WithoutBos())
    assert sequences(tokenize(model, "the cat")) == {0: [encode("the cat")]}
    with pytest.raises(InputError, match="no BOS token"):
        tokenize(model, "the cat", prepend_bos=True)


def test_an_encoder_gets_its_own_special_tokens_around_every_piece() -> None:
    class ClsSep:
        def __call__(self, text: str, add_special_tokens: bool = True, **_: Any) -> dict[str, list[int]]:
            body = [10 + ord(letter) - ord("a") for letter in text]
            return {"input_ids": [1, *body, 2] if add_special_tokens else body}

    model = make_model(tokenizer=ClsSep(), attention_dir="bidirectional")
    batches = tokenize(model, "abcde", context_length=5)
    assert sequences(batches) == {0: [[1, 10, 11, 12, 2], [1, 13, 14, 2]]}
    assert not batches.prepended_bos
    assert sequences(tokenize(model, "abc", prepend_bos=False)) == {0: [[10, 11, 12]]}


@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=60), batch_size=st.integers(1, 7))
def test_every_token_of_the_user_comes_out_once(lengths: list[int], batch_size: int) -> None:
    documents = [
        [(7 * index + position) % VOCAB_SIZE for position in range(length)] for index, length in enumerate(lengths)
    ]
    batches = tokenize(make_model(tokenizer=None), documents, context_length=40, batch_size=batch_size)
    assert sequences(batches) == {index: [document] for index, document in enumerate(documents)}
    assert (batches.n_documents, batches.n_sequences) == (len(lengths), len(lengths))
    assert batches.n_tokens == sum(lengths)
    assert batches.total == len(list(batches))


@given(length=st.integers(2, 50), room=st.integers(3, 12))
def test_splitting_puts_bos_before_every_piece_and_loses_nothing(length: int, room: int) -> None:
    text = "a" * length
    found = sequences(tokenize(make_model(), text, context_length=room, min_length=1))[0]
    assert [token for piece in found for token in piece[1:]] == encode(text)
    assert all(piece[0] == BOS_ID and len(piece) <= room for piece in found)


def test_cutting_keeps_the_beginning_and_is_counted() -> None:
    batches = tokenize(make_model(), ["abcdefgh", "ab"], context_length=4, overflow="cut")
    assert sequences(batches) == {0: [[BOS_ID, *encode("abc")]], 1: [[BOS_ID, *encode("ab")]]}
    assert (batches.n_cut, batches.n_sequences) == (1, 2)


def test_a_document_that_is_too_long_is_an_error_on_request() -> None:
    with pytest.raises(InputError, match="document 1 has 9 tokens; at most 4 fit"):
        list(tokenize(make_model(), ["ab", "abcdefgh"], context_length=4, overflow="error"))


def test_short_documents_are_skipped_and_do_not_count_towards_the_maximum() -> None:
    texts = ["ab", "abcdef", "", "abcdefg", "abcdefgh"]
    batches = tokenize(make_model(), texts, min_length=6, max_documents=2)
    assert sorted(sequences(batches)) == [1, 3]
    assert (batches.n_documents, batches.n_skipped) == (2, 2)


def test_iterating_twice_gives_the_same_and_does_not_add_up() -> None:
    batches = tokenize(make_model(), ["abc", "abcdef", "ab"], batch_size=2)
    first = sequences(batches)
    assert sequences(batches) == first
    assert batches.n_sequences == 3


def test_padding_is_on_the_right_and_only_where_lengths_differ() -> None:
    model = make_model(tokenizer=None)
    equal = next(iter(tokenize(model, [[1, 2, 3], [4, 5, 6]])))
    assert not equal.is_padded
    ragged = next(iter(tokenize(model, [[4, 5], [1, 2, 3]])))
    assert ragged.is_padded
    assert ragged.mask.tolist() == [[True, True, True], [True, True, False]]
    assert ragged.documents == (1, 0)


def test_rows_of_like_length_share_a_batch() -> None:
    documents = [[1] * length for length in (3, 30, 4, 29, 3, 30, 4, 29)]
    batches = tokenize(make_model(tokenizer=None), documents, batch_size=4)
    assert sum(batch.tokens.numel() for batch in batches) <= 4 * 30 + 4 * 4


def test_the_number_of_batches_is_known_once_everything_was_read() -> None:
    batches = tokenize(make_model(), ["abc"] * 5, batch_size=2)
    assert batches.total is None
    assert batches.total_documents == 5
    next(iter(batches))
    assert batches.total == 3


def test_the_number_of_batches_of_one_long_text_is_known_at_the_first() -> None:
    batches = tokenize(make_model(), "abcdefgh" * 50, context_length=3, batch_size=1)
    next(iter(batches))
    assert batches.n_sequences == 1
    assert batches.total == len(list(batches)) == 200


def test_files_are_read_lazily(tmp_path: Path) -> None:
    path = write(tmp_path, "many.jsonl", '{"text": "abc"}\n' * 40 + "broken")
    batches = iter(tokenize(make_model(), path, batch_size=2))
    assert next(batches).tokens.shape == (2, 4)
    with pytest.raises(InputError, match=r"many\.jsonl line 41 is not valid JSON"):
        list(batches)


@pytest.mark.parametrize("padding_side", ["left", "right"])
def test_padding_of_a_users_tensor_is_removed_on_either_side(padding_side: str) -> None:
    tokens = torch.tensor([[9, 9, 5, 6], [3, 4, 5, 6]] if padding_side == "left" else [[5, 6, 9, 9], [3, 4, 5, 6]])
    mask = (tokens != 9).long()
    batches = tokenize(make_model(), tokens, attention_mask=mask)
    assert sequences(batches) == {0: [[5, 6]], 1: [[3, 4, 5, 6]]}
    assert not batches.prepended_bos


def test_without_a_mask_every_token_is_real_even_the_padding_token() -> None:
    tokens = torch.tensor([[2, 2, 5, 6]])
    before = tokens.clone()
    assert sequences(tokenize(make_model(), tokens)) == {0: [[2, 2, 5, 6]]}
    assert torch.equal(tokens, before)


def test_a_single_token_works_on_request() -> None:
    model = make_model(tokenizer=None)
    assert sequences(tokenize(model, torch.tensor([5]), min_length=1)) == {0: [[5]]}
    with pytest.raises(InputError, match="no usable document in tokens: 1 read, none with at least 2 tokens"):
        list(tokenize(model, [5]))


def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    path = write(tmp_path, "book.txt", "\ufeffthe cat\nsat")
    expected = {0: [[BOS_ID, *encode("the cat\nsat")]]}
    assert sequences(tokenize(make_model(), path)) == expected
    assert sequences(tokenize(make_model(), str(path))) == expected


def test_text_that_mentions_a_file_is_text() -> None:
    text = "see\nnotes.txt"
    assert sequences(tokenize(make_model(), text)) == {0: [[BOS_ID, *encode(text)]]}


def test_fields_of_json_lines_are_joined_by_a_newline(tmp_path: Path) -> None:
    lines = [
        json.dumps({"question": "who?", "answer": "á 🙂"}),
        "",
        json.dumps({"question": "a", "answer": "b"}),
    ]
    path = write(tmp_path, "qa.jsonl", "\n".join(lines))
    found = sequences(tokenize(make_model(), path, fields=("question", "answer")))
    assert found == {0: [[BOS_ID, *encode("who?\ná 🙂")]], 1: [[BOS_ID, *encode("a\nb")]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "abc"}\n{"text": ', r"d\.jsonl line 2 is not valid JSON: .* at column"),
        ('\n\n["abc"]', r"d\.jsonl line 3 holds a list; expected an object with the fields 'text'"),
        ('{"body": "abc"}', r"d\.jsonl line 1 has no field 'text'; it has 'body'. Name the text fields"),
        ('{"text": null}', r"d\.jsonl line 1: field 'text' holds a NoneType; expected text"),
        ('{"text": "a \\ud800 b"}', "cannot be encoded"),
        ("\n\n", r"no usable document in .*d\.jsonl: 0 read"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, content: str, message: str) -> None:
    batches = tokenize(make_model(), write(tmp_path, "d.jsonl", content))
    with pytest.raises(InputError, match=message) as caught:
        list(batches)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(InputError, match=r"there is no file .*gone\.txt"):
        tokenize(model, tmp_path / "gone.txt")
    with pytest.raises(InputError, match=r"empty\.txt is empty"):
        tokenize(model, write(tmp_path, "empty.txt", ""))
    with pytest.raises(InputError, match=r"table\.csv has the unknown suffix '\.csv'"):
        tokenize(model, write(tmp_path, "table.csv", "a,b"))
    with pytest.raises(InputError, match=r"d\.json has the unknown suffix"):
        tokenize(model, "d.json")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"latin\.txt cannot be read as UTF-8 text"):
        list(tokenize(model, tmp_path / "latin.txt"))


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ("", {}, "the text is empty"),
        ([], {}, "texts is empty"),
        (["", ""], {}, "no usable document in text: 2 read"),
        (5, {}, "texts is a int; expected a string"),
        (["abc", [1, 2]], {}, "mixes strings and token ids"),
        ([["abc"]], {}, "a document is a list; expected a string, a list of token ids"),
        (torch.zeros(2, 3), {}, "dtype torch.float32; expected integers"),
        (torch.zeros(2, 3, 4, dtype=torch.long), {}, r"shape \(2, 3, 4\)"),
        (
            [[1, VOCAB_SIZE]],
            {},
            f"token id {VOCAB_SIZE}; the model's vocabulary has ids 0 to {VOCAB_SIZE - 1}",
        ),
        ([[1, -1]], {}, "token id -1"),
        ("abc", {"context_length": 65}, "context_length 65 is greater than the model's context of 64"),
        ("abc", {"context_length": 0}, "context_length is 0; expected a whole number of at least 1"),
        ("abc", {"context_length": 1}, "1 special tokens go around every sequence"),
        ("abc", {"batch_size": 0}, "batch_size is 0"),
        ("abc", {"min_length": 9, "context_length": 8}, "min_length 9 is greater than context_length 8"),
        ("abc", {"overflow": "wrap"}, "overflow is 'wrap'"),
        ("abc", {"fields": "text"}, "names columns of a .jsonl file or a dataset"),
        ("abc", {"attention_mask": torch.ones(1, 3).bool()}, "attention_mask belongs to a tensor"),
        (
            torch.ones(1, 3).long(),
            {"attention_mask": torch.ones(1, 2).bool()},
            r"shape \(1, 2\); expected .* \(1, 3\)",
        ),
        (
            torch.ones(1, 3).long(),
            {"attention_mask": torch.tensor([[1, 0, 1]])},
            "padding between real tokens",
        ),
        ([[1, 2]], {"prepend_bos": True}, "prepend_bos=True is for text"),
        ("hf:@train", {}, "names no dataset"),
    ],
)
def test_mistakes_get_one_clear_line(texts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        list(tokenize(make_model(), texts, **options))
    assert "\n" not in str(caught.value)


def test_a_model_without_tokenizer_asks_for_tokens() -> None:
    with pytest.raises(InputError, match=r"no tokenizer.* Pass token ids"):
        tokenize(make_model(tokenizer=None), "abc")


def test_context_by_default_is_the_models_for_tokens_and_at_most_128_for_text() -> None:
    assert tokenize(make_model(n_ctx=4096), "abc").context_length == 128
    assert tokenize(make_model(n_ctx=64), "abc").context_length == 64
    assert tokenize(make_model(n_ctx=4096), [[1, 2]]).context_length == 4096


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_datasets(streaming: bool) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": ["abc", "de"], "title": ["x", "y"]})
    batches = tokenize(make_model(), dataset.to_iterable_dataset() if streaming else dataset)
    assert sequences(batches) == {0: [[BOS_ID, *encode("abc")]], 1: [[BOS_ID, *encode("de")]]}
    assert batches.total_documents == (None if streaming else 2)
    with pytest.raises(InputError, match="row 0 has no field 'body'; it has 'text', 'title'"):
        list(tokenize(make_model(), dataset, fields="body"))
    with pytest.raises(InputError, match="several splits"):
        tokenize(make_model(), datasets.DatasetDict({"train": dataset}))


def test_a_dataset_is_loaded_by_name_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[Any] = []

    def load_dataset(*names: Any, **options: Any) -> Any:
        asked.append((names, options))
        return datasets.Dataset.from_dict({"text": ["abc"]}).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert sequences(tokenize(make_model(), "hf:org/name:config@test")) == {0: [[BOS_ID, *encode("abc")]]}
    assert asked == [(("org/name", "config"), {"split": "test", "streaming": True})]

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nmore")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        InputError, match=r"dataset 'org/name' .* cannot be opened: no route\. Check the name and the network"
    ):
        tokenize(make_model(), "hf:org/name")


def test_first_real_position() -> None:
    mask = torch.tensor([[True, True, False], [False, False, True], [True, True, True]])
    assert first_real_position(mask).tolist() == [0, 2, 0]
    with pytest.raises(InputError, match="no real token"):
        first_real_position(torch.tensor([[True], [False]]))

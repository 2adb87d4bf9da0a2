"""Texts of any size to batches of token ids with a mask, streaming."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sinklens.axes import RealTokens, Tokens
from sinklens.errors import InputError
from sinklens.models.encoding import TextEncoder, is_bidirectional, text_encoder
from sinklens.models.patches import reads_images
from sinklens.models.sources import Document, DocumentSource, document_source

Overflow = Literal["split", "cut", "error"]
DEFAULT_CONTEXT_LENGTH = 128
WINDOW_BATCHES = 16


@dataclass(frozen=True)
class TokenBatch:
    """Token ids of a few sequences, right-padded.

    ``mask`` is True on real tokens; ``documents`` gives, per row, the index of the document it came from,
    counted from 0 over all documents that were read. ``pixels`` ``[image, channel, row, column]`` stands in
    for the ids where the model reads images; ``tokens`` then are 0, one per position.
    """

    tokens: Tokens
    mask: RealTokens
    documents: tuple[int, ...]
    pixels: Float[Tensor, "batch channel row column"] | None = None

    @property
    def is_padded(self) -> bool:
        """Whether any row is shorter than the longest."""
        return not bool(self.mask.all())


class _Sequence(NamedTuple):
    token_ids: list[int]
    document: int


def tokenize(
    model: Any,
    texts: Any,
    *,
    context_length: int | None = None,
    batch_size: int = 8,
    prepend_bos: bool | None = None,
    overflow: str = "split",
    min_length: int = 2,
    max_documents: int | None = None,
    fields: str | Sequence[str] | None = None,
    attention_mask: Bool[Tensor, "batch position"] | Int[Tensor, "batch position"] | None = None,
) -> "TokenBatches":
    """Turn texts into batches of token ids for ``model``.

    Text gets the special tokens that the model's tokenizer uses, once: BOS for most decoders, ``[CLS]`` and
    ``[SEP]`` for BERT kinds. Token ids given by the user are taken as they are: nothing is added, and without
    ``attention_mask`` every id counts as real.

    Args:
        model: anything with ``cfg`` (``n_ctx``, ``d_vocab``) and, for text, ``tokenizer``.
        texts: a string; a list of strings; an int tensor [document, position] or [position]; a list of token
            id lists; a path to a .txt file (one document) or a .jsonl file (one document per line); a Hugging
            Face ``datasets`` object, or its name as ``hf:NAME``, ``hf:NAME:CONFIG`` or
            ``hf:NAME:CONFIG@SPLIT`` (split ``train`` by default).
        context_length: longest sequence, special tokens included; by default the model's own context, for
            text at most 128.
        batch_size: sequences per batch.
        prepend_bos: True or False overrides what the model does by itself; for text only.
        overflow: what to do with a longer document: ``"split"`` it into consecutive sequences, ``"cut"`` it,
            or raise an ``"error"``.
        min_length: shorter sequences are left out, special tokens included in the count.
        max_documents: stop after this many documents were used.
        fields: names of the text fields of a .jsonl file or a dataset, joined by a newline; ``text`` by
            default.
        attention_mask: for a tensor of token ids, non-zero on real tokens; padding may be on either side and
            is removed.

    Returns:
        Batches that can be iterated again and again; files and datasets are read while iterating.

    Raises:
        InputError: an empty text, no usable document, a missing or broken file, a token outside the
            vocabulary, a context that the model does not have. What is found in a file is raised while
            iterating.

    Example:
        >>> from types import SimpleNamespace
        >>> model = SimpleNamespace(cfg=SimpleNamespace(n_ctx=16, d_vocab=10), tokenizer=None)
        >>> batches = tokenize(model, [[1, 2, 3], [4, 5]])
        >>> batch = next(iter(batches))
        >>> batch.tokens.shape, batch.mask.sum(dim=-1).tolist(), batch.documents
        (torch.Size([2, 3]), [3, 2], (0, 1))
    """
    if prepend_bos not in (None, True, False):
        raise InputError(f"prepend_bos is {prepend_bos!r}; expected True, False or None (what the tokenizer does)")
    source = document_source(texts, fields, attention_mask)
    encoder = _encoder(model, source, prepend_bos)
    return TokenBatches(
        source=source,
        encoder=encoder,
        vocabulary_size=model.cfg.d_vocab,
        context_length=_context_length(model, context_length, source.holds_text),
        batch_size=_positive(batch_size, "batch_size"),
        overflow=_overflow(overflow),
        min_length=_positive(min_length, "min_length"),
        max_documents=None if max_documents is None else _positive(max_documents, "max_documents"),
        prepended_bos=encoder is not None and bool(encoder.prefix) and not is_bidirectional(model),
    ).checked()


def as_batches(
    model: Any, texts: Any, tokenization: Mapping[str, Any], own: Mapping[str, Any] = MappingProxyType({})
) -> "TokenBatches":
    """The batches of texts, or those that were made before.

    Args:
        model: the model.
        texts: what :func:`tokenize` takes, or its result.
        tokenization: further arguments of :func:`tokenize` that the user gave; none may stand beside batches.
        own: those that the caller has in its signature, and that batches therefore leave without effect.

    Raises:
        InputError: there is no such argument, or the texts are batches already.
    """
    if reads_images(model):
        raise InputError(
            f"{model.cfg.model_name} reads images, and this is measured on text; images have attention_maps, head_profile, "
            "sink_geometry, attention_switch, head_costs, run and check_model"
        )
    known = list(inspect.signature(tokenize).parameters)[2:]
    unknown = [name for name in tokenization if name not in known]
    if unknown:
        raise InputError(f"unknown argument {unknown[0]!r}; beside its own there are {', '.join(known)}")
    if not isinstance(texts, TokenBatches):
        return tokenize(model, texts, **own, **tokenization)
    if tokenization:
        raise InputError(
            f"the texts are batches already; pass {', '.join(sorted(tokenization))} to sinklens.tokenize instead"
        )
    return texts


class TokenBatches:
    """Batches of tokens that can be iterated again and again; made by :func:`tokenize`.

    While a pass runs and after it, the counters describe that pass: ``n_documents`` used, ``n_skipped``
    documents left out because they were shorter than ``min_length``, ``n_cut`` documents longer than the
    context (split or cut), ``n_sequences`` and ``n_tokens`` given out (real tokens only). ``prepended_bos``
    tells whether sinklens put a BOS before each sequence, ``padding`` on which side.
    """

    padding = "right"

    def __init__(
        self,
        source: DocumentSource,
        encoder: TextEncoder | None,
        vocabulary_size: int,
        context_length: int,
        batch_size: int,
        overflow: Overflow,
        min_length: int,
        max_documents: int | None,
        prepended_bos: bool,
    ):
        self.source = source
        self.context_length = context_length
        self.batch_size = batch_size
        self.overflow = overflow
        self.min_length = min_length
        self.max_documents = max_documents
        self.prepended_bos = prepended_bos
        self._encoder = encoder
        self._vocabulary_size = vocabulary_size
        self._reset()

    def _reset(self) -> None:
        self.n_documents = self.n_sequences = self.n_tokens = self.n_cut = self.n_skipped = 0
        self._n_found = 0
        self._all_read = False

    @property
    def counts(self) -> dict[str, int | bool]:
        """The counters, and how sequences were made, under their names in a :class:`~sinklens.Provenance`."""
        names = ("context_length", "n_documents", "n_sequences", "n_tokens", "n_cut", "n_skipped", "prepended_bos")
        return {name: getattr(self, name) for name in names}

    def checked(self) -> "TokenBatches":
        """Raise now what can be known without reading anything; returns self."""
        special = len(self._encoder.prefix) + len(self._encoder.suffix) if self._encoder else 0
        if self.context_length <= special:
            raise InputError(
                f"context_length is {self.context_length}, but {special} special tokens go around every "
                "sequence. Raise it."
            )
        if self.min_length > self.context_length:
            raise InputError(
                f"min_length {self.min_length} is greater than context_length {self.context_length}. Lower it."
            )
        return self

    @property
    def total(self) -> int | None:
        """Number of batches in a pass where it is known: once the last document was read, so at once for a
        single text.
        """
        return -(-self._n_found // self.batch_size) if self._all_read else None

    def __repr__(self) -> str:
        settings = f"batches of {self.batch_size}, at most {self.context_length} tokens each"
        if not self.n_sequences:
            return f"TokenBatches({self.source.name}: {settings}; not read yet)"
        counts = f"{self.n_documents} documents, {self.n_sequences} sequences, {self.n_tokens} tokens"
        return f"TokenBatches({self.source.name}: {settings}; {counts}, {self.n_cut} cut, {self.n_skipped} skipped)"

    @property
    def total_documents(self) -> int | None:
        """Number of documents in the source where known; ``n_documents + n_skipped`` of them are read."""
        return self.source.count

    def __iter__(self) -> Iterator[TokenBatch]:
        self._reset()
        sequences = self._sequences()
        while window := list(islice(sequences, WINDOW_BATCHES * self.batch_size)):
            # longest first: rows of like length share a batch, so little is padded, and the peak of memory
            # comes early
            window.sort(key=lambda sequence: len(sequence.token_ids), reverse=True)
            for start in range(0, len(window), self.batch_size):
                yield self._batch(window[start : start + self.batch_size])
        if self.n_sequences == 0:
            raise InputError(
                f"no usable document in {self.source.name}: {self.n_skipped} read, none with at least "
                f"{self.min_length} tokens. "
                "Give longer text or lower min_length."
            )

    def _batch(self, sequences: list[_Sequence]) -> TokenBatch:
        lengths = torch.tensor([len(sequence.token_ids) for sequence in sequences])
        longest = int(lengths.max())
        # token 0 as padding: causal attention never looks at it, and the mask keeps it out of every statistic
        tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
        for row, sequence in zip(tokens, sequences, strict=True):
            row[: len(sequence.token_ids)] = torch.tensor(sequence.token_ids)
        self.n_sequences += len(sequences)
        self.n_tokens += int(lengths.sum())
        mask = torch.arange(longest) < lengths[:, None]
        return TokenBatch(tokens, mask, tuple(sequence.document for sequence in sequences))

    def _sequences(self) -> Iterator[_Sequence]:
        for index, document in enumerate(self.source.read()):
            pieces = self._pieces(document, index)
            self._n_found += len(pieces)
            self.n_documents += bool(pieces)
            self.n_skipped += not pieces
            enough = self.n_documents == self.max_documents
            self._all_read = enough or index + 1 == self.source.count
            yield from (_Sequence(piece, index) for piece in pieces)
            if enough:
                break
        self._all_read = True

    def _pieces(self, document: Document, index: int) -> list[list[int]]:
        """The sequences of one document, each at most ``context_length`` long, special tokens included."""
        body, prefix, suffix = self._encoded(document, index)
        room = self.context_length - len(prefix) - len(suffix)
        bodies = [body[start : start + room] for start in range(0, len(body), room)]
        if len(bodies) > 1:
            self._require_room(len(body) + len(prefix) + len(suffix), index)
        if self.overflow == "cut":
            bodies = bodies[:1]
        pieces = [[*prefix, *piece, *suffix] for piece in bodies]
        usable = [piece for piece in pieces if len(piece) >= self.min_length]
        self.n_cut += len(body) > room and bool(usable)
        return usable

    def _require_room(self, length: int, index: int) -> None:
        if self.overflow == "error":
            raise InputError(
                f"document {index} has {length} tokens; at most {self.context_length} fit. "
                "Shorten it, raise context_length, or pass overflow='split' or 'cut'."
            )

    def _encoded(self, document: Document, index: int) -> tuple[list[int], tuple[int, ...], tuple[int, ...]]:
        if isinstance(document, str):
            assert self._encoder is not None  # a source of text always has one
            body, prefix, suffix = self._encoder.body(document), self._encoder.prefix, self._encoder.suffix
        else:
            body, prefix, suffix = document.tolist(), (), ()
        for token in body and (min(body), max(body)):
            if not 0 <= token < self._vocabulary_size:
                is_unknown = isinstance(document, str) and token == getattr(
                    getattr(self._encoder, "tokenizer", None), "unk_token_id", None
                )
                raise InputError(
                    f"document {index} has the token id {token}; the model's vocabulary has ids 0 to "
                    f"{self._vocabulary_size - 1}. "
                    + (
                        "It stands for a word that the tokenizer does not know; leave such words out."
                        if is_unknown
                        else "Use the model's own tokenizer."
                    )
                )
        return body, prefix, suffix


def first_real_position(mask: RealTokens) -> Int[Tensor, " batch"]:
    """Index of the first real token of each row: 0 under right padding, the amount of padding under left
    padding.

    Args:
        mask: True on real tokens.

    Raises:
        InputError: a row has no real token.

    Example:
        >>> first_real_position(torch.tensor([[True, True], [False, True]]))
        tensor([0, 1])
    """
    if not bool(mask.any(dim=-1).all()):
        raise InputError("a row of the mask has no real token; expected at least one per row. Leave that row out.")
    return mask.int().argmax(dim=-1)


def _encoder(model: Any, source: DocumentSource, prepend_bos: bool | None) -> TextEncoder | None:
    if source.holds_text:
        return text_encoder(model, prepend_bos)
    if prepend_bos:
        raise InputError(
            "prepend_bos=True is for text; token ids are taken as they are. Put the BOS id into them instead."
        )
    return None


def _context_length(model: Any, context_length: int | None, holds_text: bool) -> int:
    available = model.cfg.n_ctx
    if context_length is None:
        return min(available, DEFAULT_CONTEXT_LENGTH) if holds_text else available
    _positive(context_length, "context_length")
    if context_length > available:
        raise InputError(
            f"context_length {context_length} is greater than the model's context of {available} tokens. Lower it."
        )
    return context_length


def _overflow(overflow: str) -> Overflow:
    if overflow not in ("split", "cut", "error"):
        raise InputError(f"overflow is {overflow!r}; expected 'split', 'cut' or 'error'")
    return overflow


def _positive(number: int, name: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"{name} is {number!r}; expected a whole number of at least 1")
    return number

"""Text to token ids: which special tokens go before and after, and where the beginning-of-sequence token
comes from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sinklens.errors import InputError


@dataclass(frozen=True)
class TextEncoder:
    """Turns text into token ids and knows the special tokens that stand around every sequence.

    ``prefix`` and ``suffix`` are added to each sequence, also to each piece of a split document: ``(BOS,)``
    and ``()`` for a decoder that starts with BOS, ``([CLS],)`` and ``([SEP],)`` for an encoder.
    """

    tokenizer: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def body(self, text: str) -> list[int]:
        """Token ids of the text alone. A prefix that the text already begins with is removed, so that it is
        not doubled.
        """
        # verbose=False: the tokenizer warns about texts longer than the model's context, which are split or
        # cut here
        try:
            token_ids = list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(
                f"the text {text[:40]!r} cannot be encoded, probably for half a surrogate pair in it. Remove it."
            ) from error
        if self.prefix and tuple(token_ids[: len(self.prefix)]) == self.prefix:
            return token_ids[len(self.prefix) :]
        return token_ids


def text_encoder(model: Any, prepend_bos: bool | None) -> TextEncoder:
    """Choose the special tokens for ``model``.

    A decoder gets its tokenizer's BOS where the model's configuration says so (``cfg.default_prepend_bos``);
    an encoder gets what its tokenizer adds by itself. ``prepend_bos`` overrides: True demands the token,
    False leaves all special tokens out.
    """
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is None:
        raise InputError(
            "the model has no tokenizer, so text cannot be encoded. Pass token ids, or set model.tokenizer."
        )
    if prepend_bos is False:
        return TextEncoder(tokenizer, (), ())
    if is_bidirectional(model):
        return TextEncoder(tokenizer, *_own_special_tokens(tokenizer))
    bos = usable_bos(model)
    if bos is None and prepend_bos:
        raise InputError("prepend_bos=True, but the model's tokenizer has no BOS token. Leave prepend_bos out.")
    wanted = prepend_bos or getattr(model.cfg, "default_prepend_bos", True)
    return TextEncoder(tokenizer, (bos,) if bos is not None and wanted else (), ())


def is_bidirectional(model: Any) -> bool:
    """Whether every position sees every other (an encoder such as BERT)."""
    if str(getattr(model.cfg, "attention_dir", "causal") or "causal") != "causal":
        return True
    # TransformerLens 3.9's Bridge calls BERT causal; the module that it wraps knows better.
    modules = (getattr(block, "attn", None) for block in getattr(model, "blocks", ()))
    original = getattr(next((module for module in modules if module is not None), None), "original_component", None)
    parts = original.modules() if isinstance(original, torch.nn.Module) else ()
    return any(getattr(part, "is_causal", None) is False for part in parts)


def usable_bos(model: Any) -> int | None:
    """The id of the BOS token, or None where the tokenizer has none that the model's vocabulary knows."""
    tokenizer = model.tokenizer
    bos = getattr(tokenizer, "bos_token_id", None)
    # TransformerLens installs "<|endoftext|>" where a tokenizer has no BOS; a vocabulary without it maps it
    # to "unknown" or past its end
    is_unknown = bos == getattr(tokenizer, "unk_token_id", None) and tokenizer.bos_token != tokenizer.unk_token
    if bos is None or is_unknown or bos >= model.cfg.d_vocab:
        return None
    return int(bos)


def _own_special_tokens(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    with_special: Sequence[int] = list(tokenizer("a")["input_ids"])
    body: Sequence[int] = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    for start in range(len(with_special) - len(body) + 1):
        if with_special[start : start + len(body)] == body:
            return tuple(with_special[:start]), tuple(with_special[start + len(body) :])
    return (), ()

"""A tiny byte-level tokenizer, trained offline on a few lines: it encodes any UTF-8 text with 320 tokens."""

import functools

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 320
BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
_LINES = (
    "The cat sat on the mat, and the dog sat on the log.",
    "The quick brown fox jumps over the lazy dog while the cat sleeps.",
    "There are 12 apples and 3 oranges; how many fruits are there in total?",
    "An attention sink is a token that gets attention without saying anything.",
)


@functools.cache
def tiny_tokenizer(prepends_bos: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE with distinct bos, eos and pad tokens (ids 0, 1, 2).

    TransformerLens reloads from the hub a tokenizer whose ``add_bos_token`` is not set; that flag is
    therefore set in both variants, and the post-processor decides whether a BOS is really prepended.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[AddedToken(token, special=True) for token in (BOS, EOS, PAD)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_LINES, trainer)
    if prepends_bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A",
            pair=f"{BOS} $A {BOS} $B",
            special_tokens=[(BOS, backend.token_to_id(BOS))],
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token=EOS, pad_token=PAD, padding_side="right"
    )
    tokenizer.init_kwargs["add_bos_token"] = True
    tokenizer.init_kwargs["name_or_path"] = "tiny"
    return tokenizer

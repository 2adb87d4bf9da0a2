"""The toys' tokenizer: one word, one token, so that figures can be labelled and text can be given."""

from typing import Any

from sinklens.toy.tasks import BOS, CopyTask

UNKNOWN = "<unknown>"


def toy_tokenizer(task: CopyTask) -> Any:
    """A word-level tokenizer of a task's words; it puts BOS in front where the task has one, and knows no other words.

    Args:
        task: whose words they are.

    Example:
        >>> tokenizer = toy_tokenizer(CopyTask())
        >>> tokenizer("ba ^1 ba")["input_ids"], tokenizer.decode([5, 1, 5])
        ([0, 5, 1, 5], 'ba ^1 ba')
    """
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    bos = task.words[BOS]
    # An unknown word gets an id beyond the model's vocabulary, which sinklens.tokenize refuses.
    words = {word: token for token, word in enumerate((*task.words, UNKNOWN))}
    backend = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    backend.add_special_tokens([AddedToken(bos, special=True)])
    if task.bos:
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, BOS)])  # type: ignore[assignment]
    special = {"bos_token": bos} if task.bos else {}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **special, unk_token=UNKNOWN, eos_token=bos, pad_token=bos, padding_side="right"
    )
    # TransformerLens fetches a tokenizer again, from the hub, whose add_bos_token is not set
    tokenizer.init_kwargs["add_bos_token"] = True
    tokenizer.init_kwargs["name_or_path"] = "toy"
    return tokenizer

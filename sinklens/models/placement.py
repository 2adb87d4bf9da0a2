"""Where a model's weights are: on one device, split over several, or offloaded to memory or disk by accelerate."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from sinklens.errors import ModelLoadError
from sinklens.models.environment import parse_device

AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")
DISK = "disk"


@dataclass(frozen=True)
class Placement:
    """Where a model is to be loaded: on one device, or by a map of its modules."""

    device: torch.device | None
    device_map: str | dict[str, str | int] | None = None

    def __str__(self) -> str:
        return "the devices of the device_map" if self.device is None else str(self.device)

    def only_device(self, what: str) -> torch.device:
        """The one device.

        Raises:
            ModelLoadError: there is a map, and ``what`` cannot follow one.
        """
        if self.device is None:
            raise ModelLoadError(f"{what} takes no device_map; pass device=, or use the bridge and a model folder")
        return self.device

    def arguments(self) -> dict[str, Any]:
        """The arguments of TransformerBridge."""
        return {"device_map": self.device_map} if self.device is None else {"device": self.device}


def parse_placement(
    device: str | torch.device | None, device_map: str | Mapping[str, str | int] | None = None
) -> Placement:
    """Where a model is to be loaded, all devices being there.

    Args:
        device: one device, or None for the best one.
        device_map: ``"auto"`` and its like, one device, or a dict from modules to devices, ``"cpu"`` or ``"disk"``.

    Raises:
        ModelLoadError: both are given, or a device is unknown or not there.

    Example:
        >>> print(parse_placement("cpu"), parse_placement(None, "cpu"))
        cpu cpu
        >>> parse_placement(None, {"": "cpu"}).arguments()
        {'device_map': {'': 'cpu'}}
    """
    if device_map is None:
        return Placement(parse_device(device))
    if device is not None:
        raise ModelLoadError("device and device_map are both given; pass one of them")
    if isinstance(device_map, str):
        return Placement(None, device_map) if device_map in AUTOMATIC else Placement(parse_device(device_map))
    if not device_map:
        raise ModelLoadError(f"the device_map is empty; expected modules and their devices, or one of {AUTOMATIC}")
    for place in dict.fromkeys(device_map.values()):
        if place != DISK:
            parse_device(f"cuda:{place}" if isinstance(place, int) else place)
    return Placement(None, dict(device_map))


def input_device(model: Any) -> torch.device:
    """Where token ids go: to the first weights, or where the model says if those are offloaded.

    Args:
        model: a TransformerBridge or HookedTransformer.

    Example:
        >>> input_device(torch.nn.Linear(2, 2))
        device(type='cpu')
    """
    first = next(iter(model.parameters())).device
    if first.type != "meta":
        return first
    said = getattr(getattr(model, "cfg", None), "device", None)
    # An offloaded module runs where the model says; a model that says nothing of use can only run on the CPU.
    return torch.device("cpu") if said is None or torch.device(said).type == "meta" else torch.device(said)


@contextmanager
def materialized(module: torch.nn.Module) -> Iterator[None]:
    """Bring the weights of a module that accelerate offloads to where they can be read, for one block of code.

    A module whose weights are there already is left alone: during its own forward pass accelerate has brought them, and
    taking them away again would end that pass.

    Args:
        module: an attention module, for example.

    Example:
        >>> with materialized(torch.nn.Linear(2, 2)):
        ...     pass
    """
    absent = [part for part in module.modules() if _is_absent(part)]
    with ExitStack() as stack:
        if absent:
            from accelerate.utils import align_module_device

            for part in absent:
                stack.enter_context(align_module_device(part))
        yield


def _is_absent(part: torch.nn.Module) -> bool:
    return any(parameter.device.type == "meta" for parameter in part.parameters(recurse=False))

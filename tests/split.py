"""A model that is split over devices that are not there: every tensor is said to be somewhere, and must not meet another's.

PyTorch's own rules are kept: tensors of one operation are on one device, save for scalars and for indices on the CPU; what
comes out is where the operands were; ``to`` and ``device=`` place. The numbers stay on the CPU.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

CPU, OTHER = torch.device("cpu"), torch.device("cuda:1")
_INDEXING = (Tensor.__getitem__, Tensor.__setitem__, Tensor.index_put)


class Places(TorchFunctionMode):
    """Follows where each tensor is said to be."""

    def __init__(self) -> None:
        super().__init__()
        self.places: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
        self.moves = 0

    def put(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Say where tensors are."""
        for tensor in tensors:
            self.places[tensor] = device

    def of(self, tensor: Tensor) -> torch.device:
        """Where a tensor is."""
        return self.places.get(tensor) or CPU

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return self.of(args[0])
        if func is Tensor.numpy and self.of(args[0]) != CPU:
            raise TypeError("can't convert cuda:1 device type tensor to numpy")
        for each in tree_flatten((args, kwargs))[0]:
            if isinstance(each, Tensor):
                self.places.setdefault(each, CPU)
        here, target = self._common(func, args, kwargs), _target(func, args, kwargs, self)
        if target is not None:
            args, kwargs = _without_device(func, args, kwargs)
        self.moves += target is not None and here is not None and target != here
        place = target or here or CPU
        return tree_map(lambda each: self._placed(each, place), func(*args, **kwargs))

    def _placed(self, each: Any, place: torch.device) -> Any:
        if not isinstance(each, Tensor):
            return each
        # What is moved becomes another tensor, as it would be.
        moved = each.clone() if self.places.get(each, place) != place else each
        self.places[moved] = place
        return moved

    def _common(self, func: Any, args: Any, kwargs: Any) -> torch.device | None:
        if _may_cross(func, args):
            return self.of(args[0])
        taken = (args[0], *args[2:]) if func in _INDEXING else (args, kwargs)
        tensors = [each for each in tree_flatten(taken)[0] if isinstance(each, Tensor)]
        places = {self.of(each) for each in tensors if each.dim() > 0 or self.of(each) != CPU}
        if len(places) > 1:
            raise RuntimeError(f"{func.__name__}: Expected all tensors to be on the same device, but found {places}")
        return next(iter(places), None)


def _may_cross(func: Any, args: Any) -> bool:
    """Copies may: ``to``, ``copy_``, and what is assigned to a part that no tensor chooses."""
    if func == Tensor.__setitem__:
        return not any(isinstance(each, Tensor) for each in tree_flatten(args[1])[0])
    return func in (Tensor.to, Tensor.copy_, Tensor.data.__set__)  # type: ignore[attr-defined]


def _target(func: Any, args: Any, kwargs: Any, places: Places) -> torch.device | None:
    if func is Tensor.cpu:
        return CPU
    if func is Tensor.to:
        for each in [*args[1:], kwargs.get("other"), kwargs.get("device")]:
            if isinstance(each, Tensor):
                return places.of(each)
            if isinstance(each, torch.device | str):
                return torch.device(each)
        return None
    device = kwargs.get("device")
    return None if device is None else torch.device(device)


def _without_device(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    kwargs = {name: value for name, value in kwargs.items() if name != "device"}
    if func is Tensor.to:
        args = tuple(CPU if isinstance(each, torch.device | str) else each for each in args)
    return args, kwargs


@contextmanager
def split(model: Any, layers: Iterable[int]) -> Iterator[tuple[Any, Places]]:
    """Say for a block of code that some layers of a TransformerBridge are on another device, with what accelerate does:
    what goes into them is moved there, and what comes out of them back.
    """
    places, handles = Places(), []

    def moved(value: Any, device: torch.device) -> Any:
        return tree_map(lambda each: each.to(device) if isinstance(each, Tensor) else each, value)

    def enter(block: nn.Module, args: Any, kwargs: Any) -> Any:
        return moved(args, OTHER), moved(kwargs, OTHER)

    def leave(block: nn.Module, args: Any, output: Any) -> Any:
        return moved(output, CPU)

    for layer in layers:
        block = model.blocks[layer]
        places.put([*block.parameters(), *block.buffers()], OTHER)
        handles += [block.register_forward_pre_hook(enter, with_kwargs=True), block.register_forward_hook(leave)]
    try:
        with places:
            yield model, places
    finally:
        for handle in handles:
            handle.remove()

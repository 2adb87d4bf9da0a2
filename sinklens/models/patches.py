"""Models of images: what stands for a token is a patch, named by its row and column."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sinklens.errors import InputError


def reads_images(model: Any) -> bool:
    """Whether the model takes pixels and nothing else (ViT); a model of text and images takes token ids.

    Example:
        >>> reads_images(object())
        False
    """
    return getattr(getattr(model, "original_model", None), "main_input_name", None) == "pixel_values"


def position_labels(model: Any, n_positions: int) -> list[str]:
    """What to call positions where there are no token ids: of images ``row,column`` after the special tokens, else numbers.

    Args:
        model: a TransformerBridge or HookedTransformer.
        n_positions: how many there are.

    Example:
        >>> position_labels(object(), 3)
        ['0', '1', '2']
    """
    grid = _grid(model)
    n_special = n_positions - (grid[0] * grid[1] if grid else n_positions)
    if grid is None or n_special < 0:
        return [str(position) for position in range(n_positions)]
    special = ["[CLS]", *(f"[{number}]" for number in range(1, n_special))][:n_special]
    return [*special, *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1]))]


def _grid(model: Any) -> tuple[int, int] | None:
    """Rows and columns of patches of an image of the model's own size."""
    if not reads_images(model):
        return None
    config = model.original_model.config
    image, patch = (_pair(getattr(config, name, None)) for name in ("image_size", "patch_size"))
    return (image[0] // patch[0], image[1] // patch[1]) if image and patch else None


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) and len(size) == 2 else None


def pixels_of(model: Any, images: Any) -> Tensor:
    """Images as the model takes them, ``[image, channel, row, column]``; one image may lack the first axis.

    Raises:
        InputError: they are no pixels.
    """
    given = torch.as_tensor(images) if isinstance(images, np.ndarray) and images.dtype.kind == "f" else images
    if not isinstance(given, Tensor) or not given.is_floating_point() or given.ndim not in (3, 4):
        raise InputError(f"{_reads(model, images)}; expected their pixels, floats [image, channel, row, column]")
    return given.unsqueeze(0) if given.ndim == 3 else given


def as_image(model: Any, pixels: Any) -> Tensor:
    """One image as the model takes it, ``[1, channel, row, column]``.

    Raises:
        InputError: it is no tensor of pixels, or there are several images.
    """
    try:
        one = pixels_of(model, pixels)
    except InputError:
        one = None
    if one is None or len(one) != 1:
        raise InputError(f"{_reads(model, pixels)}; expected the pixels of one, floats [1, channel, row, column]")
    return one


def _reads(model: Any, given: Any) -> str:
    is_array = isinstance(given, Tensor | np.ndarray)
    kind = f"a {given.dtype} tensor of shape {tuple(given.shape)}" if is_array else repr(given)[:60].replace("\n", " ")
    return f"{model.cfg.model_name} reads images and got {kind}"


def noise(model: Any) -> Tensor:
    """A random image of the model's own size, the same each time ``[1, channel, row, column]``."""
    config = model.original_model.config
    rows, columns = _pair(config.image_size) or (224, 224)
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, int(getattr(config, "num_channels", 3)), rows, columns, generator=generator)

"""Images as batches: what a position is to a text, a patch is to an image."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import InputError
from sinklens.models.attention import ModelAttention
from sinklens.models.environment import one_line
from sinklens.models.hook_names import PATTERN
from sinklens.models.patches import noise, pixels_of
from sinklens.models.sinks import SinkRule
from sinklens.models.tokens import TokenBatch


class ImageBatches:
    """Batches of images that can be iterated again and again, with the counters of :class:`~sinklens.TokenBatches`.

    Args:
        attention: of a model of images.
        images: pixels ``[image, channel, row, column]`` or ``[channel, row, column]``, or a list of the latter.
        batch_size: images per batch.

    Raises:
        InputError: it is no image, or the images differ in size.
    """

    def __init__(self, attention: ModelAttention, images: Any, batch_size: int = 8):
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size is {batch_size!r}; expected a whole number of at least 1")
        self.attention = attention
        self.images = _images(attention.model, images)
        self.batch_size = batch_size
        self.n_positions = _n_positions(attention, self.images[0])

    @property
    def total(self) -> int:
        """Number of batches in a pass."""
        return math.ceil(len(self.images) / self.batch_size)

    @property
    def counts(self) -> dict[str, int | bool]:
        """What a pass counts, under its names in a :class:`~sinklens.Provenance`: positions are tokens, images documents."""
        n_images = len(self.images)
        return {
            "context_length": self.n_positions, "n_documents": n_images, "n_sequences": n_images,
            "n_tokens": n_images * self.n_positions, "n_cut": 0, "n_skipped": 0, "prepended_bos": False,
        }  # fmt: skip

    def __iter__(self) -> Iterator[TokenBatch]:
        for start in range(0, len(self.images), self.batch_size):
            pixels = torch.stack(list(self.images[start : start + self.batch_size]))
            tokens = torch.zeros(len(pixels), self.n_positions, dtype=torch.long)
            documents = tuple(range(start, start + len(pixels)))
            yield TokenBatch(tokens, torch.ones_like(tokens, dtype=torch.bool), documents, pixels)


def image_batches(attention: ModelAttention, images: Any, sink: SinkRule, arguments: Mapping[str, Any]) -> ImageBatches:
    """The batches of images, where nothing was asked for that only text has.

    Args:
        attention: of a model of images.
        images: as :class:`ImageBatches` takes them.
        sink: how sinks are chosen.
        arguments: further arguments of the caller, such as ``batch_size``; None is one that was not given.

    Raises:
        InputError: an argument or the rule for sinks is of text, or the images cannot be used.
    """
    found = _images(attention.model, images)
    given = {name: value for name, value in arguments.items() if value is not None}
    of_text = [name for name in given if name != "batch_size"]
    if of_text:
        raise InputError(f"{of_text[0]} is for text; for images there is batch_size")
    if sink.kind == "token":
        raise InputError(f"sink {sink.describe()!r} needs token ids; an image has none, choose sinks by position")
    return ImageBatches(attention, found, **given)


def _images(model: Any, images: Any) -> Tensor | list[Tensor]:
    if isinstance(images, Sequence) and not isinstance(images, str):
        found = [pixels for item in images for pixels in pixels_of(model, item)]
    else:
        found = pixels_of(model, images)
    if not len(found):
        raise InputError("there is no image; expected pixels [image, channel, row, column] of at least one")
    sizes = list(dict.fromkeys(tuple(pixels.shape) for pixels in found))
    if len(sizes) > 1:
        raise InputError(f"images of sizes {sizes[0]} and {sizes[1]}; expected one size, resize them or run each apart")
    return found


def _n_positions(attention: ModelAttention, pixels: Tensor) -> int:
    """How many positions an image has, special ones included: read off a pattern, for models differ in the latter."""
    name = attention.hook(PATTERN, attention.layers[0])
    try:
        with torch.no_grad():
            _, cache = attention.model.run_with_cache(pixels.unsqueeze(0).to(attention.device), names_filter=[name])
    except (ValueError, RuntimeError) as error:  # of another size, or with other channels; some models resize
        own = tuple(noise(attention.model).shape[1:])
        raise InputError(
            f"{attention.name} cannot read an image of shape {tuple(pixels.shape)}; expected [channel, row, column] like "
            f"{own}, prepared by the model's own image processor ({one_line(error)})"
        ) from error
    return int(cache[name].shape[-1])

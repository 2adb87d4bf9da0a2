"""What an analyzer is, and what it is told before the first batch."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from sinklens.models.layer import LayerAttention
from sinklens.models.tokens import TokenBatch
from sinklens.results.provenance import Provenance


@dataclass(frozen=True)
class Setup:
    """What an analyzer is told before the first batch.

    Attributes:
        layers: the model's own numbers of the layers that will be measured; their index is the row in results.
        n_heads: the number of query heads.
        model_name: as TransformerLens knows the model.
    """

    layers: tuple[int, ...]
    n_heads: int
    model_name: str


class Analyzer(ABC):
    """Something that is measured layer by layer in a forward pass. Write ``start``, ``update`` and ``result``.

    ``update`` gets each layer's :class:`~sinklens.models.layer.LayerAttention` during the pass, one at a time; it must
    not keep it, or memory grows with the number of layers. ``begin`` may look at each batch before its pass. ``hooks``
    names further hooks, as templates such as ``"blocks.{layer}.hook_resid_pre"``; their tensors come in
    ``attention.captured``.

    Example:
        >>> class HeadMass(Analyzer):
        ...     def start(self, setup):
        ...         self.total = torch.zeros(len(setup.layers), setup.n_heads)
        ...     def update(self, attention):
        ...         self.total[attention.index] += attention.pattern.sum((0, 2, 3))
        ...     def result(self, provenance):
        ...         return self.total
        >>> import torch
        >>> HeadMass().hooks
        ()
    """

    hooks: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def start(self, setup: Setup) -> None:
        """Prepare for a run; called once, before the first batch."""

    def begin(self, batch: TokenBatch) -> None:  # noqa: B027 -- most analyzers have nothing to do here
        """Called before each batch's first layer: which document a row belongs to is known here."""

    @abstractmethod
    def update(self, attention: LayerAttention) -> None:
        """Take in one layer of one batch."""

    @abstractmethod
    def result(self, provenance: Provenance) -> Any:
        """What was measured, after the last batch."""

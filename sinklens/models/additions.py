"""How a layer's attention output gets into the residual stream: as it is, times a number, or through a norm; by comparison."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinklens.models.layer import at_least_float32
from sinklens.models.residual import residual_gain

PLAIN, MULTIPLE, NORM, NORM_OF_SUM = "plain", "multiple", "norm", "norm of the sum"


@dataclass(frozen=True)
class Addition:
    """What is added to the residual stream, as a function of a layer's output.

    Attributes:
        kind: ``"plain"``; ``"multiple"``, the output times a number (Granite); ``"norm"``, the output behind a norm of its
            own (Gemma-2 and later, OLMo-2 and 3); ``"norm of the sum"``, the output itself, but the sum with the residual
            is normed before anything reads it (BERT).
        multiplier: that number.
        gain: of the norm behind the output ``[d_model]``.
        epsilon: of that norm.
    """

    kind: str = PLAIN
    multiplier: float = 1.0
    gain: Tensor | None = None
    epsilon: float = 0.0

    def __call__(self, output: Tensor) -> Tensor:
        """What is added for any output ``[..., d_model]``, bias included.

        Example:
            >>> Addition("norm", gain=torch.ones(2))(torch.tensor([3.0, 3.0])).tolist()
            [1.0, 1.0]
        """
        if self.gain is None:
            return output if self.multiplier == 1 else self.multiplier * output
        return self.gain * output * (output.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()

    @property
    def is_linear(self) -> bool:
        """Whether a sum of outputs adds the sum of what each adds."""
        return self.gain is None


def find_addition(
    block: Any, residual: Tensor, output: Tensor, added: Tensor, tolerance: float
) -> tuple[Addition, str | None]:
    """The addition that takes a layer's real output to what its hook says is added, and why there is none.

    Args:
        block: the layer's block, among whose weights gains are looked for.
        residual: what came into the block ``[query, d_model]``.
        output: ``o_i + b_O`` ``[query, d_model]``.
        added: what the hook behind the attention holds ``[query, d_model]``.
        tolerance: of relative gaps.

    Returns:
        The addition, and None or the reason why no known one fits.

    Example:
        >>> output = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        >>> find_addition(torch.nn.Module(), output, output, 0.25 * output, 1e-4)[0].multiplier
        0.25
    """
    if _near(output, added, tolerance):
        return Addition(), None
    gain, failure = residual_gain(block, output, added, tolerance)
    if failure is None:
        for candidate in _candidates(block, gain, output, added):
            if _near(candidate(output), added, tolerance):
                return candidate, None
    elif any(_near(norm, added, tolerance) for norm in _norms(block, residual + output)):
        return Addition(NORM_OF_SUM), None
    return Addition(), (
        "what its attention adds to the residual stream is neither its output, a multiple of it nor a root-mean-square norm "
        "of it, so other attention cannot be put in its place"
    )


def _candidates(block: Any, gain: Tensor | None, output: Tensor, added: Tensor) -> Iterator[Addition]:
    if gain is None:
        yield Addition(MULTIPLE, ((output * added).sum() / output.square().sum()).item())
        return
    for epsilon in _epsilons(block):
        yield Addition(NORM, gain=gain, epsilon=epsilon)


def _epsilons(block: Any) -> list[float]:
    """Every number that a norm of the block adds before its root."""
    found = [getattr(module, name, None) for module in block.modules() for name in ("eps", "variance_epsilon")]
    return list(dict.fromkeys(number for number in found if isinstance(number, float)))


def _norms(block: Any, total: Tensor) -> Iterator[Tensor]:
    """The sum behind every layer norm that the block has."""
    shape = total.shape[-1:]
    for module in block.modules():
        weight, bias, epsilon = (getattr(module, name, None) for name in ("weight", "bias", "eps"))
        if not (isinstance(weight, Tensor) and isinstance(bias, Tensor) and isinstance(epsilon, float)):
            continue
        if weight.shape == bias.shape == shape:
            gain, shift = (at_least_float32(each.detach()).to(total.device) for each in (weight, bias))
            yield torch.nn.functional.layer_norm(total, shape, gain, shift, epsilon)


def _near(found: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())

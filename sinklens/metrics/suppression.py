"""Sinks as suppressors (arXiv 2606.07604): the norm of a head's output as a function of the mass on its sink.

With the mixture of the other tokens ``ō = (o - a ṽ_s) / (1 - a)`` the output at mass ``α`` is ``α ṽ_s + (1-α) ō``. Its
squared norm is a convex parabola in ``α``, so three inner products say everything: ``||ṽ_s||²``, ``<ṽ_s, ō>``, ``||ō||²``.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinklens.axes import HeadOutput, PerQuery

# Below this, float32 leaves 1 - a with less than about two digits, and the mixture of the others with none.
DEGENERATE_REST = 1e-5
# Below this share of ||ṽ_s||² + ||ō||², ||ṽ_s - ō||² is rounding, and so is the place of the least norm.
DEGENERATE_GAP = 1e-4

Scalars = Float[Tensor, "*rows"]
SinkValue = Float[Tensor, "batch #query head d_head"]


class Mixture(NamedTuple):
    """The inner products of the sink's value with the mixture of the others, the mass of least norm, and which rows have them."""

    sink_squared: PerQuery
    inner: PerQuery
    other_squared: PerQuery
    alpha_star: PerQuery
    defined: Bool[Tensor, "batch head query"]


def split_output(
    output: HeadOutput, sink_term: HeadOutput, sink_mass: PerQuery, sink_value: SinkValue | None = None
) -> Mixture:
    """Split head outputs into the sink's value and the mixture of the others, as inner products.

    The subtraction is made on vectors, not on squared norms, where float32 would lose half of its digits.

    Args:
        output: ``o_i`` in head space ``[batch, query, head, d_head]``.
        sink_term: ``a ṽ_s`` in head space, the part of ``o_i`` that comes from the sinks.
        sink_mass: ``a`` ``[batch, head, query]``.
        sink_value: ``ṽ_s``, one for all queries or one each, where it is known apart from ``a``; else ``sink_term / a``.

    Returns:
        A :class:`Mixture`. Not ``defined`` are rows with ``1 - a <= 1e-5``, without attention on a sink, or where the sink's
        value and the mixture coincide up to rounding.

    Example:
        >>> output, sink_term = torch.full((1, 1, 1, 1), 3.0), torch.full((1, 1, 1, 1), -1.0)
        >>> mixture = split_output(output, sink_term, torch.tensor([[[0.5]]]))
        >>> mixture.sink_squared.item(), mixture.inner.item(), mixture.other_squared.item()
        (4.0, -16.0, 64.0)
    """
    mass = sink_mass.transpose(1, 2)
    rest = 1 - mass
    has_value = sink_value is not None
    defined = (rest > DEGENERATE_REST) & (torch.ones_like(mass, dtype=torch.bool) if has_value else mass > 0)
    safe_rest = rest.masked_fill(~defined, 1.0)
    if sink_value is None:
        sink_value = sink_term / mass.masked_fill(~defined, 1.0).unsqueeze(-1)
    others = output - sink_term
    sink_squared = sink_value.square().sum(-1).expand_as(rest)
    inner = (sink_value * others).sum(-1) / safe_rest
    other_squared = (others.norm(dim=-1) / safe_rest).square()
    alpha = alpha_star(sink_squared, inner, other_squared)
    rows = [values.masked_fill(~defined, 0.0).transpose(1, 2) for values in (sink_squared, inner, other_squared, alpha)]
    sink_squared, inner, other_squared, alpha = rows
    return Mixture(sink_squared, inner, other_squared, alpha.nan_to_num(), defined.transpose(1, 2) & ~alpha.isnan())


def norm_curve(
    mass: Float[Tensor, " mass"], sink_squared: Scalars, inner: Scalars, other_squared: Scalars
) -> Float[Tensor, "*rows mass"]:
    """``N(α) = ||α ṽ_s + (1-α) ō||`` on a grid of masses, a root of a convex parabola (arXiv 2606.07604).

    Args:
        mass: the grid ``α``.
        sink_squared: ``||ṽ_s||²``, any shape.
        inner: ``<ṽ_s, ō>``.
        other_squared: ``||ō||²``.

    Returns:
        ``[..., mass]``, not negative.

    Example:
        >>> one = torch.tensor(1.0)
        >>> norm_curve(torch.tensor([0.0, 0.5, 1.0]), one, -one, one).tolist()
        [1.0, 0.0, 1.0]
    """
    s, c, o = (term.unsqueeze(-1) for term in (sink_squared, inner, other_squared))
    return (mass.square() * s + 2 * mass * (1 - mass) * c + (1 - mass).square() * o).clamp(min=0).sqrt()


def alpha_star(sink_squared: Scalars, inner: Scalars, other_squared: Scalars) -> Scalars:
    """The mass of least norm, ``α* = (||ō||² - <ṽ_s,ō>) / ||ṽ_s - ō||²`` (arXiv 2606.07604).

    Args:
        sink_squared: ``||ṽ_s||²``, any shape.
        inner: ``<ṽ_s, ō>``.
        other_squared: ``||ō||²``.

    Returns:
        The same shape, not clipped to 0 to 1: outside of it the norm is least at an end. NaN where ``ṽ_s`` and ``ō``
        coincide up to rounding.

    Example:
        >>> alpha_star(torch.tensor(1.0), torch.tensor(0.0), torch.tensor(3.0)).item()
        0.75
    """
    distance = sink_squared + other_squared - 2 * inner
    undefined = distance <= DEGENERATE_GAP * (sink_squared + other_squared)
    return (other_squared - inner) / distance.masked_fill(undefined, float("nan"))


def is_interior(sink_squared: Scalars, inner: Scalars, other_squared: Scalars) -> Bool[Tensor, "*rows"]:
    """True where the least norm lies strictly inside, ``0 < α* < 1``: ``<ṽ_s,ō> < min(||ṽ_s||², ||ō||²)`` (arXiv 2606.07604).

    Args:
        sink_squared: ``||ṽ_s||²``, any shape.
        inner: ``<ṽ_s, ō>``.
        other_squared: ``||ō||²``.

    Returns:
        Booleans of the same shape.

    Example:
        >>> is_interior(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 2.0]), torch.tensor([3.0, 5.0])).tolist()
        [True, False]
    """
    return inner < torch.minimum(sink_squared, other_squared)

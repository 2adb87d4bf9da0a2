"""Can a head switch itself off without its sink? What its values allow, whatever the pattern is (arXiv 2605.08453, form ours)."""

from dataclasses import dataclass

import numpy as np

from sinklens.axes import Embeddings
from sinklens.theory.arrays import checked_rows
from sinklens.theory.hulls import nearest_in_hull, numerical_rank


@dataclass(frozen=True)
class ZeroExclusion:
    """What the values of a head say of outputs near zero.

    Args:
        distance: of the origin from the values' convex hull, in the values' units: no output that reads only these values,
            with weights that sum to 1, is shorter.
        mean_norm: the mean of the values' norms.
        rank: numerical rank of the value matrix.
        full_rank: whether it is as large as the matrix allows.
        independent: whether the values are linearly independent, which excludes a zero output by itself.
    """

    distance: float
    mean_norm: float
    rank: int
    full_rank: bool
    independent: bool

    @property
    def excluded(self) -> bool:
        """Whether an output of exactly zero is excluded: the values lie strictly in a half-space."""
        return self.distance > 0

    @property
    def relative_distance(self) -> float:
        """``distance / mean_norm``, 0 to 1; 0 where all values are zero."""
        return self.distance / self.mean_norm if self.mean_norm > 0 else 0.0


def zero_exclusion(values: Embeddings) -> ZeroExclusion:
    """Whether any mixture of these values can be zero, and how short one can be.

    For the projected values of all tokens but the sink: if their hull keeps away from 0, an output of zero needs the sink.
    A query of a causal model sees some of the tokens only, and their hull is farther still: the test over all is sufficient.

    Args:
        values: ``[token, d_model]``, or coordinates that keep lengths and angles, such as head space.

    Returns:
        A :class:`ZeroExclusion`.

    Raises:
        InputError: no values, NaN.
        ConvergenceError: the nearest point was not found.

    Example:
        >>> import torch
        >>> exclusion = zero_exclusion(torch.tensor([[2.0, 0.0], [0.0, 2.0]]))
        >>> exclusion.excluded, exclusion.rank, exclusion.independent, round(exclusion.relative_distance, 4)
        (True, 2, True, 0.7071)
        >>> zero_exclusion(torch.tensor([[1.0, 0.0], [-3.0, 0.0]])).excluded
        False
    """
    rows = checked_rows(values, "values")
    rank = numerical_rank(values)
    return ZeroExclusion(
        nearest_in_hull(values).distance,
        float(np.linalg.norm(rows, axis=1).mean()),
        rank,
        rank == min(values.shape),
        rank == len(values),
    )

"""Controls: what an intervention must be compared with before its effect means anything."""

from sinklens.errors import InputError
from sinklens.interventions.hooks import Intervention
from sinklens.interventions.positions import RandomPositions
from sinklens.interventions.recipe import Recipe, require_seed


def placebo(hooks: Intervention, control: str = "position", *, seed: int = 0) -> Intervention:
    """The control of an intervention: the same edit elsewhere, or one of the same size in another direction (ours).

    - ``"position"``: the same edit of the same heads at random real positions that are no sinks, as many as there are
      sinks. They depend on the seed and on the sequence (on its tokens where the intervention was given ``tokens``,
      else on its row), and are the same in all layers.
    - ``"direction"``: for an edit of values ``v_s + Δ``, ``v_s + r`` with ``r`` in a random direction, fixed per layer and
      head, and ``||r W_O|| = ||Δ W_O||`` (over a group of query heads, the root of the summed squares). For an edit of
      the pattern, each query's output ``z_i + Δz_i`` becomes ``z_i + r_i``, ``||r_i W_O|| = ||Δz_i W_O||``.

    Args:
        hooks: from one of the functions that make interventions; not a sum of several.
        control: ``"position"`` or ``"direction"``.
        seed: of positions or directions, a whole number from 0 to 2^63 - 1.

    Returns:
        ``(hook_name, function)`` pairs.

    Raises:
        InputError: the hooks are no single intervention, there is no such control or seed, or the edit has no sink to move.
    """
    recipe = getattr(hooks, "recipe", None)
    if not isinstance(recipe, Recipe):
        raise InputError(
            "these hooks are no single intervention; take the control of each part, as in placebo(zero_sink_values(model))"
        )
    seed = require_seed(seed)
    if control == "direction":
        return recipe.make(recipe.choice, seed)
    if control != "position":
        raise InputError(f"control is {control!r}; expected 'position' or 'direction'")
    if recipe.choice is None:
        raise InputError("this edit has no sink that could be moved; take control='direction'")
    return recipe.make(RandomPositions(recipe.choice, seed), None)

"""Interventions for a block of code: proved to have fired and to have changed something, and always taken back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sinklens.errors import HookNotFiredError, InputError, NoEffectError, UnsupportedAttentionError
from sinklens.interventions.hooks import Edit, Hook, Observer, is_observer
from sinklens.interventions.patterns import REMEDY
from sinklens.interventions.targets import LayerTarget, uneditable
from sinklens.models.attention import ModelAttention
from sinklens.models.environment import one_line
from sinklens.models.hook_names import PATTERN, at_layer

# Observers of the contexts that are open on a model. An inner context asks them again after its own edits, so that the
# head-level edit of an outer one sees the final pattern.
_OPEN: WeakKeyDictionary[Any, list[Hook]] = WeakKeyDictionary()


@dataclass(eq=False)
class Tracked:
    """One hook of an intervention and what became of it.

    Attributes:
        name: of the hook.
        function: the user's or ours.
        is_lost: whether the back end throws what it returns away.
        is_optional: whether it says itself that it may change nothing.
        fired: how often it was called.
        returned: whether it ever returned a tensor.
        changed: whether such a tensor, or what came in, edited in place, ever differed from what came in.
    """

    name: str
    function: Callable[..., Any]
    is_lost: bool = False
    is_optional: bool = False
    fired: int = 0
    returned: bool = False
    changed: bool = False

    def __call__(self, tensor: Tensor, hook: Any) -> Any:
        """Call the function and look at what it does."""
        self.fired += 1
        # Looked at until the first difference only: a copy takes memory, and on a GPU every comparison waits for the device.
        before = None if self.changed else self._kept(tensor)
        result = self.function(tensor, hook=hook)
        self.returned = self.returned or isinstance(result, Tensor)
        if before is not None:
            after = result if isinstance(result, Tensor) else tensor
            self.changed = after is not before and not _same(after, before)
        if self.changed and self.is_lost:
            raise UnsupportedAttentionError(
                f"the edit at {self.name!r} is thrown away: this attention is computed inside the wrapped module; {REMEDY}"
            )
        return result

    def _kept(self, tensor: Tensor) -> Tensor:
        """What came in, as it stays when a function of the user's edits it in place; sinklens' own never do."""
        is_ours = str(getattr(self.function, "__module__", "")).startswith("sinklens.")
        return tensor if is_ours else tensor.detach().clone()

    @property
    def may_change_nothing(self) -> bool:
        """Whether the function only looks, is the identity by construction, or says that it may."""
        is_identity = isinstance(self.function, Edit) and self.function.identity
        return not self.returned or is_identity or self.is_optional


def _same(one: Tensor, other: Tensor) -> bool:
    if torch.equal(one, other):
        return True
    # NaN is not equal to itself, but a tensor with NaN that was only looked at has not changed.
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


@dataclass(frozen=True)
class InterventionRecord:
    """What became of the hooks of an :func:`intervene` block.

    Attributes:
        hooks: one per hook.
        passes: how many forward passes began.
    """

    hooks: tuple[Tracked, ...]
    passes: list[int] = field(default_factory=lambda: [0])

    @property
    def changed(self) -> bool:
        """Whether any edit has changed a tensor so far."""
        return any(tracked.changed for tracked in self.hooks)


@contextmanager
def intervene(model: Any, hooks: Iterable[Any], *, require_effect: bool = True) -> Iterator[InterventionRecord]:
    """Put an intervention on the model for a block of code, and prove that it worked.

    Blocks nest and compose in order: edits of the inner one see what the outer one made, and head-level edits of the
    outer one use the pattern that the inner one made. The user's own hooks stay and fire. Hooks are taken back whatever
    happens inside. When the block ends without an exception, every hook must have fired, and an edit must have changed a
    tensor in at least one pass, also in place. An edit that is the identity by construction (factor 1, strength 0, an empty
    mask), a function that returns nothing, and hooks or a function with an attribute ``may_change_nothing`` that is true
    (:func:`sinklens.mask_by_metric`) may change nothing.

    Args:
        model: a TransformerBridge or HookedTransformer.
        hooks: ``(hook_name, function)`` pairs, from sinklens or the user's own.
        require_effect: False lets an edit change nothing; the record tells.

    Yields:
        An :class:`InterventionRecord`.

    Raises:
        InputError: the hooks are no such pairs.
        HookNotFiredError: the model has no hook of that name, or it did not fire in the passes of the block.
        NoEffectError: an edit changed nothing.
        UnsupportedAttentionError: the back end throws an edit of a pattern away.
    """
    tracked = _tracked(model, hooks)
    record = InterventionRecord(tuple(tracked))
    outer = list(_OPEN.get(model, []))
    ordered = sorted(tracked, key=lambda each: is_observer(each.function))
    attached: list[Hook] = [(each.name, each) for each in ordered]
    with ExitStack() as stack:
        stack.callback(_close, model, outer, tracked)
        handle = model.register_forward_pre_hook(lambda *_: record.passes.__setitem__(0, record.passes[0] + 1))
        stack.callback(handle.remove)
        try:
            stack.enter_context(model.hooks(fwd_hooks=[*attached, *outer]))
        except (AssertionError, ValueError) as error:  # a hook behind a flag that is off
            raise HookNotFiredError(f"a hook cannot fire: {one_line(error)}") from error
        _OPEN[model] = outer + [(each.name, each.function) for each in tracked if is_observer(each.function)]
        yield record
        _require_fired(record)
        if require_effect:
            _require_effect(tracked)


def _tracked(model: Any, hooks: Iterable[Any]) -> list[Tracked]:
    pairs = list(hooks)
    known = model.hook_dict  # built anew at every access
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str) or not callable(pair[1]):
            raise InputError(f"hooks holds a {type(pair).__name__}; expected (hook_name, function) pairs")
        if pair[0] not in known:
            raise HookNotFiredError(f"the model has no hook {pair[0]!r}; see model.hook_dict for the names it has")
    lost, all_optional = _lost_patterns(model, pairs), bool(getattr(hooks, "may_change_nothing", False))
    return [
        Tracked(name, function, name in lost, all_optional or bool(getattr(function, "may_change_nothing", False)))
        for name, function in pairs
    ]


def _lost_patterns(model: Any, pairs: Sequence[Hook]) -> set[str]:
    """The pattern hooks among the user's own where an edit would be thrown away; sinklens' own edits were checked before."""
    names = {name for name, function in pairs if not isinstance(function, Edit | Observer)}
    if not any(name.endswith(PATTERN.rpartition(".")[2]) for name in names):
        return set()
    attention = ModelAttention(model)
    layer_of = {at_layer(PATTERN, layer): layer for layer in attention.layers}
    layer_of |= {str(attention.hook(PATTERN, layer)): layer for layer in attention.layers}
    used = {layer_of[name] for name in names if name in layer_of}
    lost = uneditable([LayerTarget(attention, layer, ()) for layer in sorted(used)])
    return {name for name, layer in layer_of.items() if layer in lost}


def _close(model: Any, outer: list[Hook], tracked: Sequence[Tracked]) -> None:
    _OPEN[model] = outer
    for each in tracked:
        if isinstance(each.function, Observer) and each.function.memory is not None:
            each.function.memory.tensors.clear()


def _require_fired(record: InterventionRecord) -> None:
    if not record.passes[0] and not any(each.fired for each in record.hooks):
        return  # no forward pass, nothing to prove
    silent = [each.name for each in record.hooks if not each.fired]
    if silent:
        raise HookNotFiredError(
            f"the hook {silent[0]!r} did not fire; the pass stopped before it, the attention is not run eagerly, "
            "or a flag of the model turns the hook off"
        )


def _require_effect(tracked: Sequence[Tracked]) -> None:
    idle = [each.name for each in tracked if each.fired and not each.changed and not each.may_change_nothing]
    if idle:
        raise NoEffectError(
            f"the edit at {idle[0]!r} changed nothing; there is no sink in the text, or the tensor already was what the "
            "edit makes of it. Pass require_effect=False if that is meant"
        )

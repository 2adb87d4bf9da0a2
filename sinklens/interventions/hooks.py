"""The callables of an intervention, and the list that carries them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinklens.errors import HookNotFiredError, InputError, UnsupportedAttentionError
from sinklens.interventions.edited import EditedHeads, edited_heads, keep_edited
from sinklens.interventions.edits import in_direction
from sinklens.interventions.positions import SinkChoice
from sinklens.interventions.targets import LayerTarget
from sinklens.metrics.head_space import expand_kv_heads
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.values import sink_mask
from sinklens.models.capture import Hook
from sinklens.models.hook_names import GATE, PATTERN, VALUE, Z
from sinklens.models.layer import at_least_float32


class Intervention(list[Hook]):
    """``(hook_name, function)`` pairs for ``model.run_with_hooks(tokens, fwd_hooks=...)``, ``model.hooks`` and ``intervene``.

    Interventions add up with ``+``; functions that only look come last, so that they see what all edits have made.

    Attributes:
        title: what is done, in words.
        heads: the query heads that move, by layer.
        recipe: what :func:`sinklens.placebo` needs to make the control, None for a sum.
    """

    def __init__(self, hooks: Iterable[Hook], title: str, heads: Mapping[int, Sequence[int]], recipe: Any = None):
        super().__init__(sorted(hooks, key=lambda hook: is_observer(hook[1])))
        self.title = title
        self.heads = {layer: tuple(chosen) for layer, chosen in heads.items()}
        self.recipe = recipe

    def __add__(self, other: Any) -> "Intervention":  # type: ignore[override]
        return _joined(self, other)

    def __iadd__(self, other: Any) -> "Intervention":  # type: ignore[override]
        return _joined(self, other)

    def __radd__(self, other: Any) -> "Intervention":
        return _joined(other, self)

    def __repr__(self) -> str:
        return f"Intervention({self.title}; {len(self)} hooks)"


def _joined(first: Any, second: Any) -> Intervention:
    parts = (first, second)
    titles = [part.title if isinstance(part, Intervention) else f"{len(part)} further hooks" for part in parts]
    heads: dict[int, tuple[int, ...]] = {}
    for part in parts:
        for layer, chosen in getattr(part, "heads", {}).items():
            heads[layer] = tuple(sorted({*heads.get(layer, ()), *chosen}))
    return Intervention([*first, *second], " + ".join(title for title in titles if title), heads)


def is_observer(function: Callable[..., Any]) -> bool:
    """Whether a hook's function only looks."""
    return isinstance(function, Observer)


class Edit(ABC):
    """A hook's function that returns a changed tensor. ``identity`` tells that it changes nothing by construction."""

    identity: bool = False

    @abstractmethod
    def __call__(self, tensor: Tensor, hook: Any) -> Tensor:
        """The edited tensor."""


@dataclass
class Memory:
    """What a layer's head-level edit has seen in the forward pass that runs now; forgotten when it has been used."""

    tensors: dict[str, Tensor] = field(default_factory=dict)

    def take(self, layer: int, gated: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pattern, value and gate as they were seen, a gate after its sigmoid; the memory is empty afterwards.

        Raises:
            HookNotFiredError: one of them has not come before the head outputs.
        """
        names = (PATTERN, VALUE, *((GATE,) if gated else ()))
        missing = [name for name in names if name not in self.tensors]
        if missing:
            raise HookNotFiredError(
                f"layer {layer}: {missing[0].format(layer=layer)!r} did not fire before the head outputs; "
                "pass all hooks of an intervention together, and an intervention once (make it anew to edit twice)"
            )
        found = [self.tensors.pop(name) for name in names]
        return found[0], found[1], torch.sigmoid(at_least_float32(found[2])) if gated else None


@dataclass(frozen=True, eq=False)
class Observer:
    """Remembers a tensor for the head-level edit of the layer; asked again after a further edit, it remembers that."""

    memory: Memory | None
    name: str

    def __call__(self, tensor: Tensor, hook: Any) -> None:
        """Remember; a pattern must be of a whole sequence."""
        if self.name == PATTERN:
            require_whole_sequences(tensor, "interventions")
        if self.memory is not None:
            self.memory.tensors[self.name] = tensor


def require_whole_sequences(pattern: Tensor, what: str) -> None:
    """Refuse a step of generation, whose queries are not those of all keys.

    Args:
        pattern: ``[..., query, key]``.
        what: needs whole sequences.

    Raises:
        InputError: it is such a step.
    """
    n_queries, n_keys = pattern.shape[-2:]
    # A single query may also be a step of generation: TransformerBridge 4.3 then gives a pattern of one key.
    if n_queries != n_keys or n_queries == 1:
        raise InputError(
            f"the model runs {n_queries} queries on {n_keys} keys; {what} need whole sequences of at least two tokens, not "
            "steps from a cache of keys and values (generate with use_past_kv_cache=False)"
        )


@dataclass(frozen=True, eq=False)
class ValueEdit(Edit):
    """Edits sink values at ``hook_v``: moves every query head that reads them.

    Attributes:
        target: layer and heads.
        choice: the sinks.
        change: gives what is added to values ``[sink, kv_head, d_head]``.
        identity: whether that is 0 by construction.
    """

    target: LayerTarget
    choice: SinkChoice
    change: Callable[[Tensor], Tensor]
    identity: bool = False

    def __call__(self, hooked: Tensor, hook: Any) -> Tensor:
        """The values ``[batch, key, kv_head, d_head]``, or as the hook has them, changed at the sinks."""
        value = self.target.attention.heads_apart(VALUE, self.target.layer, hooked)
        require_values(self.target, value)
        sink = self.choice.find((value.shape[0], value.shape[1]), value.device)
        row, column = (sink >= 0).nonzero(as_tuple=True)
        kv_heads = torch.tensor(self.target.kv_heads, device=value.device)
        index = (row.unsqueeze(-1), sink[row, column].unsqueeze(-1), kv_heads)
        old = at_least_float32(value[index])
        edited = value.index_put(index, (old + self.change(old)).to(value.dtype))
        return self.target.attention.as_hooked(VALUE, self.target.layer, edited, hooked)


@dataclass(frozen=True, eq=False)
class PatternEdit(Edit):
    """Edits the pattern of some heads at ``hook_pattern``.

    Attributes:
        target: layer and heads.
        edit: gives the edited pattern of these heads, from theirs and that of all heads.
        identity: whether that is the same by construction.
    """

    target: LayerTarget
    edit: Callable[[Tensor, Tensor], Tensor]
    identity: bool = False

    def __call__(self, pattern: Tensor, hook: Any) -> Tensor:
        """The pattern ``[batch, head, query, key]``, edited in the chosen heads."""
        Observer(None, PATTERN)(pattern, hook)
        whole = at_least_float32(pattern)
        if len(self.target.heads) == pattern.shape[1]:
            return self.edit(whole, whole).to(pattern.dtype)
        heads = torch.tensor(self.target.heads, device=pattern.device)
        edited = self.edit(whole[:, heads], whole)
        return pattern.index_copy(1, heads, edited.to(pattern.dtype))


class HeadChange(NamedTuple):
    """What an edit does to some heads.

    Attributes:
        output: added to their outputs before a gate ``[batch, query, head, d_head]``.
        value: their values afterwards ``[batch, key, head, d_head]``; None where they stay.
    """

    output: Tensor
    value: Tensor | None = None


@dataclass(frozen=True, eq=False)
class HeadOutputEdit(Edit):
    """Edits the outputs of single query heads at ``hook_z``, from the pattern and the values that were seen before.

    Edits compose: a later one starts from the values that an earlier one has left (:mod:`sinklens.interventions.edited`).

    Attributes:
        target: layer and heads.
        memory: filled by the layer's observers.
        change: gives it from pattern ``[batch, head, query, key]`` and values ``[batch, key, head, d_head]`` of the chosen
            heads, and the pattern of all.
        adjust: what becomes of the change of outputs after the gate; None for nothing.
        identity: whether nothing is added by construction.
    """

    target: LayerTarget
    memory: Memory
    change: Callable[[Tensor, Tensor, Tensor], HeadChange]
    adjust: Callable[[Tensor], Tensor] | None = None
    identity: bool = False

    def __call__(self, hooked: Tensor, hook: Any) -> Tensor:
        """The head outputs ``[batch, query, head, d_head]``, or as the hook has them, changed in the chosen heads."""
        attention, layer = self.target.attention, self.target.layer
        seen_pattern, seen_value, gate = self.memory.take(layer, attention.is_gated)
        z = attention.heads_apart(Z, layer, hooked)
        now = edited_heads(seen_value) or self._as_seen(seen_pattern, seen_value, z.device)
        heads = torch.tensor(self.target.heads, device=z.device)
        change = self.change(now.pattern[:, heads], now.value[:, :, heads], now.pattern)
        output = change.output if gate is None else change.output * gate.to(z.device).view_as(z)[:, :, heads]
        if self.adjust is not None:
            output = self.adjust(output)
        elif change.value is not None:
            keep_edited(seen_value, now._replace(value=now.value.index_copy(2, heads, change.value)))
        edited = at_least_float32(z[:, :, heads]) + output
        return attention.as_hooked(Z, layer, z.index_copy(2, heads, edited.to(z.dtype)), hooked)

    def _as_seen(self, pattern: Tensor, value: Tensor, device: torch.device) -> EditedHeads:
        apart = self.target.attention.heads_apart(VALUE, self.target.layer, at_least_float32(value))
        require_values(self.target, apart)
        expanded = expand_kv_heads(apart.to(device), self.target.n_heads)
        return EditedHeads(at_least_float32(pattern).to(device), expanded)


def require_values(target: LayerTarget, value: Tensor) -> None:
    """Values must come with their heads apart.

    Raises:
        UnsupportedAttentionError: they come in another layout.
    """
    if value.ndim != 4 or value.shape[2] != target.n_kv_heads:
        raise UnsupportedAttentionError(
            f"layer {target.layer}: values have shape {tuple(value.shape)}; expected "
            f"[batch, key, {target.n_kv_heads} key/value heads, d_head]: a layout that sinklens does not edit"
        )


def observers(target: LayerTarget, memory: Memory) -> list[Hook]:
    """What a head-level edit of the layer must see."""
    names = (VALUE, PATTERN, *((GATE,) if target.attention.is_gated else ()))
    return [(target.hook(name), Observer(memory, name)) for name in names]


def found_sinks(target: LayerTarget, choice: SinkChoice, pattern: Tensor) -> Tensor:
    """The sinks of the sequences that a layer's pattern, of all heads, belongs to ``[batch, sink]``."""
    shape = (pattern.shape[0], pattern.shape[-1])
    return choice.find(shape, pattern.device, lambda: (pattern, target.visible(choice.real(shape, pattern.device))))


def sink_keys(target: LayerTarget, choice: SinkChoice, pattern: Tensor) -> Tensor:
    """True on the sinks ``[batch, key]``."""
    return sink_mask(found_sinks(target, choice, pattern), pattern.shape[-1])


def change_of_sink_values(
    target: LayerTarget, choice: SinkChoice, change: Callable[[Tensor], Tensor]
) -> Callable[[Tensor, Tensor, Tensor], HeadChange]:
    """``Σ_s A_is Δv_s``: what a change of the sinks' values does to the output of heads that read them."""

    def head_output(pattern: Tensor, value: Tensor, whole: Tensor) -> HeadChange:
        sink = found_sinks(target, choice, whole)
        index = sink.clamp(min=0)[:, :, None, None].expand(-1, -1, *value.shape[2:])
        changed = change(value.gather(1, index)) * (sink >= 0)[:, :, None, None]
        output = (attention_on(pattern, sink) @ changed.transpose(1, 2)).transpose(1, 2)
        return HeadChange(output, value.scatter_add(1, index, changed))

    return head_output


def change_of_pattern(edit: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor, Tensor], HeadChange]:
    """``(A' - A) v``: what an edit of the pattern does to the heads' outputs."""

    def head_output(pattern: Tensor, value: Tensor, whole: Tensor) -> HeadChange:
        return HeadChange(((edit(pattern, whole) - pattern) @ value.transpose(1, 2)).transpose(1, 2))

    return head_output


_FAR = 1_000_003  # between the seeds of two seeds, more than any model has layers


def _fitting(seed: int) -> int:
    """A seed that stays within 64 bits when it is multiplied; below nine million million it is the seed itself.

    Example:
        >>> _fitting(7), _FAR * _fitting(2**63 - 1) < 2**63
        (7, True)
    """
    return seed % ((2**63 - 1) // _FAR - 1)


def random_direction(target: LayerTarget, heads: Sequence[int], grouped: bool, seed: int) -> Callable[[Tensor], Tensor]:
    """Turns a change into one of the same length after ``W_O`` in a random direction, fixed per layer and head.

    Args:
        target: the layer.
        heads: the query heads, or key/value heads where ``grouped``, that the change has.
        grouped: whether each vector is read by a whole group of query heads.
        seed: of the directions.
    """
    chosen = list(heads)

    def turned(change: Tensor) -> Tensor:
        factor = target.head_factor(change.device).to(change.dtype)
        readers = factor.unflatten(0, (-1, target.group_size if grouped else 1))[chosen]
        generator = torch.Generator().manual_seed(_FAR * _fitting(seed) + target.layer)
        drawn = torch.randn(target.n_heads, factor.shape[1], generator=generator)[chosen]
        return in_direction(change, drawn.to(change), readers)

    return turned

"""Which heads an intervention moves, and whether the model lets it."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.metrics.visibility import visible_keys
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import hooked
from sinklens.models.environment import one_line
from sinklens.models.factors import cached_head_factor
from sinklens.models.hook_names import PATTERN, Z
from sinklens.results.labels import check_head, describe_numbers, whole_number

Heads = Iterable[Iterable[SupportsIndex]] | None
Layers = Iterable[SupportsIndex] | None

# By attention module: whether an edit of the pattern reaches the head outputs.
_EDITABLE: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


@dataclass(frozen=True)
class LayerTarget:
    """The heads of one layer that are moved, and what is known of the layer before it runs.

    Attributes:
        attention: the model's.
        layer: the model's own number.
        heads: the query heads that were chosen, ascending.
    """

    attention: ModelAttention
    layer: int
    heads: tuple[int, ...]

    @property
    def n_heads(self) -> int:
        """The number of query heads."""
        return self.attention.model.cfg.n_heads

    @property
    def n_kv_heads(self) -> int:
        """The number of key/value heads."""
        return self.attention.n_kv_heads(self.layer)

    @property
    def d_head(self) -> int:
        """How many numbers a head's value has."""
        return self.attention.output_weights(self.layer)[0].shape[1]

    @property
    def group_size(self) -> int:
        """How many query heads read one key/value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def kv_heads(self) -> tuple[int, ...]:
        """The key/value heads that the chosen heads read."""
        return tuple(sorted({head // self.group_size for head in self.heads}))

    @property
    def moved_by_kv(self) -> tuple[int, ...]:
        """All query heads that read one of these key/value heads."""
        return tuple(head for head in range(self.n_heads) if head // self.group_size in self.kv_heads)

    def hook(self, template: str) -> str:
        """The canonical name of a hook of the layer."""
        return str(self.attention.hook(template, self.layer))

    def visible(self, real: Tensor) -> Tensor:
        """Which keys each query sees ``[batch, query, key]``."""
        return visible_keys(real, self.attention.is_causal, self.attention.window(self.layer))

    def head_factor(self, device: torch.device) -> Tensor:
        """``F`` ``[head, d_head, d_head]`` with ``||x F|| = ||x W_O||``."""
        W_O = self.attention.output_weights(self.layer)[0].to(device)
        return cached_head_factor(self.attention.module(self.layer), W_O)


def choose(model: Any, heads: Heads, layers: Layers) -> list[LayerTarget]:
    """The heads that the user named, by layer; all of all layers where nothing is named.

    Args:
        model: a TransformerBridge or HookedTransformer.
        heads: ``(layer, head)`` pairs.
        layers: layer numbers, every head of each.

    Raises:
        InputError: no such layer or head, or both arguments are given.
    """
    if heads is not None and layers is not None:
        raise InputError(
            "heads and layers are both given; name heads as (layer, head) pairs, or whole layers, not both"
        )
    n_heads = getattr(getattr(model, "cfg", None), "n_heads", 0)
    if heads is None:
        attention = ModelAttention(model, layers)
        return [LayerTarget(attention, layer, tuple(range(n_heads))) for layer in attention.layers]
    pairs = head_pairs(heads)
    attention = ModelAttention(model, [layer for layer, _ in pairs])
    by_layer: dict[int, set[int]] = {}
    for layer, head in pairs:
        by_layer.setdefault(layer, set()).add(check_head(n_heads, head))
    return [LayerTarget(attention, layer, tuple(sorted(by_layer[layer]))) for layer in attention.layers]


def head_pairs(heads: Iterable[Any]) -> list[tuple[int, int]]:
    """Heads as pairs of plain whole numbers, whichever library's they were.

    Raises:
        InputError: they are no ``(layer, head)`` pairs, or there are none.

    Example:
        >>> head_pairs([[12, 3]])
        [(12, 3)]
    """
    if not isinstance(heads, Iterable) or isinstance(heads, str):
        raise InputError(f"heads is {heads!r}; expected (layer, head) pairs such as [(12, 3)]")
    pairs = [_pair(pair) for pair in heads]
    if not pairs:
        raise InputError("no head was named; pass at least one (layer, head) pair, or leave heads out for all")
    return pairs


def _pair(pair: Any) -> tuple[int, int]:
    numbers = [whole_number(number) for number in pair] if isinstance(pair, Iterable) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise InputError(f"heads holds {pair!r}; expected (layer, head) pairs such as (12, 3)")
    return numbers[0], numbers[1]


def described(heads: Mapping[int, Sequence[int]], n_heads: int) -> str:
    """Heads by layer in words.

    Example:
        >>> described({3: (0, 1)}, 2), described({3: (0,), 4: (0, 1)}, 2)
        ('layer 3', 'heads 3.0, 4.0, 4.1')
    """
    if all(len(chosen) == n_heads for chosen in heads.values()):
        return f"layer{'s' if len(heads) > 1 else ''} {describe_numbers(list(heads))}"
    names = [f"{layer}.{head}" for layer, chosen in heads.items() for head in chosen]
    return f"head{'s' if len(names) > 1 else ''} " + ", ".join(names)


def require_plain_values(targets: Iterable[LayerTarget]) -> None:
    """Make sure that values come as one vector per key/value head.

    Raises:
        UnsupportedAttentionError: naming the first layer of latent attention (MLA).
    """
    for target in targets:
        if target.attention.latent_width(target.layer) is not None:
            continue
        try:
            _ = target.attention.module(target.layer).b_V
        except NotImplementedError as error:
            raise UnsupportedAttentionError(
                f"{target.attention.name}, layer {target.layer}: latent attention (MLA) has values of another layout; "
                "use interventions on patterns (set_sink_mass, remove_sink_attention)"
            ) from error
        except AttributeError:
            continue


def uneditable(targets: Sequence[LayerTarget]) -> list[int]:
    """The layers where an edit of the pattern does not reach the output; found by one short forward pass, and remembered."""
    unknown = [target for target in targets if target.attention.module(target.layer) not in _EDITABLE]
    if unknown:
        _probe(unknown)
    return [target.layer for target in targets if not _EDITABLE[target.attention.module(target.layer)]]


def require_editable(targets: Sequence[LayerTarget], remedy: str) -> None:
    """Make sure that an edit of the pattern reaches the output.

    Raises:
        UnsupportedAttentionError: naming the layers where the back end throws such an edit away.
    """
    lost = uneditable(targets)
    if lost:
        raise UnsupportedAttentionError(
            f"{targets[0].attention.name}, layer {describe_numbers(lost)}: {targets[0].attention.backend} computes this "
            f"attention inside the wrapped module and throws an edit of the pattern away; {remedy}"
        )


def _probe(targets: Sequence[LayerTarget]) -> None:
    """With a pattern of zeros the head outputs are zero, exactly where edits of the pattern are used."""
    attention = targets[0].attention
    reached: dict[int, bool] = {}
    nan: list[int] = []

    def watch(layer: int) -> Any:
        def note(z: Tensor, hook: Any) -> None:
            reached[layer] = not bool(torch.count_nonzero(z))
            nan.extend([layer] if bool(z.isnan().any()) else [])

        return note

    hooks = [(target.hook(PATTERN), _zeros) for target in targets]
    hooks += [(target.hook(Z), watch(target.layer)) for target in targets]
    tokens = torch.arange(min(3, attention.model.cfg.d_vocab), device=attention.device).unsqueeze(0)
    try:
        with warnings.catch_warnings(), torch.no_grad(), hooked(attention.model, hooks) as forward:
            # TransformerLens warns where it throws the edit away; that is just what is being found out.
            warnings.simplefilter("ignore", UserWarning)
            forward(tokens, return_type=None)
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise UnsupportedAttentionError(
            f"{attention.name}: whether edits of the pattern are used cannot be found out with three tokens "
            f"({one_line(error)}); expected a model that reads token ids"
        ) from error
    if nan:  # zeros times NaN, which says nothing of edits and is not to be remembered
        raise UnsupportedAttentionError(
            f"{attention.name}, layer {min(nan)}: its head outputs hold NaN; look at its weights"
        )
    for target in targets:
        _EDITABLE[attention.module(target.layer)] = reached[target.layer]


def _zeros(tensor: Tensor, hook: Any) -> Tensor:
    return torch.zeros_like(tensor)

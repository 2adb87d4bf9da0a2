"""Attention maps of one prompt: every importance metric of every head."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.analyzers.run import run
from sinklens.errors import InputError
from sinklens.metrics.contributions import gated_value_norms, inter_directions
from sinklens.metrics.head_space import to_head_space
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader
from sinklens.models.environment import available_memory
from sinklens.models.frames import warn_once
from sinklens.models.hook_names import PATTERN, at_layer
from sinklens.models.labels import token_labels
from sinklens.models.layer import LayerAttention
from sinklens.models.patches import as_image, position_labels, reads_images
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import tokenize
from sinklens.results import attention_maps as result
from sinklens.results.provenance import Provenance

# The pattern in float32, for every head, query and key; and three vectors for every head and position.
BYTES_PER_NUMBER = 4


class AttentionMaps(result.AttentionMaps):
    """The maps of one prompt, as :class:`sinklens.results.AttentionMaps`, and the way to them from a cache."""

    @classmethod
    def from_cache(
        cls,
        model: Any,
        cache: Any,
        layers: Iterable[int] | None = None,
        *,
        tokens: Tensor | None = None,
        sink: Sink | SinkRule = "first",
    ) -> "AttentionMaps":
        """The same maps from an ``ActivationCache`` that already exists; no forward pass.

        The cache must hold ``hook_pattern``, ``hook_v`` and ``hook_z`` of each layer (``names_filter`` may leave the rest out).

        Args:
            model: the model that made the cache.
            cache: an ``ActivationCache``, or a dictionary by hook name, of one prompt, with or without the batch axis.
            layers: the model's own layer numbers; None for all that the model has.
            tokens: the prompt's ids ``[position]``, for labels; positions are shown where they are not given.
            sink: as in :func:`attention_maps`.

        Returns:
            The maps.

        Raises:
            InputError: the cache lacks an activation or holds more than one prompt, or the tokens do not fit it.
            UnsupportedAttentionError: a layer does not decompose into attention times values.
        """
        return _maps_from_cache(model, cache, layers, tokens, sink)


class MapsAnalyzer(Analyzer):
    """Keeps the maps of one prompt; its ``result`` is an :class:`~sinklens.AttentionMaps`.

    Args:
        labels: gives a label per position from the token ids.

    Example:
        >>> MapsAnalyzer(lambda tokens: [str(token) for token in tokens.tolist()]).hooks
        ()
    """

    def __init__(self, labels: Any):
        self.labels = labels

    def start(self, setup: Setup) -> None:
        """Start without a layer."""
        self.layers = setup.layers
        self.tensors: dict[str, Tensor] = {}
        self._done: set[int] = set()
        self.sinks: set[int] = set()
        self.tokens: Tensor | None = None
        self.learned_sink = False

    def update(self, attention: LayerAttention) -> None:
        """Keep one layer of the prompt.

        Raises:
            InputError: the batch holds more than one sequence.
        """
        if len(attention.tokens) != 1 or attention.index in self._done:
            raise InputError("maps are of one prompt; got several. Pass one text, or call attention_maps for each")
        self._done.add(attention.index)
        for name, tensor in layer_maps(attention).items():
            kept = self.tensors.get(name)
            if kept is None:
                kept = torch.empty(len(self.layers), *tensor.shape[1:], dtype=tensor.dtype)
            # Heads of unlike layers differ in width (Gemma-4); zeros change no product of them.
            width = max(kept.shape[-1], tensor.shape[-1])
            self.tensors[name] = kept = _widened(kept, width)
            kept[attention.index] = _widened(tensor[0], width)
        self.sinks |= set(attention.sink[attention.sink >= 0].tolist())
        self.tokens = attention.tokens[0].cpu()
        self.learned_sink |= attention.weights.learned_sink

    def result(self, provenance: Provenance) -> AttentionMaps:
        """The maps of all layers."""
        assert self.tokens is not None
        return AttentionMaps(
            **self.tensors,
            tokens=tuple(self.labels(self.tokens)), token_ids=tuple(self.tokens.tolist()), layers=self.layers,
            sink_positions=tuple(sorted(self.sinks)), provenance=provenance, learned_sink=self.learned_sink,
        )  # fmt: skip


def _widened(tensor: Tensor, width: int) -> Tensor:
    # Padding by nothing copies, which for all layers' maps costs more than the pass.
    missing = width - tensor.shape[-1]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def layer_maps(attention: LayerAttention) -> dict[str, Tensor]:
    """What maps of one layer keep.

    Returns:
        ``attention`` ``[batch, head, query, key]``; ``value``, ``direction``, ``layer_direction``
        ``[batch, position, head, d_head]``; ``value_norm`` ``[batch, head, key]``, or ``[batch, head, query, key]`` under a
        gate; ``output_norm`` ``[batch, head, query]``; ``layer_norm`` ``[batch, query]``; ``visible`` ``[batch, query, key]``.
    """
    along_layer, layer_squared = inter_directions(attention.output, attention.W_O)
    return {
        "attention": attention.pattern,
        "layer_direction": gated(along_layer, attention),
        **head_vectors(attention),
        "layer_norm": layer_squared.sqrt()[:, 0],
        "visible": attention.visible,
    }


def head_vectors(attention: LayerAttention) -> dict[str, Tensor]:
    """The part of :func:`layer_maps` that contributions within a head follow from."""
    return {
        "value": attention.head_value,
        "direction": gated(to_head_space(attention.head_output, attention.weights.factor.mT), attention),
        "value_norm": _value_norms(attention),
        "output_norm": attention.head_output.norm(dim=-1).transpose(1, 2),
    }


def gated(directions: Tensor, attention: LayerAttention) -> Tensor:
    """Directions ``[batch, query, head, d_head]`` times the gate, if there is one."""
    return directions if attention.gate is None else directions * attention.gate


def _value_norms(attention: LayerAttention) -> Tensor:
    if attention.gate is None:
        return attention.value_norm
    return gated_value_norms(attention.head_value, attention.W_O, attention.gate)


def attention_maps(
    model: Any,
    text: Any,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    frame: str = "attention",
    prepend_bos: bool | None = None,
) -> AttentionMaps:
    """Every importance metric of every head for one prompt, in one forward pass.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        text: a string, token ids ``[position]``, or for a model of images the pixels ``[1, channel, row, column]``.
        layers: the model's own layer numbers; None for all. Maps of ``T`` tokens take about ``4 T²`` bytes a head.
        sink: ``"first"``, ``"token:ID"``, positions, or ``"detect"``; only recorded here, no metric depends on it.
        frame: ``"attention"`` or ``"residual"``, as in :func:`sinklens.run`.
        prepend_bos: True or False overrides what the model's tokenizer does.

    Returns:
        :class:`~sinklens.AttentionMaps`.

    Raises:
        InputError: the text is empty or longer than the model's context, the maps do not fit into memory, or an argument
            cannot be used.
        HookNotFiredError: a hook did not fire exactly once.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    if reads_images(model):
        analyzer = MapsAnalyzer(lambda row: position_labels(model, len(row)))
        image = as_image(model, text)
        [maps] = run(model, image, [analyzer], layers=layers, sink=sink, frame=frame, progress=False)
        return dataclasses.replace(maps, token_ids=())
    one = [text] if isinstance(text, str) else text
    batches = tokenize(
        model,
        one,
        context_length=model.cfg.n_ctx,
        batch_size=1,
        prepend_bos=prepend_bos,
        overflow="error",
        min_length=1,
    )
    chosen = None if layers is None else tuple(layers)
    _require_memory(ModelAttention(model, chosen), next(iter(batches)).tokens.shape[1])
    analyzer = MapsAnalyzer(lambda tokens: token_labels(model, tokens))
    [maps] = run(model, batches, [analyzer], layers=chosen, sink=sink, frame=frame, progress=False)
    return maps


def _of_one(attention: ModelAttention, sink: SinkRule, length: int) -> Provenance:
    """The provenance of maps of one prompt or image that was not tokenized here."""
    return attention.provenance(sink.describe(), context_length=length, n_documents=1, n_sequences=1, n_tokens=length)


def _require_memory(attention: ModelAttention, length: int) -> None:
    """Say before the pass, not in the middle of it, that the maps will not fit."""
    cfg = attention.model.cfg
    needed = len(attention.layers) * cfg.n_heads * BYTES_PER_NUMBER * length * (length + 3 * cfg.d_head)
    available = available_memory(torch.device("cpu"))
    if available is not None and needed > available:
        raise InputError(
            f"maps of {len(attention.layers)} layers at {length} tokens take {needed / 1e9:.1f} GB, "
            f"{available / 1e9:.1f} GB are free; choose fewer layers with layers=[...], or a shorter text"
        )


def _maps_from_cache(
    model: Any, cache: Any, layers: Iterable[int] | None, tokens: Tensor | None, sink: Sink | SinkRule
) -> AttentionMaps:
    attention = ModelAttention(model, layers)
    reader = LayerReader(attention, sink_rule(sink))
    if tokens is None and reader.sink.kind == "token":
        raise InputError(f"sink {reader.sink.describe()!r} needs the prompt's ids; pass tokens= of the cache")
    if tokens is not None and not isinstance(tokens, Tensor):
        raise InputError(f"tokens is a {type(tokens).__name__}; expected the tensor of ids that made the cache")
    length = _cached_length(attention, cache)
    ids = torch.zeros(1, length, dtype=torch.long) if tokens is None else tokens.reshape(1, -1).cpu()
    if ids.shape[1] != length:
        raise InputError(f"{ids.shape[1]} tokens do not fit a cache of {length} positions; pass the cache's own tokens")
    warn_once(attention.name, attention.frame)
    analyzer = MapsAnalyzer(
        (lambda row: position_labels(model, len(row))) if tokens is None else lambda row: token_labels(model, row)
    )
    analyzer.start(Setup(attention.layers, model.cfg.n_heads, attention.name))
    with torch.no_grad():
        for index, layer in enumerate(attention.layers):
            reader.replay(index, layer, ids, cache, analyzer.update)
    provenance = _of_one(attention, reader.sink, length)
    maps = analyzer.result(provenance)
    return maps if tokens is not None else dataclasses.replace(maps, token_ids=())


def _cached_length(attention: ModelAttention, cache: Any) -> int:
    names = [attention.hook(PATTERN, attention.layers[0]), at_layer(PATTERN, attention.layers[0])]
    for name in names:
        if name in cache:
            return cache[name].shape[-1]
    raise InputError(f"the cache has no {names[-1]!r}; cache it too (names_filter, or none)")

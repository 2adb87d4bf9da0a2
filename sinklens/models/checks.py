"""check_model: one short prompt, twice, shows for each layer whether its attention decomposes and can be edited."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import InputError
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader, hooked
from sinklens.models.hook_names import PATTERN
from sinklens.models.images import ImageBatches
from sinklens.models.layer import LayerAttention
from sinklens.models.patches import as_image, noise, reads_images
from sinklens.models.sinks import sink_rule
from sinklens.models.tokens import tokenize
from sinklens.models.verify import TOLERANCE
from sinklens.results.model_check import LayerCheck, ModelCheck

PROMPT = "Attention is not explanation: a token also acts through the size and the direction of its value."
EDIT = 0.5


def check_model(model: Any, text: Any = None) -> ModelCheck:
    """Does the decomposition hold on this model, layer by layer, and do edits of the pattern reach the logits?

    Compared on a short prompt: ``z`` with ``A v``; ``Σ_h z W_O + b_O`` with the attention's output; row sums with 1;
    and, in a second pass with halved patterns, whether every layer's ``z`` and the logits follow.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        text: a prompt, token ids, or for a model of images pixels ``[1, channel, row, column]`` of your own.

    Returns:
        :class:`~sinklens.results.model_check.ModelCheck`; print it, or take ``to_dataframe()``.

    Raises:
        InputError: it is no model, or the prompt cannot be used.
        UnsupportedAttentionError: it has no layer with an attention that could be read, or its weights are packed.
    """
    attention = ModelAttention(model)
    tokens = check_prompt(model, text)
    failures: dict[int, str] = {}
    views: dict[int, LayerAttention] = {}
    reader = LayerReader(attention, sink_rule("first"), on_failure=failures.setdefault, sampled=None)

    def remember(view: LayerAttention) -> None:
        views[view.layer] = view

    read_prompt(reader, tokens, remember)
    editable, logits_change = _edited(attention, tokens, failures)
    layers = [_layer_check(reader, layer, views.get(layer), failures, editable) for layer in attention.layers]
    layers += [LayerCheck(layer, reason, skipped=True) for layer, reason in attention.skipped.items()]
    ordered = tuple(sorted(layers, key=lambda check: check.layer))
    return ModelCheck(attention.name, attention.backend, attention.frame, attention.dtype, ordered, logits_change)


def read_prompt(reader: LayerReader, prompt: Tensor, receive: Callable[[LayerAttention], object]) -> None:
    """Run what :func:`check_prompt` gave; ``receive`` is called once per layer."""
    if prompt.is_floating_point():
        batch = next(iter(ImageBatches(reader.attention, prompt)))
        reader.read(batch.tokens, batch.mask, receive, batch.pixels)
    else:
        reader.read(prompt, torch.ones_like(prompt, dtype=torch.bool), receive)


def check_prompt(model: Any, text: Any = None) -> Tensor:
    """Token ids ``[1, position]``, or the pixels of one image."""
    if reads_images(model):
        return noise(model) if text is None else as_image(model, text)
    if text is None:
        return _built_in_prompt(model)
    batches = tokenize(model, text, batch_size=1, overflow="cut", max_documents=1)
    return next(iter(batches)).tokens


def _built_in_prompt(model: Any) -> Tensor:
    """An English sentence; plain ids where there is no tokenizer, or one of a few words of its own."""
    ids = torch.arange(min(24, model.cfg.n_ctx)) % model.cfg.d_vocab
    if getattr(model, "tokenizer", None) is None:
        return ids.unsqueeze(0)
    try:
        return next(iter(tokenize(model, [PROMPT], overflow="cut"))).tokens
    except InputError:
        return ids.unsqueeze(0)


def _layer_check(
    reader: LayerReader, layer: int, view: LayerAttention | None, failures: dict[int, str], editable: set[int]
) -> LayerCheck:
    found = reader.identities.get(layer)
    if found is None or view is None:
        return LayerCheck(layer, "", failure=failures.get(layer, "not reached"))
    return LayerCheck(
        layer, _describe(view), found.head_gap, found.output_gap, found.row_gap, found.output_hook or "",
        editable=layer in editable, failure=failures.get(layer),
    )  # fmt: skip


def _describe(view: LayerAttention) -> str:
    n_kv_heads = view.value.shape[2]
    parts = [f"{view.n_heads} heads" + (f" on {n_kv_heads} key/value heads" if n_kv_heads != view.n_heads else "")]
    parts += [f"window {view.weights.window}"] if view.weights.window else []
    parts += ["learned sink"] if view.weights.learned_sink else []
    parts += ["gated"] if view.gate is not None else []
    parts += [] if view.weights.causal else ["bidirectional"]
    return ", ".join(parts)


def _edited(attention: ModelAttention, tokens: Tensor, failures: dict[int, str]) -> tuple[set[int], bool]:
    """Halve every pattern: which layers' head outputs are half of what their unedited pattern gives, and do logits change?"""
    model, editable = attention.model, set[int]()
    tolerance = TOLERANCE.get(attention.dtype, TOLERANCE["float32"])

    def receive(view: LayerAttention) -> None:
        expected = (view.pattern @ view.head_value.transpose(1, 2)).transpose(1, 2)
        expected = expected if view.gate is None else expected * view.gate
        scale = expected.abs().max()
        if (view.z - expected).abs().max() <= tolerance * scale:
            editable.add(view.layer)

    usable = [layer for layer in attention.layers if layer not in failures]
    edits = [(str(attention.hook(PATTERN, layer)), _halve) for layer in usable]
    with warnings.catch_warnings(), torch.no_grad():
        # TransformerLens warns where it throws the edit away; that is just what is being found out.
        warnings.simplefilter("ignore", UserWarning)
        plain = _logits(model(tokens.to(attention.device)))
        with hooked(model, edits) as forward:
            edited = _logits(_read_edited(attention, usable, tokens, receive, forward))
    return editable, bool((plain - edited).abs().max() > 0)


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def _halve(tensor: Tensor, hook: Any) -> Tensor:
    return tensor * EDIT


def _read_edited(
    attention: ModelAttention, layers: list[int], tokens: Tensor, receive: Callable[[LayerAttention], object],
    forward: Callable[..., Any],
) -> Any:  # fmt: skip
    if not layers:
        return forward(tokens.to(attention.device))
    reader = LayerReader(
        ModelAttention(attention.model, layers), sink_rule("first"), on_failure=lambda layer, failure: None
    )
    read_prompt(reader, tokens, receive)
    return forward(tokens.to(attention.device))

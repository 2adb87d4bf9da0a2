"""A model's attention: which layers have one that sinklens can read, their weights and what each query may see."""

import os
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from sinklens.errors import InputError, UnsupportedAttentionError
from sinklens.models.encoding import is_bidirectional
from sinklens.models.environment import one_line
from sinklens.models.frames import describe_frame
from sinklens.models.hook_names import NORMED_VALUE, OUTPUTS, PATTERN, VALUE, Z, at_layer
from sinklens.models.known_faults import fused_split_fault
from sinklens.models.latent import as_laid_out, heads_apart, output_weight, own_width, value_width
from sinklens.models.layer import at_least_float32
from sinklens.models.packed import packed_fault
from sinklens.models.placement import input_device, materialized
from sinklens.results.labels import describe_numbers, whole_number
from sinklens.results.provenance import Provenance


class ModelAttention:
    """What sinklens knows of a TransformerBridge or HookedTransformer before it runs: layers, weights, visibility, frame.

    Attributes:
        model: the user's model, never changed.
        layers: the model's own numbers of the chosen layers that have a readable attention.
        skipped: layers of another kind (linear attention), with the reason.
        n_hooks: hooks that were on the model already; what they do is not known here.
    """

    def __init__(self, model: Any, layers: Iterable[SupportsIndex] | None = None):
        _check_is_model(model)
        self.model = model
        # TransformerBridge builds this dictionary anew at every access, which on a short prompt costs more than the pass.
        self.hook_points: dict[str, Any] = model.hook_dict
        points = {id(point): point for point in self.hook_points.values()}  # one may have several names
        self.n_hooks = sum(len(point.fwd_hooks) for point in points.values())
        available = [layer for layer in range(model.cfg.n_layers) if self.has_hooks(layer)]
        self.skipped = {
            layer: "no attention pattern, value and z to hook (linear attention, or keys and values of an earlier layer)"
            for layer in range(model.cfg.n_layers)
            if layer not in available
        }
        if not available:
            raise UnsupportedAttentionError(
                f"{self.name}: no layer has the hooks blocks.*.attn.hook_pattern, hook_v and hook_z; "
                "expected a decoder or encoder with softmax attention, run eagerly"
            )
        self.layers = _chosen(available, self.skipped, layers)
        packed = (packed_fault(f"layer {layer}", self.module(layer)) for layer in available)
        with materialized(self.module(self.layers[0])):
            fault = next(filter(None, packed), None) or fused_split_fault(model, self.module(self.layers[0]))
        if fault is not None:
            raise UnsupportedAttentionError(f"{self.name}: {fault}")

    def has_hooks(self, layer: int) -> bool:
        """Whether the layer has a pattern, values and head outputs to hook."""
        return all(self.hook(name, layer) is not None for name in (PATTERN, VALUE, Z))

    @property
    def name(self) -> str:
        """The model's name, without the folders of a local path."""
        name = str(getattr(self.model.cfg, "model_name", "") or "model")
        return os.path.basename(name.rstrip("/")) if os.path.isabs(name) else name

    @property
    def backend(self) -> str:
        """``TransformerBridge`` or ``HookedTransformer``."""
        return type(self.model).__name__

    @cached_property
    def dtype(self) -> str:
        """The model's dtype, such as ``float32``."""
        return str(self._stored_output_weights(self.layers[0])[0].dtype).removeprefix("torch.")

    @cached_property
    def frame(self) -> str:
        """``raw``, or what was done to the weights (:func:`~sinklens.models.frames.describe_frame`)."""
        first = self.layers[0]
        return describe_frame(self.model, self.module(first), self.output_weights(first)[0])

    @cached_property
    def checksum(self) -> str:
        """Sum of squares of the output weights of the first and the last layer, to six digits."""
        ends = dict.fromkeys((self.layers[0], self.layers[-1]))
        return " ".join(f"{self.output_weights(layer)[0].square().sum().item():.6g}" for layer in ends)

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of every parameter, bit by bit; takes about as long as copying them."""
        checksum = 0
        for name, parameter in self.model.named_parameters():
            numbers = parameter.detach().reshape(-1).contiguous().view(torch.uint8)
            checksum = zlib.crc32(numbers.cpu().numpy(), zlib.crc32(name.encode(), checksum))
        return f"{checksum:08x}"

    @cached_property
    def is_causal(self) -> bool:
        """Whether later keys are hidden."""
        return not is_bidirectional(self.model)

    @cached_property
    def device(self) -> torch.device:
        """Where token ids go."""
        return input_device(self.model)

    def mask_arguments(self, mask: Tensor) -> dict[str, Tensor]:
        """What a forward pass of right-padded sequences has to be told of padding.

        Causal attention never looks at padding on the right, and a mask would only make the pass slower.

        Args:
            mask: True on real tokens ``[batch, position]``.
        """
        # HookedTransformer makes a mask of its own for a tokenizer that pads on the left: real tokens at the start of a
        # sequence whose id is the padding's would be hidden.
        tokenizer = getattr(self.model, "tokenizer", None)
        pads_left = getattr(tokenizer, "padding_side", "right") == "left"
        if pads_left or (not self.is_causal and not bool(mask.all())):
            return {"attention_mask": mask.long().to(self.device)}
        return {}

    def provenance(self, sink: str, **rest: Any) -> Provenance:
        """Where a result comes from: the model, how sinks were chosen, and what else is known."""
        known: dict[str, Any] = {
            "model_name": self.name, "weights": self.checksum, "backend": self.backend, "frame": self.frame,
            "dtype": self.dtype, "sink": sink, "hooks": self.n_hooks,
        }  # fmt: skip
        return Provenance(**(known | rest))

    def require_no_dropout(self) -> None:
        """Refuse a model whose outputs are random: in training mode, with dropout.

        Raises:
            InputError: say ``model.eval()`` first.
        """
        if not getattr(self.model, "training", False):
            return
        modules = list(self.model.modules())
        rates = [module.p for module in modules if isinstance(module, torch.nn.Dropout)]
        rates += [getattr(module, "attention_dropout", 0.0) for module in modules]
        if any(isinstance(rate, float) and rate > 0 for rate in rates):
            raise InputError(
                f"{self.name} is in training mode with dropout, so its numbers are random; call model.eval()"
            )

    def module(self, layer: int) -> Any:
        """The attention module of a layer."""
        return self.model.blocks[layer].attn

    def hook(self, template: str, layer: int) -> str | None:
        """The canonical name of a hook in a layer, or None where the layer has no such hook.

        In compatibility mode a hook under an alias is called once for every name that it has; under its own, once.
        Values are those that attention reads, behind a norm of them (Gemma-4).
        """
        normed = self.hook_points.get(at_layer(NORMED_VALUE, layer)) if template == VALUE else None
        point = normed or self.hook_points.get(at_layer(template, layer))
        return None if point is None else str(point.name or at_layer(template, layer))

    @property
    def is_gated(self) -> bool:
        """Whether the query projection carries a gate on the heads' outputs (Qwen3-Next)."""
        return bool(getattr(self.model.cfg, "gated_q_proj", False))

    def output_hooks(self, layer: int) -> list[str]:
        """The hooks that may hold the layer's output; which of them does is found by comparison."""
        # A projection replaced by per-head results is never called, so its hook would not fire.
        per_head = bool(getattr(self.model.cfg, "use_attn_result", False))
        names = [name for name in OUTPUTS if not (per_head and ".o." in name)]
        found = [self.hook(name, layer) for name in names]
        return list(dict.fromkeys(name for name in found if name is not None))

    def output_weights(self, layer: int) -> tuple[Tensor, Tensor | None]:
        """``W_O`` ``[head, d_head, d_model]`` and ``b_O`` of a layer, in float32 at least.

        Raises:
            UnsupportedAttentionError: the weights cannot be read as numbers (packed quantisation).
        """
        W_O, b_O = self._stored_output_weights(layer)
        if not isinstance(W_O, Tensor) or not W_O.is_floating_point() or W_O.ndim != 3:
            kind = str(getattr(W_O, "dtype", type(W_O).__name__))
            raise UnsupportedAttentionError(
                f"{self.name}, layer {layer}: W_O is {kind}, not plain numbers per head; "
                "packed quantised weights cannot be read, load the model in float32, float16 or bfloat16"
            )
        bias = at_least_float32(b_O.detach()) if isinstance(b_O, Tensor) else None
        return at_least_float32(W_O.detach()), bias

    def _stored_output_weights(self, layer: int) -> tuple[Any, Any]:
        module = self.module(layer)
        width = self.latent_width(layer) or own_width(module, self.model.cfg)
        try:
            with materialized(module):
                return (module.W_O, getattr(module, "b_O", None)) if width is None else output_weight(module, width)
        except (AttributeError, NotImplementedError, RuntimeError, ValueError) as error:
            raise UnsupportedAttentionError(
                f"{self.name}, layer {layer}: W_O cannot be read: {one_line(error)}"
            ) from error

    def latent_width(self, layer: int) -> int | None:
        """How many numbers a head's value has in latent attention (MLA); None for any other attention."""
        return value_width(self.module(layer))

    def n_kv_heads(self, layer: int) -> int:
        """The number of key/value heads of a layer; of latent attention, whose values are per head, all heads."""
        cfg = self.model.cfg
        if self.latent_width(layer) is not None:
            return cfg.n_heads
        by_layer = getattr(cfg, "per_layer_num_key_value_heads", None)
        return int((by_layer[layer] if by_layer else getattr(cfg, "n_key_value_heads", None)) or cfg.n_heads)

    def heads_apart(self, template: str, layer: int, tensor: Tensor) -> Tensor:
        """What a hook of the layer holds, values and head outputs as ``[batch, position, head, d_head]`` in every attention."""
        width = self.latent_width(layer)
        return tensor if width is None else heads_apart(template, tensor, width)

    def as_hooked(self, template: str, layer: int, tensor: Tensor, like: Tensor) -> Tensor:
        """The other way: values or head outputs in the layout of the hook's own tensor, for an edit to return."""
        return tensor if self.latent_width(layer) is None else as_laid_out(template, tensor, like)

    def has_learned_sink(self, layer: int) -> bool:
        """Whether a learned logit takes part in the softmax without being a key (gpt-oss)."""
        module = self.module(layer)
        return any(isinstance(getattr(owner, "sinks", None), Tensor) for owner in (_original(module), module))

    def window(self, layer: int) -> int | None:
        """How many keys back a query sees, its own included; None for full attention."""
        local = _hooked_window(self.model.cfg, layer)
        return local if local is not None else _config_window(_original(self.module(layer)), layer)


def _check_is_model(model: Any) -> None:
    if not all(hasattr(model, name) for name in ("hook_dict", "cfg", "hooks")):
        raise InputError(
            f"the model is a {type(model).__name__}; expected a HookedTransformer or TransformerBridge. "
            "Load one with sinklens.load_model, or wrap it with TransformerBridge.boot_transformers(name, hf_model=model)"
        )
    if not hasattr(model, "blocks"):
        raise UnsupportedAttentionError(
            f"{getattr(model.cfg, 'model_name', 'the model')}: no single stack of blocks (an encoder-decoder?); "
            "expected a decoder-only or encoder-only model"
        )


def _chosen(
    available: Sequence[int], skipped: dict[int, str], layers: Iterable[SupportsIndex] | None
) -> tuple[int, ...]:
    if layers is None:
        return tuple(available)
    if not isinstance(layers, Iterable) or isinstance(layers, str):
        raise InputError(f"layers is {layers!r}; expected a list of layer numbers such as [0, 1], or None for all")
    chosen: list[int] = []
    for layer in layers:
        number = whole_number(layer)
        if number in skipped:
            raise InputError(f"layer {number}: {skipped[number]}; the layers here are {describe_numbers(available)}")
        if number is None or number not in available:
            unknown = layer if number is None else number
            raise InputError(f"no layer {unknown!r}; the layers here are {describe_numbers(available)}")
        chosen.append(number)
    if not chosen:
        raise InputError(f"no layer was chosen; pass at least one of {describe_numbers(available)}, or None for all")
    return tuple(sorted(set(chosen)))


def _original(module: Any) -> Any:
    return getattr(module, "original_component", None)


def _hooked_window(cfg: Any, layer: int) -> int | None:
    """The window as HookedTransformer's configuration has it."""
    types = getattr(cfg, "attn_types", None)
    if getattr(cfg, "use_local_attn", False) and types and types[layer] == "local":
        return cfg.window_size
    return None


def _config_window(module: Any, layer: int) -> int | None:
    """The window as a transformers configuration has it, for the several ways in which families write it."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if kinds and kinds[layer] not in ("sliding_attention", "local"):
        return None
    # GPT-Neo calls it window_size and has it only beside attention_layers.
    return (
        getattr(config, "window_size", None)
        if kinds and kinds[layer] == "local"
        else getattr(config, "sliding_window", None)
    )

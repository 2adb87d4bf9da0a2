"""The toys' architectures: one layer, one head, each a Hugging Face architecture inside a ``TransformerBridge``."""

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sinklens.errors import InputError, ModelLoadError
from sinklens.models.environment import quiet_transformers
from sinklens.toy.tasks import BOS, CopyTask
from sinklens.toy.words import toy_tokenizer

WRAPPED = "_original_component."  # TransformerBridge's name for the module that it stands in for
NO_LOGIT = -1e4  # of a null key that gets no attention


@dataclass(frozen=True)
class Architecture:
    """How a toy is built.

    Attributes:
        model_class: of ``transformers``.
        sizes: the configuration, from a task and a width.
        bos: whether its sequences begin with BOS.
        about: in a few words.
        held: parameters, by the end of their names, that are held at a value and not trained.
        bridge_needs_4x: whether TransformerBridge holds it from TransformerLens 4 on only.
    """

    model_class: str
    sizes: Callable[[CopyTask, int], dict[str, Any]]
    bos: bool
    about: str
    held: tuple[tuple[str, float], ...] = ()
    bridge_needs_4x: bool = False


def _gpt2(task: CopyTask, width: int) -> dict[str, Any]:
    sizes = {"n_embd": width, "n_inner": 4 * width, "n_layer": 1, "n_head": 1, "n_positions": task.length}
    return sizes | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def _rotary(task: CopyTask, width: int, **extra: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "head_dim": width,
        "max_position_embeddings": task.length,
    }
    one = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    positions = {"rope_type": "default", "rope_theta": 10000.0, **extra.pop("positions", {})}
    return sizes | one | {"layer_types": ["full_attention"], "rope_parameters": positions, "pad_token_id": None} | extra


def _gpt_oss(task: CopyTask, width: int) -> dict[str, Any]:
    # one expert that takes every token: a plain MLP
    return _rotary(task, width, num_local_experts=1, num_experts_per_tok=1, sliding_window=task.length)


def _qwen3_next(task: CopyTask, width: int) -> dict[str, Any]:
    unused = {
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    }
    dense = {"num_experts": 0, "mlp_only_layers": [0], "decoder_sparse_step": 1}
    return _rotary(task, width, positions={"partial_rotary_factor": 0.5}, **unused, **dense)


ARCHITECTURES = {
    "bos": Architecture("GPT2LMHeadModel", _gpt2, True, "GPT-2; sequences begin with BOS"),
    "no_bos": Architecture(
        "GPT2LMHeadModel", _gpt2, False, "the same without BOS: sequences begin with an ordinary token"
    ),
    "learned_sink": Architecture(
        "GptOssForCausalLM", _gpt_oss, True, "gpt-oss: a learned logit is a null key without a value"
    ),
    "no_learned_sink": Architecture(
        "GptOssForCausalLM",
        _gpt_oss,
        True,
        "the control of learned_sink: the same, its logit held where it gets no attention",
        held=(("sinks", NO_LOGIT),),
    ),
    "gated": Architecture(
        "Qwen3NextForCausalLM",
        _qwen3_next,
        True,
        "Qwen3-Next: a gate of the query multiplies the head's output",
        bridge_needs_4x=True,
    ),
}


def toy_architecture(name: str) -> Architecture:
    """An architecture by name.

    Raises:
        InputError: there is none, or the installed TransformerLens cannot hold it.

    Example:
        >>> toy_architecture("no_bos").bos
        False
    """
    if name not in ARCHITECTURES:
        raise InputError(f"no architecture {name!r}; expected one of {', '.join(ARCHITECTURES)}")
    found = ARCHITECTURES[name]
    if found.bridge_needs_4x and _transformer_lens() < 4:
        raise InputError(
            f"the architecture {name!r} needs transformer-lens 4 or later, whose bridge holds it; "
            f"upgrade, or choose one of {', '.join(each for each in ARCHITECTURES if each != name)}"
        )
    return found


def _transformer_lens() -> int:
    return int(importlib.metadata.version("transformer-lens").split(".")[0])


def new_original(name: str, task: CopyTask, d_model: int, seed: int) -> Any:
    """A fresh Hugging Face model, its weights drawn from the seed.

    Args:
        name: of the architecture.
        task: its vocabulary and length are the model's.
        d_model: width.
        seed: of the weights.
    """
    transformers: Any = importlib.import_module("transformers")
    architecture = toy_architecture(name)
    config_class = getattr(transformers, architecture.model_class).config_class
    special = {"bos_token_id": BOS, "eos_token_id": BOS, "vocab_size": task.n_tokens}
    config = config_class(**architecture.sizes(task, d_model), **special, use_cache=False, attn_implementation="eager")
    config.architectures = [architecture.model_class]
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, architecture.model_class)(config)
    for end, value in architecture.held:
        for parameter in (weight for key, weight in model.named_parameters() if key.endswith(end)):
            parameter.data.fill_(value)
    return model.eval()


def as_bridge(original: Any, task: CopyTask, name: str) -> Any:
    """The model inside a ``TransformerBridge``, under a name, with the tokenizer of its task."""
    from transformer_lens.model_bridge import TransformerBridge

    with quiet_transformers(), torch.random.fork_rng(devices=[]):  # it draws weights that it then overwrites
        model = TransformerBridge.boot_transformers(
            name, hf_model=original, tokenizer=toy_tokenizer(task), device="cpu", dtype=torch.float32
        )
    model.cfg.model_name = name
    model.cfg.default_prepend_bos = task.bos  # of text; TransformerLens takes the habits of the family
    return model.eval()


def trainable(model: Any, original_names: set[str], architecture: Architecture) -> dict[str, torch.nn.Parameter]:
    """The parameters of a bridge that training may change; gradients of all others are switched off.

    Left out are those that are held, those that no forward pass uses, and those that the architecture does not have
    (TransformerLens 3.9 adds a bias to the unembedding), so that what is learned can be saved.

    Args:
        model: the bridge.
        original_names: of the parameters before they were wrapped.
        architecture: which says what is held.
    """
    found = {}
    for name, parameter in model.named_parameters():
        plain = name.replace(WRAPPED, "")
        held = any(plain.endswith(end) for end, _ in architecture.held)
        is_own = plain in original_names or any(f".attn.{part}." in plain for part in "qkvo")
        parameter.requires_grad_(is_own and not held)
        if parameter.requires_grad:
            found[plain] = parameter
    return found


def original_state(model: Any, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a bridge under the names, and in the layout, of the Hugging Face model.

    Args:
        model: the bridge.
        expected: state of a fresh model of the same configuration, for names and shapes.

    Raises:
        ModelLoadError: a weight cannot be found.
    """
    named = {name.replace(WRAPPED, ""): weight.detach() for name, weight in model.named_parameters()}
    state = {}
    for name, fresh in expected.items():
        weight = named.get(name)
        if ".attn.c_attn." in name:  # the bridge trains queries, keys and values apart
            parts = [named[name.replace("c_attn", part)] for part in "qkv"]
            weight = torch.cat([part.T if part.ndim == 2 else part for part in parts], -1)
        elif ".attn.c_proj." in name:
            weight = named.get(name.replace("c_proj", "o"), weight)
        elif name == "lm_head.weight" and weight is None:
            weight = named["transformer.wte.weight"]  # tied
        if weight is None or weight.shape != fresh.shape:
            raise ModelLoadError(
                f"the toy's weight {name} cannot be found in the TransformerBridge, so it cannot be saved"
            )
        state[name] = weight.clone()
    return state

"""The tiny families of ``tests.families`` as ``HookedTransformer`` (TransformerLens 3.x only), raw weights.

The configuration is written by hand from the Hugging Face one, and the weights are converted from the same
model, so that both back ends hold the same function. Nothing is folded or centred.
"""

import importlib
import warnings
from typing import Any

import torch
from einops import rearrange
from transformers import PretrainedConfig, PreTrainedModel

from tests.families import FAMILIES, Family, new_hf_model
from tests.tiny_tokenizer import tiny_tokenizer

_LAYER_NORM = {"normalization_type": "LN"}
_ROTARY_RMS = {
    "normalization_type": "RMS",
    "positional_embedding_type": "rotary",
    "gated_mlp": True,
    "final_rms": True,
    "act_fn": "silu",
}
_ROTARY_PARALLEL = {
    **_LAYER_NORM,
    "positional_embedding_type": "rotary",
    "parallel_attn_mlp": True,
    "rotary_dim": 8,
}
_GEMMA = {**_ROTARY_RMS, "act_fn": "gelu_pytorch_tanh"}
_MIXTURE = {"num_experts": 4, "experts_per_token": 2}

# The converter in transformer_lens.pretrained.weight_conversions, and what the config needs beyond sizes.
_HOOKED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("convert_gpt2_weights", {**_LAYER_NORM, "act_fn": "gelu_new"}),
    "opt": ("convert_opt_weights", {**_LAYER_NORM, "act_fn": "relu"}),
    "gptj": (
        "convert_gptj_weights",
        {**_ROTARY_PARALLEL, "act_fn": "gelu_new", "rotary_adjacent_pairs": True},
    ),
    "gpt_neox": ("convert_neox_weights", {**_ROTARY_PARALLEL, "act_fn": "gelu", "rotary_dim": 4}),
    "gpt_neo": ("convert_neo_weights", {**_LAYER_NORM, "act_fn": "gelu_new", "use_attn_scale": False}),
    "phi": ("convert_phi_weights", {**_ROTARY_PARALLEL, "act_fn": "gelu_new"}),
    "bloom": (
        "convert_bloom_weights",
        {
            **_LAYER_NORM,
            "act_fn": "gelu_fast",
            "positional_embedding_type": "alibi",
            "post_embedding_ln": True,
        },
    ),
    "llama": ("convert_llama_weights", _ROTARY_RMS),
    "llama_wide_head": ("convert_llama_weights", _ROTARY_RMS),
    "llama_3x5": ("convert_llama_weights", _ROTARY_RMS),
    "mistral": ("convert_mistral_weights", _ROTARY_RMS),
    "mixtral": ("convert_mixtral_weights", {**_ROTARY_RMS, **_MIXTURE, "norm_topk_prob": True}),
    "qwen2": ("convert_qwen2_weights", _ROTARY_RMS),
    "qwen3": ("convert_qwen3_weights", {**_ROTARY_RMS, "use_qk_norm": True}),
    "gemma": ("convert_gemma_weights", _GEMMA),
    "gemma2": (
        "convert_gemma_weights",
        {
            **_GEMMA,
            "use_normalization_before_and_after": True,
            "attn_scores_soft_cap": 5.0,
            "output_logits_soft_cap": 30.0,
        },
    ),
    "gemma3_text": (
        "convert_gemma_weights",
        {**_GEMMA, "use_normalization_before_and_after": True, "use_qk_norm": True},
    ),
    "olmo2": ("convert_olmo2_weights", _ROTARY_RMS),
    "phi3": ("convert_phi3_weights", _ROTARY_RMS),
    "gpt_oss": ("convert_gpt_oss_weights", {**_ROTARY_RMS, **_MIXTURE, "use_attention_sinks": True}),
}


def new_hooked(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    """A fresh ``HookedTransformer`` of the family in eval mode on the CPU."""
    # Both are gone in TransformerLens 4, so a type checker that runs there cannot see them.
    transformer_lens: Any = importlib.import_module("transformer_lens")
    weight_conversions = importlib.import_module("transformer_lens.pretrained.weight_conversions")

    family = FAMILIES[name]
    source = new_hf_model(name, seed)
    converter, _ = _HOOKED[name]
    config = transformer_lens.HookedTransformerConfig(**_settings(family, source.config), dtype=dtype, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="HookedTransformer is deprecated", category=DeprecationWarning)
        model = transformer_lens.HookedTransformer(config, tiny_tokenizer(), default_padding_side="right")
    state = getattr(weight_conversions, converter)(source, config)
    state.update(_attention_biases(source, family))
    _load(model, state)
    return model.eval().requires_grad_(False)


def _settings(family: Family, config: PretrainedConfig) -> dict[str, Any]:
    settings = {
        "model_name": family.name,
        "original_architecture": family.model_class,
        "n_layers": family.n_layers,
        "n_heads": family.n_heads,
        "n_key_value_heads": family.n_kv_heads if family.n_kv_heads != family.n_heads else None,
        "d_head": family.d_head,
        "d_model": family.d_model,
        "d_mlp": _first(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * family.d_model),
        "d_vocab": config.vocab_size,
        "n_ctx": _first(config, "max_position_embeddings", "n_positions", default=64),
        "eps": _first(config, "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", default=1e-5),
        "init_weights": False,
        "tokenizer_prepends_bos": True,
    }
    return {**settings, **_rotary(config), **_windows(family), **_HOOKED[family.name][1]}


def _first(config: PretrainedConfig, *names: str, default: Any) -> Any:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if value is not None), default)


def _rotary(config: PretrainedConfig) -> dict[str, Any]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in parameters:  # Gemma-3: one base per kind of layer
        return {
            "rotary_base": parameters["full_attention"]["rope_theta"],
            "rotary_base_local": parameters["sliding_attention"]["rope_theta"],
        }
    return {"rotary_base": parameters.get("rope_theta", 10000.0)}


def _windows(family: Family) -> dict[str, Any]:
    sizes = {window for window in family.windows if window is not None}
    if not sizes:
        return {}
    (size,) = sizes
    kinds = ["global" if window is None else "local" for window in family.windows]
    return {"use_local_attn": True, "window_size": size, "attn_types": kinds}


def _attention_biases(source: PreTrainedModel, family: Family) -> dict[str, torch.Tensor]:
    """The Llama-like converters write zeros for biases that usual checkpoints lack."""
    layers = getattr(getattr(source, "model", None), "layers", None)
    if layers is None or not hasattr(layers[0].self_attn, "o_proj"):
        return {}
    grouped = "_" if family.n_kv_heads != family.n_heads else ""
    keys = {"q_proj": "b_Q", "k_proj": f"{grouped}b_K", "v_proj": f"{grouped}b_V", "o_proj": "b_O"}
    biases = {}
    for layer, block in enumerate(layers):
        for module, key in keys.items():
            bias = getattr(getattr(block.self_attn, module, None), "bias", None)
            if bias is not None:
                shaped = bias if key == "b_O" else rearrange(bias, "(head d_head) -> head d_head", d_head=family.d_head)
                biases[f"blocks.{layer}.attn.{key}"] = shaped
    return biases


def _load(model: Any, state: dict[str, torch.Tensor]) -> None:
    """Strict, except for masks, caches and ALiBi's unused positions, which no converter writes, and for keys
    that the model has not (Phi-3)."""
    own = model.state_dict()
    missing, _ = model.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)
    weights = [key for key in missing if key.rsplit(".", 1)[-1].lower().startswith(("w", "sinks"))]
    forgotten = [key for key in weights if key != "pos_embed.W_pos" or model.cfg.positional_embedding_type != "alibi"]
    if forgotten:
        raise AssertionError(f"the converter left weights out: {forgotten}")

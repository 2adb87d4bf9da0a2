"""The table of attention families: a ``transformers`` configuration of each, what its attention is, and the verdict.

Every test of families is parametrised over it, and ``docs/models.md`` is made from it (:mod:`tests.models_doc`).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transformers
from transformers import PretrainedConfig

from tests.tiny_tokenizer import VOCAB_SIZE

D_MODEL, N_HEADS, N_KV_HEADS, D_MLP, N_CTX, WINDOW = 64, 4, 2, 96, 64, 6


@dataclass(frozen=True)
class Family:
    """One attention family: how to build it and what its attention is like.

    ``windows`` has one entry per layer: the number of visible keys, its own included, or None for all.
    """

    name: str
    make_config: Callable[[], PretrainedConfig]
    model_class: str
    n_layers: int = 2
    n_heads: int = N_HEADS
    n_kv_heads: int = N_HEADS
    d_head: int = D_MODEL // N_HEADS
    d_model: int = D_MODEL
    causal: bool = True
    windows: tuple[int | None, ...] = (None, None)
    attention_layers: tuple[int, ...] = (0, 1)  # the others have linear attention
    has_hooked: bool = False  # TransformerLens 3.9's HookedTransformer can hold it
    has_value_bias: bool = True
    has_output_bias: bool = True
    gated: bool = False  # z is multiplied by a sigmoid gate of the query position
    learned_sink: bool = False  # rows of the pattern sum to less than 1
    post_norm: bool = False  # a norm acts between the attention's output and the residual stream
    multiplier: float = 1.0  # factor between the attention's output and the residual stream
    latent: bool = False  # multi-head latent attention: Bridge lays out values and z otherwise
    module_output_differs: bool = (
        False  # Bridge: attn.hook_out has the residual (and a norm) in it, attn.o.hook_out not
    )
    value_end: str = "hook_v"  # where the values that attention reads are to hook
    unlike: tuple[tuple[int, int], ...] = ()  # key/value heads and head width of each layer, where they differ
    pattern_editable: bool = True  # Bridge: an edit at hook_pattern reaches the output
    query_scale: float = 1.0  # on the weights of queries, where unscaled scores would make attention nearly one-hot
    bridge_needs_4x: bool = False  # TransformerLens 3.9's Bridge fails or gives other logits
    bridge_is_wrong: bool = False  # Bridge gives other logits than the model, in every version that is tested
    text: bool = True  # takes token ids
    decodes_alone: bool = True  # token ids are all that a forward pass needs
    refused: str = ""  # what the error says of a family that cannot be measured; empty for a supported one
    note: str = ""  # what a user should know beside

    def geometry(self, layer: int) -> tuple[int, int]:
        """Key/value heads and head width of a layer."""
        return self.unlike[layer] if self.unlike else (self.n_kv_heads, self.d_head)

    @property
    def traits(self) -> tuple[str, ...]:
        """What there is beside plain causal softmax attention."""
        if not self.attention_layers:
            return ("none",)
        windowed = sum(window is not None for window in self.windows)
        found = {
            "multi-query": self.n_kv_heads == 1,
            "grouped-query": 1 < self.n_kv_heads < self.n_heads,
            "latent (MLA)": self.latent,
            "sliding window": windowed == len(self.attention_layers) > 0,
            "sliding window in some layers": 0 < windowed < len(self.attention_layers),
            "learned sink": self.learned_sink,
            "gated": self.gated,
            "linear attention in some layers": 0 < len(self.attention_layers) < self.n_layers,
            "post-norm": self.post_norm,
            "residual multiplier": self.multiplier != 1.0,
            "bidirectional": not self.causal,
            "encoder-decoder": not self.decodes_alone,
            "layers with different head counts": bool(self.unlike),
            "norm of the values": self.value_end != "hook_v",
            "d_head ≠ d_model / n_heads": self.d_head * self.n_heads != self.d_model,
        }
        return tuple(trait for trait, there in found.items() if there)


def _config(class_name: str, **extra: Any) -> Callable[[], PretrainedConfig]:
    """A factory, so that importing this table builds nothing."""
    return functools.partial(_build_config, class_name, extra)


def _build_config(class_name: str, extra: dict[str, Any]) -> PretrainedConfig:
    common = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": D_MODEL,
        "num_hidden_layers": 2,
        "num_attention_heads": N_HEADS,
        "intermediate_size": D_MLP,
        "max_position_embeddings": N_CTX,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "attn_implementation": "eager",
    }
    return getattr(transformers, class_name)(**{**common, **extra})


def _gpt_style(class_name: str, **extra: Any) -> Callable[[], PretrainedConfig]:
    sizes = {"n_embd": D_MODEL, "n_layer": 2, "n_head": N_HEADS, "n_positions": N_CTX}
    special = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "attn_implementation": "eager"}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return functools.partial(_build_plain, class_name, {**sizes, **special, **no_dropout, **extra})


def _build_plain(class_name: str, settings: dict[str, Any]) -> PretrainedConfig:
    return getattr(transformers, class_name)(**settings)


def gemma4_config(**extra: Any) -> Callable[[], PretrainedConfig]:
    sizes = {"num_key_value_heads": N_KV_HEADS, "head_dim": 16, "sliding_window": WINDOW}
    per_layer_input = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB_SIZE}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    return _config("Gemma4TextConfig", **{**sizes, **per_layer_input, **kinds, **extra})


GEMMA4: dict[str, Any] = {
    "model_class": "Gemma4ForCausalLM",
    "n_kv_heads": 2,
    "windows": (WINDOW, None),
    "has_value_bias": False,
    "has_output_bias": False,
    "post_norm": True,
    "pattern_editable": False,
    "query_scale": 0.25,
    "value_end": "v_norm.hook_out",
}


def _gpt_neo() -> Callable[[], PretrainedConfig]:
    sizes = {"hidden_size": D_MODEL, "num_layers": 2, "num_heads": N_HEADS, "max_position_embeddings": N_CTX}
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW, "attn_implementation": "eager"}
    no_dropout = {"attention_dropout": 0.0, "resid_dropout": 0.0, "embed_dropout": 0.0}
    special = {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1}
    return functools.partial(_build_plain, "GPTNeoConfig", {**sizes, **kinds, **no_dropout, **special})


GROUPED = {"num_key_value_heads": N_KV_HEADS}
SLIDING_THEN_FULL = ["sliding_attention", "full_attention"]
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

_TABLE = (
    Family("gpt2", _gpt_style("GPT2Config"), "GPT2LMHeadModel", has_hooked=True),
    Family(
        "opt",
        _config("OPTConfig", ffn_dim=D_MLP, word_embed_proj_dim=D_MODEL, dropout=0.0),
        "OPTForCausalLM",
        has_hooked=True,
        pattern_editable=False,
    ),
    Family(
        "gptj",
        _gpt_style("GPTJConfig", rotary_dim=8),
        "GPTJForCausalLM",
        has_hooked=True,
        has_value_bias=False,
        has_output_bias=False,
        pattern_editable=False,
    ),
    Family("gpt_neox", _config("GPTNeoXConfig"), "GPTNeoXForCausalLM", has_hooked=True),
    Family("phi", _config("PhiConfig"), "PhiForCausalLM", has_hooked=True),
    Family(
        "bloom",
        _gpt_style("BloomConfig", hidden_size=D_MODEL),
        "BloomForCausalLM",
        has_hooked=True,
        module_output_differs=True,
    ),
    Family(
        "falcon",
        _config("FalconConfig", bias=True, multi_query=True, new_decoder_architecture=False, alibi=False),
        "FalconForCausalLM",
        n_kv_heads=1,
    ),
    Family(
        "falcon_grouped",
        # Falcon-40B's own configuration says multi_query=True beside this; then TransformerBridge cannot even be built.
        _config(
            "FalconConfig",
            bias=True,
            multi_query=False,
            num_kv_heads=N_KV_HEADS,
            new_decoder_architecture=True,
            alibi=False,
        ),
        "FalconForCausalLM",
        n_kv_heads=2,
        bridge_is_wrong=True,
        refused="fused query, key and value weights apart in the wrong order",
        note="Falcon-40B, 180B: TransformerBridge runs another function than the model",
    ),
    Family(
        "gpt_neo",
        _gpt_neo(),
        "GPTNeoForCausalLM",
        windows=(None, WINDOW),
        has_hooked=True,
        has_value_bias=False,
        pattern_editable=False,
        query_scale=0.25,
    ),
    Family(
        "llama",
        _config("LlamaConfig", **GROUPED, attention_bias=True),
        "LlamaForCausalLM",
        n_kv_heads=2,
        has_hooked=True,
    ),
    Family(
        "llama_wide_head",
        _config("LlamaConfig", **GROUPED, head_dim=24),
        "LlamaForCausalLM",
        n_kv_heads=2,
        d_head=24,
        has_hooked=True,
        has_value_bias=False,
        has_output_bias=False,
    ),
    Family(
        "llama_3x5",
        _config("LlamaConfig", hidden_size=60, num_hidden_layers=3, num_attention_heads=5, attention_bias=True),
        "LlamaForCausalLM",
        n_layers=3,
        n_heads=5,
        n_kv_heads=5,
        d_head=12,
        d_model=60,
        windows=(None, None, None),
        attention_layers=(0, 1, 2),
        has_hooked=True,
    ),
    Family(
        "mistral",
        _config("MistralConfig", **GROUPED, sliding_window=WINDOW),
        "MistralForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, WINDOW),
        has_hooked=True,
        has_value_bias=False,
        has_output_bias=False,
    ),
    Family(
        "mixtral",
        _config("MixtralConfig", **GROUPED, **_EXPERTS),
        "MixtralForCausalLM",
        n_kv_heads=2,
        has_hooked=True,
        has_value_bias=False,
        has_output_bias=False,
    ),
    Family(
        "qwen2",
        _config("Qwen2Config", **GROUPED),
        "Qwen2ForCausalLM",
        n_kv_heads=2,
        has_hooked=True,
        has_output_bias=False,
    ),
    Family(
        "qwen3",
        _config("Qwen3Config", **GROUPED, head_dim=16, attention_bias=True),
        "Qwen3ForCausalLM",
        n_kv_heads=2,
        has_hooked=True,
    ),
    Family(
        "gemma",
        _config("GemmaConfig", **GROUPED, head_dim=16, attention_bias=True),
        "GemmaForCausalLM",
        n_kv_heads=2,
        has_hooked=True,
    ),
    Family(
        "gemma2",
        _config(
            "Gemma2Config",
            **GROUPED,
            head_dim=16,
            query_pre_attn_scalar=16,
            attention_bias=True,
            sliding_window=WINDOW,
            layer_types=SLIDING_THEN_FULL,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=30.0,
        ),
        "Gemma2ForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, None),
        has_hooked=True,
        post_norm=True,
    ),
    Family(
        "gemma3_text",
        _config(
            "Gemma3TextConfig",
            **GROUPED,
            head_dim=16,
            query_pre_attn_scalar=16,
            attention_bias=True,
            sliding_window=WINDOW,
            layer_types=SLIDING_THEN_FULL,
        ),
        "Gemma3ForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, None),
        has_hooked=True,
        post_norm=True,
    ),
    Family(
        "granite",
        _config(
            "GraniteConfig",
            **GROUPED,
            attention_bias=True,
            residual_multiplier=0.3,
            attention_multiplier=0.25,
        ),
        "GraniteForCausalLM",
        n_kv_heads=2,
        multiplier=0.3,
    ),
    Family(
        "stablelm",
        _config("StableLmConfig", **GROUPED, use_qkv_bias=True),
        "StableLmForCausalLM",
        n_kv_heads=2,
        has_output_bias=False,
    ),
    Family(
        "olmo2",
        _config("Olmo2Config", num_key_value_heads=N_HEADS, attention_bias=True),
        "Olmo2ForCausalLM",
        has_hooked=True,
        post_norm=True,
    ),
    Family(
        "olmo3",
        _config("Olmo3Config", **GROUPED, attention_bias=True, sliding_window=WINDOW, layer_types=SLIDING_THEN_FULL),
        "Olmo3ForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, None),
        post_norm=True,
    ),
    Family(
        "phi3",
        _config("Phi3Config", **GROUPED, sliding_window=WINDOW, original_max_position_embeddings=N_CTX),
        "Phi3ForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, WINDOW),
        has_hooked=True,
        has_value_bias=False,
        has_output_bias=False,
    ),
    Family(
        "cohere",
        _config("CohereConfig", **GROUPED, attention_bias=True),
        "CohereForCausalLM",
        n_kv_heads=2,
        bridge_needs_4x=True,
    ),
    Family(
        "starcoder2",
        _config("Starcoder2Config", **GROUPED, use_bias=True),
        "Starcoder2ForCausalLM",
        n_kv_heads=2,
    ),
    Family(
        "gpt_oss",
        _config(
            "GptOssConfig",
            **GROUPED,
            **_EXPERTS,
            head_dim=16,
            sliding_window=WINDOW,
            layer_types=SLIDING_THEN_FULL,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        "GptOssForCausalLM",
        n_kv_heads=2,
        windows=(WINDOW, None),
        has_hooked=True,
        learned_sink=True,
    ),
    Family(
        "qwen3_next",
        _config(
            "Qwen3NextConfig",
            **GROUPED,
            head_dim=16,
            attention_bias=True,
            layer_types=["linear_attention", "full_attention"],
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
        ),
        "Qwen3NextForCausalLM",
        n_kv_heads=2,
        attention_layers=(1,),
        gated=True,
        bridge_needs_4x=True,
    ),
    Family(
        "bert",
        _config("BertConfig", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
        "BertForMaskedLM",
        causal=False,
        module_output_differs=True,
        pattern_editable=False,
    ),
    Family(
        "vit",
        _config("ViTConfig", image_size=16, patch_size=4, num_labels=7),
        "ViTForImageClassification",
        causal=False,
        text=False,
        pattern_editable=False,
        note="`attention_maps`, `head_profile`, `run` and `check_model` take pixels; losses are of text",
    ),
    Family(
        "deepseek_v3",
        _config(
            "DeepseekV3Config",
            num_key_value_heads=N_HEADS,
            moe_intermediate_size=32,
            n_routed_experts=4,
            n_group=1,
            topk_group=1,
            num_experts_per_tok=2,
            first_k_dense_replace=1,
            kv_lora_rank=24,
            q_lora_rank=32,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            attention_bias=True,
        ),
        "DeepseekV3ForCausalLM",
        d_head=12,
        has_value_bias=False,
        latent=True,
    ),
    Family(
        "gemma4",
        gemma4_config(global_head_dim=16, attention_k_eq_v=False),
        **GEMMA4,
    ),
    Family(
        "gemma4_unlike",
        # As the larger ones are: full attention has wider heads, fewer of keys, and no values but its keys.
        gemma4_config(global_head_dim=24, num_global_key_value_heads=1, attention_k_eq_v=True),
        **GEMMA4,
        unlike=((2, 16), (1, 24)),
        note="layers that read keys and values of an earlier layer are skipped by name",
    ),
    Family(
        "mamba",
        functools.partial(
            _build_plain, "MambaConfig", {"vocab_size": VOCAB_SIZE, "hidden_size": D_MODEL, "num_hidden_layers": 2}
        ),
        "MambaForCausalLM",
        attention_layers=(),
        has_value_bias=False,
        has_output_bias=False,
        refused="no layer has the hooks",
        note="a state-space model",
    ),
    Family(
        "t5",
        functools.partial(
            _build_plain,
            "T5Config",
            {
                "vocab_size": VOCAB_SIZE,
                "d_model": D_MODEL,
                "d_kv": 16,
                "d_ff": D_MLP,
                "num_layers": 2,
                "num_heads": N_HEADS,
            },
        ),
        "T5ForConditionalGeneration",
        has_value_bias=False,
        has_output_bias=False,
        decodes_alone=False,
        refused="no single stack of blocks",
        note="two stacks of blocks, and attention across them",
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _TABLE}
SUPPORTED: tuple[str, ...] = tuple(family.name for family in _TABLE if not family.refused)
HOOKED_FAMILIES: tuple[str, ...] = tuple(family.name for family in _TABLE if family.has_hooked)

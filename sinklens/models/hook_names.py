"""The names of TransformerLens hooks: the only place where one is written."""

PATTERN = "blocks.{layer}.attn.hook_pattern"
VALUE = "blocks.{layer}.attn.hook_v"
# The values that a norm has acted on (Gemma-4), where there is one; attention reads these and not hook_v's.
NORMED_VALUE = "blocks.{layer}.attn.v_norm.hook_out"
Z = "blocks.{layer}.attn.hook_z"
# The gate of a gated attention (Qwen3-Next), before its sigmoid.
GATE = "blocks.{layer}.attn.hook_q_gate"
# Where the layer's output may stand, with b_O. Which of them really does depends on the family (post-norms, residuals
# added inside), so it is found by comparison with the heads' outputs, never assumed.
OUTPUTS = (
    "blocks.{layer}.attn.hook_out",
    "blocks.{layer}.attn.o.hook_out",
    "blocks.{layer}.hook_attn_out",
)
# What is added to the residual stream: after a norm or a multiplier, where there is one.
ADDED = "blocks.{layer}.hook_attn_out"
# Queries and keys as the projections give them, before rotary positions and norms; scores before the softmax.
QUERY = "blocks.{layer}.attn.hook_q"
KEY = "blocks.{layer}.attn.hook_k"
SCORES = "blocks.{layer}.attn.hook_attn_scores"
RESIDUAL_BEFORE = "blocks.{layer}.hook_resid_pre"
RESIDUAL_AFTER = "blocks.{layer}.hook_resid_post"
# What W_Q, W_K and W_V multiply. No hook's name: which hook holds it depends on the family, so an analyzer asks for it by
# this word and it is found by comparison (models/inputs.py).
ATTENTION_INPUT = "attention input of layer {layer}"
# Where TransformerBridge has it.
MODULE_INPUT = "blocks.{layer}.attn.hook_in"


def at_layer(template: str, layer: int) -> str:
    """The full name of a hook in one layer.

    Example:
        >>> at_layer(PATTERN, 3)
        'blocks.3.attn.hook_pattern'
    """
    return template.format(layer=layer)

"""What sinklens' tests find on each attention family, by the architecture that a model's configuration names.

The one place where verdicts stand for the program to read; a test holds it against the table of families, from which
``docs/models.md`` is generated.
"""

from dataclasses import dataclass

EXACT = "exact"
NOT_EDITABLE = "exact, not editable"
PARTLY = "exact or refused"
REFUSED = "refused"
NOT_TRIED = "not tried"

_FALCON = (
    "multi-query (7B) is exact; grouped heads (40B, 180B, Falcon 2) are refused: TransformerLens runs another function"
)
_IMAGES = "maps, profiles and checks take pixels; losses are of text"


@dataclass(frozen=True)
class FamilyVerdict:
    """What holds for an architecture.

    Attributes:
        family: as ``docs/models.md`` calls it; empty for one that was not tried.
        verdict: ``exact``; ``exact, not editable`` where TransformerBridge throws edits of the pattern away (edits of values
            work); ``exact or refused``, which the note explains; ``refused``; ``not tried``.
        note: the reason, or what to know beside.
        has_hooked: whether TransformerLens 3.9's HookedTransformer holds it too, with the same numbers.
        bridge_needs_4x: whether TransformerBridge holds it from TransformerLens 4 on only.
    """

    family: str
    verdict: str
    note: str = ""
    has_hooked: bool = False
    bridge_needs_4x: bool = False


UNKNOWN = FamilyVerdict("", NOT_TRIED, "run sinklens check NAME")
OWN_FORMAT_NAME = "TransformerLens's own format"
OWN_FORMAT = FamilyVerdict(
    "own format",
    EXACT,
    "TransformerLens 3 reads it with --backend hooked; attn-only-2l-demo (Shortformer) is read by that back end only",
    has_hooked=True,
    bridge_needs_4x=True,
)

VERDICTS: dict[str, FamilyVerdict] = {
    "GPT2LMHeadModel": FamilyVerdict("gpt2", EXACT, has_hooked=True),
    "OPTForCausalLM": FamilyVerdict("opt", NOT_EDITABLE, has_hooked=True),
    "GPTJForCausalLM": FamilyVerdict("gptj", NOT_EDITABLE, has_hooked=True),
    "GPTNeoXForCausalLM": FamilyVerdict("gpt_neox", EXACT, has_hooked=True),
    "GPTNeoForCausalLM": FamilyVerdict("gpt_neo", NOT_EDITABLE, has_hooked=True),
    "PhiForCausalLM": FamilyVerdict("phi", EXACT, has_hooked=True),
    "Phi3ForCausalLM": FamilyVerdict("phi3", EXACT, has_hooked=True),
    "BloomForCausalLM": FamilyVerdict("bloom", EXACT, has_hooked=True),
    "FalconForCausalLM": FamilyVerdict("falcon", PARTLY, _FALCON),
    "LlamaForCausalLM": FamilyVerdict("llama", EXACT, has_hooked=True),
    "MistralForCausalLM": FamilyVerdict("mistral", EXACT, has_hooked=True),
    "MixtralForCausalLM": FamilyVerdict("mixtral", EXACT, has_hooked=True),
    "Qwen2ForCausalLM": FamilyVerdict("qwen2", EXACT, has_hooked=True),
    "Qwen3ForCausalLM": FamilyVerdict("qwen3", EXACT, has_hooked=True),
    "Qwen3NextForCausalLM": FamilyVerdict(
        "qwen3_next", EXACT, "layers of linear attention are skipped by name", bridge_needs_4x=True
    ),
    "GemmaForCausalLM": FamilyVerdict("gemma", EXACT, has_hooked=True),
    "Gemma2ForCausalLM": FamilyVerdict("gemma2", EXACT, has_hooked=True),
    "Gemma3ForCausalLM": FamilyVerdict("gemma3_text", EXACT, has_hooked=True),
    "Gemma4ForCausalLM": FamilyVerdict("gemma4", NOT_EDITABLE, "layers that share keys and values are skipped by name"),
    "GraniteForCausalLM": FamilyVerdict("granite", EXACT),
    "StableLmForCausalLM": FamilyVerdict("stablelm", EXACT),
    "Olmo2ForCausalLM": FamilyVerdict("olmo2", EXACT, has_hooked=True),
    "Olmo3ForCausalLM": FamilyVerdict("olmo3", EXACT),
    "CohereForCausalLM": FamilyVerdict("cohere", EXACT, bridge_needs_4x=True),
    "Starcoder2ForCausalLM": FamilyVerdict("starcoder2", EXACT),
    "GptOssForCausalLM": FamilyVerdict("gpt_oss", EXACT, has_hooked=True),
    "DeepseekV3ForCausalLM": FamilyVerdict("deepseek_v3", EXACT),
    "BertForMaskedLM": FamilyVerdict("bert", NOT_EDITABLE),
    "ViTForImageClassification": FamilyVerdict("vit", NOT_EDITABLE, _IMAGES),
    "MambaForCausalLM": FamilyVerdict("mamba", REFUSED, "a state-space model without attention"),
    "T5ForConditionalGeneration": FamilyVerdict("t5", REFUSED, "two stacks of blocks, and attention across them"),
}


def verdict_on(architecture: str) -> FamilyVerdict:
    """What holds for an architecture, as a configuration's ``architectures`` names it.

    Example:
        >>> verdict_on("LlamaForCausalLM").verdict, verdict_on("MambaForCausalLM").verdict, verdict_on("Other").note
        ('exact', 'refused', 'run sinklens check NAME')
    """
    return OWN_FORMAT if architecture == OWN_FORMAT_NAME else VERDICTS.get(architecture, UNKNOWN)

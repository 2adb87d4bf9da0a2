"""Input without sense: one clear error before anything is measured, never a number."""

from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens as sl
from tests.captured import new
from tests.families import bridge

TEXT = "The cat sat on the mat."


def profile(model: Any, texts: Any = TEXT, **options: Any) -> sl.HeadProfile:
    return sl.head_profile(model, texts, progress=False, context_length=32, **options)


@pytest.fixture
def model() -> Any:
    return bridge("llama")


@pytest.mark.parametrize("texts", [["The cat.", "A dog ran."], torch.tensor([[4, 5, 6], [7, 8, 9]])])
def test_maps_of_several_prompts_are_refused(model: Any, texts: Any) -> None:
    with pytest.raises(sl.InputError, match="maps are of one prompt; got several"):
        sl.attention_maps(model, texts)


@pytest.mark.parametrize("eps", [float("nan"), -1.0, 2.0, float("inf")])
def test_eps_is_a_threshold_of_attention(model: Any, eps: Any) -> None:
    with pytest.raises(sl.InputError, match="eps is"):
        profile(model, eps=eps)


@pytest.mark.parametrize("sink", [True, [True], "detection", "detect:nan", "detect:2", "token:-3", -1, [], "0,x"])
def test_a_sink_without_sense_is_refused(sink: Any) -> None:
    with pytest.raises(sl.InputError, match=r"sink is .*; expected 'first'"):
        sl.sink_rule(sink)


def test_a_sink_that_never_occurs_is_an_error(model: Any) -> None:
    with pytest.raises(sl.InputError, match="sink 'token:300' was found in none of 1 sequences"):
        profile(model, sink="token:300")


def test_bytes_and_existing_files_are_not_text(model: Any, tmp_path: Path) -> None:
    with pytest.raises(sl.InputError, match="texts is a bytes"):
        profile(model, b"hello")
    path = tmp_path / "data.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(sl.InputError, match=r"unknown suffix '\.parquet'"):
        profile(model, str(path))


def test_a_token_sink_needs_the_tokens_of_a_cache(model: Any) -> None:
    _, cache = model.run_with_cache(model.to_tokens(TEXT))
    with pytest.raises(sl.InputError, match="'token:0' needs the prompt's ids"):
        sl.AttentionMaps.from_cache(model, cache, sink="token:0")
    assert sl.AttentionMaps.from_cache(model, cache).token_ids == ()


def test_training_mode_with_dropout_is_refused() -> None:
    model = new("bridge", "gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    model.train()
    with pytest.raises(sl.InputError, match="training mode with dropout"):
        profile(model)
    model.eval()
    assert profile(model).n_heads == 4


def test_weights_that_are_not_finite_are_refused() -> None:
    model = new("bridge", "llama")
    model.blocks[1].attn.original_component.o_proj.weight.data[0, 0] = float("nan")
    with pytest.raises(sl.UnsupportedAttentionError, match="W_O holds numbers that are not finite"):
        profile(model)


def test_results_of_other_weights_do_not_merge(model: Any) -> None:
    other = bridge("llama", seed=1)
    with pytest.raises(sl.InputError, match="differ in weights"):
        profile(model).merge(profile(other))


def test_changed_weights_are_seen_behind_the_version_counter() -> None:
    model = new("bridge", "llama")
    before = profile(model).value_norm
    model.blocks[0].attn.original_component.o_proj.weight.data *= 2
    assert torch.allclose(profile(model).value_norm[0], 2 * before[0], rtol=1e-5)


def test_a_run_needs_an_analyzer(model: Any) -> None:
    with pytest.raises(sl.InputError, match="expected a list of one or more analyzer objects"):
        sl.run(model, TEXT, [], progress=False, context_length=32)


def test_one_analyzer_does_not_count_twice(model: Any) -> None:
    analyzer = sl.ProfileAnalyzer()
    with pytest.raises(sl.InputError, match="stands twice"):
        sl.run(model, TEXT, [analyzer, analyzer], progress=False, context_length=32)


def test_an_unknown_argument_is_named(model: Any) -> None:
    with pytest.raises(sl.InputError, match="unknown argument 'foo'; beside its own there are context_length"):
        profile(model, foo=1)


def test_a_profile_is_not_saved_as_a_table(model: Any, tmp_path: Path) -> None:
    with pytest.raises(sl.ResultFileError, match=r"results are kept as \.safetensors"):
        profile(model).save(tmp_path / "profile.csv")


def test_an_edit_of_few_queries_is_seen_by_the_check(model: Any) -> None:
    """On a long prompt a pass compares a sample of queries; the check compares all of them."""
    tokens = torch.arange(60) % 300 + 5

    def edit(z: torch.Tensor, hook: Any) -> torch.Tensor:
        z = z.clone()
        z[:, 2] *= 3
        return z

    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_z", edit)]):
        check = sl.check_model(model, tokens)
    assert [layer.verdict for layer in check.layers] == ["refused", "exact"]


def test_alpha_star_is_undefined_where_sink_and_mixture_coincide(model: Any) -> None:
    """One token repeated: in layer 0 all values are one vector, and the place of the least norm would be rounding."""
    found = profile(bridge("llama"), torch.full((1, 12), 7))
    assert found.counts["mixtures"][0].sum() == 0
    assert found.alpha_star[0].isnan().all()

"""Analyzers in one pass, and what a pass leaves behind on the caller's model: nothing."""

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from sinklens.analyzers.keys import KeysAnalyzer
from sinklens.results.head_profile import COUNT_OF
from tests.captured import BACKENDS, MODELS, load, n_hooks, new, raw_layers
from tests.families import FAMILIES, inputs
from tests.reference import attention as reference

SETTINGS: dict[str, Any] = {"context_length": 32, "progress": False}
TEXTS = ["The cat sat on the mat", "There are 12 apples and 3 oranges", "A dog"]


class HeadMass(sl.Analyzer):
    """The README's kind of analyzer: attention on the first token, by layer and head, with a hook of its own."""

    hooks = ("blocks.{layer}.hook_resid_pre",)

    def start(self, setup: sl.Setup) -> None:
        self.mass = torch.zeros(len(setup.layers), setup.n_heads)
        self.norm = torch.zeros(len(setup.layers))

    def update(self, attention: sl.LayerAttention) -> None:
        self.mass[attention.index] += (attention.pattern[..., 0] * attention.mask.unsqueeze(1)).sum((0, 2))
        self.norm[attention.index] += attention.captured[self.hooks[0]][attention.mask].norm(dim=-1).sum()

    def result(self, provenance: sl.Provenance) -> tuple[Tensor, Tensor]:
        return self.mass / provenance.n_tokens, self.norm / provenance.n_tokens


class Failing(HeadMass):
    """Raises in the middle of the second layer."""

    def __init__(self, error: BaseException):
        self.error = error

    def update(self, attention: sl.LayerAttention) -> None:
        if attention.index == 1:
            raise self.error


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_users_analyzer_works(backend: str) -> None:
    model = load(backend, "llama_3x5")
    [(mass, norm)] = sl.run(model, TEXTS, [HeadMass()], **SETTINGS)
    expected_mass, expected_norm, n_tokens = torch.zeros(3, 5), torch.zeros(3), 0
    for text in TEXTS:
        tokens = torch.tensor([model.tokenizer.encode(text)])
        n_tokens += tokens.shape[1]
        for layer, raw in raw_layers(model, "llama_3x5", tokens).items():
            expected_mass[layer] += raw.pattern[0, :, :, 0].sum(-1).float()
            _, cache = model.run_with_cache(tokens, names_filter=f"blocks.{layer}.hook_resid_pre")
            expected_norm[layer] += cache[f"blocks.{layer}.hook_resid_pre"].norm(dim=-1).sum()
    torch.testing.assert_close(mass, expected_mass / n_tokens)
    torch.testing.assert_close(norm, expected_norm / n_tokens)


def test_analyzers_in_one_pass_equal_single_passes() -> None:
    model = load("bridge", "gemma2")
    makers: list[Callable[[], sl.Analyzer]] = [
        sl.ProfileAnalyzer,
        sl.DriftAnalyzer,
        sl.DriversAnalyzer,
        sl.KeysAnalyzer,
        HeadMass,
    ]
    together = sl.run(model, TEXTS, [make() for make in makers], **SETTINGS)
    apart = [sl.run(model, TEXTS, [make()], **SETTINGS)[0] for make in makers]
    for one, other in zip(together[:4], apart[:4], strict=True):
        assert one.sums.keys() == other.sums.keys()
        for name in one.sums:
            assert torch.equal(one.sums[name], other.sums[name]), name
    assert all(torch.equal(*pair) for pair in zip(together[4], apart[4], strict=True))


def test_one_forward_pass_serves_all_analyzers() -> None:
    model = new("bridge", "llama")
    passes = Counter()
    model.blocks[0].attn.hook_pattern.add_hook(lambda tensor, hook: passes.update(["pattern"]))
    sl.run(model, TEXTS, [sl.ProfileAnalyzer(), sl.DriftAnalyzer(), HeadMass()], batch_size=2, **SETTINGS)
    assert passes["pattern"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "hook", ["blocks.{layer}.hook_resid_prr", "blocks.{layer}.attn.hook_paterns", "blocks.7.hook_resid_pre"]
)
def test_a_misspelt_hook_is_named(backend: str, name: str, hook: str) -> None:
    class Misspelt(HeadMass):
        hooks = (hook,)

    model = load(backend, name)
    with pytest.raises(sl.HookNotFiredError) as error:
        sl.run(model, TEXTS, [Misspelt()], **SETTINGS)
    assert repr(hook) in str(error.value)
    assert "\n" not in str(error.value)
    assert n_hooks(model) == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hook", ["blocks.{layer}.attn.hook_result", "blocks.{layer}.hook_q_input"])
def test_a_hook_behind_a_flag_that_is_off_is_named(backend: str, hook: str) -> None:
    class Gated(HeadMass):
        hooks = (hook,)

    model = load(backend, "llama")
    with pytest.raises(sl.HookNotFiredError) as error:
        sl.run(model, TEXTS, [Gated()], **SETTINGS)
    assert hook.rsplit(".", 1)[-1] in str(error.value)
    assert "flag" in str(error.value) or "set_use" in str(error.value)
    assert "\n" not in str(error.value)
    assert n_hooks(model) == 0


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), sl.InputError("no")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_hook_is_left_after_an_exception(backend: str, error: BaseException) -> None:
    model = new(backend, "llama")
    fired = Counter()
    model.blocks[0].attn.hook_v.add_hook(lambda tensor, hook: fired.update(["v"]))
    torch_grad = torch.is_grad_enabled()
    with pytest.raises(type(error)) as raised:
        sl.run(model, TEXTS, [Failing(error)], **SETTINGS)
    assert raised.value is error
    assert n_hooks(model) == 1
    assert torch.is_grad_enabled() == torch_grad
    model(inputs("llama"))
    assert fired["v"] == 2
    assert sl.head_profile(model, TEXTS, **SETTINGS).sink_mass.isfinite().all()


CALLS: dict[str, Callable[[Any], object]] = {
    "head_profile": lambda model: sl.head_profile(model, TEXTS, batch_size=8, **SETTINGS),
    "attention_maps": lambda model: sl.attention_maps(model, TEXTS[0]),
    "check_model": sl.check_model,
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("call", CALLS)
def test_the_users_own_hooks_fire_and_stay(backend: str, call: str) -> None:
    model = new(backend, "gpt2")
    fired = Counter()

    def count(name: str) -> Callable[..., None]:
        return lambda tensor, hook: fired.update([name])

    def check_all_fired() -> None:
        fired.clear()
        model(inputs("gpt2"))
        assert fired == {"added": 1, "permanent": 1, "context": 1}

    model.add_hook("blocks.0.attn.hook_pattern", count("added"))
    model.add_hook("blocks.1.attn.hook_z", count("permanent"), is_permanent=True)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_v", count("context"))]):
        CALLS[call](model)
        assert fired["added"] == fired["permanent"] == fired["context"] >= 1
        assert n_hooks(model) == 3
        check_all_fired()
    assert n_hooks(model) == 2
    model.reset_hooks()
    assert n_hooks(model) == 1


def test_a_users_hook_that_edits_is_measured() -> None:
    model = new("bridge", "llama")
    plain = sl.head_profile(model, TEXTS, layers=[0], **SETTINGS)
    with model.hooks(fwd_hooks=[("blocks.0.attn.hook_v", lambda tensor, hook: tensor * 2)]):
        doubled = sl.head_profile(model, TEXTS, layers=[0], **SETTINGS)
    torch.testing.assert_close(doubled.value_norm, 2 * plain.value_norm)
    torch.testing.assert_close(doubled.sink_intra, plain.sink_intra, rtol=1e-4, atol=1e-5)


def flags(model: Any) -> dict[str, bool]:
    names = ("use_attn_result", "use_split_qkv_input", "use_attn_in", "use_hook_mlp_in")
    return {name: bool(getattr(model.cfg, name, False)) for name in names}


@pytest.mark.parametrize(("backend", "name"), [(b, n) for b, n in MODELS if n in ("gpt2", "llama", "gemma2", "opt")])
@pytest.mark.parametrize("flag", ["use_attn_result", "use_split_qkv_input"])
def test_flags_change_nothing_and_stay(backend: str, name: str, flag: str) -> None:
    model = new(backend, name)
    plain = sl.head_profile(model, TEXTS, **SETTINGS)
    try:
        getattr(model, f"set_{flag}")(True)
    except (NotImplementedError, ValueError, RuntimeError) as error:
        pytest.skip(f"{backend} {name} has no {flag}: {type(error).__name__}")
    before = flags(model)
    assert before[flag]
    again = sl.head_profile(model, TEXTS, **SETTINGS)
    assert flags(model) == before
    for quantity in COUNT_OF:
        torch.testing.assert_close(again.mean(quantity), plain.mean(quantity), rtol=1e-4, atol=1e-5)
    assert sl.check_model(model).passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_result_requires_a_gradient(backend: str) -> None:
    model = new(backend, "llama").requires_grad_(True)
    seen: list[bool] = []

    class Watching(HeadMass):
        def update(self, attention: sl.LayerAttention) -> None:
            tensors = (attention.pattern, attention.value, attention.z, attention.W_O, attention.output)
            seen.extend(tensor.requires_grad for tensor in (*tensors, attention.captured[self.hooks[0]]))
            seen.append(torch.is_grad_enabled())

    assert torch.is_grad_enabled()
    profile = sl.head_profile(model, TEXTS, **SETTINGS)
    sl.run(model, TEXTS, [Watching()], **SETTINGS)
    assert seen
    assert not any(seen)
    assert torch.is_grad_enabled()
    _, cache = model.run_with_cache(inputs("llama"))
    for maps in (sl.attention_maps(model, TEXTS[0]), sl.AttentionMaps.from_cache(model, cache)):
        assert not any(maps.metric(name).requires_grad for name in ("attention", "intra", "inter", "cosine"))
    assert not any(tensor.requires_grad for tensor in profile.sums.values())
    assert all(parameter.requires_grad for parameter in model.parameters())
    model(inputs("llama")).sum().backward()


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(found), Tensor) for found in gc.get_objects())


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_does_not_grow_with_calls(backend: str) -> None:
    model = load(backend, "llama")
    counts = []
    for call in range(20):
        sl.head_profile(model, TEXTS, **SETTINGS)
        sl.attention_maps(model, TEXTS[0])
        if call in (2, 19):
            counts.append(live_tensors())
    assert counts[1] == counts[0]


def test_a_profile_keeps_one_layer_at_a_time() -> None:
    alive: list[int] = []

    class Watching(sl.ProfileAnalyzer):
        def update(self, attention: sl.LayerAttention) -> None:
            super().update(attention)
            shape = attention.pattern.shape
            found = (item for item in gc.get_objects() if issubclass(type(item), Tensor))
            alive.append(sum(item.shape == shape and item.dtype == torch.float32 for item in found))

    sl.run(
        load("bridge", "llama_3x5"), ["The cat sat on the mat, and the dog sat on the log."], [Watching()], **SETTINGS
    )
    assert len(alive) == 3
    assert alive[2] <= alive[0]


@pytest.mark.parametrize("name", ["opt", "gptj"])
def test_a_model_without_patterns_is_refused_with_advice(name: str) -> None:
    model = new("bridge", name)
    before = n_hooks(model)  # the Bridge itself puts some on OPT
    model.original_model.set_attn_implementation("sdpa")
    for call in (lambda: sl.head_profile(model, TEXTS, **SETTINGS), lambda: sl.check_model(model)):
        with pytest.raises((sl.HookNotFiredError, sl.UnsupportedAttentionError), match="eager") as error:
            call()
        assert "\n" not in str(error.value)
        assert n_hooks(model) == before


@pytest.mark.parametrize("thing", [None, "gpt2", torch.nn.Linear(2, 2)])
def test_what_is_no_model_is_refused(thing: Any) -> None:
    with pytest.raises(sl.InputError, match=f"the model is a {type(thing).__name__}; expected a HookedTransformer"):
        sl.head_profile(thing, TEXTS, progress=False)


def test_batches_made_before_are_taken_and_their_settings_are_not_repeated() -> None:
    model = load("bridge", "llama")
    batches = sl.tokenize(model, TEXTS, context_length=32)
    one, other = (
        sl.head_profile(model, TEXTS, **SETTINGS),
        sl.run(model, batches, [sl.ProfileAnalyzer()], progress=False)[0],
    )
    assert torch.equal(one.sums["sink_intra"], other.sums["sink_intra"])
    assert one.provenance == other.provenance
    with pytest.raises(sl.InputError, match=r"the texts are batches already; pass batch_size to sinklens\.tokenize"):
        sl.run(model, batches, [sl.ProfileAnalyzer()], progress=False, batch_size=2)


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        (b, n)
        for b, n in MODELS
        if n in ("llama_3x5", "mistral", "gemma2", "gpt_oss", "qwen3_next", "bert", "deepseek_v3")
    ],
)
def test_keys_equal_the_summed_reference(backend: str, name: str) -> None:
    model, family = load(backend, name), FAMILIES[name]
    ids = inputs(name)[0].tolist()
    texts = [ids[:9], ids[2:7]]
    [keys] = sl.run(model, texts, [KeysAnalyzer()], **SETTINGS)
    expected = {
        quantity: torch.zeros(len(family.attention_layers), family.n_heads, 9, dtype=torch.float64)
        for quantity in keys.sums
    }
    readers = torch.zeros(len(family.attention_layers), 9, dtype=torch.float64)
    for text in texts:
        for row, raw in enumerate(raw_layers(model, name, torch.tensor([text])).values()):
            length = len(text)
            readers[row, :length] += raw.visible[0].sum(0)
            expected["attention"][row, :, :length] += raw.pattern[0].sum(1)
            expected["intra"][row, :, :length] += reference.intra(raw.pattern, raw.projected)[0].sum(1)
            expected["inter"][row, :, :length] += reference.inter(raw.pattern, raw.projected)[0].sum(1)
    assert torch.equal(keys.readers, readers)
    assert keys.documents.tolist() == [2.0] * 5 + [1.0] * 4
    for quantity, sums in expected.items():
        torch.testing.assert_close(keys.sums[quantity], sums, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(getattr(keys, quantity), (sums / keys.documents).float(), rtol=1e-5, atol=1e-5)


def test_key_contributions_merge_whatever_the_lengths_and_come_back_from_a_file(tmp_path: Any) -> None:
    model, ids = load("bridge", "llama"), inputs("llama")[0].tolist()
    texts = [ids[:9], ids[2:7], ids[1:4]]
    whole, first, second = (
        sl.run(model, part, [KeysAnalyzer()], **SETTINGS)[0] for part in (texts, texts[:1], texts[1:])
    )
    for merged in (first.merge(second), second.merge(first)):
        assert torch.equal(merged.documents, whole.documents)
        assert torch.equal(merged.readers, whole.readers)
        for name, value in whole.sums.items():
            torch.testing.assert_close(merged.sums[name], value, rtol=1e-6, atol=1e-6)
    again = sl.KeyContributions.load(whole.save(tmp_path / "keys.safetensors"))
    assert torch.equal(again.intra, whole.intra)
    assert again.provenance == whole.provenance
    table = whole.to_dataframe()
    row = table[(table.layer == 1) & (table["head"] == 3) & (table.key == 4)]
    assert row["inter"].item() == whole.inter[1, 3, 4].item()
    other = sl.run(model, texts, [KeysAnalyzer()], layers=[1], **SETTINGS)[0]
    with pytest.raises(sl.InputError, match="cannot merge results with other layers"):
        whole.merge(other)


@pytest.mark.parametrize("name", ["llama_3x5", "mistral", "bert"])
def test_drift_equals_the_reference(name: str) -> None:
    model, family = load("bridge", name), FAMILIES[name]
    ids = inputs(name)[0].tolist()
    texts = [ids[:9], ids[2:6]]
    [drift] = sl.run(model, texts, [sl.DriftAnalyzer()], **SETTINGS)
    sums = {quantity: torch.zeros(family.n_layers, family.n_heads, dtype=torch.float64) for quantity in drift.sums}
    n_queries = torch.zeros(family.n_layers, 1, dtype=torch.float64)
    for text in texts:
        for layer, raw in raw_layers(model, name, torch.tensor([text])).items():
            whole = reference.head_outputs(raw.pattern, raw.projected)[0]
            rest = reference.outputs_without_sink(raw.pattern, raw.projected, [0])[0]
            queries = [i for i in range(1, len(text)) if raw.visible[0, i, 0]]
            n_queries[layer] += len(queries)
            for head in range(family.n_heads):
                axis = reference.cone_axis(raw.projected[0, head, 0], range(1, len(text)))
                for suffix, outputs in (("with", whole[head]), ("without", rest[head])):
                    sums[f"cone_{suffix}"][layer, head] += reference.drift(outputs, axis, queries) * len(queries)
                    sums[f"pairwise_{suffix}"][layer, head] += reference.mean_pairwise_cosine(outputs, queries)
                sums["output_norm"][layer, head] += sum(float(whole[head, i].norm()) for i in queries)
    for quantity, total in sums.items():
        count = 2.0 if quantity.startswith("pairwise") else n_queries
        torch.testing.assert_close(drift.mean(quantity), (total / count).float(), rtol=2e-5, atol=2e-5)
    assert drift.by_norm_quartile()["output_norm"].is_monotonic_increasing


def test_shares_of_the_drivers_sum_to_one() -> None:
    model = load("bridge", "llama_3x5")
    [drivers] = sl.run(model, TEXTS[:2], [sl.DriversAnalyzer(tail=2)], **SETTINGS)
    for group in ("sink", "tail", "middle"):
        shares = sum(drivers.mean(f"share.{group}.{factor}") for factor in ("attention", "value_norm", "direction"))
        torch.testing.assert_close(shares, torch.ones(3, 5), rtol=0, atol=1e-5)
    assert drivers.provenance.conventions == {"tail": 2}
    # The sink's value is the same for every query, so its norm varies only through the output's.
    assert drivers.mean("share.middle.attention").std() > 0.01

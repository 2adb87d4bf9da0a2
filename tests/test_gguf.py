"""GGUF files give the numbers of the model that was written into them."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import sinklens as sl
from sinklens.errors import ModelLoadError
from sinklens.models.gguf_files import read_gguf, read_gguf_tokenizer
from tests.families import PROMPT, new_hf_model
from tests.test_loading import BACKENDS, message_of
from tests.tiny_tokenizer import BOS, EOS, PAD, tiny_tokenizer

pytestmark = pytest.mark.skipif(find_spec("gguf") is None, reason="the package gguf is not installed")

NORMAL, CONTROL = 1, 3  # kinds of tokens in a GGUF file


def write_gguf(path: Path, architecture: str = "qwen2", adds_bos: bool = True) -> Path:
    """The tiny Qwen2 model and the tiny tokenizer as llama.cpp's converter writes them."""
    import gguf

    model = new_hf_model("qwen2")
    config: Any = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    add_tokenizer(writer, adds_bos)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        writer.add_tensor(str(names.get_name(name, try_suffixes=(".weight", ".bias"))), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: Any, adds_bos: bool) -> None:
    tokenizer = tiny_tokenizer()
    stored = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(stored["vocab"], key=stored["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([CONTROL if token in (BOS, EOS, PAD) else NORMAL for token in tokens])
    writer.add_bos_token_id(tokens.index(BOS))
    writer.add_eos_token_id(tokens.index(EOS))
    writer.add_pad_token_id(tokens.index(PAD))
    writer.add_add_bos_token(adds_bos)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.F32.gguf")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gguf_file_gives_the_models_own_logits(file: Path, backend: str) -> None:
    model = sl.load_model(file, device="cpu", backend=backend)
    tokens = torch.tensor([tiny_tokenizer().encode(PROMPT)])
    torch.testing.assert_close(model(tokens), new_hf_model("qwen2")(tokens).logits, atol=1e-4, rtol=1e-4)
    assert model.tokenizer.encode(PROMPT) == tokens[0].tolist()
    assert model.cfg.model_name == "tiny.F32.gguf"
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_it_is_measured_as_the_same_model_from_a_folder(file: Path, tmp_path: Path) -> None:
    new_hf_model("qwen2").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    packed, plain = sl.load_model(str(file), device="cpu"), sl.load_model(tmp_path, device="cpu")
    assert sl.check_model(packed).passed
    maps, expected = (sl.attention_maps(model, torch.tensor([5, 6, 7, 8])) for model in (packed, plain))
    torch.testing.assert_close(maps.inter, expected.inter)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_in_the_dtype_that_was_asked_for(file: Path, dtype: torch.dtype) -> None:
    model = sl.load_model(file, device="cpu", dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model.cfg.dtype == dtype


def test_a_tokenizer_prepends_a_bos_only_where_the_file_says_so(tmp_path: Path) -> None:
    model = sl.load_model(write_gguf(tmp_path / "tiny.gguf", adds_bos=False), device="cpu")
    assert model.tokenizer.encode(PROMPT) == tiny_tokenizer().encode(PROMPT)[1:]
    assert not model.cfg.tokenizer_prepends_bos


def test_what_was_read_can_be_saved_as_an_ordinary_model(file: Path, tmp_path: Path) -> None:
    read_gguf(file).save_pretrained(tmp_path)
    read_gguf_tokenizer(file).save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    tokens = torch.tensor([[3, 4, 5]])
    torch.testing.assert_close(sl.load_model(tmp_path, device="cpu")(tokens), sl.load_model(file, device="cpu")(tokens))


def test_a_folder_with_one_gguf_file_is_that_file(file: Path) -> None:
    assert sl.load_model(file.parent, device="cpu").cfg.model_name == "tiny.F32.gguf"


def test_files_that_cannot_be_read(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no file" in message_of(tmp_path / "gone.gguf")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert f"{tmp_path}/a.gguf cannot be read as a model: " in message_of(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"GGUF")
    assert "holds 2 GGUF files (a.gguf, b.gguf); pass one of them" in message_of(tmp_path)
    unknown = write_gguf(tmp_path / "unknown.gguf", "wobble")
    assert "wobble" in message_of(unknown)
    assert "transformers can read from GGUF" in message_of(unknown)
    assert "a GGUF file takes no device_map" in message_of(file, device_map="auto")


def test_without_the_package_that_reads_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def fail(*_: Any, **__: Any) -> None:
        raise ImportError("Please install gguf")

    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    with pytest.raises(ModelLoadError, match=r"reading tiny\.F32\.gguf needs the package `gguf`: pip install gguf"):
        sl.load_model(file)

"""Checkpoints that lack weights: an encoder's head may be absent, and then is no number; nothing else may."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import sinklens as sl
from tests.families import bridge, inputs
from tests.test_loading import message_of, save_model

HEAD = "cls.predictions.transform.dense.weight"
BODY = "bert.encoder.layer.1.attention.self.value.weight"


def without(folder: Path, family: str, *names: str) -> Path:
    file = save_model(folder, family) / "model.safetensors"
    weights = load_file(file)
    for name in names:
        del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def test_an_encoder_without_its_head_is_measured_like_one_with_it(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the checkpoint has no head") as caught:
        model = sl.load_model(without(tmp_path, "bert", HEAD), device="cpu")
    assert len(caught) == 1
    tokens = inputs("bert")
    torch.testing.assert_close(
        sl.attention_maps(model, tokens[0]).inter, sl.attention_maps(bridge("bert"), tokens[0]).inter
    )
    assert model(tokens).isnan().all()
    assert sl.check_model(model).passed


@pytest.mark.parametrize(("family", "names"), [("bert", [BODY]), ("bert", [HEAD, BODY]), ("llama", ["lm_head.weight"])])
def test_any_other_weight_that_lacks_is_refused(tmp_path: Path, family: str, names: list[str]) -> None:
    message = message_of(without(tmp_path, family, *names))
    assert "the checkpoint lacks weights that the architecture needs" in message
    assert "Get a complete copy" in message

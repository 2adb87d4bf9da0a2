"""Edits of padded batches: every family gives a sequence what it gives it alone."""

from typing import Any

import pytest
import torch
from torch import Tensor

import sinklens as sl
from tests.captured import MODELS, load
from tests.families import inputs
from tests.test_interventions import EDITABLE

LENGTH = 6


def padded(side: str, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """A short and a long sequence ``[2, 9]``, and the mask of their real tokens."""
    pad, real = torch.zeros(1, 3, dtype=torch.long), torch.ones(1, LENGTH, dtype=torch.long)
    order = (lambda row, more: [row, more]) if side == "right" else (lambda row, more: [more, row])
    rows = torch.cat(order(tokens[:, :LENGTH], pad), 1), torch.cat(order(real, torch.zeros_like(pad)), 1)
    return torch.cat([rows[0], tokens]), torch.cat([rows[1], torch.ones_like(tokens)])


def logits(model: Any, batch: Tensor, mask: Tensor, edit: Any) -> Tensor:
    with torch.no_grad(), sl.intervene(model, edit):
        output = model(batch, attention_mask=mask)
    return getattr(output, "logits", output)


EDITS = {
    "value": lambda model, **where: sl.scale_sink_values(model, -0.5, level="kv", **where),
    "mass": lambda model, **where: sl.set_sink_mass(model, 0.4, **where),
    "second token": lambda model, **where: sl.scale_sink_values(model, 0.2, level="kv", sink=1, **where),
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize(("backend", "name"), MODELS)
def test_a_sequence_in_a_padded_batch_is_edited_as_alone(backend: str, name: str, edit: str, side: str) -> None:
    if edit == "mass" and (backend, name) not in EDITABLE:
        pytest.skip("this back end throws edits of the pattern away, and they are refused")
    model, tokens = load(backend, name), inputs(name)[:, :9]
    batch, mask = padded(side, tokens)
    short, whole = tokens[:, :LENGTH], mask[0].bool()
    plain = [logits(model, short, torch.ones_like(short), ())[0], logits(model, batch, mask, ())[0, whole]]
    if (plain[0] - plain[1]).abs().max() > 1e-4:
        assert side == "left", "padding on the right changes the model itself"
        pytest.skip("the model itself is another one behind padding on the left")
    alone = logits(
        model, short, torch.ones_like(short), EDITS[edit](model, tokens=short, attention_mask=torch.ones_like(short))
    )
    together = logits(model, batch, mask, EDITS[edit](model, tokens=batch, attention_mask=mask))
    torch.testing.assert_close(together[0, whole], alone[0], atol=5e-5, rtol=0)
    assert (alone[0] - plain[0]).abs().max() > 1e-3

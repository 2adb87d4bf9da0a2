"""Names of models as users type them: short names, letters of another case, near misses."""

from typing import Any

import pytest

from sinklens.models import loading, registry
from tests.test_loading import message_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects the names that the hub is asked for; it has none of them."""
    from transformers import AutoConfig

    names: list[str] = []

    def ask(name: str, **_: Any) -> None:
        names.append(name)
        raise OSError(f"{name} is not a valid model identifier")

    monkeypatch.setattr(loading, "is_offline", lambda: False)
    monkeypatch.setattr(AutoConfig, "from_pretrained", ask)
    return names


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("pythia-70m", "EleutherAI/pythia-70m"),
        ("gpt2-small", "gpt2"),
        ("GPT2-Small", "gpt2"),
        ("gpt2", "gpt2"),
        ("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("me/my-own", "me/my-own"),
    ],
)
def test_short_names_of_transformer_lens_and_other_cases_are_understood(
    asked: list[str], typed: str, name: str
) -> None:
    assert f"{name!r} cannot be loaded" in message_of(typed)
    assert asked == [name]


@pytest.mark.usefixtures("asked")
def test_similar_names_are_offered() -> None:
    assert "Check the name. Similar: EleutherAI/pythia-70m, " in message_of("EleutherAI/pythia-70")
    assert "Similar: meta-llama/Llama-3.1-8B, " in message_of("Llama-3.1-8B")
    assert "Similar" not in message_of("nobody/no-such-model")
    assert "Similar" not in message_of("Qwen/Qwen3-0.6B")  # it is the right one


def test_a_known_name_needs_no_registry(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for cached in (registry.architectures, registry.statuses, registry.aliases, registry._entries, registry._folded):
        cached.cache_clear()
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    message_of("EleutherAI/pythia-70m")
    assert asked == ["EleutherAI/pythia-70m"]

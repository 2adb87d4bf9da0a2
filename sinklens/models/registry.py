"""TransformerLens' own registry of models, read from its files: importing all of TransformerLens for a list takes seconds."""

import ast
import functools
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sinklens.errors import InputError

_FOLDER = Path("tools", "model_registry", "data")
_ALIASES_OF_3 = Path("supported_models.py")
OWN_FORMAT_OWNERS = ("NeelNanda/", "ArthurConmy/", "Baidicoot/")
_STATUS = {0: "not tried", 1: "works", 2: "not tried", 3: "fails", 4: "structure only"}


def _file(path: Path) -> Path | None:
    spec = importlib.util.find_spec("transformer_lens")
    places = [Path(place) / path for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_file()), None)


def _json(name: str) -> Any:
    found = _file(_FOLDER / name)
    if found is None:
        raise InputError(
            f"the installed TransformerLens has no registry of models ({_FOLDER / name}); expected version 3.9 to 4.x"
        )
    return json.loads(found.read_text(encoding="utf-8"))


@functools.cache
def architectures() -> Mapping[str, str]:
    """The architecture of every model that the registry lists, by its name on the Hugging Face hub.

    Example:
        >>> architectures()["Qwen/Qwen3-0.6B"]
        'Qwen3ForCausalLM'
    """
    return {entry["model_id"]: entry["architecture_id"] for entry in _entries()}


@functools.cache
def statuses() -> Mapping[str, str]:
    """What TransformerLens says of its own runs of a model: ``works``, ``fails``, ``structure only`` or ``not tried``.

    Example:
        >>> statuses()["Qwen/Qwen3-0.6B"]
        'works'
    """
    return {entry["model_id"]: _STATUS.get(entry["status"], "not tried") for entry in _entries()}


@functools.cache
def aliases() -> Mapping[str, tuple[str, ...]]:
    """The short names that TransformerLens has for models, by their name on the hub.

    Example:
        >>> aliases()["EleutherAI/pythia-70m"][0]
        'pythia-70m'
    """
    source = _file(_ALIASES_OF_3)
    found = _literal(source, "MODEL_ALIASES") if source else None
    return {name: tuple(short) for name, short in (found or _json("model_aliases.json")["aliases"]).items()}


def _literal(source: Path, name: str) -> Any:
    """The value of a constant in a module, without running it; None where it is no plain value."""
    for statement in ast.parse(source.read_text(encoding="utf-8")).body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.target.id == name
        ):
            try:
                return ast.literal_eval(statement.value) if statement.value else None
            except ValueError:  # TransformerLens 4 reads it from its registry
                return None
    return None


@functools.cache
def _entries() -> list[dict[str, Any]]:
    return _json("supported_models.json")["models"]


def architecture_of_copies(name: str) -> str:
    """The architecture of the models of the same name that other owners have on the hub, where they agree; else empty.

    Example:
        >>> architecture_of_copies("gpt2"), architecture_of_copies("nobody/x")
        ('GPT2LMHeadModel', '')
    """
    found = _by_last_part().get(name.rpartition("/")[2].lower(), set())
    return next(iter(found)) if len(found) == 1 else ""


@functools.cache
def _by_last_part() -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, architecture in architectures().items():
        found.setdefault(name.rpartition("/")[2].lower(), set()).add(architecture)
    return found


@functools.cache
def _folded() -> Mapping[str, str]:
    """The hub's name by the alias in small letters; by its own name in small letters where only one has that."""
    own: dict[str, str] = {}
    for name in [*architectures(), *aliases()]:
        own[name.lower()] = name if own.get(name.lower(), name) == name else ""
    short = {alias.lower(): name for name, found in aliases().items() for alias in found}
    return {folded: name for folded, name in own.items() if name} | short


def is_own_format(name: str) -> bool:
    """Whether a model on the hub has TransformerLens' own format and not that of Hugging Face.

    Example:
        >>> is_own_format("NeelNanda/GELU_1L512W_C4_Code"), is_own_format("gpt2")
        (True, False)
    """
    return name.startswith(OWN_FORMAT_OWNERS)


def hub_name(name: str) -> str:
    """The name on the hub of what a user typed: a short name of TransformerLens, or letters of another case.

    Args:
        name: as typed; what the registry does not have is given back as it is.

    Example:
        >>> hub_name("pythia-70m"), hub_name("qwen/qwen3-0.6b"), hub_name("gpt2"), hub_name("me/mine")
        ('EleutherAI/pythia-70m', 'Qwen/Qwen3-0.6B', 'gpt2', 'me/mine')
    """
    try:
        return name if name in architectures() else _folded().get(name.lower(), name)
    except InputError:  # the hub can be asked without the registry too
        return name


def similar_names(name: str, at_most: int = 3) -> list[str]:
    """Names of the registry that look like one which nobody has: the same without its owner first, then the most alike.

    Example:
        >>> similar_names("EleutherAI/pythia-70")[0], similar_names("Qwen3-0.6B-Bas")[0]
        ('EleutherAI/pythia-70m', 'Qwen/Qwen3-0.6B-Base')
    """
    import difflib

    try:
        said = statuses()
    except InputError:
        return []
    tried_first = sorted(architectures(), key=lambda known: said[known] != "works")
    same = [known for known in tried_first if known.lower().endswith("/" + name.lower())]
    compared = {known.lower(): known for known in reversed(tried_first)}
    compared |= {} if "/" in name else {known.lower().rpartition("/")[2]: known for known in reversed(tried_first)}
    alike = difflib.get_close_matches(name.lower(), compared, n=at_most, cutoff=0.85)
    return list(dict.fromkeys([*same, *(compared[found] for found in alike)]))[:at_most]

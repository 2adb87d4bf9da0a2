"""Which models TransformerLens knows by name, with their family and sinklens' verdict on it; nothing is downloaded."""

import functools
import re
from collections import Counter
from dataclasses import astuple, dataclass, fields

import pandas as pd

from sinklens.models import registry, smollm2
from sinklens.models.families import OWN_FORMAT_NAME, REFUSED, FamilyVerdict, verdict_on

# What people put into the name of a copy with packed weights; mxfp4 packs gpt-oss's experts only, not its attention.
_PACKED = re.compile(
    r"(?:^|[-_./])(gptq|awq|bnb|mlx|gguf|hqq|exl2|[2-8]-?bit|int[48]|fp8|nvfp4|w4a16|w8a8)(?=$|[-_.])", re.IGNORECASE
)


@dataclass(frozen=True)
class KnownModel:
    """One model of the index.

    Attributes:
        name: to be given to ``load_model`` or ``sinklens check``.
        aliases: shorter names that mean the same.
        architecture: as its configuration names it; empty where the registry does not tell.
        family: as ``docs/models.md`` calls it.
        verdict: sinklens' on the family (:class:`~sinklens.models.families.FamilyVerdict`).
        transformer_lens: what TransformerLens' registry says of its own runs of this model.
        hooked: whether HookedTransformer (TransformerLens 3) holds the family too.
        note: on the family.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    family: str
    verdict: str
    transformer_lens: str
    hooked: bool
    note: str

    def matches(self, words: list[str]) -> bool:
        """Whether every word is part of a name, the architecture, the family or the verdict."""
        text = "\n".join((self.name, *self.aliases, self.architecture, self.family, self.verdict)).lower()
        return all(word in text for word in words)


def known_models(search: str = "") -> list[KnownModel]:
    """The models that TransformerLens knows by name.

    The one that is called just so comes first, then those with a short name, then those that TransformerLens has run itself.

    Args:
        search: words that must all be part of a model's names, architecture, family or verdict; empty for all.

    Returns:
        One entry per model; empty where nothing matches.

    Raises:
        InputError: the installed TransformerLens has no registry.

    Example:
        >>> [model.name for model in known_models("pythia-70m-deduped-v0")]
        ['EleutherAI/pythia-70m-deduped-v0']
        >>> known_models("gemma-2-2b-it")[0].verdict
        'exact'
    """
    words = search.lower().split()
    chosen = [model for model in _all() if model.matches(words)]
    return sorted(chosen, key=lambda model: _order(model, search.strip().lower()))


def _order(model: KnownModel, search: str) -> tuple[bool, bool, bool, str]:
    is_meant = search in {name.lower() for name in (model.name, *model.aliases)}
    return not is_meant, not model.aliases, model.transformer_lens != "works", model.name.lower()


@functools.cache
def _all() -> tuple[KnownModel, ...]:
    names = dict.fromkeys([*registry.architectures(), *registry.aliases()])
    packaged = _entry(smollm2.NAME, (), "LlamaForCausalLM", "not tried")
    return (packaged, *map(_known, names))


def _known(name: str) -> KnownModel:
    status = registry.statuses().get(name, "not tried")
    return _entry(name, registry.aliases().get(name, ()), _architecture(name), status)


def _entry(name: str, aliases: tuple[str, ...], architecture: str, status: str) -> KnownModel:
    found = verdict_on(architecture)
    packed = _PACKED.search(name)
    verdict = REFUSED if packed else found.verdict
    note = f"packed weights, by its name ({packed[1].lower()}); take an unquantised copy" if packed else _note(found)
    return KnownModel(name, aliases, architecture, found.family, verdict, status, found.has_hooked and not packed, note)


def _note(found: FamilyVerdict) -> str:
    needs = "needs TransformerLens 4" if found.bridge_needs_4x else ""
    return "; ".join(part for part in (needs, found.note) if part)


def _architecture(name: str) -> str:
    known = registry.architectures()
    if name in known:
        return known[name]
    if registry.is_own_format(name):
        return OWN_FORMAT_NAME
    return registry.architecture_of_copies(name)


def as_table(models: list[KnownModel]) -> pd.DataFrame:
    """One row per model; a model's aliases with spaces between them.

    Example:
        >>> as_table(known_models("pythia-70m-v0")).loc[0, "family"]
        'gpt_neox'
    """
    rows = pd.DataFrame([astuple(model) for model in models], columns=[field.name for field in fields(KnownModel)])
    return rows.assign(aliases=[" ".join(model.aliases) for model in models])


def by_family(models: list[KnownModel]) -> pd.DataFrame:
    """One row per architecture: its family and verdict, how many names there are, and one of them; tried ones first.

    Example:
        >>> by_family(known_models("pythia")).loc[0, "verdict"]
        'exact'
    """
    counts = Counter(model.architecture for model in models)
    works = Counter(model.architecture for model in models if model.transformer_lens == "works")
    first = {model.architecture: model for model in reversed(models)}
    named = {architecture: verdict_on(architecture) for architecture in first}
    rows = [
        {
            "family": model.family, "verdict": named[architecture].verdict, "architecture": architecture or "(unknown)",
            "names": counts[architecture], "run_by_transformer_lens": works[architecture], "for_example": model.name,
        }
        for architecture, model in first.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: (not row["family"], -row["names"], row["architecture"]))
    return pd.DataFrame(rows)

"""Where a result comes from: the model, its frame, the text, the versions and the conventions."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sinklens.errors import InputError

# What two results may differ in and still be parts of one measurement: it is summed or dropped, not compared.
_SUMMED = ("n_documents", "n_sequences", "n_tokens", "n_cut", "n_skipped")
_NOT_COMPARED = (*_SUMMED, "versions")


def package_versions() -> dict[str, str]:
    """The versions that a number depends on: sinklens, transformer_lens, transformers and torch, where installed.

    Example:
        >>> "torch" in package_versions()
        True
    """
    found: dict[str, str] = {}
    for package in ("sinklens", "transformer-lens", "transformers", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from; saved with every result.

    Attributes:
        model_name: as TransformerLens knows the model.
        backend: ``TransformerBridge`` or ``HookedTransformer``.
        frame: ``raw``, or what was done to the weights, such as ``folded layer norm, centred writing weights``.
        dtype: the model's own dtype; metrics are computed in float32 at least.
        context_length: the longest sequence that was run.
        n_documents: documents that entered the result.
        n_sequences: sequences they were cut into.
        n_tokens: real tokens, padding left out.
        n_cut: documents that were longer than ``context_length``.
        n_skipped: documents that were too short.
        prepended_bos: whether a BOS token was put in front of each sequence.
        sink: how sinks were chosen.
        conventions: thresholds and names of conventions that numbers depend on.
        seed: of whatever is random, or None.
        weights: a short checksum of the output weights, so that models of one name and other weights are told apart.
        hooks: how many hooks were on the model from outside, such as those of an ``intervene`` block around the call.
        versions: of the packages that a number depends on.

    Example:
        >>> Provenance("tiny", n_tokens=10).merge(Provenance("tiny", n_tokens=5)).n_tokens
        15
    """

    model_name: str
    backend: str = ""
    frame: str = "raw"
    dtype: str = "float32"
    context_length: int = 0
    n_documents: int = 0
    n_sequences: int = 0
    n_tokens: int = 0
    n_cut: int = 0
    n_skipped: int = 0
    prepended_bos: bool = False
    sink: str = "first"
    conventions: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    weights: str = ""
    hooks: int = 0
    versions: Mapping[str, str] = field(default_factory=package_versions)

    def merge(self, other: "Provenance") -> "Provenance":
        """The provenance of two parts of one measurement: counts add up, all else must agree.

        Raises:
            InputError: the parts differ in the model, the frame, the conventions or the tokens.
        """
        for name in (f.name for f in dataclasses.fields(self) if f.name not in _NOT_COMPARED):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise InputError(
                    f"cannot merge results that differ in {name}: {mine!r} here, {theirs!r} there; "
                    "measure both parts with the same model and settings"
                )
        return dataclasses.replace(self, **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED})

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary that JSON can hold."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Provenance":
        """The inverse of :meth:`to_dict`; fields that this version does not know are left out."""
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in fields.items() if name in known})

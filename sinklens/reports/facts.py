"""What a report says in words and numbers: what was measured, on what, the headline figures, and warnings."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sinklens.metrics.patterns import KINDS
from sinklens.results import AttentionMaps, HeadProfile, Provenance
from sinklens.viz.theme import KIND_COLOURS

Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Headline:
    """One figure of the whole model.

    Attributes:
        value: the figure.
        label: what it is.
        detail: its convention, or how it comes about.
    """

    value: str
    label: str
    detail: str


@dataclass(frozen=True)
class KindShare:
    """How many heads are of a pattern kind."""

    name: str
    count: int
    percent: float
    colour: str


def headlines(profile: HeadProfile) -> list[Headline]:
    """The figures at the top: sink rate with its convention, opposing heads, sink mass, suppressed heads."""
    rates = profile.sink_rates()
    suppression = profile.suppression
    defined = ~suppression.isnan()
    quieter = (suppression[defined] < 1).float().mean().item()
    others = f"per sample {number(rates['per_sample'])}, per query {number(rates['per_query'])}"
    return [
        Headline(
            number(rates["mean_first"]),
            "sink rate",
            f"Share of heads whose received attention on the sink, averaged over documents first, is > "
            f"{profile.eps:g} ({others}).",
        ),
        Headline(
            percent(profile.opposing_share),
            "of heads have an opposing sink",
            "The sink's projected value points against the mean of the other tokens' (alignment < 0).",
        ),
        Headline(
            number(rates["mean_mass"]),
            "mean attention on the sink",
            "Averaged over heads and over the queries after the sink, without a threshold.",
        ),
        Headline(
            percent(quieter),
            "of heads are quieter with their sink",
            "The mean output norm with the sink is below that of the other tokens' mixture (suppression < 1).",
        ),
    ]


def kind_shares(profile: HeadProfile) -> list[KindShare]:
    """How many heads are of each pattern kind, in a fixed order."""
    kinds = [kind for row in profile.kind for kind in row]
    return [
        KindShare(kind, kinds.count(kind), 100 * kinds.count(kind) / max(1, len(kinds)), KIND_COLOURS[kind])
        for kind in KINDS
    ]


def model_facts(source: Provenance, layers_and_heads: str = "") -> Facts:
    """The model, its frame and the versions."""
    return [
        ("Model", source.model_name),
        *([("Layers × heads", layers_and_heads)] if layers_and_heads else []),
        ("Back end", source.backend or "not recorded"),
        ("Frame of the weights", source.frame),
        ("Precision of the model", source.dtype),
        (
            "Versions",
            ", ".join(f"{name} {version}" for name, version in source.versions.items()) or "not recorded",
        ),
    ]


def text_facts(source: Provenance, text_name: str) -> Facts:
    """The text: how much of it, how it was cut, and what stands at its beginning."""
    length = (
        f"{source.context_length} tokens; {source.n_cut} documents were longer"
        if source.context_length
        else "not recorded"
    )
    return [
        ("Text", text_name or "not named"),
        (
            "Documents",
            f"{source.n_documents} in {source.n_sequences} sequences, {source.n_skipped} skipped as too short",
        ),
        ("Real tokens", f"{source.n_tokens:,}"),
        ("Longest sequence", length),
        ("BOS token", "put in front of each sequence" if source.prepended_bos else "not added"),
        ("Sink", source.sink),
    ]


def convention_facts(profile: HeadProfile, maps: AttentionMaps | None) -> Facts:
    """Thresholds, conventions, degenerate rows, seed."""
    thresholds = profile.thresholds
    kinds = (
        f"sink > {thresholds.sink_threshold:g}, learned sink > {thresholds.learned_sink_threshold:g}, "
        f"diagonal > {thresholds.self_threshold:g}, previous > {thresholds.previous_threshold:g}, "
        f"dense: entropy > {thresholds.dense_threshold:g}"
    )
    left_out = ", ".join(f"{count:,} ({name})" for name, count in profile.n_degenerate.items())
    facts = [
        ("Threshold ε of the sink rate", f"{profile.eps:g}"),
        ("Thresholds of the kinds", kinds),
        ("Degenerate rows left out", left_out),
        *(
            (name.replace("_", " "), str(value))
            for name, value in profile.provenance.conventions.items()
            if name != "eps"
        ),
    ]
    if maps is not None:
        facts.append(("Degenerate rows in the prompt", f"{maps.n_degenerate:,}"))
    if profile.provenance.seed is not None:
        facts.append(("Seed", str(profile.provenance.seed)))
    return facts


def all_warnings(profile: HeadProfile, maps: AttentionMaps | None, given: Iterable[str]) -> list[str]:
    """The warnings given, and those that follow from the results; each once."""
    source = profile.provenance
    found = [*given, *frame_warnings(source)]
    if maps is not None and maps.provenance.model_name != source.model_name:
        found.append(
            f"The prompt was run on another model ({maps.provenance.model_name}) than the text ({source.model_name})."
        )
    total = max(1, int(profile.counts["queries"].sum()))
    if (share := max(profile.n_degenerate.values()) / total) > 0.01:
        found.append(
            f"{share:.1%} of the rows are degenerate and left out of some averages; see the conventions below."
        )
    return list(dict.fromkeys(found))


def frame_warnings(source: Provenance) -> list[str]:
    """What a reader must know where weights were folded or centred."""
    if source.frame == "raw":
        return []
    return [
        f"These are not the model's raw weights ({source.frame}): value norms, value ratios, alignments and "
        "contributions differ from those of the raw model."
    ]


def number(value: float) -> str:
    """A figure with two decimals, or a word where there is none.

    Example:
        >>> number(0.567), number(float("nan"))
        ('0.57', 'n/a')
    """
    return "n/a" if math.isnan(value) else f"{value:.2f}"


def percent(value: float) -> str:
    """A share as a percentage, or a word where there is none.

    Example:
        >>> percent(0.731), percent(float("nan"))
        ('73 %', 'n/a')
    """
    return "n/a" if math.isnan(value) else f"{100 * value:.0f} %"

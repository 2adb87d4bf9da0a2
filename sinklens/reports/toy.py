"""The page of one or several toy runs."""

import math

import torch

from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import Table
from sinklens.results.toy_history import GOALS, ToyHistory
from sinklens.viz.toy import toy_comparison, toy_costs, toy_losses, toy_masses

_GOAL_WORDS = {
    "sink_mass_dormant": (
        "on the sink where nothing is to be read",
        "Attention of dormant queries on the first position",
    ),
    "sink_mass_active": (
        "on the sink where a token is to be copied",
        "Attention of active queries on the first position",
    ),
    "value_drain": ("value drain of the sink", "‖ṽ_s‖ over the mean ‖ṽ_j‖ of the other tokens"),
    "target_mass_active": ("on the token to copy", "Attention of active queries on the token that comes next again"),
}
_COLUMNS = (
    ("loss, active", "loss_active"), ("loss, dormant", "loss_dormant"), ("least", "optimal_dormant"),
    ("sink, dormant", "sink_mass_dormant"), ("sink, active", "sink_mass_active"),
    ("learned sink, dormant", "learned_sink_mass_dormant"), ("self, dormant", "self_mass_dormant"),
    ("target, active", "target_mass_active"), ("drain", "value_drain"),
    ("‖o‖ dormant", "output_norm_dormant"), ("‖o‖ active", "output_norm_active"),
    ("gate, dormant", "gate_dormant"), ("gate, active", "gate_active"),
    ("QK nuclear", "qk_nuclear"), ("VO nuclear", "vo_nuclear"),
)  # fmt: skip
DEFINITIONS: Facts = [
    ("Task", "Tokens of a random bigram law. After a trigger comes, for certain, the token that stands a fixed number of places "
     "before it: the trigger's query is active. All other queries are dormant: they need nothing but their own token "
     "(after Guo et al., arXiv 2410.13835, with a bigram table of our own)."),
    ("Least possible loss", "0 on active tokens, the entropy of the bigram rows on dormant ones."),
    ("Sink mass", "Attention on the first position, mean over the active or the dormant queries after it."),
    ("Learned sink", "Attention on gpt-oss' null key: what a row of the pattern lacks to 1."),
    ("Value drain", "‖ṽ_s‖ / mean_j ‖ṽ_j‖ with the projected values ṽ = v W_O, mean over sequences."),
    ("Output", "Mean ‖o_i‖ of the head's output. Dormant far below active: the head is switched off."),
    ("Gate", "Mean over queries and dimensions of the sigmoid that multiplies the head's output; 1 is open."),
    ("Nuclear norm", "Of W_Q W_Kᵀ and W_V W_O, the least half of the factors' squared norms, which is what weight decay "
     "pays (arXiv 2605.08453). Not defined where a norm or a gate stands in between."),
]  # fmt: skip


def render_toy(history: ToyHistory, *, title: str | None = None) -> str:
    """Toy runs as one HTML page that needs no network.

    Args:
        history: from :func:`sinklens.toy.train_toy`, of one run or several.
        title: heading of the page.

    Returns:
        HTML.

    Example:
        >>> from sinklens.toy import load_toy
        >>> "Does a sink form" in render_toy(load_toy().history)
        True
    """
    tasks = " and ".join(history.varied("task"))
    return render_study(
        Study(
            kind="toy models",
            title=title or f"Does a sink form where nothing is to be read? A toy on {tasks}",
            source=history.provenance,
            text_name=f"held-out sequences of {tasks}",
            headlines=toy_headlines(history),
            settings=_settings(history),
            sections=toy_sections(history),
            definitions=DEFINITIONS,
        )
    )


def toy_headlines(history: ToyHistory) -> list[Headline]:
    """What a toy with a sink has to show, of the first group of runs, and its losses over the least possible."""
    group, rows = next(iter(history.groups.items()))
    found = []
    for name, side, bound in GOALS:
        values = history.final(name)[rows]
        reached = int((values > bound if side == ">" else values < bound).sum())
        verdict = f"{reached} of {len(rows)} runs" if len(rows) > 1 else "yes" if reached else "no"
        label, what = _GOAL_WORDS[name]
        spread = f", {values.min():.2f} to {values.max():.2f} over runs" if len(rows) > 1 else ""
        detail = f"{what}{spread}. A toy with a sink: {side} {bound:g} – {verdict} ({group})."
        found.append(Headline(f"{values.mean():.2f}", label, detail))
    active, dormant = (history.final(f"loss_{side}")[rows].mean().item() for side in ("active", "dormant"))
    least = history.final("optimal_dormant")[rows].mean().item()
    detail = (
        f"Dormant tokens: {dormant:.3f} nats, {least:.3f} is the least. Active tokens: {active:.3f}, 0 is the least."
    )
    return [
        *found,
        Headline(f"{dormant - least:.2f} | {active:.2f}", "nats over the least loss, dormant | active", detail),
    ]


def toy_sections(history: ToyHistory) -> list[Section]:
    """Losses, attention, costs, and with several groups their comparison."""
    losses = _chart("toy-losses-chart", "Losses", "Dotted: the least possible.", toy_losses(history))
    costs = _chart(
        "toy-costs-chart", "Over training", "Dotted: below it the sink's value counts as drained.", toy_costs(history)
    )
    found = [
        Section("toy-losses", "What is learned", "", [losses]),
        Section("toy-attention", "Where attention goes", "", _attention(history)),
        Section("toy-costs", "Value drain, output and norms", "", [costs]),
    ]
    reading = "A dot for each run, a line at the mean."
    compared = [_chart("toy-comparison", "At the end of training", reading, toy_comparison(history))]
    return [
        *found,
        Section("toy-runs", "All runs", "", compared if len(history.groups) > 1 else [], [toy_table(history)]),
    ]


def _chart(name: str, title: str, reading: str, figure: object) -> Chart:
    return as_chart(name, title, reading, figure)  # type: ignore[arg-type]


def _attention(history: ToyHistory) -> list[Chart]:
    """The first run of each group."""
    return [
        _chart(
            f"toy-attention-{index}",
            group,
            "Active queries are those whose next token is a copy.",
            toy_masses(history, rows[0]),
        )
        for index, (group, rows) in enumerate(history.groups.items())
    ]


def toy_table(history: ToyHistory) -> Table:
    """A row for each run: its figures at the end of training.

    Example:
        >>> from sinklens.toy import load_toy
        >>> toy_table(load_toy().history).header[:2]
        ('run', 'kind')
    """
    columns = [(title, history.final(name)) for title, name in _COLUMNS]
    columns = [(title, values) for title, values in columns if bool(values.isfinite().any())]
    pairs = zip(history.kind("kind_dormant"), history.kind("kind_active"), strict=True)
    rows = tuple(
        (label, f"{dormant[-1]} | {active[-1]}", *(_figure(values[row]) for _, values in columns))
        for row, (label, (dormant, active)) in enumerate(zip(history.labels, pairs, strict=True))
    )
    caption = "At the end of training; kind of the pattern at dormant | active queries"
    return Table(caption, ("run", "kind", *(title for title, _ in columns)), rows, n_names=2)


def _figure(value: torch.Tensor) -> str:
    return "–" if math.isnan(value.item()) else f"{value.item():.3f}"


def _settings(history: ToyHistory) -> Facts:
    names = {
        "task": "Task", "architecture": "Architecture", "weight_decay": "Weight decay (AdamW, matrices)", "seed": "Seed",
        "learning_rate": "Learning rate, highest", "batch_size": "Sequences a step", "d_model": "Width", "steps": "Steps",
    }  # fmt: skip
    return [(words, ", ".join(map(str, history.varied(name)))) for name, words in names.items()]

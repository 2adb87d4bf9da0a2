"""Results as small tables of text: the same figures on the terminal and on a page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sinklens.results.ablation import AblationCell, AblationResult, SweepResult
from sinklens.results.faithfulness import FaithfulnessEffect, FaithfulnessResult

EFFECT_NAMES = {"delta_loss": "Δ loss", "delta_perplexity": "Δ perplexity", "divergence": "KL"}
CONTROL_NAMES = {"position": "random position", "direction": "random direction"}
_OWN: Mapping[str, str] = {}  # names as Python has them
MODE_NAMES = {
    "comprehensiveness": "Comprehensiveness: the top removed, higher is better",
    "sufficiency": "Sufficiency: the bottom removed, lower is better",
}


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        caption: what is seen.
        header: of the columns.
        rows: as many texts as the header has.
        n_names: how many columns, from the left, hold names; the others hold numbers.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_names: int = 1

    def to_text(self) -> str:
        """For a terminal: names to the left, numbers to the right.

        Example:
            >>> print(Table("Loss", ("group", "Δ"), (("all", "+0.5"), ("layer 3", "-0.1"))).to_text())
            Loss
            group       Δ
            all      +0.5
            layer 3  -0.1
        """
        columns = list(zip(self.header, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]

        def line(row: Sequence[str]) -> str:
            padded = [
                text.ljust(width) if place < self.n_names else text.rjust(width)
                for place, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            return "  ".join(padded).rstrip()

        return "\n".join([self.caption, line(self.header), *map(line, self.rows)])


def ablation_table(result: AblationResult, effect: str = "delta_loss", n: int | None = None) -> Table:
    """Every edit of every group: an effect with its interval, beside the controls, and the other effects.

    Args:
        result: from :func:`sinklens.ablate_sinks` or :func:`sinklens.sweep_sinks`.
        effect: ``delta_loss``, ``delta_perplexity`` or ``divergence``.
        n: only the ``n`` largest effects; None for all, in their order.

    Returns:
        A row per group and edit.
    """
    rows = strongest(result, effect, n)
    controls = [name for name in CONTROL_NAMES if any(cell.where == name for cell in result.cells)]
    others = [name for name in EFFECT_NAMES if name != effect]
    place = {(cell.key, cell.where): row for row, cell in enumerate(result.cells)}
    values = {name: result.effect(name).numpy() for name in EFFECT_NAMES}
    bounds = result.interval(effect).numpy()
    compared = [[place[result.cells[row].key, name] for row in rows] for name in ("sink", *controls)]
    at_sink, *at_controls = np.array(signed(values[effect][compared].ravel())).reshape(-1, len(rows)).tolist()
    columns = [
        [result.cells[row].group for row in rows],
        [result.cells[row].edit_name for row in rows],
        at_sink,
        intervals(bounds[rows]),
        *at_controls,
        *(signed(values[name][rows]) for name in others),
    ]
    header = ("group", "edit", EFFECT_NAMES[effect], "95 % interval", *(CONTROL_NAMES[name] for name in controls))
    shown = f"the {len(rows)} largest of {_n_at_sink(result)} effects" if len(rows) < _n_at_sink(result) else "by group"
    caption = f"Sinks edited, beside the same at controls, {shown}"
    return Table(caption, (*header, *(EFFECT_NAMES[name] for name in others)), _rows(columns), n_names=2)


def strongest(result: AblationResult, effect: str, n: int | None) -> list[int]:
    """The cells at the sink, in their order; or those with the ``n`` largest effects, largest first."""
    rows = [row for row, cell in enumerate(result.cells) if cell.where == "sink"]
    if n is None or len(rows) <= n:
        return rows
    size = result.effect(effect).abs()
    return sorted(rows, key=lambda row: -size[row].item())[:n]


def _n_at_sink(result: AblationResult) -> int:
    return sum(cell.where == "sink" for cell in result.cells)


def control_table(result: AblationResult, effect: str = "delta_loss", n: int | None = None) -> Table | None:
    """Effect at the sink minus effect of each control, paired by document; None where there is no control."""
    table = result.against_controls(effect)
    if table.empty:
        return None
    cells = [result.cells[row] for row in strongest(result, effect, n)]
    kept = {(cell.group, cell.edit_name) for cell in cells}
    found: list[dict[str, Any]] = [
        row | {"edit": AblationCell(row["group"], (), row["edit"], row["value"], "sink").edit_name}
        for row in table.to_dict("records")
    ]
    found = [row for row in found if (row["group"], row["edit"]) in kept]
    columns = [
        [row["group"] for row in found],
        [row["edit"] for row in found],
        [CONTROL_NAMES[row["control"]] for row in found],
        signed([row["difference"] for row in found]),
        intervals([(row["low"], row["high"]) for row in found]),
        [verdict(row["low"], row["high"]) for row in found],
    ]
    header = ("group", "edit", "control", f"{EFFECT_NAMES[effect]}: sink − control", "95 % interval", "verdict")
    return Table("Sink minus control, paired by document", header, _rows(columns), n_names=3)


def norm_table(result: SweepResult, n: int = 6) -> Table:
    """Output norms of the swept heads with the most attention on the sink: where they are least, and the closed form's."""
    table: Any = result.norms()
    strongest_heads = table.groupby(["layer", "head"])["mass"].first().sort_values(ascending=False).index[:n]
    rows = []
    for layer, head in strongest_heads:
        one = table[(table["layer"] == layer) & (table["head"] == head)]
        one = one[one["group"] == one["group"].iloc[0]]
        gap = ((one["measured"] - one["closed_form"]).abs() / one["closed_form"]).max()
        least = one.loc[one["measured"].idxmin()] if one["measured"].notna().any() else None
        at = "n/a" if least is None else f"{least['value']:g}"
        norms = (one["clean"].iloc[0], one["measured"].max(), one["measured"].min())
        rows.append(
            (f"{layer}.{head}", f"{one['mass'].iloc[0]:.3f}", *(_plain(x) for x in norms), at, f"{100 * gap:.1f} %")
        )
    header = ("head", "sink mass", "norm, clean", "largest", "least", "least at", "widest gap to the closed form")
    return Table("Root mean square norm of head outputs along the sweep", header, tuple(rows))


def faithfulness_table(
    result: FaithfulnessResult, mode: str, effect: FaithfulnessEffect = "delta_loss", labels: Mapping[str, str] = _OWN
) -> Table:
    """One mode: a row per metric (by its label, where it has one), a column per fraction, and AOPC with its interval."""
    column = result.modes.index(mode)
    values = result.effect(effect)[:, column].numpy()
    aopc: Any = result.aopc(effect)
    aopc = aopc[aopc["mode"] == mode]
    bounds = aopc[["low", "high"]].to_numpy()
    per_fraction = np.array(signed(values.ravel()), dtype=object).reshape(values.shape).T.tolist()
    columns = [
        [labels.get(name, name) for name in result.metrics],
        *per_fraction,
        signed(aopc["aopc"]),
        intervals(bounds),
    ]
    header = ("metric", *(f"{100 * fraction:g} %" for fraction in result.fractions), "AOPC", "95 % interval")
    return Table(f"{MODE_NAMES[mode]} ({EFFECT_NAMES[effect]} by share removed)", header, _rows(columns))


def difference_table(
    result: FaithfulnessResult,
    reference: str,
    effect: FaithfulnessEffect = "delta_loss",
    labels: Mapping[str, str] = _OWN,
) -> Table | None:
    """AOPC of each metric minus that of a reference, paired by document; None where there is no other metric."""
    table = result.differences(reference, effect, aopc=True).sort_values("mode", kind="stable")
    if table.empty:
        return None
    found: list[dict[str, Any]] = table.to_dict("records")
    columns = [
        [row["mode"] for row in found],
        [labels.get(row["metric"], row["metric"]) for row in found],
        signed([row["difference"] for row in found]),
        intervals([(row["low"], row["high"]) for row in found]),
        [better(row["mode"], row["low"], row["high"]) for row in found],
    ]
    caption = f"AOPC minus that of {labels.get(reference, reference)}, paired by document ({EFFECT_NAMES[effect]})"
    header = ("mode", "metric", "difference", "95 % interval", "verdict")
    return Table(caption, header, _rows(columns), n_names=2)


def verdict(low: float, high: float) -> str:
    """What an interval says.

    Example:
        >>> verdict(0.1, 0.4), verdict(-0.1, 0.4)
        ('more', 'not told apart')
    """
    if math.isnan(low) or math.isnan(high):
        return "no interval"
    return "more" if low > 0 else "less" if high < 0 else "not told apart"


def better(mode: str, low: float, high: float) -> str:
    """What the interval of a difference from a reference says: more is better for comprehensiveness, less for sufficiency.

    Example:
        >>> better("comprehensiveness", 0.1, 0.4), better("sufficiency", 0.1, 0.4)
        ('better', 'worse')
    """
    good, bad = ("more", "less") if mode == "comprehensiveness" else ("less", "more")
    word = verdict(low, high)
    return {good: "better", bad: "worse"}.get(word, word)


def signed(values: Iterable[float]) -> list[str]:
    """Numbers with their sign, and as many decimals as the largest of them needs for three digits, but three at least.

    Example:
        >>> signed([0.5083, -0.0002]), signed([0.00012]), signed([float("nan"), 1234.5])
        (['+0.508', '+0.000'], ['+0.000120'], ['n/a', '+1,234.5'])
    """
    numbers = [float(value) for value in values]
    decimals = _decimals(numbers)
    # What rounds to nothing has no sign of its own.
    return ["n/a" if math.isnan(number) else f"{round(number, decimals) + 0.0:+,.{decimals}f}" for number in numbers]


def intervals(bounds: Iterable[Iterable[float]]) -> list[str]:
    """Low and high in brackets.

    Example:
        >>> intervals([(0.1, 0.25)])
        ['[+0.100, +0.250]']
    """
    pairs = np.asarray([tuple(pair) for pair in bounds], dtype=float).reshape(-1, 2)
    texts = signed(pairs.ravel())
    return [
        "n/a" if np.isnan(pair).any() else f"[{low}, {high}]"
        for pair, low, high in zip(pairs, texts[::2], texts[1::2], strict=True)
    ]


def _decimals(numbers: Sequence[float]) -> int:
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    if largest >= 1000:
        return 1
    return 3 if largest == 0 else min(max(2 - math.floor(math.log10(largest)), 3), 6)


def _plain(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.3g}"


def _rows(columns: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(zip(*columns, strict=True))

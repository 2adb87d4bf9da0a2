"""The page of an oversmoothing study, and its sections for a page of several studies."""

from typing import Any

import torch

from sinklens.reports.charts import Chart, as_chart
from sinklens.reports.facts import Facts, Headline
from sinklens.reports.study import Section, Study, render_study
from sinklens.reports.tables import Table, intervals, signed, verdict
from sinklens.results.labels import describe_numbers
from sinklens.results.smoothing import DEPTH, DIAGONAL, OWN, SmoothingResult, path_index
from sinklens.viz.smoothing import dense_minus_diagonal, smoothing_counters, smoothing_curves, smoothing_depth

_PARTS = {"residual": "the residual", "value-output": "the value-output matrices"}
_ANSWERS = {
    "more": "Yes, it smooths more",
    "less": "No, it smooths less",
    "not told apart": "The two are not told apart",
}
_COUNTERS = {
    "more": "Counters smoothing",
    "less": "Adds to smoothing",
    "not told apart": "Neither counters nor adds, as far as is seen",
    "no interval": "One document gives no verdict",
}
_SWITCHED_OFF = {"residual": "update_only_cosine", "value-output": "own_direction_cosine"}
_KINDS = {
    "multiple": "output times a number",
    "norm": "norm behind the output, no closed form",
    "norm of the sum": "norm of the sum, measured before it",
    "gated": "gated, no closed form",
}
DEFINITIONS: Facts = [
    ("Cosine", "Mean cosine between the vectors of two different tokens, without the sinks; they are still attended to."),
    ("Before, after", "r_i, the residual stream that comes into the layer; y_i = r_i + what attention adds, before the MLP."),
    ("λ, diagonal path", "Attention (1-λ) I + λ U in this layer alone: to oneself at 0, uniform over all that is seen at 1."),
    ("λ, own path", "Attention (1-λ) A + λ U: the model's own at 0."),
    ("Dense minus diagonal", "Cosine at λ = 1 minus cosine at λ = 0 of the diagonal path. Positive: dense smooths more."),
    ("Predicted", "The closed form (ours) from four moments of residual and update, for tokens drawn independently: a ratio of "
     "means, which is off where one token carries much of the spread."),
    ("Criterion", "(2 tr Cov(r, s) + tr Cov(s, s)) / tr Cov(r, r) with s_i what token i adds when it attends to itself. "
     "Positive: dense should smooth more (ours; arXiv 2605.08453 for the question)."),
    ("Residual switched off", "y_i = Σ_j A_ij s_j: the update alone."),
    ("Value-output switched off", "y_i = r_i + Σ_j A_ij ‖s_j‖ r_j / ‖r_j‖ (ours): each token sends the direction that it has, "
     "as much of it as it really sends."),
    ("Depth", "The residual stream behind each block, with the attention of all layers replaced in one forward pass."),
    ("Interval", "95 % percentile bootstrap over documents; differences are taken within each document."),
]  # fmt: skip


def render_smoothing(result: SmoothingResult, *, title: str | None = None, text_name: str = "") -> str:
    """An oversmoothing study as one HTML page that needs no network.

    Args:
        result: from :func:`sinklens.oversmoothing`.
        title: heading of the page; by default a question with the model's name.
        text_name: what the text is called.

    Returns:
        HTML.
    """
    return render_study(
        Study(
            kind="oversmoothing",
            title=title or f"Does dense attention smooth tokens more in {result.provenance.model_name}?",
            source=result.provenance,
            text_name=text_name,
            headlines=smoothing_headlines(result),
            settings=_settings(result),
            sections=smoothing_sections(result),
            definitions=DEFINITIONS,
        )
    )


def smoothing_headlines(result: SmoothingResult) -> list[Headline]:
    """The measured yes or no, the prediction's error, what counters smoothing, and the depth."""
    whole = result.dense_minus()
    found = [
        _more_or_less(result),
        _prediction(result),
        *(_counter(result, part, whole) for part in _PARTS),
    ]
    return [*found, *([_depth_headline(result)] if result.has_depth else [])]


def _more_or_less(result: SmoothingResult) -> Headline:
    table, (mean, low, high) = result.dense_minus_diagonal(), result.over_layers(result.dense_minus())
    counts = [list(table["verdict"]).count(word) for word in ("more", "less", "undecided")]
    answer = _ANSWERS.get(verdict(low, high), "One document gives no verdict")
    return Headline(
        _figure(mean),
        "dense minus diagonal, in cosine",
        f"{answer}, on average over layers; 95 % interval {intervals([(low, high)])[0]}. Layer by layer: more in {counts[0]}, "
        f"less in {counts[1]}, undecided in {counts[2]}. {_agreement(table)}",
    )


def _agreement(table: Any) -> str:
    known = [sign for sign in table["agrees"] if sign is not None]
    if not known:
        return "There is no criterion for these layers."
    return f"The criterion has the measured sign in {sum(known)} of {len(known)} layers."


def _prediction(result: SmoothingResult) -> Headline:
    error = result.prediction_error()
    if error.empty:
        return Headline(
            "none", "closed form", "No layer has a prediction: a gate, a norm behind attention, or a window."
        )
    worst = error.loc[error["largest"].idxmax()]
    return Headline(
        f"{error['largest'].median():.3f}",
        "error of the prediction in the median layer",
        f"Largest over λ, of the mean over documents. At most {worst['largest']:.3f}, in layer {worst['layer']:.0f}, where one "
        f"token carries {100 * worst['largest_token_share']:.0f} % of the residual's spread.",
    )


def _counter(result: SmoothingResult, part: str, whole: torch.Tensor) -> Headline:
    mean, low, high = result.over_layers(result.dense_minus(_SWITCHED_OFF[part]) - whole)
    return Headline(
        _figure(mean),
        f"more smoothing without {_PARTS[part]}",
        f"{_COUNTERS[verdict(low, high)]}: dense minus diagonal with it switched off, minus the same as it is, mean over layers; "
        f"95 % interval {intervals([(low, high)])[0]}.",
    )


def _depth_headline(result: SmoothingResult) -> Headline:
    mean, low, high = result.over_layers(result.dense_minus(DEPTH, OWN))
    least = result.over_layers(result.dense_minus(DEPTH, DIAGONAL))
    last = result.over_layers(result.dense_minus(DEPTH, OWN)[-1:])[0]
    return Headline(
        _figure(mean),
        "change of the residual stream's cosine with uniform attention everywhere",
        f"Mean over layers, against the model itself; 95 % interval {intervals([(low, high)])[0]}. Behind the last layer it is "
        f"{_figure(last)}. Against attention to oneself everywhere it is {_figure(least[0])} {intervals([least[1:]])[0]}.",
    )


def _figure(value: float) -> str:
    return signed([value])[0].replace("-", "−")


def _settings(result: SmoothingResult) -> Facts:
    said = result.provenance.conventions
    kinds: dict[str, list[int]] = {}
    for layer, kind in dict(said.get("steps", {})).items():
        kinds.setdefault(kind, []).append(int(layer))
    unusual = "; ".join(
        f"layers {describe_numbers(layers)}: {_KINDS.get(kind, kind)}" for kind, layers in kinds.items()
    )
    return [
        ("Layers", describe_numbers(result.layers)),
        ("Strengths λ", ", ".join(f"{x:g}" for x in result.strengths)),
        ("Attention", "causal" if said.get("causal", True) else "in both directions"),
        ("What is added to the residual", unusual or "the output itself in every layer"),
        ("Depth", "all layers densified at once" if result.has_depth else "not measured"),
    ]


def smoothing_sections(result: SmoothingResult) -> list[Section]:
    """The charts and tables of a study: by layer, over λ, what counters it, and over depth.

    Args:
        result: from :func:`sinklens.oversmoothing`.
    """
    sections = [
        Section(
            "smoothing-layers",
            "Dense against diagonal attention",
            "One layer at a time, everything before it as it is. Positive: uniform attention leaves tokens more alike than "
            "attention to themselves does.",
            [_layers_chart(result)],
            [difference_table(result)],
        ),
        Section(
            "smoothing-strength",
            "From sparse to dense",
            f"What a share λ of uniform attention does; {result.error_in_words()}.",
            [_curves_chart(result)],
        ),
        Section(
            "smoothing-counters",
            "What counters smoothing",
            "The same difference with one part of the step switched off.",
            [_counters_chart(result)],
            [counter_table(result)],
        ),
    ]
    if result.has_depth:
        intro = "All layers' attention at once, in real forward passes: what one layer does is carried on by the next."
        sections.append(Section("smoothing-depth", "Through the whole model", intro, [_depth_chart(result)]))
    return sections


def _layers_chart(result: SmoothingResult) -> Chart:
    reading = (
        "Bars above are measured, with 95 % intervals over documents, diamonds are the closed form. Where a bar below, the "
        "criterion, has the sign of the one above it, the criterion is right."
    )
    return as_chart("smoothing-layers", "Dense minus diagonal by layer", reading, dense_minus_diagonal(result))


def _curves_chart(result: SmoothingResult) -> Chart:
    reading = (
        "Solid lines with bands are measured, dashed lines predicted, and a diamond is the cosine before attention. A line that "
        "rises to the right: denser attention smooths more."
    )
    return as_chart("smoothing-curves", "Cosine after attention over λ", reading, smoothing_curves(result))


def _counters_chart(result: SmoothingResult) -> Chart:
    reading = (
        "A bar that is longer without a part: that part keeps dense attention from smoothing. Without the residual, uniform "
        "attention leaves all tokens almost the same."
    )
    return as_chart("smoothing-counters", "What counters smoothing, by layer", reading, smoothing_counters(result))


def _depth_chart(result: SmoothingResult) -> Chart:
    reading = (
        "Each line is a strength λ. On the right, λ = 0 is the model itself. A line near 1: tokens have become nearly the same, "
        "whether because they share what they attend to or because each looks like a first token to the layers that follow."
    )
    return as_chart("smoothing-depth", "Cosine of the residual stream by layer", reading, smoothing_depth(result))


def difference_table(result: SmoothingResult) -> Table:
    """Dense minus diagonal by layer."""
    table: Any = result.dense_minus_diagonal()
    before = result.mean("before_cosine")[:, 0, 0].tolist()
    columns = [
        [str(layer) for layer in table["layer"]],
        [_plain(x) for x in before],
        *([_plain(x) for x in result.mean("after_cosine")[:, path_index(DIAGONAL), cell].tolist()] for cell in (0, -1)),
        signed(table["difference"]),
        intervals(table[["low", "high"]].to_numpy()),
        signed(table["predicted"]),
        signed(table["criterion"]),
        list(table["verdict"]),
    ]
    header = (
        "layer",
        "before",
        "diagonal",
        "dense",
        "dense − diagonal",
        "95 % interval",
        "predicted",
        "criterion",
        "dense smooths",
    )
    return Table("Mean pairwise cosine before and after attention", header, tuple(zip(*columns, strict=True)))


def counter_table(result: SmoothingResult) -> Table:
    """Dense minus diagonal without a part, minus that with it."""
    table: Any = result.counters()
    columns = [
        [str(layer) for layer in table["layer"]],
        [_PARTS[part].removeprefix("the ") for part in table["part"]],
        signed(table["whole"]),
        signed(table["without"]),
        signed(table["countered"]),
        intervals(table[["low", "high"]].to_numpy()),
        list(table["verdict"]),
    ]
    header = ("layer", "switched off", "as it is", "without", "difference", "95 % interval", "verdict")
    return Table("Dense minus diagonal, with a part switched off", header, tuple(zip(*columns, strict=True)), n_names=2)


def _plain(value: float) -> str:
    return "n/a" if value != value else f"{value:.3f}"

"""From a model and some text to one HTML file: measure, then render, then write."""

import inspect
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sinklens.analyzers.maps import attention_maps
from sinklens.analyzers.profile import head_profile
from sinklens.models.attention import ModelAttention
from sinklens.models.sinks import Sink, SinkRule
from sinklens.models.tokens import tokenize
from sinklens.reports.render import render_report, write_report
from sinklens.reports.sections import measured_sections, require_sections
from sinklens.results.files import check_writable

PROMPT_LENGTH = 48


def report(
    model: Any,
    texts: Any,
    path: str | os.PathLike[str],
    *,
    prompt: Any = None,
    title: str | None = None,
    text_name: str = "",
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    sections: Iterable[str] = (),
    progress: bool = True,
    **profile_options: Any,
) -> Path:
    """Measure every head of a model on some text and write an interactive HTML report that needs no network.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes.
        path: the HTML file; written whole or not at all.
        prompt: text or token ids for the head picker; by default the first 48 tokens of the texts.
        title: heading of the page; by default the model's name.
        text_name: what the texts are called in the report.
        layers: the model's own layer numbers; None for all.
        sink: ``"first"``, ``"token:ID"``, positions, or ``"detect"`` (:func:`sinklens.sink_rule`).
        sections: further parts, each a measurement of its own: ``"geometry"`` (:func:`sinklens.sink_geometry`),
            ``"smoothing"`` (:func:`sinklens.oversmoothing`), ``"switch"`` (:func:`sinklens.attention_switch`), ``"cost"``
            (:func:`sinklens.head_costs`), ``"toy"`` (how the packaged toy was trained).
        progress: whether to show a progress bar.
        profile_options: further arguments of :func:`sinklens.head_profile` and :func:`sinklens.tokenize`.

    Returns:
        The path.

    Raises:
        ResultFileError: the path cannot be written; found out before anything is measured.
        InputError: the model, the texts or an argument cannot be used as given, or there is no such section.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    check_writable(path)
    wanted = require_sections(sections, model)
    chosen = None if layers is None else tuple(layers)
    shown = _first_tokens(model, texts, profile_options) if prompt is None else prompt
    maps = attention_maps(model, shown, layers=chosen, sink=sink)
    profile = head_profile(model, texts, layers=chosen, sink=sink, progress=progress, **profile_options)
    common: dict[str, Any] = {"layers": chosen, "sink": sink, "progress": progress, **_tokenization(profile_options)}
    extra = measured_sections(wanted, model, texts, **common)
    skipped = [f"Layer {layer}: {reason}." for layer, reason in ModelAttention(model).skipped.items()]
    html = render_report(
        profile, maps, title=title, text_name=text_name, warnings=skipped,
        sections=extra.sections, definitions=list(extra.definitions.items()),
    )  # fmt: skip
    return write_report(path, html)


def _tokenization(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are of :func:`sinklens.tokenize` and not of the profile."""
    names = [name for name in inspect.signature(tokenize).parameters if name not in ("model", "texts")]
    return {name: options[name] for name in names if name in options}


def _first_tokens(model: Any, texts: Any, options: dict[str, Any]) -> Any:
    """The beginning of the first usable document, tokenized as the profile tokenizes it."""
    kept: dict[str, Any] = _tokenization(options) | {"batch_size": 1, "max_documents": 1}
    batches = tokenize(model, texts, **kept)
    return next(iter(batches)).tokens[0, :PROMPT_LENGTH]

"""Semantic drift with sinks and without them, by intervention."""

from collections.abc import Iterable
from typing import Any

from tqdm.auto import tqdm

from sinklens.ablation.passes import provenance_of
from sinklens.ablation.study import require_positions
from sinklens.analyzers.base import Setup
from sinklens.analyzers.drift import DriftAnalyzer
from sinklens.errors import InputError
from sinklens.interventions import SinkChoice, intervene, zero_sink_values
from sinklens.interventions.positions import require_in_context
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import as_batches
from sinklens.results.ablation import AblatedDrift


def drift_without_sinks(
    model: Any,
    texts: Any,
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    context_length: int | None = None,
    batch_size: int = 8,
    progress: bool = True,
    **tokenization: Any,
) -> AblatedDrift:
    """Do head outputs fall into the cone of the semantic values without the sink? Measured clean, and with sinks zeroed.

    Drift is ``cos(o_i, m)`` with the axis ``m`` of the other tokens' values, and the mean pairwise cosine of head outputs
    (arXiv 2606.07604, operational form ours). The ablated pass zeroes the sinks' values in all the chosen layers at once.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made.
        layers: the layers that are edited and measured; None for all.
        sink: ``"first"``, ``"token:ID"`` or positions.
        context_length: the longest sequence.
        batch_size: sequences per batch.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        An :class:`~sinklens.AblatedDrift`.

    Raises:
        InputError: a layer, a position or a text cannot be used as given, or the text has no such sink.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    attention, rule = ModelAttention(model, layers), sink_rule(sink)
    attention.require_no_dropout()
    if rule.kind == "detect":
        raise InputError("sinks must be known before the pass; choose them by position or token, not by detection")
    choice = SinkChoice(rule)
    require_in_context(model, choice)
    hooks = zero_sink_values(model, layers=attention.layers, sink=choice, level="kv")
    batches = as_batches(model, texts, tokenization, {"context_length": context_length, "batch_size": batch_size})
    require_positions(choice, batches)
    setup = Setup(attention.layers, model.cfg.n_heads, attention.name)
    # A reader each: it learns on its first batch which hook holds a layer's output.
    clean, ablated = DriftAnalyzer(), DriftAnalyzer()
    readers = {id(each): LayerReader(attention, rule) for each in (clean, ablated)}
    clean.start(setup)
    ablated.start(setup)
    found = False
    with tqdm(disable=not progress, unit=" sequences", desc=attention.name, leave=False) as bar:
        for batch in batches:
            choice.use(batch.tokens, batch.mask)
            readers[id(clean)].read(batch.tokens, batch.mask, clean.update)
            # A batch may have no such token; of all of them together one must.
            with intervene(model, hooks, require_effect=False) as record:
                readers[id(ablated)].read(batch.tokens, batch.mask, ablated.update)
            found |= record.changed
            bar.update(len(batch.tokens))
    if not found:
        raise InputError(
            f"no sink {choice.describe()!r} was found in the text, or its values are 0 already; choose another sink or text"
        )
    provenance = provenance_of(attention, batches, choice.describe(), 0, ablated="zero")
    return AblatedDrift(clean.result(provenance), ablated.result(provenance))

"""Any number of analyzers in one forward pass over any amount of text."""

from collections.abc import Iterable, Sequence
from typing import Any

from tqdm import tqdm

from sinklens.analyzers.base import Analyzer, Setup
from sinklens.errors import InputError
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader
from sinklens.models.frames import warn_once
from sinklens.models.images import image_batches
from sinklens.models.layer import LayerAttention
from sinklens.models.patches import reads_images
from sinklens.models.sinks import Sink, SinkRule, sink_rule
from sinklens.models.tokens import as_batches


def run(
    model: Any,
    texts: Any,
    analyzers: Sequence[Analyzer],
    *,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    frame: str = "attention",
    progress: bool = True,
    **tokenization: Any,
) -> list[Any]:
    """Run texts through a model once and serve every analyzer, one layer in memory at a time.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed, and its own hooks still fire.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made; for a model of images pixels
            ``[image, channel, row, column]`` or a list of images ``[channel, row, column]``.
        analyzers: the measurements, also your own (:class:`Analyzer`).
        layers: the model's own layer numbers; None for all with a readable attention.
        sink: ``"first"``, ``"token:ID"``, positions, or ``"detect"`` (:func:`sinklens.sink_rule`).
        frame: ``"attention"``, contributions to what the heads write; ``"residual"``, to what is added to the residual
            stream, which differs where a norm follows attention (Gemma-2 and 3, OLMo-2 and 3). That is linear given the
            norm's scale of a query; contributions do not depend on it, and norms are those before it.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`, such as ``context_length`` and ``batch_size``.

    Returns:
        What each analyzer's ``result`` gives, in order.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given.
        HookNotFiredError: a hook that was asked for did not fire exactly once.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    _check_analyzers(analyzers)
    attention = ModelAttention(model, layers)
    attention.require_no_dropout()
    rule = sink_rule(sink)
    is_text = not reads_images(model)
    batches = as_batches(model, texts, tokenization) if is_text else image_batches(attention, texts, rule, tokenization)
    hooks = [hook for analyzer in analyzers for hook in analyzer.hooks]
    reader = LayerReader(attention, rule, hooks, frame=frame)
    warn_once(attention.name, attention.frame)
    setup = Setup(attention.layers, model.cfg.n_heads, attention.name)
    for analyzer in analyzers:
        analyzer.start(setup)

    def receive(view: LayerAttention) -> None:
        for analyzer in analyzers:
            analyzer.update(view)

    # Layers, not batches: a short text is one batch, and a bar that stands still says nothing.
    with tqdm(disable=not progress, unit=" layers", desc=attention.name, leave=False) as bar:
        for batch in batches:
            bar.total = None if batches.total is None else batches.total * len(attention.layers)
            for analyzer in analyzers:
                analyzer.begin(batch)
            reader.read(batch.tokens, batch.mask, lambda view: (receive(view), bar.update()), batch.pixels)
    provenance = attention.provenance(reader.sink.describe(), frame=reader.frame_name, **batches.counts)
    return [analyzer.result(provenance) for analyzer in analyzers]


def _check_analyzers(analyzers: Sequence[Analyzer]) -> None:
    is_list = isinstance(analyzers, Sequence) and len(analyzers) > 0
    if not is_list or not all(isinstance(analyzer, Analyzer) for analyzer in analyzers):
        raise InputError(
            f"analyzers is {analyzers!r}; expected a list of one or more analyzer objects such as [ProfileAnalyzer()]"
        )
    if len({id(analyzer) for analyzer in analyzers}) < len(analyzers):
        raise InputError("one analyzer object stands twice in the list, and would count everything twice; make two")
    for analyzer in analyzers:
        if isinstance(analyzer.hooks, str):
            raise InputError(f"hooks of {type(analyzer).__name__} is a string; expected a tuple of hook templates")

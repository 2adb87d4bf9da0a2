"""The head profile: sink, contribution and suppression statistics of every head, streaming."""

import dataclasses
from collections.abc import Iterable
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from sinklens.analyzers.means import MeansAnalyzer, Quantities
from sinklens.analyzers.run import run
from sinklens.analyzers.sink_terms import at_sinks, own_value, sink_term, values_as_read
from sinklens.errors import InputError
from sinklens.metrics.contributions import degenerate, inter_directions
from sinklens.metrics.patterns import Entropy, previous_attention, row_entropy, self_attention
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.suppression import split_output
from sinklens.metrics.values import cosine, mean_value, sink_mask, value_drain
from sinklens.models.layer import LayerAttention
from sinklens.models.sinks import Sink, SinkRule
from sinklens.results.head_profile import HeadProfile, KindThresholds
from sinklens.results.provenance import Provenance


class ProfileAnalyzer(MeansAnalyzer):
    """Measures a :class:`~sinklens.HeadProfile`: O(T · d_head) a head, and one pass over the pattern for the entropy.

    Args:
        eps: threshold of the sink rate, strict.
        entropy: ``"collision"`` (cheap) or ``"shannon"``.
        thresholds: of the pattern kinds.

    Example:
        >>> ProfileAnalyzer(eps=0.8).eps
        0.8
    """

    kept = HeadProfile

    def __init__(self, eps: float = 0.3, entropy: Entropy = "collision", thresholds: KindThresholds | None = None):
        if isinstance(eps, bool) or not isinstance(eps, Real) or not 0 <= eps < 1:
            raise InputError(f"eps is {eps!r}; expected a threshold of attention in 0 to 1, below 1")
        if entropy not in ("collision", "shannon"):
            raise InputError(f"entropy is {entropy!r}; expected 'collision' or 'shannon'")
        self.eps = float(eps)
        self.entropy: Entropy = entropy
        self.thresholds = thresholds or KindThresholds()

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        quantities, counted = self._per_query(attention)
        documents, has_sink = self._per_document(attention, quantities["sink_mass"])
        # A value of norm 0 has no direction: its document has no geometry in that head, but sums that are defined.
        geometry = has_sink & ~torch.stack(list(documents.values())).isnan().any(0)
        rows = attention.queries.unsqueeze(1)
        self.add(attention.index, quantities, {name: rows & mask for name, mask in counted.items()})
        self.add(attention.index, documents, {"documents": has_sink, "geometry": geometry})

    def _per_query(self, attention: LayerAttention) -> tuple[Quantities, dict[str, Tensor]]:
        on_sink = attention_on(attention.pattern, attention.sink)
        mass = on_sink.sum(-1)
        found, counted = _contributions(attention, on_sink, mass)
        learned = _learned_sink_mass(attention)
        total = 1 - learned if attention.weights.learned_sink else None
        found |= {
            "sink_mass": mass,
            "query_rate": (mass > self.eps).to(mass.dtype),
            "self_mass": self_attention(attention.pattern),
            "previous_mass": previous_attention(attention.pattern),
            "entropy": row_entropy(attention.pattern, attention.visible_count, self.entropy, total),
            "learned_sink_mass": learned,
        }
        return found, counted | {"queries": torch.ones_like(mass, dtype=torch.bool)}

    def _per_document(self, attention: LayerAttention, mass: Tensor) -> tuple[Quantities, Tensor]:
        is_sink = sink_mask(attention.sink, attention.mask.shape[-1]) & attention.mask
        others = attention.mask & ~is_sink
        # The sink's own query counts here, as in Gu et al.; after it there must be another for a mean to say something.
        received = (attention.queries | is_sink).unsqueeze(1).to(mass.dtype)
        mean = (mass * received).sum(-1) / received.sum(-1)
        values = values_as_read(attention)
        sink_value = mean_value(values, is_sink)
        angles = torch.where(others.unsqueeze(-1), cosine(values, sink_value.unsqueeze(1)), 0.0).transpose(1, 2)
        norms = values.norm(dim=-1).transpose(1, 2)
        n_others = others.sum(-1, keepdim=True)
        found = {
            "received": mean,
            "sample_rate": (mean > self.eps).to(mean.dtype),
            "sink_value_ratio": value_drain(norms, is_sink, attention.mask),
            "sink_alignment": cosine(sink_value, mean_value(values, others)),
            "sink_cosine": angles.sum(-1) / n_others,
            "value_norm": (norms * others.unsqueeze(1)).sum(-1) / n_others,
            "sink_value_norm": (norms * is_sink.unsqueeze(1)).sum(-1) / is_sink.sum(-1, keepdim=True),
        }
        return found, (attention.queries.any(-1) & is_sink.any(-1)).unsqueeze(-1)

    def result(self, provenance: Provenance) -> HeadProfile:
        """The profile of all batches.

        Raises:
            InputError: no sequence has a sink with a token after it, so that nothing was measured.
        """
        if not self._counts.any() and not provenance.sink.startswith("detect"):
            raise InputError(
                f"sink {provenance.sink!r} was found in none of {provenance.n_sequences} sequences with a token after it; "
                "choose another sink, or longer text"
            )
        conventions = {"eps": self.eps, "entropy": self.entropy}
        provenance = dataclasses.replace(provenance, conventions=conventions)
        return HeadProfile(self.sums, self.counts, self.layers, provenance, self.eps, self.thresholds)


def _learned_sink_mass(attention: LayerAttention) -> Tensor:
    """What each row lacks to 1; a pass over the pattern, so only where the model has a learned sink."""
    if attention.weights.learned_sink:
        return 1 - attention.pattern.sum(-1)
    return attention.pattern.new_zeros(attention.pattern.shape[:-1])


def _contributions(attention: LayerAttention, on_sink: Tensor, mass: Tensor) -> tuple[Quantities, dict[str, Tensor]]:
    """Contributions of the sink and of the query's own token, and what the sink does to the output's norm."""
    output, term = attention.head_output, sink_term(attention, on_sink)
    squared = output.norm(dim=-1).square().transpose(1, 2)
    intra_defined = ~degenerate(squared)
    safe = squared.masked_fill(~intra_defined, 1.0)
    own = (output * own_value(attention)).sum(-1).transpose(1, 2) * self_attention(attention.pattern)
    inter, inter_defined = _sink_inter(attention, on_sink)
    found = {
        "output_norm": squared.sqrt(),
        "sink_intra": (output * term).sum(-1).transpose(1, 2) / safe,
        "self_intra": own / safe,
        "sink_inter": inter,
    }
    suppression, mixture_defined = _suppression(attention, output, term, mass, squared)
    counted = {"intra_queries": intra_defined, "inter_queries": inter_defined, "mixtures": mixture_defined}
    return found | suppression, counted


def _sink_inter(attention: LayerAttention, on_sink: Tensor) -> tuple[Tensor, Tensor]:
    """``Σ_s A_is <o_i, ṽ_s> / ||o_i||²``: the sinks' values are projected, not every query's output."""
    output, W_O = attention.output, attention.W_O
    squared = output.norm(dim=-1).square().unsqueeze(1)
    defined = ~degenerate(squared)
    sink_value = at_sinks(attention.head_value, attention.sink)
    if attention.gate is None:
        projected = torch.einsum("bshd,hdm->bhsm", sink_value, W_O)
        products = torch.einsum("bqm,bhsm->bhqs", output, projected)
    else:
        directions = inter_directions(output, W_O)[0] * attention.gate
        products = torch.einsum("bqhd,bshd->bhqs", directions, sink_value)
    return (on_sink * products).sum(-1) / squared.masked_fill(~defined, 1.0), defined.expand_as(on_sink[..., 0])


def _suppression(
    attention: LayerAttention, output: Tensor, term: Tensor, mass: Tensor, squared: Tensor
) -> tuple[Quantities, Tensor]:
    sink_value, known = _sink_value(attention, term, mass)
    mixture = split_output(output, term, mass, sink_value)
    defined = mixture.defined & known & ~degenerate(mixture.other_squared)
    other_norm = mixture.other_squared.sqrt()
    found = {
        "alpha_star": mixture.alpha_star,
        "interior_fraction": ((mixture.alpha_star > 0) & (mixture.alpha_star < 1)).to(mass.dtype),
        "suppression": squared.sqrt() / other_norm,
        "other_norm": other_norm,
        "sink_squared": mixture.sink_squared,
        "inner": mixture.inner,
        "other_squared": mixture.other_squared,
    }
    return found, defined


def _sink_value(attention: LayerAttention, term: Tensor, mass: Tensor) -> tuple[Tensor | None, Tensor]:
    """The sinks' value, or None for ``term / mass``, and where it is known: a single sink's also where ``A_is = 0``."""
    if attention.gate is not None:
        return None, mass > 0
    first = at_sinks(attention.projected_value, attention.sink[:, :1])
    if attention.sink.shape[-1] == 1:
        return first, torch.ones_like(mass, dtype=torch.bool)
    # Decided row by row: a document's numbers must not depend on how many sinks its neighbours in the batch have.
    alone = ((attention.sink >= 0).sum(-1) == 1)[:, None, None]
    mixed = term / mass.transpose(1, 2).masked_fill(mass.transpose(1, 2) == 0, 1.0).unsqueeze(-1)
    return torch.where(alone.unsqueeze(-1), first, mixed), alone | (mass > 0)


def head_profile(
    model: Any,
    texts: Any,
    *,
    context_length: int | None = None,
    batch_size: int = 8,
    layers: Iterable[int] | None = None,
    sink: Sink | SinkRule = "first",
    frame: str = "attention",
    eps: float = 0.3,
    entropy: Entropy = "collision",
    thresholds: KindThresholds | None = None,
    progress: bool = True,
    **tokenization: Any,
) -> HeadProfile:
    """Profile every head over any amount of text in one streaming pass.

    Args:
        model: a TransformerBridge or HookedTransformer; it is not changed.
        texts: what :func:`sinklens.tokenize` takes: strings, token ids, a .txt or .jsonl path, a ``datasets`` object or name;
            for a model of images pixels ``[image, channel, row, column]`` or a list of images ``[channel, row, column]``,
            whose patches then are the tokens, and images the documents.
        context_length: the longest sequence; longer documents are split, each piece with its own BOS. By default 128, or
            the model's context where that is shorter; token ids are by default split at the model's context only.
        batch_size: sequences per batch.
        layers: the model's own layer numbers; None for all.
        sink: ``"first"``, ``"token:ID"``, positions, or ``"detect"`` (:func:`sinklens.sink_rule`).
        frame: ``"attention"`` or ``"residual"``, as in :func:`sinklens.run`.
        eps: threshold of the sink rate, strict.
        entropy: ``"collision"`` or ``"shannon"`` (:func:`~sinklens.metrics.patterns.row_entropy`).
        thresholds: of the pattern kinds.
        progress: whether to show a progress bar.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        A :class:`~sinklens.HeadProfile`; parts of a text can be profiled apart and put together with ``merge``.

    Raises:
        InputError: the model, the texts or an argument cannot be used as given.
        HookNotFiredError: a hook did not fire exactly once.
        UnsupportedAttentionError: a layer does not decompose into attention times values.
    """
    analyzer = ProfileAnalyzer(eps, entropy, thresholds)
    arguments: dict[str, Any] = {"context_length": context_length, "batch_size": batch_size, **tokenization}
    [profile] = run(model, texts, [analyzer], layers=layers, sink=sink, frame=frame, progress=progress, **arguments)
    return profile

"""Results made from seeded random attention, without a model: for tests of figures and reports."""

import torch
from torch import Tensor

from sinklens.metrics.patterns import row_entropy
from sinklens.results.attention_maps import AttentionMaps
from sinklens.results.head_profile import HeadProfile
from sinklens.results.provenance import Provenance

D_MODEL = 16
SMALL_TOKENS = ("<s>", "the", "·cat", "the", "·cat", "↵")
LARGE_TOKENS = (
    "<s>",
    "The",
    "·cat",
    "·the",
    "·cat",
    "↵",
    "👩🏽\u200d🚀",
    "·\u2068مرحبا\u2069",
    "·<b>",
    "&amp;",
    "$x$",
    "</script>",
    "ｗｉｄｅ",
    *(
        f"·{word}"
        for word in (
            "attention",
            "sinks",
            "are",
            "a",
            "common",
            "feature",
            "of",
            "language",
            "models",
            ".",
            "Some",
        )
    ),
    *(
        f"·{word}"
        for word in (
            "heads",
            "rest",
            "there",
            "while",
            "others",
            "keep",
            "quiet",
            ",",
            "and",
            "the",
            "rest",
            "of",
        )
    ),
    *(
        f"·{word}"
        for word in (
            "them",
            "move",
            "the",
            "output",
            "a",
            "little",
            "internationalization",
            "at",
            "a",
            "time",
            "↵",
        )
    ),
    *(
        f"·{word}"
        for word in (
            "so",
            "we",
            "measure",
            "what",
            "each",
            "token",
            "gives",
            "to",
            "the",
            "head",
            "'s",
            "norm",
            ".",
        )
    ),
)


def make_maps(n_layers: int, n_heads: int, tokens: tuple[str, ...], seed: int = 0) -> AttentionMaps:
    """Maps of random values whose sink, the first token, is short and points away from the others."""
    attention, values = random_layers(n_layers, n_heads, len(tokens), seed)
    output = attention @ values
    layer_output = output.sum(1)
    visible = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril().expand(n_layers, -1, -1)
    return AttentionMaps(
        attention=attention,
        value=values.transpose(1, 2),
        direction=output.transpose(1, 2),
        layer_direction=layer_output.unsqueeze(2).expand(-1, -1, n_heads, -1),
        value_norm=values.norm(dim=-1),
        output_norm=output.norm(dim=-1),
        layer_norm=layer_output.norm(dim=-1),
        visible=visible,
        tokens=tokens,
        token_ids=tuple(range(len(tokens))),
        layers=tuple(range(n_layers)),
        sink_positions=(0,),
        provenance=_provenance(len(tokens)),
    )


def make_profile(n_layers: int, n_heads: int, length: int, seed: int = 0) -> HeadProfile:
    """The profile of the same random layers as :func:`make_maps`, one document."""
    attention, values = random_layers(n_layers, n_heads, length, seed)
    sums, counts = HeadProfile.empty(n_layers, n_heads)
    for name, value in _per_query(attention, values).items():
        sums[name] += value.double().sum(-1)
    sink, others = values[..., 0, :], values[..., 1:, :]
    received = attention[..., 0].mean(-1)
    per_document = {
        "received": received,
        "sample_rate": (received > 0.3).float(),
        "sink_value_ratio": sink.norm(dim=-1) / others.norm(dim=-1).mean(-1),
        "sink_alignment": torch.cosine_similarity(sink, others.mean(-2), dim=-1),
        "sink_cosine": torch.cosine_similarity(sink.unsqueeze(-2), others, dim=-1).mean(-1),
        "value_norm": others.norm(dim=-1).mean(-1),
        "sink_value_norm": sink.norm(dim=-1),
    }
    for name, value in per_document.items():
        sums[name] += value.double()
    for name in counts:
        counts[name] += 1 if name in ("documents", "geometry") else length - 1
    return HeadProfile(sums, counts, tuple(range(n_layers)), _provenance(length))


def random_layers(n_layers: int, n_heads: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Causal attention ``[layer, head, query, key]`` and projected values ``[layer, head, key, d_model]``."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(n_layers, n_heads, length, length, generator=generator) * 1.5
    scores[..., 0] += 8 * torch.rand(n_layers, n_heads, 1, generator=generator) - 1
    near = torch.rand(n_layers, n_heads, 2, generator=generator).pow(6) * 9
    for offset in (0, 1):
        scores += near[..., offset, None, None] * torch.diag(torch.ones(length - offset), -offset)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    attention = scores.masked_fill(future, float("-inf")).softmax(-1)
    cone = torch.randn(n_layers, n_heads, 1, D_MODEL, generator=generator)
    values = torch.randn(n_layers, n_heads, length, D_MODEL, generator=generator) + cone
    opposition = torch.rand(n_layers, n_heads, 1, generator=generator) - 0.3
    length_of_sink = torch.rand(n_layers, n_heads, 1, generator=generator).square() * 1.3 + 0.1
    values[..., 0, :] = length_of_sink * (0.4 * values[..., 0, :] - opposition * cone[..., 0, :])
    return attention, values


def _per_query(attention: Tensor, values: Tensor) -> dict[str, Tensor]:
    """Every quantity that is a mean over queries, ``[layer, head, query]``, after the sink."""
    output = attention @ values
    layer_output = output.sum(1, keepdim=True)
    mass = attention[..., 0]
    others = (output - mass.unsqueeze(-1) * values[..., :1, :]) / (1 - mass).clamp(min=1e-5).unsqueeze(-1)
    sink_squared, inner, other_squared = _mixture(values[..., :1, :], others)
    star = (other_squared - inner) / (sink_squared + other_squared - 2 * inner)
    diagonal = attention.diagonal(dim1=-2, dim2=-1)
    length = attention.shape[-1]
    visible = torch.arange(1, length + 1).unsqueeze(0)
    quantities = {
        "sink_mass": mass,
        "query_rate": (mass > 0.3).float(),
        "self_mass": diagonal,
        "previous_mass": torch.nn.functional.pad(attention.diagonal(-1, -2, -1), (1, 0)),
        "entropy": torch.stack([row_entropy(layer.unsqueeze(0), visible)[0] for layer in attention]),
        "output_norm": output.norm(dim=-1),
        "learned_sink_mass": torch.zeros_like(mass),
        "sink_intra": _share(output, mass, values[..., :1, :], output),
        "self_intra": _share(output, diagonal, values, output),
        "sink_inter": _share(layer_output, mass, values[..., :1, :], layer_output),
        "alpha_star": star,
        "interior_fraction": ((star > 0) & (star < 1)).float(),
        "suppression": output.norm(dim=-1) / other_squared.sqrt(),
        "other_norm": other_squared.sqrt(),
        "sink_squared": sink_squared,
        "inner": inner,
        "other_squared": other_squared,
    }
    return {name: value[..., 1:] for name, value in quantities.items()}


def _mixture(sink: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    squared = sink.square().sum(-1).expand(others.shape[:-1])
    return squared, (sink * others).sum(-1), others.square().sum(-1)


def _share(onto: Tensor, mass: Tensor, values: Tensor, output: Tensor) -> Tensor:
    return mass * (onto * values).sum(-1) / output.square().sum(-1)


def _provenance(length: int) -> Provenance:
    return Provenance(
        "tiny-random",
        backend="TransformerBridge",
        context_length=length,
        n_documents=1,
        n_sequences=1,
        n_tokens=length,
        prepended_bos=True,
        conventions={"entropy": "collision"},
        seed=0,
    )

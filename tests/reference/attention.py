"""Slow, literal float64 versions of what ``sinklens.metrics`` computes; tests only.

They are written straight from the formulas, with the explicit [query, key, d_model] tensor and loops over the
keys that a query really sees, so that they share no shortcut with the code under test. Shapes:

    pattern A   [batch head query key]        value v     [batch key kv_head d_head]
    z           [batch query head d_head]     gate γ      [batch query head d_head], after the sigmoid
    W_O         [head d_head d_model]
    projected ṽ [batch head query key d_model]: without a gate it is the same for every query
    visible     [batch query key] bool: is key j a real token that query i, itself real, can attend to?

A row whose squared output norm is at most ``TINY`` is degenerate and NaN.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny
NAN = math.nan


def visible_keys(real: Tensor, causal: bool = True, window: int | None = None) -> Tensor:
    """Which keys each query sees: real ones, not later if causal, at most ``window - 1`` away."""
    batch, length = real.shape
    visible = torch.zeros(batch, length, length, dtype=torch.bool)
    for b, i, j in _indices(batch, length, length):
        both_real = bool(real[b, i]) and bool(real[b, j])
        not_later = not causal or j <= i
        in_window = window is None or abs(i - j) < window
        visible[b, i, j] = both_real and not_later and in_window
    return visible


def projected_values(value: Tensor, W_O: Tensor, n_queries: int, gate: Tensor | None = None) -> Tensor:
    """ṽ^h_j = v^{g(h)}_j W_O^h with g(h) = h // (H/G); gated: (γ_i ⊙ v_j) W_O."""
    value, W_O = value.double(), W_O.double()
    batch, n_keys, n_kv_heads, _ = value.shape
    n_heads, _, d_model = W_O.shape
    projected = torch.zeros(batch, n_heads, n_queries, n_keys, d_model, dtype=torch.float64)
    for b, h, i, j in _indices(batch, n_heads, n_queries, n_keys):
        vector = value[b, j, h // (n_heads // n_kv_heads)]
        if gate is not None:
            vector = gate[b, i, h].double() * vector
        projected[b, h, i, j] = vector @ W_O[h]
    return projected


def head_outputs(pattern: Tensor, projected: Tensor) -> Tensor:
    """o^h_i = Σ_j A^h_ij ṽ^h_j, [batch head query d_model]."""
    batch, n_heads, n_queries, n_keys, d_model = projected.shape
    outputs = torch.zeros(batch, n_heads, n_queries, d_model, dtype=torch.float64)
    for b, h, i, j in _indices(batch, n_heads, n_queries, n_keys):
        outputs[b, h, i] += pattern[b, h, i, j].double() * projected[b, h, i, j]
    return outputs


def head_outputs_from_z(z: Tensor, W_O: Tensor) -> Tensor:
    """o^h_i = z^h_i W_O^h, [batch head query d_model]."""
    batch, n_queries, n_heads, _ = z.shape
    outputs = torch.zeros(batch, n_heads, n_queries, W_O.shape[-1], dtype=torch.float64)
    for b, h, i in _indices(batch, n_heads, n_queries):
        outputs[b, h, i] = z[b, i, h].double() @ W_O[h].double()
    return outputs


def layer_output(outputs: Tensor) -> Tensor:
    """o_i = Σ_h o^h_i, without b_O, [batch query d_model]."""
    total = torch.zeros_like(outputs[:, 0])
    for h in range(outputs.shape[1]):
        total += outputs[:, h]
    return total


# The four importance metrics and their factors, all [batch head query key].


def attention(pattern: Tensor, visible: Tensor) -> Tensor:
    """A_ij, and 0 where the query does not see the key."""
    result = torch.zeros(pattern.shape, dtype=torch.float64)
    for b, h, i, j in _visible_entries(pattern, visible):
        result[b, h, i, j] = pattern[b, h, i, j].double()
    return result


def value_weighted(pattern: Tensor, projected: Tensor) -> Tensor:
    """A_ij ||ṽ_j||."""
    result = torch.zeros(pattern.shape, dtype=torch.float64)
    for b, h, i, j in _indices(*pattern.shape):
        result[b, h, i, j] = pattern[b, h, i, j].double() * _norm(projected[b, h, i, j])
    return result


def output_normalized(pattern: Tensor, projected: Tensor, within: str = "head") -> Tensor:
    """A_ij ||ṽ_j|| / ||o_i||, with the output of the head or of the layer."""
    weighted = value_weighted(pattern, projected)
    output = _outputs_within(pattern, projected, within)
    result = torch.full(pattern.shape, NAN, dtype=torch.float64)
    for b, h, i, j in _indices(*pattern.shape):
        if not _degenerate(output[b, h, i]):
            result[b, h, i, j] = weighted[b, h, i, j] / _norm(output[b, h, i])
    return result


def contribution(pattern: Tensor, projected: Tensor, within: str) -> Tensor:
    """c_ij = <o_i, A_ij ṽ_j> / ||o_i||²; within "head": o^h_i, Σ_j c = 1; "layer": o_i, Σ_{h,j} c = 1."""
    output = _outputs_within(pattern, projected, within)
    result = torch.full(pattern.shape, NAN, dtype=torch.float64)
    for b, h, i, j in _indices(*pattern.shape):
        o = output[b, h, i]
        if not _degenerate(o):
            term = pattern[b, h, i, j].double() * projected[b, h, i, j]
            result[b, h, i, j] = (o @ term) / (o @ o)
    return result


def intra(pattern: Tensor, projected: Tensor) -> Tensor:
    """c^h_ij = <o^h_i, A^h_ij ṽ^h_j> / ||o^h_i||²."""
    return contribution(pattern, projected, within="head")


def inter(pattern: Tensor, projected: Tensor) -> Tensor:
    """c^h_ij = <o_i, A^h_ij ṽ^h_j> / ||o_i||² with o_i the layer's output."""
    return contribution(pattern, projected, within="layer")


def cosine(pattern: Tensor, projected: Tensor, within: str) -> Tensor:
    """cos_ij = cos(o_i, ṽ_j)."""
    output = _outputs_within(pattern, projected, within)
    result = torch.full(pattern.shape, NAN, dtype=torch.float64)
    for b, h, i, j in _indices(*pattern.shape):
        result[b, h, i, j] = cosine_between(output[b, h, i], projected[b, h, i, j])
    return result


def value_norms(projected: Tensor) -> Tensor:
    """||ṽ^h_j||, [batch head query key]; the same for every query unless gated."""
    result = torch.zeros(projected.shape[:-1], dtype=torch.float64)
    for index in _indices(*projected.shape[:-1]):
        result[index] = _norm(projected[index])
    return result


def output_norms(outputs: Tensor) -> Tensor:
    """||o||, over the last axis."""
    result = torch.zeros(outputs.shape[:-1], dtype=torch.float64)
    for index in _indices(*outputs.shape[:-1]):
        result[index] = _norm(outputs[index])
    return result


# Sinks.


def received_attention(pattern: Tensor, visible: Tensor, key: int) -> Tensor:
    """α_k = mean of A_ik over the queries that see k, k itself included (causal: i ≥ k), [batch head]."""
    return _mean_over_queries(pattern, visible, [key] * pattern.shape[0], own_query=True)


def sink_mass(pattern: Tensor, visible: Tensor, sinks: Sequence[int]) -> Tensor:
    """The same over queries after the sink, i > k, [batch head]; ``sinks`` has one position per sample."""
    return _mean_over_queries(pattern, visible, sinks, own_query=False)


def learned_sink_mass(pattern: Tensor) -> Tensor:
    """s_i = 1 - Σ_j A_ij, [batch head query]: what a learned sink logit takes."""
    result = torch.zeros(pattern.shape[:-1], dtype=torch.float64)
    for b, h, i in _indices(*pattern.shape[:-1]):
        result[b, h, i] = 1.0 - sum(float(weight) for weight in pattern[b, h, i])
    return result


def sink_rate(
    pattern: Tensor, visible: Tensor, sinks: Sequence[int], convention: str, eps: float, own_query: bool
) -> Tensor:
    """The four conventions, per head [head]; the sink rate of a model is the mean over its heads.

    per_sample: mean over samples of 1[mean_i A_is > ε]
    mean_first: 1[mean over all (sample, query) of A_is > ε]
    per_query: mean over all (sample, query) of 1[A_is > ε]
    mean_mass: mean over all (sample, query) of A_is
    """
    batch, n_heads = pattern.shape[:2]
    rates = torch.zeros(n_heads, dtype=torch.float64)
    for h in range(n_heads):
        per_sample = [_masses(pattern, visible, b, h, sinks[b], own_query) for b in range(batch)]
        pooled = [mass for masses in per_sample for mass in masses]
        if convention == "per_sample":
            rates[h] = _mean([float(_mean(masses) > eps) for masses in per_sample if masses])
        elif convention == "mean_first":
            rates[h] = float(_mean(pooled) > eps)
        elif convention == "per_query":
            rates[h] = _mean([float(mass > eps) for mass in pooled])
        elif convention == "mean_mass":
            rates[h] = _mean(pooled)
        else:
            raise ValueError(convention)
    return rates


def row_entropy(pattern: Tensor, visible: Tensor) -> Tensor:
    """H(A_i)/log(#visible), [batch head query]; NaN where fewer than two keys are visible."""
    result = torch.full(pattern.shape[:-1], NAN, dtype=torch.float64)
    for b, h, i in _indices(*pattern.shape[:-1]):
        keys = keys_of(visible, b, i)
        if len(keys) > 1:
            weights = [float(pattern[b, h, i, j]) for j in keys]
            result[b, h, i] = -sum(w * math.log(w) for w in weights if w > 0) / math.log(len(keys))
    return result


# Value geometry of a sink, for the vectors ṽ_j [key d_model] that one head (and, if gated, one query) has.


def value_drain(vectors: Tensor, sink: int, others: Sequence[int]) -> float:
    """||ṽ_s|| / mean_j ||ṽ_j|| over the other tokens."""
    return _norm(vectors[sink]) / _mean([_norm(vectors[j]) for j in others])


def alignment(vectors: Tensor, sink: int, others: Sequence[int]) -> float:
    """cos(ṽ_s, mean_j ṽ_j) over the other tokens; negative: the sink opposes them."""
    return cosine_between(vectors[sink], mean_vector(vectors, others))


def mean_cosine(vectors: Tensor, sink: int, others: Sequence[int]) -> float:
    """mean_j cos(ṽ_s, ṽ_j) over the other tokens."""
    return _mean([cosine_between(vectors[sink], vectors[j]) for j in others])


# The sink as a suppressor: one row of weights A_i [key] and its vectors ṽ_j [key d_model].


def non_sink_mixture(weights: Tensor, vectors: Tensor, sink: int) -> Tensor | None:
    """ō_i = (o_i - a ṽ_s)/(1-a), formed as Σ_{j≠s} A_ij ṽ_j / (1-a); None where 1-a is 0 in float32."""
    rest = torch.zeros(vectors.shape[-1], dtype=torch.float64)
    for j in range(len(weights)):
        if j != sink:
            rest += weights[j].double() * vectors[j]
    remaining = 1.0 - weights[sink].float()
    return None if remaining <= 0 else rest / (1.0 - weights[sink].double())


def mixture_norm(alpha: float, sink_vector: Tensor, mixture: Tensor) -> float:
    """N(α) = ||α ṽ_s + (1-α) ō_i||, by forming the mixture."""
    return _norm(alpha * sink_vector + (1 - alpha) * mixture)


def alpha_star(sink_vector: Tensor, mixture: Tensor) -> float:
    """α* = (||ō||² - <ṽ_s,ō>) / (||ṽ_s||² + ||ō||² - 2<ṽ_s,ō>), the α of the least N."""
    inner = float(sink_vector @ mixture)
    denominator = float(sink_vector @ sink_vector) + float(mixture @ mixture) - 2 * inner
    return NAN if denominator <= TINY else (float(mixture @ mixture) - inner) / denominator


def is_interior(sink_vector: Tensor, mixture: Tensor) -> bool:
    """0 < α* < 1 ⇔ <ṽ_s,ō> < min(||ṽ_s||², ||ō||²)."""
    inner = float(sink_vector @ mixture)
    return inner < min(float(sink_vector @ sink_vector), float(mixture @ mixture))


def suppression(weights: Tensor, vectors: Tensor, sink: int) -> float:
    """||o_i|| / ||ō_i||, NaN where ō_i is not defined or zero."""
    mixture = non_sink_mixture(weights, vectors, sink)
    if mixture is None or _degenerate(mixture):
        return NAN
    return mixture_norm(float(weights[sink]), vectors[sink], mixture) / _norm(mixture)  # o_i = a ṽ_s + (1-a) ō_i


def interior_fraction(pattern: Tensor, projected: Tensor, visible: Tensor, sinks: Sequence[int]) -> Tensor:
    """Share of queries after the sink that see it and another key with an interior minimum, [head]."""
    batch, n_heads, n_queries, _ = pattern.shape
    fractions = torch.full((n_heads,), NAN, dtype=torch.float64)
    for h in range(n_heads):
        found = []
        for b, i in _indices(batch, n_queries):
            if i == sinks[b] or not visible[b, i, sinks[b]]:
                continue
            mixture = non_sink_mixture(pattern[b, h, i], projected[b, h, i], sinks[b])
            if mixture is not None:
                found.append(float(is_interior(projected[b, h, i, sinks[b]], mixture)))
        fractions[h] = _mean(found)
    return fractions


# Semantic drift of one head's outputs o_i [query d_model].


def cone_axis(vectors: Tensor, tokens: Sequence[int]) -> Tensor:
    """m = normalised mean of ṽ_j over the non-sink tokens."""
    mean = mean_vector(vectors, tokens)
    return mean / _norm(mean)


def outputs_without_sink(pattern: Tensor, projected: Tensor, sinks: Sequence[int]) -> Tensor:
    """o^h_i - A_is ṽ_s, [batch head query d_model]: the sink's term removed, the rest not renormalised."""
    outputs = head_outputs(pattern, projected)
    for b, h, i in _indices(*pattern.shape[:-1]):
        outputs[b, h, i] -= pattern[b, h, i, sinks[b]].double() * projected[b, h, i, sinks[b]]
    return outputs


def drift(outputs: Tensor, axis: Tensor, queries: Sequence[int]) -> float:
    """mean_i cos(o_i, m)."""
    return _mean([cosine_between(outputs[i], axis) for i in queries])


def mean_pairwise_cosine(outputs: Tensor, queries: Sequence[int]) -> float:
    """Mean of cos(o_i, o_k) over pairs of different queries."""
    return _mean([cosine_between(outputs[i], outputs[k]) for i in queries for k in queries if i != k])


# Small helpers.


def keys_of(visible: Tensor, b: int, i: int) -> list[int]:
    """The keys that query i of sample b sees."""
    return [j for j in range(visible.shape[-1]) if visible[b, i, j]]


def cosine_between(first: Tensor, second: Tensor) -> float:
    """cos(x, y), NaN where one of them has no direction."""
    if _degenerate(first) or _degenerate(second):
        return NAN
    return float(first @ second) / (_norm(first) * _norm(second))


def mean_vector(vectors: Tensor, tokens: Sequence[int]) -> Tensor:
    """Mean of ṽ_j over the tokens."""
    total = torch.zeros(vectors.shape[-1], dtype=torch.float64)
    for j in tokens:
        total += vectors[j]
    return total / len(tokens)


def _outputs_within(pattern: Tensor, projected: Tensor, within: str) -> Tensor:
    outputs = head_outputs(pattern, projected)
    if within == "head":
        return outputs
    assert within == "layer"
    return layer_output(outputs).unsqueeze(1).expand_as(outputs)


def _mean_over_queries(pattern: Tensor, visible: Tensor, keys: Sequence[int], own_query: bool) -> Tensor:
    result = torch.full(pattern.shape[:2], NAN, dtype=torch.float64)
    for b, h in _indices(*pattern.shape[:2]):
        result[b, h] = _mean(_masses(pattern, visible, b, h, keys[b], own_query))
    return result


def _masses(pattern: Tensor, visible: Tensor, b: int, h: int, key: int, own_query: bool) -> list[float]:
    queries = [i for i in range(pattern.shape[2]) if visible[b, i, key] and (own_query or i != key)]
    return [float(pattern[b, h, i, key]) for i in queries]


def _visible_entries(pattern: Tensor, visible: Tensor) -> Iterator[tuple[int, ...]]:
    return ((b, h, i, j) for b, h, i, j in _indices(*pattern.shape) if visible[b, i, j])


def _indices(*sizes: int) -> Iterator[tuple[int, ...]]:
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in _indices(*sizes[1:]):
            yield (first, *rest)


def _degenerate(vector: Tensor) -> bool:
    return float(vector @ vector) <= TINY


def _norm(vector: Tensor) -> float:
    return math.sqrt(float(vector @ vector))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers) if numbers else NAN

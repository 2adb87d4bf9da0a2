"""A sweep of the sink's value scale or of its mass: the causal twin of the suppression curve N(α)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sinklens.ablation.cells import Groups, intervention, make_cells, named_groups
from sinklens.ablation.passes import DocumentSums, provenance_of
from sinklens.ablation.study import Path, Watch, prepare, require_positions, run_cells
from sinklens.analyzers.sink_terms import at_sinks, sink_term
from sinklens.errors import InputError
from sinklens.interventions import SinkChoice
from sinklens.interventions.recipe import require_n_bootstrap, require_seed
from sinklens.metrics.contributions import degenerate
from sinklens.metrics.head_space import to_head_space
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.suppression import split_output
from sinklens.models.attention import ModelAttention
from sinklens.models.capture import LayerReader, hooked
from sinklens.models.factors import cached_head_factor
from sinklens.models.hook_names import Z
from sinklens.models.layer import LayerAttention, at_least_float32
from sinklens.models.sinks import Sink, SinkRule
from sinklens.models.tokens import TokenBatch, as_batches
from sinklens.results.ablation import AblationCell, SweepResult

SCALES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)
MASSES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def sweep_sinks(
    model: Any,
    texts: Any,
    kind: str = "mass",
    groups: Groups = "all",
    *,
    values: Sequence[float] | None = None,
    controls: str | Sequence[str] = ("position",),
    sink: Sink | SinkRule = "first",
    seed: int = 0,
    n_bootstrap: int = 1000,
    context_length: int | None = None,
    batch_size: int = 8,
    progress: bool = True,
    partial: Path = None,
    **tokenization: Any,
) -> SweepResult:
    """Sweep the sink's mass or the scale of its value, and measure losses and the norms of head outputs.

    With the mass ``α`` the norm ``||o_i||`` stands beside the closed form ``N(α) = ||α ṽ_s + (1-α) ō_i||``
    (arXiv 2606.07604), with the scale ``f`` beside ``||f a ṽ_s + (1-a) ō_i||`` (ours); both as root mean squares over
    the queries after the sink for which ``ō_i`` is defined. In a group that lies in one layer the two agree; where earlier
    layers are edited too, what separates them is the indirect effect.

    Args:
        model: a TransformerBridge or HookedTransformer with causal attention; it is not changed.
        texts: what :func:`sinklens.tokenize` takes, or the batches that it made.
        kind: ``"mass"`` or ``"scale"``.
        groups: as in :func:`sinklens.ablate_sinks`, and so are all arguments that are not named here.
        values: masses in 0 to 1, by default 0 to 1 in steps of 0.1; or scales, by default 0 to 2 in steps of 0.25.
        controls: ``"position"``, ``"direction"``, both or none.
        sink: which positions are sinks.
        seed: of positions, directions and resamples.
        n_bootstrap: resamples of the documents for 95 % intervals.
        context_length: the longest sequence.
        batch_size: sequences per batch.
        progress: whether to show a progress bar.
        partial: a file that holds the result so far after every batch (``SweepResult.load``); None for none.
        tokenization: further arguments of :func:`sinklens.tokenize`.

    Returns:
        A :class:`~sinklens.SweepResult`: what :func:`sinklens.ablate_sinks` gives, and ``norms()``.

    Raises:
        InputError: as in :func:`sinklens.ablate_sinks`.
        UnsupportedAttentionError: as there.
        HookNotFiredError: a hook did not fire.
        ResultFileError: ``partial`` cannot be written.
    """
    if kind not in ("mass", "scale"):
        raise InputError(f"kind is {kind!r}; expected 'mass' or 'scale'")
    seed, n_bootstrap = require_seed(seed), require_n_bootstrap(n_bootstrap)
    chosen = (MASSES if kind == "mass" else SCALES) if values is None else values
    cells = make_cells(named_groups(model, groups), [(kind, float(value)) for value in chosen], controls)
    attention, choice = prepare(model, cells, sink, partial)
    batches = as_batches(model, texts, tokenization, {"context_length": context_length, "batch_size": batch_size})
    require_positions(choice, batches)
    hooks = [intervention(model, cell, choice, {}, seed) for cell in cells]
    norms = _Norms(model, cells, choice)

    def result(sums: DocumentSums, changed: Sequence[bool]) -> SweepResult:
        provenance = provenance_of(attention, batches, choice.describe(), seed, kind=kind)
        return SweepResult(
            tuple(cells), changed=tuple(changed), provenance=provenance, n_bootstrap=n_bootstrap,
            layers=norms.attention.layers, **sums.fields(), **norms.fields(),
        )  # fmt: skip

    return run_cells(attention, batches, choice, hooks, result, progress=progress, partial=partial, watch=norms)


class _Closed(NamedTuple):
    """Sums over queries ``[head]`` that give every point of a sweep, and the queries themselves."""

    clean: Tensor
    mass: Tensor
    queries: Tensor
    mass_products: Tensor
    scale_products: Tensor
    rows: Tensor


def _closed(view: LayerAttention) -> _Closed:
    on_sink = attention_on(view.pattern, view.sink)
    mass, term = on_sink.sum(-1), sink_term(view, on_sink)
    one_sink = view.gate is None and view.sink.shape[-1] == 1
    sink_value = at_sinks(view.projected_value, view.sink) if one_sink else None
    mixture = split_output(view.head_output, term, mass, sink_value)
    rows = mixture.defined & ~degenerate(mixture.other_squared) & view.queries.unsqueeze(1)
    rest = 1 - mass
    products = (mixture.sink_squared, mixture.inner, mixture.other_squared)
    scaled = (mass.square() * products[0], mass * rest * products[1], rest.square() * products[2])

    def total(per_query: Tensor) -> Tensor:
        return torch.where(rows, per_query, 0.0).sum((0, 2), dtype=torch.float64).cpu()

    squared = view.head_output.square().sum(-1).transpose(1, 2)
    mass_sums, scale_sums = torch.stack([*map(total, products)]), torch.stack([*map(total, scaled)])
    return _Closed(total(squared), total(mass), total(torch.ones_like(mass)), mass_sums, scale_sums, rows)


class _Norms(Watch):
    """Squared output norms of the heads of a sweep, measured under every edit, and by the closed form."""

    def __init__(self, model: Any, cells: Sequence[AblationCell], choice: SinkChoice):
        self.attention = ModelAttention(model, sorted({layer for cell in cells for layer, _ in cell.heads}))
        assert choice.rule is not None
        self.reader = LayerReader(self.attention, choice.rule)
        self.cells = cells
        shape = (len(self.attention.layers), model.cfg.n_heads)
        names = ("clean", "queries", "mass")
        self.sums = {name: torch.zeros(shape, dtype=torch.float64) for name in names}
        self.sums |= {name: torch.zeros(len(cells), *shape, dtype=torch.float64) for name in ("measured", "closed")}
        self.rows: dict[int, Tensor] = {}

    def read(self, batch: TokenBatch) -> None:
        """The clean pass of a batch: the closed form of every cell, and the queries that will be measured."""
        self.reader.read(batch.tokens, batch.mask, self._receive)

    def _receive(self, view: LayerAttention) -> None:
        closed = _closed(view)
        self.rows[view.layer] = closed.rows
        for name in ("clean", "queries", "mass"):
            self.sums[name][view.index] += getattr(closed, name)
        for number, cell in enumerate(self.cells):
            value = cell.value
            rest, (s, c, o) = (1 - value, closed.mass_products) if cell.edit == "mass" else (1.0, closed.scale_products)
            self.sums["closed"][number, view.index] += value**2 * s + 2 * value * rest * c + rest**2 * o

    def measured(self, number: int) -> Any:
        """A context in which the head outputs of one cell are added up; entered after the edit's own."""
        layers = self.attention.layers if self.cells[number].where == "sink" else ()
        hooks = [(str(self.attention.hook(Z, layer)), self._add(number, i, layer)) for i, layer in enumerate(layers)]
        return hooked(self.attention.model, hooks)

    def _add(self, number: int, index: int, layer: int) -> Callable[..., None]:
        W_O = self.attention.output_weights(layer)[0]

        def add(z: Tensor, hook: Any) -> None:
            factor = cached_head_factor(self.attention.module(layer), W_O.to(z.device))
            apart = self.attention.heads_apart(Z, layer, z)
            squared = to_head_space(at_least_float32(apart), factor).square().sum(-1).transpose(1, 2)
            kept = torch.where(self.rows[layer], squared, 0.0).sum((0, 2), dtype=torch.float64)
            self.sums["measured"][number, index] += kept.cpu()

        return add

    def fields(self) -> dict[str, Tensor]:
        """The tensors of a :class:`~sinklens.SweepResult`."""
        controls = torch.tensor([cell.where != "sink" for cell in self.cells])
        measured = self.sums["measured"].masked_fill(controls[:, None, None], float("nan"))
        return {**self.sums, "measured": measured}

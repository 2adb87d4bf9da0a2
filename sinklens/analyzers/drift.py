"""Semantic drift of head outputs, with the sink's term and with it removed."""

import torch

from sinklens.analyzers.means import MeansAnalyzer
from sinklens.analyzers.sink_terms import sink_term, values_as_read
from sinklens.metrics.drift import cone_cosine, mean_pairwise_cosine
from sinklens.metrics.sinks import attention_on
from sinklens.metrics.values import sink_mask
from sinklens.models.layer import LayerAttention
from sinklens.results.drift_profile import DriftProfile
from sinklens.results.provenance import Provenance


class DriftAnalyzer(MeansAnalyzer):
    """Measures a :class:`DriftProfile`.

    Example:
        >>> DriftAnalyzer().kept.__name__
        'DriftProfile'
    """

    kept = DriftProfile

    def update(self, attention: LayerAttention) -> None:
        """Add one layer of one batch."""
        is_sink = sink_mask(attention.sink, attention.mask.shape[-1]) & attention.mask
        output = attention.head_output
        rest = output - sink_term(attention, attention_on(attention.pattern, attention.sink))
        values, others = values_as_read(attention), attention.mask & ~is_sink
        cones = {name: cone_cosine(o, values, others) for name, o in (("cone_with", output), ("cone_without", rest))}
        rows = attention.queries.unsqueeze(1)
        quantities = cones | {"output_norm": output.norm(dim=-1).transpose(1, 2)}
        counted = {f"{name}_queries": rows & ~cone.isnan() for name, cone in cones.items()}
        self.add(attention.index, quantities, counted | {"queries": rows})
        pairs = {"pairwise_with": output, "pairwise_without": rest}
        pairwise = {name: mean_pairwise_cosine(o, attention.queries) for name, o in pairs.items()}
        defined = ~torch.stack(list(pairwise.values())).isnan().any(0)
        self.add(attention.index, pairwise, {"documents": defined})

    def result(self, provenance: Provenance) -> DriftProfile:
        """The drift over all batches."""
        return DriftProfile(self.sums, self.counts, self.layers, provenance)

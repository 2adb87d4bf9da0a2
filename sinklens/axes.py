"""The axis names of sinklens, each written once, as jaxtyping aliases.

``head`` counts query heads and ``kv_head`` key/value heads; they differ under grouped-query attention.
``query`` and ``key`` are both token positions; ``sink`` runs over the sinks of one sequence.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

# One layer, a batch of sequences.
Pattern = Float[Tensor, "batch head query key"]
Value = Float[Tensor, "batch key kv_head d_head"]
HeadValue = Float[Tensor, "batch key head d_head"]
HeadOutput = Float[Tensor, "batch query head d_head"]
LayerInput = Float[Tensor, "batch position d_model"]
LayerOutput = Float[Tensor, "batch query d_model"]
OutputWeight = Float[Tensor, "head d_head d_model"]
Factor = Float[Tensor, "head d_head d_head"]
PerKey = Float[Tensor, "batch head key"]
PerQuery = Float[Tensor, "batch head query"]
PerHead = Float[Tensor, "batch head"]
SinkAttention = Float[Tensor, "batch head query sink"]
Visible = Bool[Tensor, "batch query key"]
RealTokens = Bool[Tensor, "batch position"]
QueryMask = Bool[Tensor, "batch query"]
KeyMask = Bool[Tensor, "batch key"]
SinkPositions = Int[Tensor, "batch sink"]
Tokens = Int[Tensor, "batch position"]

# All layers.
LayerHead = Float[Tensor, "layer head"]
LayerHeadQuery = Float[Tensor, "layer head query"]
LayerHeadKey = Float[Tensor, "layer head key"]
LayerHeadQueryKey = Float[Tensor, "layer head query key"]
LayerQuery = Float[Tensor, "layer query"]
LayerVisible = Bool[Tensor, "layer query key"]
LayerHeadValue = Float[Tensor, "layer key head d_head"]
LayerHeadQuerySpace = Float[Tensor, "layer query head d_head"]

# One sequence, for the theory.
Embeddings = Float[Tensor, "token d_model"]
BilinearForm = Float[Tensor, "d_model d_model"]
QueryTargets = Int[Tensor, " query"]
QueryKeys = Bool[Tensor, "query key"]
Multipliers = Float[Tensor, "query key"]
HullWeights = Float[Tensor, " token"]
Direction = Float[Tensor, " d_model"]

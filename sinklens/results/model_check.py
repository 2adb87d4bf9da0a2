"""The check of a model: does each layer's attention decompose, and does an edit of it change the logits?"""

from dataclasses import dataclass

import pandas as pd


@dataclass(frozen=True)
class LayerCheck:
    """One layer's verdict; gaps are relative to the largest entry of what is compared with.

    Attributes:
        layer: the model's own number.
        kind: what there is beside plain attention: grouped heads, a window, a learned sink, a gate; or why it is skipped.
        head_gap: ``max|z - A v| / max|z|``.
        output_gap: ``max|Σ_h z W_O + b_O - attention output| / max|attention output|``.
        row_gap: ``max|1 - Σ_j A_ij|``; a learned sink takes what is missing.
        output_hook: the hook that holds the layer's output.
        editable: whether an edit of the pattern reaches the head outputs.
        failure: why the layer cannot be measured, or None.
    """

    layer: int
    kind: str
    head_gap: float = float("nan")
    output_gap: float = float("nan")
    row_gap: float = float("nan")
    output_hook: str = ""
    editable: bool = False
    skipped: bool = False
    failure: str | None = None

    @property
    def verdict(self) -> str:
        """``exact``, ``exact, not editable``, ``skipped`` or ``refused``."""
        if self.skipped:
            return "skipped"
        if self.failure:
            return "refused"
        return "exact" if self.editable else "exact, not editable"


@dataclass(frozen=True, repr=False)
class ModelCheck:
    """Whether sinklens can be trusted on a model, layer by layer. Made by :func:`sinklens.check_model`.

    Attributes:
        model_name: as TransformerLens knows the model.
        frame: ``raw``, or what was done to the weights.
        layers: one :class:`LayerCheck` per layer of the model.
        logits_change: whether an edit of the patterns changes the logits.
    """

    model_name: str
    backend: str
    frame: str
    dtype: str
    layers: tuple[LayerCheck, ...]
    logits_change: bool

    @property
    def passed(self) -> bool:
        """Whether at least one layer can be measured and none is refused."""
        verdicts = [layer.verdict for layer in self.layers]
        return "refused" not in verdicts and any(verdict.startswith("exact") for verdict in verdicts)

    @property
    def verdict(self) -> str:
        """One line: what works and what does not."""
        verdicts = [layer.verdict for layer in self.layers]
        counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
        parts = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
        edits = (
            "edits of the pattern change the logits" if self.logits_change else "edits of the pattern change nothing"
        )
        return f"{'passed' if self.passed else 'failed'}: {len(self.layers)} layers, {parts}; {edits}"

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer."""
        names = ("layer", "verdict", "head_gap", "output_gap", "row_gap", "editable", "kind", "output_hook", "failure")
        return pd.DataFrame([{name: getattr(layer, name) for name in names} for layer in self.layers])

    def __repr__(self) -> str:
        reasons = [f"\n  layer {layer.layer}: {layer.failure}" for layer in self.layers if layer.failure]
        frame = "" if self.frame == "raw" else f" ({self.frame})"
        return f"ModelCheck({self.model_name}{frame}: {self.verdict}){''.join(reasons)}"

"""How toy models learn a copy-paste task: losses, attention, value drain and norms over training, for one run or several."""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from sinklens.errors import InputError
from sinklens.metrics.patterns import KINDS
from sinklens.results.files import load_tensors, save_tensors
from sinklens.results.labels import known_name
from sinklens.results.provenance import Provenance

PerStep = Float[Tensor, "run step"]
KIND_NAMES = ("kind", "kind_dormant", "kind_active")
LOSSES = ("loss_active", "loss_dormant", "optimal_dormant")
MASSES = (
    "sink_mass_dormant", "sink_mass_active", "learned_sink_mass_dormant", "learned_sink_mass_active",
    "self_mass_dormant", "self_mass_active", "previous_mass_dormant", "previous_mass_active",
    "target_mass_dormant", "target_mass_active",
)  # fmt: skip
OUTPUTS = ("value_drain", "output_norm_dormant", "output_norm_active", "gate_dormant", "gate_active")
NORMS = ("qk_frobenius", "qk_nuclear", "vo_frobenius", "vo_nuclear")
QUANTITIES = (*LOSSES, *MASSES, *OUTPUTS, *NORMS)
# What a toy with a sink has to show, and on which side of what.
GOALS = (
    ("sink_mass_dormant", ">", 0.5),
    ("sink_mass_active", "<", 0.05),
    ("value_drain", "<", 0.3),
    ("target_mass_active", ">", 0.6),
)


@dataclass(frozen=True)
class ToySettings:
    """What a run was trained with.

    Attributes:
        task: name of the task.
        architecture: ``bos``, ``no_bos``, ``learned_sink``, ``no_learned_sink`` or ``gated``.
        weight_decay: of AdamW, on matrices.
        seed: of the bigram table, the initial weights and the data.
        learning_rate: at its highest.
        batch_size: sequences a step.
        d_model: width.
        steps: that were planned.
    """

    task: str
    architecture: str
    weight_decay: float
    seed: int
    learning_rate: float
    batch_size: int
    d_model: int
    steps: int


@dataclass(frozen=True, repr=False)
class ToyHistory:
    """Figures of one or several toy runs at the same steps of training, from :func:`sinklens.toy.train_toy`.

    All are of the one head, on held-out sequences. *Active* queries are those of triggers, whose next token is a copy;
    *dormant* ones all others (the first position has no attention to speak of: it counts for losses only).

    - ``loss_active``, ``loss_dormant``: next-token cross-entropy, nats; ``optimal_dormant``: the least that can be expected,
      the entropy of the bigram rows (for active queries it is 0).
    - ``sink_mass_*`` on the first position, ``self_mass_*``, ``previous_mass_*``, ``target_mass_*`` (on the token to copy),
      ``learned_sink_mass_*`` (on a learned null key).
    - ``value_drain``: ``||ṽ_s|| / mean_j ||ṽ_j||``; ``output_norm_*``: mean ``||o_i||``; ``gate_*``: mean gate, NaN without one.
    - ``qk_*``, ``vo_*``: Frobenius and nuclear norm of ``W_Q W_Kᵀ`` and ``W_V W_O``; ``qk_*`` is NaN where a norm of queries and
      keys stands in between, so that there is no such matrix, and ``vo_*`` where a gate does.

    Attributes:
        values: by quantity, ``[run, step]`` float64.
        kinds: by ``kind``, ``kind_dormant``, ``kind_active``: into :data:`~sinklens.metrics.patterns.KINDS`, ``[run, step]``.
        steps: of training, at which figures were taken.
        settings: of each run.
        provenance: of the first run's model; its ``seed`` is None where runs differ in it.
    """

    values: Mapping[str, PerStep]
    kinds: Mapping[str, Int[Tensor, "run step"]]
    steps: tuple[int, ...]
    settings: tuple[ToySettings, ...]
    provenance: Provenance

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names that :meth:`of` knows."""
        return QUANTITIES

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for every run: what tells it from the others; the architecture where nothing does."""
        return self._labels(())

    @property
    def groups(self) -> dict[str, list[int]]:
        """Runs that differ in nothing but the seed, by name: the rows of each group."""
        found: dict[str, list[int]] = {}
        for row, label in enumerate(self._labels(("seed",))):
            found.setdefault(label, []).append(row)
        return found

    def _labels(self, without: tuple[str, ...]) -> tuple[str, ...]:
        fields = [field.name for field in dataclasses.fields(ToySettings) if field.name not in without]
        varied = [name for name in fields if len(self.varied(name)) > 1]
        words = {
            "weight_decay": "decay ",
            "seed": "seed ",
            "learning_rate": "rate ",
            "d_model": "width ",
            "steps": "steps ",
        }
        return tuple(
            ", ".join(f"{words.get(name, '')}{_short(getattr(run, name))}" for name in varied or ["architecture"])
            for run in self.settings
        )

    def varied(self, name: str) -> tuple[Any, ...]:
        """The different values of a setting, in order of appearance."""
        return tuple(dict.fromkeys(getattr(run, name) for run in self.settings))

    def of(self, name: str) -> PerStep:
        """A quantity, ``[run, step]``.

        Raises:
            InputError: there is no such quantity.
        """
        return self.values[known_name(name, QUANTITIES)]

    def final(self, name: str) -> Float[Tensor, " run"]:
        """A quantity at the last step.

        Raises:
            InputError: there is no such quantity.
        """
        return self.of(name)[:, -1]

    def kind(self, name: str = "kind") -> list[list[str]]:
        """Pattern kind of the head, ``[run][step]``, over all queries (``kind``), ``kind_dormant`` or ``kind_active``.

        Raises:
            InputError: there is no such name.
        """
        indices = self.kinds[known_name(name, KIND_NAMES, "kind")]
        return [[KINDS[kind] for kind in row] for row in indices.tolist()]

    def goals(self) -> pd.DataFrame:
        """What a toy with a sink has to show, at the last step: ``run``, ``quantity``, ``value``, ``goal``, ``reached``."""
        rows = [
            {"run": label, "quantity": name, "value": value, "goal": f"{side} {bound:g}",
             "reached": value > bound if side == ">" else value < bound}
            for name, side, bound in GOALS
            for label, value in zip(self.labels, self.final(name).tolist(), strict=True)
        ]  # fmt: skip
        return pd.DataFrame(rows)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per run and step: the settings of the run, ``step``, every quantity, the kinds."""
        tables = []
        for row, settings in enumerate(self.settings):
            kept = {name: value for name, value in dataclasses.asdict(settings).items() if name != "steps"}
            values = {name: self.values[name][row].numpy() for name in QUANTITIES}
            kinds = {name: self.kind(name)[row] for name in KIND_NAMES}
            tables.append(pd.DataFrame({"step": list(self.steps), **values, **kinds}).assign(**kept))
        table = pd.concat(tables, ignore_index=True)
        first = [name for name in table.columns if name not in ("step", *QUANTITIES, *KIND_NAMES)]
        return pd.DataFrame(table[[*first, "step", *QUANTITIES, *KIND_NAMES]])

    def merge(self, other: "ToyHistory") -> "ToyHistory":
        """The runs of both.

        Raises:
            InputError: figures were taken at other steps.
        """
        if self.steps != other.steps:
            raise InputError(
                f"cannot merge runs with figures at other steps: {len(self.steps)} up to {self.steps[-1]} here, "
                f"{len(other.steps)} up to {other.steps[-1]} there; train with the same steps and record_every"
            )
        same_seed = self.provenance.seed == other.provenance.seed
        return ToyHistory(
            {name: torch.cat([value, other.values[name]]) for name, value in self.values.items()},
            {name: torch.cat([value, other.kinds[name]]) for name, value in self.kinds.items()},
            self.steps,
            (*self.settings, *other.settings),
            self.provenance if same_seed else dataclasses.replace(self.provenance, seed=None),
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Save as safetensors with JSON metadata, whole or not at all.

        Raises:
            ResultFileError: the file cannot be written.
        """
        metadata = {
            "steps": list(self.steps),
            "settings": [dataclasses.asdict(run) for run in self.settings],
            "provenance": self.provenance.to_dict(),
        }
        return save_tensors(path, "ToyHistory", {**self.values, **self.kinds}, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "ToyHistory":
        """Load what :meth:`save` wrote.

        Raises:
            ResultFileError: the file is missing or holds something else.
        """
        tensors, metadata = load_tensors(path, "ToyHistory")
        return cls(
            {name: tensors[name] for name in QUANTITIES},
            {name: tensors[name] for name in KIND_NAMES},
            tuple(metadata["steps"]),
            tuple(ToySettings(**run) for run in metadata["settings"]),
            Provenance.from_dict(metadata["provenance"]),
        )

    def __repr__(self) -> str:
        lines = [
            f"{label}: loss {self.final('loss_active')[row]:.3f} active, {self.final('loss_dormant')[row]:.3f} dormant "
            f"(at best {self.final('optimal_dormant')[row]:.3f}); sink {self.final('sink_mass_dormant')[row]:.2f} dormant, "
            f"{self.final('sink_mass_active')[row]:.2f} active; drain {self.final('value_drain')[row]:.2f}"
            for row, label in enumerate(self.labels)
        ]
        task = ", ".join(self.varied("task"))
        return f"ToyHistory({task}, {self.steps[-1]} steps; {'; '.join(lines)})"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)

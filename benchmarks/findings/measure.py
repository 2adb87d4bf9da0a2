"""What is measured on one corpus: result files of sinklens, each kept so that a run that was stopped goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

import sinklens as sl

FRACTIONS = (0.01, 0.05, 0.1, 0.5)
METRICS = ("attention", "value_weighted", "output_normalized", "inter", "random")
# The sweep that edits one layer at a time: a few layers, since each is a pass for every mass.
LAYERS = (0, 6, 12, 18, 24)
MASSES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BATCH = 16
HEAD_QUANTITIES = ("sink_mass", "suppression", "interior_fraction", "pooled_alpha_star")
DRIFT = ("cone_with", "cone_without", "cone_ablated")


def measure(model: Any, tokens: Tensor, folder: Path) -> dict[str, Any]:
    """Everything that the claims are read from, from files where it was measured before."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {"context_length": None, "batch_size": BATCH}
    return {
        "heads": _table(folder / "heads.csv", lambda: per_document(model, tokens, _heads)),
        "drift": _table(folder / "drift.csv", lambda: per_document(model, tokens, _drift)),
        "ablation": kept(
            folder / "ablation.safetensors", sl.AblationResult,
            lambda: sl.ablate_sinks(model, tokens, "all", edits=("zero", "mean"), **arguments),
        ),
        "sweep": kept(
            folder / "sweep.safetensors", sl.SweepResult,
            lambda: sl.sweep_sinks(model, tokens, "mass", "all", values=MASSES, controls=(), **arguments),
        ),
        "layer sweep": kept(
            folder / "layer_sweep.safetensors", sl.SweepResult,
            lambda: sl.sweep_sinks(model, tokens, "mass", LAYERS, values=MASSES, controls=(), **arguments),
        ),
        "signed": sl.faithfulness(
            model, tokens, METRICS, FRACTIONS, resume=folder / "signed.safetensors", **arguments
        ),
        "absolute": sl.faithfulness(
            model, tokens, ("inter",), FRACTIONS, ranking="absolute",
            resume=folder / "absolute.safetensors", **arguments,
        ),
    }  # fmt: skip


def per_document(model: Any, tokens: Tensor, statistics: Callable[[Any, Tensor], pd.DataFrame]) -> pd.DataFrame:
    """One row per document and head: intervals over documents need each document's own figures."""
    rows = enumerate(tqdm(tokens, desc="documents", leave=False))
    tables = [statistics(model, row.unsqueeze(0)).assign(document=number) for number, row in rows]
    return pd.concat(tables, ignore_index=True)


def _heads(model: Any, tokens: Tensor) -> pd.DataFrame:
    profile = sl.head_profile(model, tokens, context_length=None, progress=False)
    return _long({name: getattr(profile, name) for name in HEAD_QUANTITIES}, profile.layers)


def _long(quantities: dict[str, Tensor], layers: tuple[int, ...]) -> pd.DataFrame:
    n_heads = next(iter(quantities.values())).shape[1]
    places = {
        "layer": torch.tensor(layers).repeat_interleave(n_heads),
        "head": torch.arange(n_heads).repeat(len(layers)),
    }
    return pd.DataFrame({name: tensor.flatten().numpy() for name, tensor in {**places, **quantities}.items()})


def _drift(model: Any, tokens: Tensor) -> pd.DataFrame:
    drift = sl.drift_without_sinks(model, tokens, context_length=None, progress=False)
    return pd.DataFrame(drift.to_dataframe(), columns=["layer", "head", *DRIFT])


def _table(path: Path, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
    if not path.exists():
        make().to_csv(path, index=False)
    return pd.read_csv(path)


def kept(path: Path, kind: Any, make: Callable[[], Any]) -> Any:
    """A result from its file, made and saved where there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        make().save(path)
    return kind.load(path)

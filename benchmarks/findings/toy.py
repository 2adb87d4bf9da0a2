"""What is said of how sinks come about, on toys whose optimum is known: trained from several seeds, and edited."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scipy import stats

import sinklens as sl
from benchmarks.findings.claims import Finding, over_documents
from sinklens.results.toy_history import ToyHistory
from sinklens.toy import load_toy, train_toy

SEEDS = (0, 1, 2)
STEPS, RECORD_EVERY = 600, 25
DECAYS = (0.0, 0.1, 1.0)
# architecture and weight decay of every toy
TOYS = (
    ("bos", 0.01), ("no_bos", 0.01), ("learned_sink", 0.01), ("no_learned_sink", 0.01), ("gated", 0.01),
    *(("bos", decay) for decay in DECAYS),
)  # fmt: skip
DOCUMENTS, DOCUMENTS_SEED = 64, 17


def measure_toys(folder: Path, seeds: Sequence[int] = SEEDS, steps: int = STEPS) -> dict[str, Any]:
    """A history for every architecture and weight decay, its runs one a seed, from files where it was trained before; and
    what becomes of the packaged toy when its sink is taken away.

    Args:
        folder: result files are kept here.
        seeds: of the runs.
        steps: of training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for architecture, decay in TOYS:
        runs = [
            _kept(folder / f"{architecture}-{decay}-{seed}.safetensors", architecture, decay, seed, steps)
            for seed in seeds
        ]
        history = runs[0]
        for run in runs[1:]:
            history = history.merge(run)
        found[architecture, decay] = history
    return {"toys": found, "edited": edited_losses()}


def _kept(path: Path, architecture: str, decay: float, seed: int, steps: int) -> ToyHistory:
    if not path.exists():
        run = train_toy(
            architecture=architecture, weight_decay=decay, seed=seed, steps=steps, record_every=min(RECORD_EVERY, steps)
        )
        run.history.save(path)
    return ToyHistory.load(path)


def edited_losses() -> pd.DataFrame:
    """The packaged toy with its sink's attention spread over the other tokens: change of its losses and of its output's norm,
    one row per sequence and side."""
    toy = load_toy()
    tokens = toy.task.sample(DOCUMENTS, DOCUMENTS_SEED)
    active = toy.task.active(tokens)
    clean, edited = _per_token(toy.model, tokens), None
    with sl.intervene(toy.model, sl.remove_sink_attention(toy.model, renormalize=True)):
        edited = _per_token(toy.model, tokens)
    rows = []
    for document in range(DOCUMENTS):
        for side, mask in (("active", active[document]), ("dormant", ~active[document])):
            kept = mask[1:-1]  # the first position has no sink but itself, the last no next token
            one = {"document": document, "side": side}
            one["delta_loss"] = (edited[0] - clean[0])[document, 1:][kept].mean().item()
            one["norm_ratio"] = (edited[1][document, 1:-1][kept].mean() / clean[1][document, 1:-1][kept].mean()).item()
            rows.append(one)
    return pd.DataFrame(rows)


@torch.no_grad()
def _per_token(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token losses ``[document, position - 1]``, and norms of what attention writes without its bias."""
    logits, cache = model.run_with_cache(tokens)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], reduction="none")
    z = cache["blocks.0.attn.hook_z"].reshape(*tokens.shape, -1)
    return loss.double(), (z @ model.blocks[0].attn.W_O[0]).norm(dim=-1).double()


def toy_findings(measured: dict[str, Any]) -> list[Finding]:
    """The lines: a sink where nothing is to be read, what it does, and what it needs."""
    toys = measured["toys"]
    return [*_sink(toys), *_edited(measured["edited"]), *_switched_off(toys), *_decay(toys)]


def over_seeds(values: torch.Tensor) -> tuple[float, float, float]:
    """Mean of one figure a seed and its 95 % interval by Student's law; seeds are too few to be resampled."""
    mean, spread = values.mean().item(), values.std().item() if len(values) > 1 else math.nan
    half = stats.t.ppf(0.975, len(values) - 1) * spread / len(values) ** 0.5 if len(values) > 1 else math.nan
    return mean, mean - half, mean + half


def _line(claim: str, figure: str, values: torch.Tensor, boundary: float = 0.0, above: bool = True) -> Finding:
    return Finding(
        claim, f"{figure} (interval over {len(values)} seeds)", *over_seeds(values), boundary=boundary, above=above
    )


def _sink(toys: dict[Any, ToyHistory]) -> Iterator[Finding]:
    own = toys["bos", 0.01]
    ratio = own.final("output_norm_dormant") / own.final("output_norm_active")
    yield _line(
        "A sink forms where nothing is to be read",
        "attention of dormant queries on BOS",
        own.final("sink_mass_dormant"),
        0.5,
    )
    yield _line(
        "… and only there", "attention of active queries on BOS", own.final("sink_mass_active"), 0.05, above=False
    )
    yield _line("Active queries read the token to copy", "their attention on it", own.final("target_mass_active"), 0.6)
    yield _line("The sink's value is drained", "`‖ṽ_s‖ / mean ‖ṽ_j‖`", own.final("value_drain"), 0.3, above=False)
    yield _line("So the head is off at dormant queries", "mean `‖o‖`, dormant ÷ active", ratio, 0.5, above=False)


def _edited(table: pd.DataFrame) -> Iterator[Finding]:
    """Sink attention removed, the rest of the row scaled to 1, in the packaged toy; intervals over sequences."""
    sides: dict[Any, pd.DataFrame] = dict(tuple(table.groupby("side")))
    dormant, active = sides["dormant"], sides["active"]
    words = "sink's attention removed from the packaged toy"
    claim = "The sink carries the switch: without it dormant outputs grow"
    yield Finding(claim, f"`‖o‖` after ÷ before, {words}", *over_documents(dormant.norm_ratio), boundary=1.0)
    yield Finding("… and dormant tokens are predicted worse", f"Δ loss, {words}", *over_documents(dormant.delta_loss))
    claim = "… while active tokens lose less"
    gap = pd.Series(active.delta_loss.to_numpy() - dormant.delta_loss.to_numpy())
    yield Finding(claim, f"Δ loss of active minus that of dormant, {words}", *over_documents(gap), above=False)


def _switched_off(toys: dict[Any, ToyHistory]) -> Iterator[Finding]:
    mass = {
        name: toys[name, 0.01].final("sink_mass_dormant")
        for name in ("bos", "no_bos", "learned_sink", "no_learned_sink", "gated")
    }
    first = "attention of dormant queries on the first position"
    yield _line("Without BOS no sink forms", first, mass["no_bos"], 0.3, above=False)
    norms = toys["no_bos", 0.01]
    ratio = norms.final("output_norm_dormant") / norms.final("output_norm_active")
    yield _line(
        "… yet the head is off at dormant queries all the same", "mean `‖o‖`, dormant ÷ active", ratio, 0.5, above=False
    )
    learned = toys["learned_sink", 0.01].final("learned_sink_mass_dormant")
    yield _line("A learned null key takes the sink's place", "attention of dormant queries on it", learned, 0.5)
    change = mass["learned_sink"] - mass["no_learned_sink"]
    yield _line("… and BOS has less than with the key held shut", f"{first}, difference", change, above=False)
    gates = toys["gated", 0.01]
    change = gates.final("gate_dormant") - gates.final("gate_active")
    yield _line("A gate closes at dormant queries", "mean gate, dormant minus active", change, above=False)
    yield _line("… so that no sink forms", first, mass["gated"], 0.3, above=False)


def _decay(toys: dict[Any, ToyHistory]) -> Iterator[Finding]:
    none, much = toys["bos", DECAYS[0]], toys["bos", DECAYS[-1]]
    words = f"weight decay {DECAYS[-1]:g} minus {DECAYS[0]:g}"

    def change(name: str) -> torch.Tensor:
        return much.final(name) - none.final(name)

    yield _line(
        "Weight decay lowers the cost of the pattern",
        f"nuclear norm of W_QK, {words}",
        change("qk_nuclear"),
        above=False,
    )
    yield _line(
        "… and with it the sink becomes stronger",
        f"attention of dormant queries on BOS, {words}",
        change("sink_mass_dormant"),
    )
    yield _line(
        "… stronger than the diagonal",
        f"change of dormant attention on BOS minus that on itself, {words}",
        change("sink_mass_dormant") - change("self_mass_dormant"),
    )

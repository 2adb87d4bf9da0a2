"""Train a toy: a small model through TransformerLens on a copy-paste task, measured as it learns."""

import dataclasses
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from sinklens.errors import ConvergenceError, InputError
from sinklens.interventions.recipe import require_seed
from sinklens.results.labels import whole_number
from sinklens.results.provenance import Provenance
from sinklens.results.toy_history import KIND_NAMES, QUANTITIES, ToyHistory, ToySettings
from sinklens.toy.architectures import as_bridge, new_original, toy_architecture, trainable
from sinklens.toy.files import ToyRun
from sinklens.toy.measure import held_out, measure_toy
from sinklens.toy.tasks import CopyTask, copy_task

WARM_UP = 50  # steps, or a fifth of all where that is less
RECORDS = 24  # figures over a training by default
BETAS = (0.9, 0.999)


def train_toy(
    task: str | CopyTask = "backcopy",
    architecture: str = "bos",
    *,
    steps: int = 600,
    weight_decay: float = 0.01,
    learning_rate: float = 5e-3,
    batch_size: int = 32,
    d_model: int = 64,
    record_every: int | None = None,
    stop_after: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> ToyRun:
    """Train a model of one layer and one head on a copy-paste task and record how its attention comes about.

    AdamW on the next-token loss of fresh sequences; the learning rate rises over the first 50 steps and falls in a straight
    line to 0 over all (ours; task after arXiv 2410.13835, weight decay as the cost of arXiv 2605.08453: least over all
    factors, half their squared norm is the nuclear norm). Takes about half a minute on one core, and gives the same numbers
    for the same seed on the same machine.

    Args:
        task: ``"backcopy"``, ``"copy"`` or a :class:`~sinklens.toy.CopyTask`; a named task gets its table from ``seed``.
        architecture: ``"bos"`` or ``"no_bos"`` (GPT-2), ``"learned_sink"`` or ``"no_learned_sink"`` (gpt-oss, with its learned
            null key or with that held shut), ``"gated"`` (Qwen3-Next; needs TransformerLens 4).
        steps: of training.
        weight_decay: of AdamW (decoupled), on matrices only.
        learning_rate: at its highest.
        batch_size: sequences a step.
        d_model: width; of the head too.
        record_every: figures are taken every so many steps, and at the first and last; by default about 24 times.
        stop_after: end before ``steps``, on the schedule of all: the beginning of the same training.
        seed: of a named task's table, the initial weights and the data.
        progress: whether to show a progress bar.

    Returns:
        The model, ready for every function of sinklens, with its task and history.

    Raises:
        InputError: an argument has no sense.
        ConvergenceError: the loss is no number any more.

    Example:
        >>> run = train_toy(steps=2, d_model=8, batch_size=2, progress=False)
        >>> run.history.steps, run.model.cfg.model_name
        ((0, 1, 2), 'toy-backcopy-bos')
    """
    settings = toy_settings(task, architecture, steps, weight_decay, learning_rate, batch_size, d_model, seed)
    last = settings.steps if stop_after is None else _whole(stop_after, "stop_after", 1, settings.steps)
    every = max(1, settings.steps // RECORDS) if record_every is None else _whole(record_every, "record_every", 1)
    learnt = _task(task, architecture, settings.seed)
    original = new_original(architecture, learnt, settings.d_model, settings.seed)
    names = {name for name, _ in original.named_parameters()}
    model = as_bridge(original, learnt, f"toy-{learnt.name}-{architecture}")
    training = _Training(model, learnt, settings, names)
    recorder = _Recorder(model, learnt)
    recorder.record(0)
    with tqdm(total=last, disable=not progress, unit=" steps", desc=model.cfg.model_name, leave=False) as bar:
        for step in range(1, last + 1):
            training.step(step)
            if step % every == 0 or step == last:
                bar.set_postfix_str(recorder.record(step))
            bar.update()
    model.requires_grad_(False)
    return ToyRun(model, learnt, recorder.history(settings))


class _Training:
    """Weights, optimizer and the stream of data."""

    def __init__(self, model: Any, task: CopyTask, settings: ToySettings, names: set[str]):
        self.model, self.task, self.settings = model, task, settings
        self.parameters = trainable(model, names, toy_architecture(settings.architecture))
        matrices = [weight for name, weight in self.parameters.items() if weight.ndim > 1 and not name.endswith("bias")]
        kept = {id(weight) for weight in matrices}
        vectors = [weight for weight in self.parameters.values() if id(weight) not in kept]
        groups = [
            {"params": matrices, "weight_decay": settings.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, betas=BETAS)
        self.generator = torch.Generator().manual_seed(settings.seed)

    def step(self, step: int) -> None:
        """One step, counted from 1."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * _schedule(step, self.settings.steps)
        tokens = self.task.sample(self.settings.batch_size, self.generator)
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(self.model(tokens)[:, :-1].mT, tokens[:, 1:])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if not all(bool(weight.isfinite().all()) for weight in self.parameters.values()):
            raise ConvergenceError(
                f"weights are not finite after step {step}, where the loss was {loss.item():.3g}; lower learning_rate "
                f"({self.settings.learning_rate:g}) or weight_decay ({self.settings.weight_decay:g})"
            )


def _schedule(step: int, steps: int) -> float:
    """The learning rate's share at a step counted from 1: up in a straight line, and down to 0 past the last step."""
    return min(1.0, step / min(WARM_UP, max(1, steps // 5))) * (1 - (step - 1) / steps)


class _Recorder:
    """Takes the figures of a history."""

    def __init__(self, model: Any, task: CopyTask):
        self.model, self.task, self.tokens = model, task, held_out(task)
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []
        self.kinds: list[dict[str, int]] = []
        self.provenance: Provenance | None = None

    def record(self, step: int) -> str:
        """Take them now; gives the losses in words."""
        values, kinds, self.provenance = measure_toy(self.model, self.task, self.tokens)
        self.steps.append(step)
        self.values.append(values)
        self.kinds.append(kinds)
        return f"loss {values['loss_active']:.2f} active, {values['loss_dormant']:.2f} dormant"

    def history(self, settings: ToySettings) -> ToyHistory:
        assert self.provenance is not None
        return ToyHistory(
            {name: _row(self.values, name).double() for name in QUANTITIES},
            {name: _row(self.kinds, name) for name in KIND_NAMES},
            tuple(self.steps),
            (settings,),
            dataclasses.replace(self.provenance, seed=settings.seed, prepended_bos=self.task.bos),
        )


def _row(records: Sequence[dict[str, Any]], name: str) -> Tensor:
    return torch.tensor([[record[name] for record in records]])


def toy_settings(
    task: str | CopyTask,
    architecture: str,
    steps: int,
    weight_decay: float,
    learning_rate: float,
    batch_size: int,
    d_model: int,
    seed: int,
) -> ToySettings:
    """The settings of a run, checked: the arguments of :func:`train_toy`.

    Raises:
        InputError: one has no sense.
    """
    toy_architecture(architecture)
    return ToySettings(
        task=copy_task(task).name,
        architecture=architecture,
        weight_decay=_number(weight_decay, "weight_decay", zero=True),
        seed=require_seed(seed),
        learning_rate=_number(learning_rate, "learning_rate"),
        batch_size=_whole(batch_size, "batch_size", 1),
        d_model=_width(d_model),
        steps=_whole(steps, "steps", 1),
    )


def _task(task: str | CopyTask, architecture: str, seed: int) -> CopyTask:
    table = {} if isinstance(task, CopyTask) else {"seed": seed}
    return dataclasses.replace(copy_task(task), bos=toy_architecture(architecture).bos, **table)


def _width(width: Any) -> int:
    found = _whole(width, "d_model", 4)
    if found % 4:
        raise InputError(
            f"d_model is {width!r}; expected a multiple of 4, as rotary positions turn pairs of half of it"
        )
    return found


def _whole(value: Any, name: str, least: int, most: int | None = None) -> int:
    number = whole_number(value)
    if number is None or number < least or (most is not None and number > most):
        room = f"from {least} on" if most is None else f"from {least} to {most}"
        raise InputError(f"{name} is {value!r}; expected a whole number {room}")
    return number


def _number(value: Any, name: str, zero: bool = False) -> float:
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else float("nan")
    if not 0 <= number < float("inf") or (number == 0 and not zero):
        raise InputError(f"{name} is {value!r}; expected a number {'from 0 on' if zero else 'above 0'}")
    return number

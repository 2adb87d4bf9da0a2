"""Toys: small models that are trained in half a minute, have a true attention sink, and whose optimum is known exactly."""

from sinklens.results.toy_history import ToyHistory, ToySettings
from sinklens.toy.architectures import ARCHITECTURES
from sinklens.toy.files import ToyRun, load_toy
from sinklens.toy.measure import CopyAnalyzer, held_out
from sinklens.toy.tasks import TASKS, CopyTask, copy_task
from sinklens.toy.training import train_toy
from sinklens.toy.words import toy_tokenizer

__all__ = [
    "ARCHITECTURES",
    "TASKS",
    "CopyAnalyzer",
    "CopyTask",
    "ToyHistory",
    "ToyRun",
    "ToySettings",
    "copy_task",
    "held_out",
    "load_toy",
    "toy_tokenizer",
    "train_toy",
]

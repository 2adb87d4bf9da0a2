"""Options that several commands have: each dataclass stands for its fields in a command's signature."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sinklens.cli.parse import names, numbers_and_ranges
from sinklens.errors import InputError
from sinklens.models.toy_files import NAME as TOY

DATA_HELP = "A .txt or .jsonl file, or hf:NAME[:CONFIG][@SPLIT]. Default: a built-in text."
BUILT_IN = "the built-in demonstration text"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def _toy_sequences() -> Any:
    """Sequences that the packaged toy was not trained on."""
    from sinklens.toy import held_out, load_toy

    return held_out(load_toy().task)


def check_resampling(seed: int, n_bootstrap: int) -> None:
    """What is random in a study, checked before a model is loaded.

    Raises:
        InputError: a number is out of range.
    """
    from sinklens.interventions.recipe import require_n_bootstrap, require_seed

    try:
        require_seed(seed)
        require_n_bootstrap(n_bootstrap)
    except InputError as error:
        raise InputError(f"--{str(error).replace('n_bootstrap', 'n-bootstrap')}") from None


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and which text."""

    model: Annotated[
        str, typer.Option("--model", "-m", help="Hub name, local folder, GGUF file, smollm2-135m or toy.")
    ] = "smollm2-135m"
    data: Annotated[str | None, typer.Option("--data", "--texts", "-d", help=DATA_HELP)] = None
    fields: Annotated[str | None, typer.Option(help="Fields of a .jsonl or dataset: question,answer.")] = None
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps. Default: the best one there is.")] = None
    device_map: Annotated[
        str | None, typer.Option(help="auto or balanced: split over all GPUs, in place of --device.")
    ] = None
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16; metrics are float32 anyway.")] = "float32"
    backend: Annotated[str | None, typer.Option(help="bridge or hooked (TransformerLens 3). Default: bridge.")] = None

    def load(self) -> Any:
        """The model."""
        from sinklens.models.loading import load_model

        return load_model(
            self.model, device=self.device, dtype=self.dtype, backend=self.backend, device_map=self.device_map
        )

    def texts(self) -> Any:
        """The texts; a missing or broken file is found here, before a model is loaded."""
        from sinklens.models.sources import document_source, is_dataset_name
        from sinklens.reports.demo_text import DEMO_TEXTS

        if self.data is None:
            return list(DEMO_TEXTS) if self.model != TOY else _toy_sequences()
        if is_dataset_name(self.data):
            return self.data
        next(iter(document_source(Path(self.data), self.field_names).read()))
        return Path(self.data)

    @property
    def field_names(self) -> list[str] | None:
        """The fields of a record, or None for the usual one."""
        return None if self.fields is None else names(self.fields, "--fields")

    @property
    def text_name(self) -> str:
        """What the text is called on a page."""
        if self.data is not None:
            return self.data
        return BUILT_IN if self.model != TOY else "sequences of the toy's own task"


@dataclass(frozen=True)
class TextOptions(ModelOptions):
    """How the text is cut, and which positions are sinks."""

    sink: Annotated[str, typer.Option(help="first, detect, detect:0.5, token:ID, or positions such as 0,3.")] = "first"
    context_length: Annotated[int | None, typer.Option(help="Longest sequence. Default: 128 or the model's.")] = None
    batch_size: Annotated[int, typer.Option(help="Sequences per batch.")] = 8
    documents: Annotated[int | None, typer.Option(help="Stop after this many documents.")] = None
    min_length: Annotated[int, typer.Option(help="Leave out shorter sequences.")] = 2
    overflow: Annotated[str, typer.Option(help="Longer documents: split, cut or error.")] = "split"
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False

    def tokenization(self) -> dict[str, Any]:
        """The arguments of :func:`sinklens.tokenize`, counts checked before a model is loaded.

        Raises:
            InputError: a count is below 1.
        """
        for name in ("batch_size", "min_length", "context_length", "documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} is {value}; expected a number from 1 on")
        same = ("context_length", "batch_size", "min_length", "overflow")
        own = {"max_documents": self.documents, "fields": self.field_names}
        return {name: getattr(self, name) for name in same} | own

    def measurement(self) -> dict[str, Any]:
        """The arguments of a measurement."""
        return self.tokenization() | {"sink": self.sink, "progress": not self.quiet}


@dataclass(frozen=True)
class HeadOptions(TextOptions):
    """Which layers are measured."""

    layers: Annotated[str | None, typer.Option(help="Layers, such as 0,3,10-15. Default: all.")] = None

    def measurement(self) -> dict[str, Any]:
        """The arguments of a measurement of layers."""
        chosen = None if self.layers is None else numbers_and_ranges(self.layers, "--layers")
        return super().measurement() | {"layers": chosen}

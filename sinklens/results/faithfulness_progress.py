"""The partial file of a faithfulness run: what is finished, so that it need not be done again, and readable at any time."""

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sinklens.errors import InputError, ResultFileError
from sinklens.results.faithfulness import FaithfulnessResult
from sinklens.results.files import check_writable, load_tensors, save_tensors
from sinklens.results.provenance import Provenance

KIND = "FaithfulnessProgress"
SECONDS_BETWEEN_SAVES = 5.0
Cell = tuple[str, str, float]  # metric, mode, fraction
# Of each sequence of a batch: summed loss, terms removed, rankable terms; for the clean model loss, predicted tokens, document.
Sums = Float[Tensor, "3 sequence"]


class FaithfulnessProgress:
    """What is finished of a run, by batch and cell; written whole to a file, at most every few seconds and at the end.

    Args:
        path: the file, or None to keep nothing; an existing one is picked up again.
        settings: all that numbers depend on; a file of other settings is refused.
        order: of the metrics, for whoever reads the file.

    Raises:
        InputError: the file belongs to a run with other settings.
        ResultFileError: the path cannot be written, or holds something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None, settings: Mapping[str, Any], order: Sequence[str] = ()):
        self.path = None if path is None else check_writable(path)
        self.settings, self.order = dict(settings), list(order)
        self.sums: dict[str, Tensor] = {}
        self.begun: list[int] = []
        self.provenance: dict[str, Any] = {}
        self._unsaved, self._saved_at = False, time.monotonic()
        if self.path is not None and self.path.exists():
            self.sums, metadata = load_tensors(self.path, KIND)
            self.provenance = metadata["provenance"]
            self._require_settings(metadata["settings"])

    def _require_settings(self, found: Mapping[str, Any]) -> None:
        for name in sorted({*self.settings, *found}):
            here, there = self.settings.get(name), found.get(name)
            if here != there:
                raise InputError(
                    f"{self.path} was begun with {name} {there!r}, this run has {here!r}; "
                    "choose another path for resume, or the same settings"
                )

    def start_batch(self, number: int, checksum: int) -> None:
        """Note a batch, or make sure that it is the one that was noted.

        Raises:
            InputError: it holds other tokens.
        """
        name = f"{number}|tokens"
        found = self.sums.setdefault(name, torch.tensor([checksum]))
        self.begun.append(number)
        if found.item() != checksum:
            raise InputError(
                f"{self.path} was begun on other text or other batches (batch {number} differs); "
                "choose another path for resume, or the same text, context_length and batch_size"
            )

    def missing(self, batch: int, cells: Iterable[Cell]) -> list[Cell]:
        """The cells of a batch that are not finished, in order."""
        return [cell for cell in cells if _name(batch, cell) not in self.sums]

    def has_clean(self, batch: int) -> bool:
        """Whether the unmasked pass of a batch is finished."""
        return f"{batch}|clean" in self.sums

    def add_clean(self, batch: int, sums: Sums) -> None:
        """Keep the unmasked pass of a batch: loss, predicted tokens, document."""
        self._add(f"{batch}|clean", sums)

    def add(self, batch: int, cell: Cell, sums: Sums) -> None:
        """Keep a masked pass of a batch: loss, terms removed, rankable terms."""
        self._add(_name(batch, cell), sums)

    def _add(self, name: str, sums: Tensor) -> None:
        self.sums[name] = sums.double()
        self._unsaved = True
        if time.monotonic() - self._saved_at > SECONDS_BETWEEN_SAVES:
            self.save()

    def _masked(self, batch: int, cell: Cell) -> Tensor:
        found = self.sums.get(_name(batch, cell))
        return torch.full_like(self.sums[f"{batch}|clean"], torch.nan) if found is None else found

    def save(self) -> None:
        """Write the file, if there is one to write and something new in it."""
        if self.path is not None and self._unsaved:
            metadata = {"settings": self.settings, "provenance": self.provenance, "order": self.order}
            save_tensors(self.path, KIND, self.sums, metadata)
            self._unsaved, self._saved_at = False, time.monotonic()

    def result(self, cells: Sequence[Cell], provenance: Provenance, n_bootstrap: int) -> FaithfulnessResult:
        """The result over the documents of the batches that were begun; cells that are not finished are NaN."""
        batches = [batch for batch in self.begun if self.has_clean(batch)]
        clean = torch.cat([self.sums[f"{batch}|clean"] for batch in batches], -1)
        masked = torch.stack([torch.cat([self._masked(batch, cell) for batch in batches], -1) for cell in cells])
        documents, place = clean[2].unique(return_inverse=True)

        def per_document(per_sequence: Tensor) -> Tensor:
            empty = torch.zeros(*per_sequence.shape[:-1], len(documents), dtype=torch.float64)
            return empty.index_add_(-1, place, per_sequence.contiguous())

        metrics, modes, fractions = (tuple(dict.fromkeys(cell[part] for cell in cells)) for part in range(3))
        shape = (len(metrics), len(modes), len(fractions), -1)
        loss, removed, rankable = (per_document(masked[:, part]).reshape(shape) for part in range(3))
        clean_loss, count = per_document(clean[:2])
        labels: dict[str, Any] = {"metrics": metrics, "modes": modes, "fractions": fractions}
        return FaithfulnessResult(
            **labels, loss=loss, removed=removed, rankable=rankable, clean_loss=clean_loss, count=count,
            provenance=provenance, n_bootstrap=n_bootstrap,
        )  # fmt: skip


def _name(batch: int, cell: Cell) -> str:
    metric, mode, fraction = cell
    return f"{batch}|{metric}|{mode}|{fraction!r}"


def partial_faithfulness(path: str | os.PathLike[str], n_bootstrap: int = 1000) -> FaithfulnessResult:
    """What an interrupted :func:`sinklens.faithfulness` had finished, from the file that was given to it as ``resume``.

    Each cell is taken over the documents that it was measured on (``n_documents`` in the table); paired differences are
    sound only where these are the same.

    Args:
        path: the partial file.
        n_bootstrap: resamples of the documents.

    Returns:
        A :class:`~sinklens.results.faithfulness.FaithfulnessResult`.

    Raises:
        ResultFileError: the file is missing, holds something else, or no pass is finished in it.
    """
    tensors, metadata = load_tensors(path, KIND)
    progress = FaithfulnessProgress(None, metadata["settings"])
    progress.sums = tensors
    progress.begun = sorted(int(name.split("|")[0]) for name in tensors if name.endswith("|tokens"))
    names = [name.split("|")[1:] for name in tensors if name.count("|") == 3]
    if not names:
        raise ResultFileError(f"{path} holds no finished pass yet; let the run go on")
    # The file keeps no order of names: the modes and fractions ascend, the metrics go as the run was told.
    metrics, modes, fractions = ({name[part] for name in names} for part in range(3))
    told = list(metadata["order"])
    ordered = sorted(metrics, key=lambda metric: (told.index(metric) if metric in told else len(told), metric))
    cells = list(itertools.product(ordered, sorted(modes), sorted(float(text) for text in fractions)))
    return progress.result(cells, Provenance.from_dict(metadata["provenance"]), n_bootstrap)

"""Reading and writing results: safetensors with JSON metadata and tables, each written whole or not at all."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sinklens.errors import ResultFileError

FORMAT = 1


def write_whole(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a temporary file in the same folder, then rename it to ``path``: whole or not at all.

    Args:
        path: where the file shall be; its folder is made where it is missing.
        write: gets the temporary path.

    Returns:
        The path.

    Raises:
        ResultFileError: the folder or the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder) / "a.txt", lambda path: path.write_text("whole")).read_text()
        'whole'
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=target.suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        write(temporary)
        make_readable(temporary)
        temporary.replace(target)
    except OSError as error:
        raise ResultFileError(
            f"cannot write {target}: {error.strerror or error}; choose a path that can be written"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target


def check_writable(path: str | os.PathLike[str]) -> Path:
    """Fail before hours of work, not after them: make sure that ``path`` could be written.

    Raises:
        ResultFileError: it cannot.

    Example:
        >>> check_writable("/proc/none/report.html")
        Traceback (most recent call last):
            ...
        sinklens.errors.ResultFileError: cannot write /proc/none/report.html: ...
    """
    target = Path(path)
    nearest = next(parent for parent in target.absolute().parents if parent.exists())
    reason = None
    if target.is_dir():
        reason = "it is a folder"
    elif not nearest.is_dir():
        reason = f"{nearest} is not a folder"
    elif not os.access(nearest, os.W_OK | os.X_OK) or nearest.is_relative_to("/proc"):
        reason = f"the folder {nearest} does not let you write"
    if reason:
        raise ResultFileError(f"cannot write {target}: {reason}; choose a path that can be written")
    return target


def check_savable(path: str | os.PathLike[str]) -> Path:
    """Fail before the work, not after it, where a result cannot be saved as ``path``.

    Raises:
        ResultFileError: the suffix is not ``.safetensors``, or the file cannot be written.

    Example:
        >>> check_savable("result.json")
        Traceback (most recent call last):
            ...
        sinklens.errors.ResultFileError: cannot save result.json: results are kept as .safetensors; write tables ...
    """
    if Path(path).suffix != ".safetensors":
        raise ResultFileError(
            f"cannot save {path}: results are kept as .safetensors; write tables with .to_dataframe()"
        )
    return check_writable(path)


def make_readable(path: Path) -> None:
    """Give a temporary file, which only its owner can read, the rights of any other file.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile() as file:
        ...     make_readable(Path(file.name))
    """
    path.chmod(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]
) -> Path:
    """Save named tensors with JSON metadata as one safetensors file.

    Args:
        path: the file.
        kind: the name of the result's class, checked on loading.
        tensors: by name.
        metadata: anything that JSON holds.

    Returns:
        The path.

    Raises:
        ResultFileError: the suffix is not ``.safetensors``, or the file cannot be written.
    """
    check_savable(path)
    header = {"sinklens": json.dumps({"kind": kind, "format": FORMAT, **metadata})}
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return write_whole(path, lambda target: save_file(plain, target, metadata=header))


def load_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of :func:`save_tensors`.

    Raises:
        ResultFileError: the file is missing, no sinklens result, or holds a result of another kind.

    Example:
        >>> load_tensors("missing.safetensors", "HeadProfile")
        Traceback (most recent call last):
            ...
        sinklens.errors.ResultFileError: no file missing.safetensors; check the path
    """
    if not Path(path).is_file():
        raise ResultFileError(f"no file {path}; check the path")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(json.loads((file.metadata() or {})["sinklens"]))
            found, written = metadata.pop("kind"), int(metadata.pop("format"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a dict
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise ResultFileError(f"{path} is no sinklens result: {error}; save it with .save(path)") from error
    if found != kind:
        raise ResultFileError(f"{path} does not hold the result {kind}; load it with the class that saved it")
    if written > FORMAT:
        raise ResultFileError(f"{path} was written by a newer sinklens; upgrade sinklens to read it")
    return tensors, metadata


TABLE_SUFFIXES = (".parquet", ".csv", ".json")


def check_table_suffix(path: str | os.PathLike[str], also: tuple[str, ...] = ()) -> None:
    """Fail before the work, not after it, where a table cannot be written under this suffix.

    Args:
        path: the file.
        also: further suffixes that are good.

    Raises:
        ResultFileError: the suffix is unknown, or parquet's package is missing.

    Example:
        >>> check_table_suffix("table.xls")
        Traceback (most recent call last):
            ...
        sinklens.errors.ResultFileError: cannot write table.xls: unknown suffix '.xls'; use .parquet, .csv or .json
    """
    suffix, known = Path(path).suffix, (*also, *TABLE_SUFFIXES)
    if suffix not in known:
        listed = ", ".join(known[:-1])
        raise ResultFileError(f"cannot write {path}: unknown suffix {suffix!r}; use {listed} or {known[-1]}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise ResultFileError(f"cannot write {path}: parquet needs pyarrow; pip install 'sinklens[parquet]'")


def write_table(path: str | os.PathLike[str], table: pd.DataFrame) -> Path:
    """Write a table as parquet, csv or JSON records, by the path's suffix.

    Raises:
        ResultFileError: the suffix is unknown, the file cannot be written, or parquet's package is missing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_table(Path(folder) / "table.csv", pd.DataFrame({"head": [3]})).read_text()
        'head\\n3\\n'
    """
    check_table_suffix(path)
    writers: dict[str, Callable[[Path], object]] = {
        ".parquet": lambda target: table.to_parquet(target, index=False),
        ".csv": lambda target: table.to_csv(target, index=False),
        ".json": lambda target: table.to_json(target, orient="records", indent=1),
    }
    return write_whole(path, writers[Path(path).suffix])

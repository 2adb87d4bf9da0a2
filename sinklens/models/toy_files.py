"""The trained toy that comes with the package: where its files are, for whoever loads it by name."""

from pathlib import Path

NAME = "toy"


def toy_folder() -> Path:
    """The folder with the packaged toy, in the Hugging Face format; made by the command in its ``toy.json``.

    Example:
        >>> (toy_folder() / "config.json").is_file()
        True
    """
    return Path(__file__).parents[1] / "toy" / "data" / NAME

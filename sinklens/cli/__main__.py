"""``python -m sinklens.cli``."""

from sinklens.cli import main

if __name__ == "__main__":
    main()

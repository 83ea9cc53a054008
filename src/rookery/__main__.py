"""`python -m rookery` is the command `rookery`."""

from __future__ import annotations

from rookery.cli import main

if __name__ == "__main__":
    main()

"""A command of gpuops as it is typed, with what the process took as a last line.

python -m tests.bench.readers.command WORD...
"""

from __future__ import annotations

from tests.bench.readers.account import Account


def main() -> None:
    """Runs it to its end, exit code included."""
    account = Account()
    account.begin()
    from gpuops.cli.app import main as gpuops

    try:
        gpuops()
    finally:
        account.print()


if __name__ == "__main__":
    main()

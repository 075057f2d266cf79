"""Licences: of every package that an installation brings, as the package itself tells.

python -m tests.rules.licences     a line each
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).resolve().parents[2] / "requirements.lock"
_PIN: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)", re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,()+/-]{2,60}")
UNTOLD: Final = "not told"
ABSENT: Final = "not for this Python or system"


def licences() -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of each package of the lock file."""
    for name, version in _PIN.findall(LOCK.read_text(encoding="utf-8")):
        try:
            told = metadata(name)
        except PackageNotFoundError:
            yield name, version, ABSENT
            continue
        if told["Version"] != version:
            yield name, version, ABSENT
            continue
        yield name, version, _told(told.get_all("Classifier") or [], told["License-Expression"], told["License"])


def _told(classifiers: list[str], expression: str | None, text: str | None) -> str:
    """The expression (PEP 639), else the classifiers, else the field of old, unless it is the licence's whole text."""
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License :: ")]
    named = [each for each in named if each != "OSI Approved"]
    first = (text or "").strip().partition("\n")[0]
    return expression or ", ".join(named) or (first if _PLAIN.fullmatch(first) else UNTOLD)


if __name__ == "__main__":
    for package, pinned, licence in licences():
        print(f"{package:32} {pinned:16} {licence}")

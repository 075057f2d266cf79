"""Licences: of every package that an installation brings, and that each extra adds, as the package itself tells.

python -m tests.rules.licences     a line each
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = ROOT / "requirements.lock"
_PIN: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;]+)", re.MULTILINE)
_PLAIN: Final = re.compile(r"[A-Za-z0-9 .,()+/-]{2,60}")
UNTOLD: Final = "not told"
ABSENT: Final = "not for this Python or system"
UNLOCKED: Final = "not in a lock file: see `gpuops help install`"


def licences() -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of each package of the lock file."""
    for name, version in _PIN.findall(LOCK.read_text(encoding="utf-8")):
        try:
            package = metadata(name)
        except PackageNotFoundError:
            yield name, version, ABSENT
            continue
        if package["Version"] != version:
            yield name, version, ABSENT
            continue
        yield (
            name,
            version,
            _licence_name(package.get_all("Classifier") or [], package["License-Expression"], package["License"]),
        )


def licences_of_extras() -> Iterator[tuple[str, str, str, str]]:
    """Extra, name, version and licence of each package that an extra asks for, and of the extras of that package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            name, *parts = re.findall(r"[\w-]+", requirement.partition(">")[0])
            for package in (name, *(f"{name}-{part}" for part in parts)):
                try:
                    package_metadata = metadata(package)
                except PackageNotFoundError:
                    yield extra, package, "", UNLOCKED
                    continue
                licence = _licence_name(
                    package_metadata.get_all("Classifier") or [],
                    package_metadata["License-Expression"],
                    package_metadata["License"],
                )
                yield extra, package, package_metadata["Version"], licence


def _licence_name(classifiers: list[str], expression: str | None, text: str | None) -> str:
    """The expression (PEP 639), else the classifiers, else the field of old, unless it is the licence's whole text."""
    named = [classifier.rpartition(" :: ")[2] for classifier in classifiers if classifier.startswith("License :: ")]
    named = [classifier_name for classifier_name in named if classifier_name != "OSI Approved"]
    first = (text or "").strip().partition("\n")[0]
    return expression or ", ".join(named) or (first if _PLAIN.fullmatch(first) else UNTOLD)


if __name__ == "__main__":
    for package, pinned, licence in licences():
        print(f"{package:32} {pinned:16} {licence}")
    for asked, package, found, licence in licences_of_extras():
        print(f"{package:32} {found:16} {licence} (extra {asked})")

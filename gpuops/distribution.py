"""The name that package tools know gpuops by, and another project's files where ours lie.

The name `gpuops` on the Python Package Index belongs to another project, whose import package and command have our
names (versions 0.1.0 and 0.1.1). Installed into one environment each overwrites files of the other, so that neither is
what its lock says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuops.errors import UsageError

NAME: Final = "gpuops-vsphere"


def refuse_other_project(folder: Path = Path(__file__).parents[1]) -> None:
    """Raises UsageError where the other project is installed in our folder: pip leaves a `gpuops-VERSION.dist-info`."""
    if next(folder.glob("gpuops-*.dist-info"), None) is not None:
        raise UsageError(
            f"another project, also named gpuops, is installed in {folder}: its files and ours overwrite each other",
            hint=f"pip uninstall --yes gpuops && pip install --force-reinstall --no-deps {NAME}",
        )

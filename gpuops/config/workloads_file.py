"""Workloads that are to share GPUs, as YAML: how busy each keeps a GPU alone, and pairs that were seen to share one.

`templates/workloads.yaml` is the commented example. `gpuops size` reads it here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gpuops.config.decoding import read_as
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.shared_gpu import SharingWorkloads, read_share

_HINT: Final = "templates/workloads.yaml shows every key, with comments"


def share_of(text: str, description: str) -> float:
    """Return the share, above 0 and up to 1, in `0.7` or `70%`. Raises UsageError that begins with `description`."""
    try:
        return float(read_share(text))
    except ValueError as error:
        raise UsageError(f"{description} {text}: {error}", hint="write it as 0.7, or as 70%") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadsFile(SharingWorkloads):
    """The whole YAML file."""

    version: Literal[1]


def load_workloads(path: Path) -> SharingWorkloads:
    """Return the workloads in this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_workloads(read_text(path), str(path))


def parse_workloads(text: str, name: str) -> SharingWorkloads:
    """Return the workloads of a YAML text; errors call it `name`. Raises PolicyError."""
    return read_as(WorkloadsFile, parse_yaml(text, name), name, _HINT)

"""Reads `drivers.yaml`: which drivers go together by NVIDIA's documents, each pair with its source."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from gpuops.catalog.fields import Fields, read
from gpuops.errors import UsageError
from gpuops.model.guests.driver import CudaMinimum, DriverTables, VgpuPairs, WindowsNumbers, version_of

_DRIVERS: Final = Path(__file__).parent / "drivers.yaml"


@cache
def load_drivers(path: Path = _DRIVERS) -> DriverTables:
    """Return the driver tables. Raises UsageError if the file cannot be understood."""
    fields = read(path)
    # the tables: pairs of host and guest drivers, version numbers on Windows, CUDA versions
    tables = DriverTables(
        tuple(
            VgpuPairs(row.number("host"), row.numbers("guests"), row.flag("no_others"), row.text("source"))
            for row in fields.rows("pairs")
        ),
        tuple(
            WindowsNumbers(row.number("branch"), row.number("first"), row.number("last"), row.text("source"))
            for row in fields.rows("windows")
        ),
        tuple(_cuda(row) for row in fields.rows("cuda")),
    )
    fields.check_all_read()
    return tables


def _cuda(row: Fields) -> CudaMinimum:
    major, minor = row.number("major"), row.maybe_number("minor")
    return CudaMinimum(major, minor, _version(row, "linux"), _version(row, "windows"), row.text("source"))


def _version(row: Fields, key: str) -> tuple[int, ...]:
    text = row.text(key)
    version = version_of(text)
    if version is None:
        raise UsageError(f"{_DRIVERS.name}: {key} {text!r} is not a version")
    return version

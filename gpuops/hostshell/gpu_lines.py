"""Splits what nvidia-smi prints into the rows of single GPUs and the sentences about the health of single GPUs.

Each GPU is judged by itself: a line that cannot be read, or an exit status that speaks of another GPU, takes nothing
away from the GPUs whose lines can be read.

Sources: NVIDIA nvidia-smi manual, RETURN VALUE (14: an infoROM is corrupted, and the answer is complete; 15: a GPU has
fallen off the bus or is otherwise inaccessible, while the others answer); the sentences and the words in brackets as
published outputs have them (`Unable to determine the device handle for GPU1: 0000:AF:00.0: GPU is lost.  Reboot the
system to recover this GPU`, `WARNING: infoROM is corrupted at gpu 0000:AF:00.0`, `[GPU requires reset]`,
`[Unknown Error]`). (assumption: smi-lost-gpu, assumption: smi-corrupt-inforom)
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from typing import Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.gpu_health import HEALTHY, GpuHealth

ABSENT: Final = frozenset({"n/a", "not supported"})
"""Words for what a GPU does not have. No other word means that."""
LONGEST_SHOWN: Final = 80
CONTRADICTORY: Final = "two answers that differ"
"""Stands for the cells of a GPU that has two rows which differ."""
_WRONG_COLUMN_COUNT: Final = "an answer that cannot be read"
_ADDRESS: Final = r"(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}\.[0-7])"
_CORRUPT_INFOROM: Final = re.compile(rf"\s*WARNING: infoROM is corrupted at gpu\s+{_ADDRESS}", re.IGNORECASE)
_NO_HANDLE: Final = re.compile(
    rf"\s*Unable to determine the device handle for gpu\s*(?:\d+:\s*)?{_ADDRESS}:\s*(?P<reason>.+)", re.IGNORECASE
)
_BY_WORD: Final = {
    "gpu is lost": GpuHealth(is_lost=True),
    "gpu requires reset": GpuHealth(requires_reset=True),
    "unknown error": GpuHealth(error="Unknown Error"),
}

Rows = Mapping[PciAddress, list[str] | str]
"""By GPU the cells after its address; in place of cells, why they cannot be used."""


def read_rows(text: str, columns: int) -> Rows:
    """Return the row of each GPU in a CSV answer whose first column is the address, with `columns` columns.

    Lines that begin with no address are left out. Raises ValueError with the first line of an answer that is of no
    use for any GPU.
    """
    rows: dict[PciAddress, list[str] | str] = {}
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        cells = _cells(line)
        address = PciAddress.parse_or_none(cells[0]) if cells else None
        if address is None:
            continue
        row = cells[1:] if len(cells) == columns else _WRONG_COLUMN_COUNT
        rows[address] = row if rows.get(address, row) == row else CONTRADICTORY
    if all(isinstance(row, str) for row in rows.values()) and not read_notices(text):
        raise ValueError(repr(shorten(lines[0].strip())) if lines else "nothing")
    return rows


def _cells(line: str) -> list[str]:
    """Return the cells of a CSV line; [] for any other line."""
    try:
        [row] = csv.reader([line])
    except (csv.Error, ValueError):
        return []
    return [cell.strip() for cell in row]


def read_notices(text: str) -> dict[PciAddress, GpuHealth]:
    """Return the health of the GPUs about which nvidia-smi printed a sentence."""
    notices: dict[PciAddress, GpuHealth] = {}
    for line in text.splitlines():
        for address, health in _notices_of(line):
            notices[address] = notices.get(address, HEALTHY).merge(health)
    return notices


def _notices_of(line: str) -> Iterable[tuple[PciAddress, GpuHealth]]:
    if match := _CORRUPT_INFOROM.match(line):
        yield PciAddress.parse(match["address"]), GpuHealth(has_corrupt_inforom=True)
    if match := _NO_HANDLE.match(line):
        reason = match["reason"].partition(".")[0].strip()
        yield PciAddress.parse(match["address"]), health_by_word(reason) or GpuHealth(error=shorten(reason))


def word_of(cell: str) -> str:
    """Return the text of a cell without its brackets: `GPU requires reset`."""
    return cell.strip().removeprefix("[").removesuffix("]").strip()


def health_by_word(word: str) -> GpuHealth | None:
    """Return the health that a word in place of a value reports; None if it reports none."""
    return _BY_WORD.get(word_of(word).lower())


def health_by_cells(cells: Iterable[str]) -> GpuHealth:
    """Return what the cells of one GPU report about its health."""
    health = HEALTHY
    for cell in cells:
        health = health.merge(health_by_word(cell) or HEALTHY)
    return health


def shorten(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return the text, cut if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"

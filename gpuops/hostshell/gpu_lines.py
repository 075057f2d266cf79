"""Reads rows, health and load of single GPUs from what nvidia-smi prints.

Each GPU is judged by itself: if a line cannot be read, or the exit status is about another GPU, the GPUs whose lines
can be read are still used.

Sources: NVIDIA nvidia-smi manual, RETURN VALUE (14: an infoROM is corrupted, and the answer is complete; 15: a GPU has
fallen off the bus or is otherwise inaccessible, while the others answer); the sentences and the words in brackets as
published outputs have them (`Unable to determine the device handle for GPU1: 0000:AF:00.0: GPU is lost.  Reboot the
system to recover this GPU`, `WARNING: infoROM is corrupted at gpu 0000:AF:00.0`, `[GPU requires reset]`,
`[Unknown Error]`). (assumption: smi-lost-gpu, assumption: smi-corrupt-inforom)

`nvidia-smi -q -x` has the elements of NVIDIA's nvsmi_device DTD: pci/pci_bus_id, gpu_recovery_action (R565 and later;
None on an H100 with R580.159.04), gpu_reset_status/reset_required (before it; `Yes` or `No`),
remapped_rows/remapped_row_pending (Ampere and later).

`--query-gpu` prints CSV without units, `[N/A]` or `[Not Supported]` for what a GPU does not have, and in
`enforced.power.limit` the limit in force, in watts with two decimals. Its mask of clock event reasons (0x4 SW power
cap, 0x20 SW thermal, 0x40 HW thermal, 0x80 HW power brake) was called throttle reasons before R535 (NVML API reference,
nvmlClocksEventReasons).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gpuops.model.devices.gpu import HEALTHY, GpuHealth, PciAddress, RecoveryAction
from gpuops.model.vcenter.host_settings import SmiGpu
from gpuops.plan.guest.smi import read_gpu_texts

ABSENT: Final = frozenset({"n/a", "not supported"})
"""The words for a feature or value that a GPU does not have."""
LONGEST_SHOWN: Final = 80
CONTRADICTORY: Final = "two answers that differ"
"""The reason for a GPU that has two different rows."""
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
"""By GPU the cells after its address, or the reason why they cannot be used."""


def read_rows(text: str, columns: int) -> Rows:
    """Return by GPU the cells after its address, or the reason why they cannot be used.

    `text` is CSV output of nvidia-smi with `columns` columns, the address first. Lines that do not begin with an
    address are ignored. Raises ValueError, with the first line, if no row can be used and no sentence names a GPU.
    """
    rows: dict[PciAddress, list[str] | str] = {}
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines:
        cells = _cells(line)
        address = PciAddress.parse_or_none(cells[0]) if cells else None
        if address is None:
            continue
        row = cells[1:] if len(cells) == columns else _WRONG_COLUMN_COUNT
        # a GPU may have the same row twice; if its rows differ, neither is used
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


DETAILS: Final = "nvidia-smi -q -x"
_BEGIN, _END = "<nvidia_smi_log>", "</nvidia_smi_log>"
_VALUES: Final = ("mig_mode/current_mig", "ecc_mode/current_ecc", "temperature/gpu_temp", "utilization/gpu_util")
"""Elements that contain an error in place of a value. Other elements contain texts of users, such as names of VMs."""
_YES_NO: Final = {"Yes": True, "No": False}
_ACTIONS: Final = {action.lower(): action for action in RecoveryAction}


def read_details(text: str) -> dict[PciAddress, GpuHealth]:
    """Return the health of each GPU of the answer; {} for an answer that cannot be read."""
    _, begin, document = text.partition(_BEGIN)
    body, end, _ = document.rpartition(_END)  # sentences about GPUs are printed before and after the document
    try:
        gpus = read_gpu_texts(f"{begin}{body}{end}")
    except ValueError:
        return {}
    addresses = [PciAddress.parse_or_none(texts.get("pci/pci_bus_id", "")) for texts in gpus]
    return {address: _health(texts) for address, texts in zip(addresses, gpus, strict=True) if address is not None}


def _health(texts: Mapping[str, str]) -> GpuHealth:
    health = health_by_cells(texts.get(path, "") for path in _VALUES)
    reset = _YES_NO.get(texts.get("gpu_reset_status/reset_required", ""))
    remap = _YES_NO.get(texts.get("remapped_rows/remapped_row_pending", ""))
    health = health.merge(GpuHealth(requires_reset=reset is True, is_row_remap_pending=remap))
    return health.merge(_by_action(word_of(texts.get("gpu_recovery_action", ""))))


def _by_action(word: str) -> GpuHealth:
    action = _ACTIONS.get(word.lower())
    if action is not None or not word or word.lower() in ABSENT:
        return GpuHealth(recovery_action=action)
    # a later driver may have other actions: one that names a reset or a reboot counts as a reset
    asks_for_reset = "reset" in word.lower() or "reboot" in word.lower()
    return GpuHealth(requires_reset=asks_for_reset, error=f"recovery action {shorten(word)}")


_QUERY: Final = "nvidia-smi --query-gpu={} --format=csv,noheader,nounits"
_FIELDS: Final = (
    "pci.bus_id",
    "utilization.gpu",
    "clocks.current.sm",
    "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
    "pcie.link.gen.current",
    "pcie.link.width.current",
    "enforced.power.limit",
)
GPUS: Final = _QUERY.format(",".join((*_FIELDS, "clocks_event_reasons.active")))
GPUS_BEFORE_R535: Final = _QUERY.format(",".join((*_FIELDS, "clocks_throttle_reasons.active")))
_HEAT: Final = 0x20 | 0x40
_POWER: Final = 0x4 | 0x80
_MOST: Final = 1 << 40


def read_gpus(text: str) -> Iterator[SmiGpu]:
    """Yield the readings of each GPU whose row can be read. Raises ValueError if the output is about no GPU."""
    for gpu, row in read_rows(text, len(_FIELDS) + 1).items():
        if isinstance(row, str):
            continue
        used, clock, heat, ecc, generation, width, limit, reasons = row
        mask = _mask(reasons)
        yield SmiGpu(
            gpu,
            utilization_percent=_number(used),
            clock_mhz=_number(clock),
            temperature_c=_number(heat),
            ecc_uncorrected=_number(ecc),
            pcie_generation=_number(generation),
            pcie_width=_number(width),
            power_limit_w=_number(limit.partition(".")[0]),  # 700.00 is printed for 700 W
            slowed_by_heat=None if mask is None else bool(mask & _HEAT),
            slowed_by_power=None if mask is None else bool(mask & _POWER),
        )


def _number(cell: str) -> int | None:
    """Return the number in a cell; None for any other text: the GPU does not report the value, which is not zero."""
    return int(cell) if cell.isascii() and cell.isdecimal() and int(cell) < _MOST else None


def _mask(cell: str) -> int | None:
    try:
        return int(cell, 16) if cell.startswith("0x") else None
    except ValueError:
        return None

"""Reads how the GPUs of a host are, from the CSV that its nvidia-smi writes.

Sources: NVIDIA nvidia-smi manual (`--query-gpu`, CSV without units; what a GPU has not is `[N/A]` or
`[Not Supported]`; `enforced.power.limit` is the limit in force, in watts with two decimals); NVML API reference,
nvmlClocksEventReasons (a mask of reasons: 0x4 SW power cap, 0x20 SW thermal, 0x40 HW thermal, 0x80 HW power brake),
which were called throttle reasons before R535.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuops.hostshell.gpu_lines import read_rows
from gpuops.model.vcenter.host_settings import SmiGpu

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
    """Each GPU of the answer whose row can be read. Raises ValueError for an answer without any."""
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
            power_limit_w=_number(limit.partition(".")[0]),
            slowed_by_heat=None if mask is None else bool(mask & _HEAT),
            slowed_by_power=None if mask is None else bool(mask & _POWER),
        )


def _number(cell: str) -> int | None:
    """None for everything that is no number: what a GPU does not tell is missing, and no zero."""
    return int(cell) if cell.isascii() and cell.isdecimal() and int(cell) < _MOST else None


def _mask(cell: str) -> int | None:
    try:
        return int(cell, 16) if cell.startswith("0x") else None
    except ValueError:
        return None

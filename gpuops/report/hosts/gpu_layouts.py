"""Text and document of `gpuops host mig check`: one line for each part of each layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Self

from gpuops.advise.gpu_profiles import JudgedLayout, JudgedPart, LayoutVerdict
from gpuops.errors import report_exit_code
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu import VgpuMode
from gpuops.model.devices.mig import LayoutForm
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory import figure, free_figures
from gpuops.report.text import count

_STYLES: Final = {
    LayoutVerdict.FITS: "green",
    LayoutVerdict.DOES_NOT_FIT: "red",
    LayoutVerdict.UNKNOWN: "yellow",
    LayoutVerdict.OTHER_MODEL: "dim",
}


def layouts_exit_code(layouts: Sequence[JudgedLayout]) -> int:
    """Return 3 if a layout does not fit or may not fit, or if none is for the GPU model; otherwise 0."""
    verdicts = {judged.verdict for judged in layouts}
    is_refused = verdicts & {LayoutVerdict.DOES_NOT_FIT, LayoutVerdict.UNKNOWN} or LayoutVerdict.FITS not in verdicts
    return report_exit_code(refused=is_refused)


def layouts_text(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> Iterator[Shown]:
    """Yield a heading, and one line for each part of each layout."""
    yield Text(f"{file}: {count(len(layouts), 'layout')}, on {board.name}", "bold")
    table = TextTable("layout", "GPUs", "has", "verdict", "")
    for judged in layouts:
        for part in judged.parts:
            gpus = "all" if part.part.gpus is None else ", ".join(map(str, part.part.gpus))
            contents = ", ".join(f"{number} x {name}" for name, number in part.part.counts) or "nothing"
            if not part.part.is_mig_on:
                contents = "MIG mode off"
            verdict = Text(part.verdict.value, _STYLES[part.verdict])
            table.add_row(judged.layout.name, gpus, contents, verdict, _note(part, judged.layout.form))
    yield table


def _note(part: JudgedPart, form: LayoutForm) -> str:
    if part.verdict is LayoutVerdict.OTHER_MODEL:
        return f"for device {', '.join(f'{device:04x}' for _, device in part.part.models)} alone"
    if part.free is None:
        return part.because
    if form is not LayoutForm.GPU_INSTANCES:
        return f"free: {free_figures(part.free)}"
    instances = " or ".join(f"{figure(room)} x {name}" for name, room in part.free.items())
    return f"free: {instances or 'none'}"


class PciTypeRecord(DocumentRecord, frozen=True):
    """A kind of PCI device."""

    vendor_id: Annotated[str, "four hexadecimal digits"]
    device_id: Annotated[str, "four hexadecimal digits"]


class FreeRoomRecord(DocumentRecord, frozen=True):
    """Room for more GPU instances, or vGPUs, of a name; each for itself."""

    name: str
    at_least: int
    at_most: int | None
    because: str


class LayoutPartRecord(DocumentRecord, frozen=True):
    """The intended layout of some GPUs of a host, judged on an empty GPU."""

    gpus: Annotated[list[int] | None, "their numbers on the host; null = all"]
    devices: Annotated[list[PciTypeRecord], "GPU models that it applies to; empty = any"]
    mig_mode: Annotated[bool, "false = MIG mode is off"]
    counts: Annotated[dict[str, int], "GPU instances or vGPU types by name"]
    verdict: LayoutVerdict
    because: Annotated[str, "why it does not fit, or why that is not known"]
    vgpu_mode: Annotated[VgpuMode | None, "of the GPU; null = it does not fit, or MIG mode is off"]
    free: Annotated[list[FreeRoomRecord] | None, "null = it does not fit, or not known"]

    @classmethod
    def made_of(cls, judged: JudgedPart) -> Self:
        part, free = judged.part, judged.free
        rooms = [FreeRoomRecord.from_attributes(room, name=name) for name, room in (free or {}).items()]
        return cls.from_attributes(
            judged,
            part,
            devices=[PciTypeRecord(f"{vendor:04x}", f"{device:04x}") for vendor, device in part.models],
            mig_mode=part.is_mig_on,
            counts=dict(part.counts),
            vgpu_mode=judged.mode,
            free=None if free is None else rooms,
        )


class LayoutRecord(DocumentRecord, frozen=True):
    """A named layout."""

    name: str
    form: LayoutForm
    verdict: Annotated[LayoutVerdict, "the worst of its parts"]
    parts: list[LayoutPartRecord]

    @classmethod
    def made_of(cls, judged: JudgedLayout) -> Self:
        return cls.from_attributes(judged, judged.layout)


@printed("mig-check", by="gpuops host mig check")
class MigCheckDocument(PrintedDocument, frozen=True):
    """Whether GPUs of a model can have the named layouts of a file."""

    file: str
    model: Annotated[str, "as options take it, `a100`"]
    model_name: str
    exit_code: Annotated[int, "3 = one does not fit or is not known to, or none is for this GPU model"]
    layouts: list[LayoutRecord]


def layouts_document(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> MigCheckDocument:
    """Return the verdict on each layout and on its parts."""
    exit_code, records = layouts_exit_code(layouts), list(map(LayoutRecord.made_of, layouts))
    return MigCheckDocument(str(file), board.key, board.name, exit_code, records)

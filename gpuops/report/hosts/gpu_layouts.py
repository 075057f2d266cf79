"""What `gpuops mig check` prints: one line for each part of each layout, and the same as a JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpuops.advise.capacity import Slots
from gpuops.advise.gpu_layouts import JudgedLayout, JudgedPart, LayoutVerdict
from gpuops.model.devices.catalog import Board
from gpuops.model.devices.gpu_layout import LayoutForm
from gpuops.report.document import SCHEMA_VERSION, Document
from gpuops.report.layout import Shown, Text, TextTable
from gpuops.report.monitoring.inventory import figure, free_figures
from gpuops.report.text import count, visible

_STYLES: Final = {
    LayoutVerdict.FITS: "green",
    LayoutVerdict.DOES_NOT_FIT: "red",
    LayoutVerdict.UNKNOWN: "yellow",
    LayoutVerdict.OTHER_MODEL: "dim",
}


def layouts_exit_code(layouts: Sequence[JudgedLayout]) -> int:
    """3 if one does not fit or is not known to, or if none is for the GPU model."""
    verdicts = {judged.verdict for judged in layouts}
    is_refused = verdicts & {LayoutVerdict.DOES_NOT_FIT, LayoutVerdict.UNKNOWN} or LayoutVerdict.FITS not in verdicts
    return 3 if is_refused else 0


def layouts_text(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> Iterator[Shown]:
    """A heading, and one line for each part of each layout."""
    yield Text(f"{visible(str(file))}: {count(len(layouts), 'layout')}, on {board.name}", "bold")
    table = TextTable("layout", "GPUs", "has", "verdict", "")
    for judged in layouts:
        for part in judged.parts:
            gpus = "all" if part.part.gpus is None else ", ".join(map(str, part.part.gpus))
            verdict = Text(part.verdict.value, _STYLES[part.verdict])
            note = visible(_note(part, judged.layout.form))
            table.add_row(visible(judged.layout.name), gpus, visible(_contents(part)), verdict, note)
    yield table


def _contents(part: JudgedPart) -> str:
    if not part.part.is_mig_on:
        return "MIG mode off"
    return ", ".join(f"{number} x {name}" for name, number in part.part.counts) or "nothing"


def _note(part: JudgedPart, form: LayoutForm) -> str:
    if part.verdict is LayoutVerdict.OTHER_MODEL:
        return f"for device {', '.join(f'{device:04x}' for _, device in part.part.models)} alone"
    if part.free is None:
        return part.because
    return f"free: {_free_instances(part.free) if form is LayoutForm.GPU_INSTANCES else free_figures(part.free)}"


def _free_instances(free: Mapping[str, Slots]) -> str:
    return " or ".join(f"{figure(room)} x {name}" for name, room in free.items()) or "none"


def layouts_document(layouts: Sequence[JudgedLayout], board: Board, file: Path) -> Document:
    """The verdict of each layout and of its parts."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "mig-check",
        "file": str(file),
        "model": board.key,
        "model_name": board.name,
        "exit_code": layouts_exit_code(layouts),
        "layouts": [
            {
                "name": judged.layout.name,
                "form": judged.layout.form.value,
                "verdict": judged.verdict.value,
                "parts": [_part(part) for part in judged.parts],
            }
            for judged in layouts
        ],
    }


def _part(judged: JudgedPart) -> Document:
    part, free = judged.part, judged.free
    return {
        "gpus": None if part.gpus is None else list(part.gpus),
        "devices": [{"vendor_id": f"{vendor:04x}", "device_id": f"{device:04x}"} for vendor, device in part.models],
        "mig_mode": part.is_mig_on,
        "counts": dict(part.counts),
        "verdict": judged.verdict.value,
        "because": judged.because,
        "vgpu_mode": judged.mode.value if judged.mode is not None else None,
        "free": None
        if free is None
        else [
            {"name": name, "at_least": room.at_least, "at_most": room.at_most, "because": room.because}
            for name, room in free.items()
        ],
    }

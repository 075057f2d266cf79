"""Parses the output of `nvidia-smi -q -x` in a guest. The text is not trusted: a guest may print anything.

Expat parses it without entities or files of the document type, within limits of size, depth and number. Elements are
those of NVIDIA's nvsmi_device DTD: driver_version (kmd_version from R595 on), cuda_version, and of each gpu
product_name, vgpu_software_licensed_product/license_status, ecc_mode and mig_mode (vgpu-facts: nvidia-smi manual and
published outputs; the licence's element as published outputs of R580 guests have it, its older name from memory).
"""

from __future__ import annotations

from typing import Final
from xml.parsers.expat import ExpatError, ParserCreate

from gpuops.model.guests.guest import GuestGpu, GuestMode, SmiReport, version_of

MOST_ELEMENTS: Final = 50_000
MOST_DEPTH: Final = 32
MOST_GPUS: Final = 64
_LONGEST: Final = 200
_MODES: Final = {"Enabled": GuestMode.ON, "Disabled": GuestMode.OFF, "N/A": GuestMode.ABSENT}
_GPU: Final = ("nvidia_smi_log", "gpu")


def read_smi(text: str) -> SmiReport:
    """Return the report. Raises ValueError, with a message for users, for text that is not of nvidia-smi."""
    reader = _read(text)
    # The second names are those of other driver branches.
    driver = reader.head.get("driver_version") or reader.head.get("kmd_version") or ""
    if version_of(driver) is None:
        raise ValueError("no version of a driver in it")
    cuda = reader.head.get("cuda_version", "")
    gpus = []
    for texts in reader.gpus:
        licence = texts.get("vgpu_software_licensed_product/license_status")
        licence = licence or texts.get("grid_licensed_product/license_status")
        modes = ("ecc_mode/current_ecc", "ecc_mode/pending_ecc", "mig_mode/current_mig", "mig_mode/pending_mig")
        gpus.append(
            GuestGpu(
                texts.get("product_name") or "a GPU",
                licence if licence not in (None, "N/A") else None,
                *(_MODES.get(texts.get(path, "")) for path in modes),
            )
        )
    return SmiReport(driver, cuda if version_of(cuda) else None, tuple(gpus))


def read_gpu_texts(text: str) -> list[dict[str, str]]:
    """Return the texts of each GPU by their paths: `mig_mode/current_mig`. Raises ValueError as `read_smi` does."""
    return _read(text).gpus


def _read(text: str) -> _Reader:
    reader = _Reader()
    try:
        reader.read(text)
    except ExpatError as error:
        raise ValueError(f"no XML (line {error.lineno})") from error
    return reader


class _Reader:
    """Keeps the texts of the report's head, and of each GPU by their paths below it."""

    def __init__(self) -> None:
        self.head: dict[str, str] = {}
        self.gpus: list[dict[str, str]] = []
        self._path: list[str] = []
        self._text = ""
        self._elements = 0

    def read(self, text: str) -> None:
        """Read the report. Raises ExpatError, and ValueError for more than nvidia-smi prints."""
        parser = ParserCreate()
        parser.EntityDeclHandler = self._entity
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.Parse(text, True)

    def _entity(self, *declared: object) -> None:
        raise ValueError("an entity, which nvidia-smi never declares")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        self._path.append(name)
        self._text = ""
        if self._elements > MOST_ELEMENTS or len(self._path) > MOST_DEPTH:
            raise ValueError("more elements than nvidia-smi prints")
        if tuple(self._path) == _GPU:
            if len(self.gpus) == MOST_GPUS:
                raise ValueError(f"more than {MOST_GPUS} GPUs")
            self.gpus.append({})

    def _characters(self, text: str) -> None:
        if len(self._text) < _LONGEST:
            self._text += text

    def _end(self, name: str) -> None:
        path, value = tuple(self._path), self._text.strip()[:_LONGEST]
        if len(path) == len(_GPU):
            self.head.setdefault(name, value)
        elif path[: len(_GPU)] == _GPU:
            self.gpus[-1].setdefault("/".join(path[len(_GPU) :]), value)
        self._path.pop()
        self._text = ""

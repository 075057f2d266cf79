"""Parses the sections that `check_guest.sh` and `check_guest.ps1` print; one of them is the output of `nvidia-smi -q
-x`. The text is not trusted, because a guest may print anything: what cannot be parsed is unknown.

Expat parses the output of nvidia-smi without entities or files of the document type, within limits of size, depth and
number. Elements are those of NVIDIA's nvsmi_device DTD: driver_version (kmd_version from R595 on), cuda_version, and of
each gpu product_name, vgpu_software_licensed_product/license_status, ecc_mode and mig_mode (vgpu-facts: nvidia-smi
manual and published outputs; the licence's element as published outputs of R580 guests have it, its older name from
memory)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.parsers.expat import ExpatError, ParserCreate

from gpuops.model.guests.guest import GuestAnswer, GuestGpu, GuestMode, GuestSystem, RdmaLink, SmiReport, version_of

MOST_ELEMENTS: Final = 50_000
MOST_DEPTH: Final = 32
MOST_GPUS: Final = 64
_LONGEST_VALUE: Final = 200
_MODES: Final = {"Enabled": GuestMode.ON, "Disabled": GuestMode.OFF, "N/A": GuestMode.ABSENT}
_GPU: Final = ("nvidia_smi_log", "gpu")


def read_smi(text: str) -> SmiReport:
    """Return the report. Raises ValueError, with a message for users, for text that is not of nvidia-smi."""
    reader = _read(text)
    # The second names are those of other driver branches.
    driver = reader.head.get("driver_version") or reader.head.get("kmd_version") or ""
    if version_of(driver) is None:
        raise ValueError("it names no driver version")
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
        raise ValueError(f"it is not XML (line {error.lineno})") from error
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
        raise ValueError("it declares an entity, which nvidia-smi never does")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._elements += 1
        self._path.append(name)
        self._text = ""
        if self._elements > MOST_ELEMENTS or len(self._path) > MOST_DEPTH:
            raise ValueError("it has more elements than nvidia-smi prints")
        if tuple(self._path) == _GPU:
            if len(self.gpus) == MOST_GPUS:
                raise ValueError(f"it lists more than {MOST_GPUS} GPUs")
            self.gpus.append({})

    def _characters(self, text: str) -> None:
        if len(self._text) < _LONGEST_VALUE:
            self._text += text

    def _end(self, name: str) -> None:
        path, value = tuple(self._path), self._text.strip()[:_LONGEST_VALUE]
        if len(path) == len(_GPU):
            self.head.setdefault(name, value)
        elif path[: len(_GPU)] == _GPU:
            self.gpus[-1].setdefault("/".join(path[len(_GPU) :]), value)
        self._path.pop()
        self._text = ""


MOST_BYTES: Final = 1 << 20
"""Longest answer that is parsed: eight GPUs take 200 KB."""
_MARK: Final = re.compile(r"@@ ([a-z-]+)(?: ([a-z]+))?")
_RELEASE: Final = re.compile(r"release ([0-9]{1,3}\.[0-9]{1,3})")
_RUNTIME: Final = re.compile(r"libcudart\.so\.([0-9]{1,3}(?:\.[0-9]{1,3})*)")
_LEAP: Final = re.compile(r":\s*([0-3])\s*\(")
_PORT: Final = re.compile(r"\s*port:\s*([0-9]{1,3})\s*")
_STATE: Final = re.compile(r"\s*state:\s*PORT_([A-Z]{1,12})")
_HCA: Final = re.compile(r"hca_id:\s*([\w.-]{1,64})")
_NAME: Final = re.compile(r"[\w.() #-]{1,64}")
_END: Final = "</nvidia_smi_log>"
"""nvidia-smi may print warnings before and after its report."""
_MOST_LINKS: Final = 64
_LONGEST_JSON: Final = 1 << 16
_LONGEST_TEXT: Final = 160
_LAST_SECOND: Final = 10**11


def read_answer(text: str) -> GuestAnswer:
    """Return the parsed answer. Raises ValueError, with a message for users, for the text of another program."""
    sections = dict(_sections(text))
    system = next((system for system in GuestSystem if f"begin {system}" in sections), None)
    if system is None:
        raise ValueError("it does not begin like the output of gpuops' check")
    if "end" not in sections:
        raise ValueError("it breaks off in the middle")
    clock, synchronized, installed = (
        sections.get(name, "").strip().partition("\n")[0].strip()[:_LONGEST_TEXT]
        for name in ("clock", "synchronized", "installed")
    )
    smi, smi_text, is_unreadable = _smi(sections.get("smi", ""))
    return GuestAnswer(
        system,
        clock_s=_seconds(clock),
        synchronized=_is_synchronized(synchronized, system),
        installed=_installed_version(installed, system),
        smi=smi,
        smi_missing="no-smi" in sections,
        smi_says=smi_text,
        smi_unreadable=is_unreadable,
        toolkit=_toolkit(sections.get("toolkit", "")),
        runtimes=tuple(dict.fromkeys(_RUNTIME.findall(sections.get("runtimes", ""))))[:20],
        frameworks=dict(_frameworks(sections.get("frameworks", ""))),
        python_missing="no-python" in sections,
        rdma=_rdma(sections),
    )


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the lines of each section.

    >>> dict(_sections("@@ clock\\n1763000000\\n@@ end"))
    {'': '', 'clock': '1763000000', 'end': ''}
    """
    name, lines = "", list[str]()
    # Windows may write a byte order mark first.
    for line in text.removeprefix("\ufeff").splitlines():
        mark = _MARK.fullmatch(line.strip())
        if mark is None:
            lines.append(line)
            continue
        yield name, "\n".join(lines)
        name, lines = " ".join(part for part in mark.groups() if part), []
    yield name, "\n".join(lines)


def _seconds(text: str) -> float | None:
    """Parse the seconds since 1970; None for other text, for 0, and for a number that no clock can have."""
    is_number = text.isascii() and text.isdigit() and len(text) < len(str(_LAST_SECOND))
    return float(text) if is_number and int(text) else None


def _is_synchronized(line: str, system: GuestSystem) -> bool | None:
    """Return whether the guest's clock is synchronized; None if the line does not tell.

    Linux prints `yes` or `no` (timedatectl), or `Leap status     : Normal` (chronyc). Windows prints the leap indicator
    (w32tm), of which 3 means not synchronized (RFC 5905); the words around it are localized.
    """
    if system is GuestSystem.WINDOWS:
        leap = _LEAP.search(line)
        return None if leap is None else leap[1] != "3"
    if line.startswith("Leap status"):
        return line.rpartition(":")[2].strip() != "Not synchronised"
    return {"yes": True, "no": False}.get(line)


def _installed_version(line: str, system: GuestSystem) -> str | None:
    """Return the version of the installed driver. Windows numbers the driver 552.74 as 31.0.15.5274: the last five
    digits.

    >>> _installed_version("31.0.15.5274", GuestSystem.WINDOWS)
    '552.74'
    """
    if version_of(line) is None:
        return None
    if system is GuestSystem.LINUX:
        return line
    digits = line.replace(".", "")[-5:]
    return f"{digits[:3]}.{digits[3:]}" if len(digits) == len("55274") else None


def _smi(text: str) -> tuple[SmiReport | None, str, bool]:
    """Return the report of nvidia-smi. Without one, return None, the first line of what it printed instead or why its
    report cannot be parsed, and whether the latter is the case."""
    if "<nvidia_smi_log" not in text:
        return None, text.strip().partition("\n")[0].strip()[:_LONGEST_TEXT], False
    begin = min(text.find(start) for start in ("<?xml", "<!DOCTYPE", "<nvidia_smi_log") if start in text)
    end = text.rfind(_END) + len(_END)
    try:
        return read_smi(text[begin:end]), "", False
    except ValueError as error:
        return None, str(error), True


def _toolkit(text: str) -> str | None:
    """Return the toolkit version from `nvcc --version`, or from the version.json of a toolkit without nvcc."""
    if (release := _RELEASE.search(text)) is not None:
        return release[1]
    document = _json(text)
    cuda = document.get("cuda") if isinstance(document, dict) else None
    version = cuda.get("version") if isinstance(cuda, dict) else None
    return version if isinstance(version, str) and version_of(version) else None


def _frameworks(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the version of each Python package; None = it is not installed."""
    for line in text.splitlines()[:100]:
        name, _, version = line.strip().partition(" ")
        if name:
            yield name[:_LONGEST_TEXT], version.strip()[:_LONGEST_TEXT] or None


def _rdma(sections: Mapping[str, str]) -> tuple[RdmaLink, ...] | None:
    """Return the links from `rdma -j link show` or the list of the same keys on Windows, else from ibv_devinfo."""
    if "ibv" in sections:
        return tuple(_ports(sections["ibv"]))[:_MOST_LINKS]
    links = _json(sections.get("rdma", ""))
    return None if not isinstance(links, list) else tuple(map(_link, links[:_MOST_LINKS]))


def _link(link: Any) -> RdmaLink:
    """Return one link of `rdma -j link show`: {"ifname": "mlx5_0", "port": 1, "state": "ACTIVE"}."""
    fields = link if isinstance(link, dict) else {}
    name, port, state = fields.get("ifname"), fields.get("port"), fields.get("state")
    device = name if isinstance(name, str) and _NAME.fullmatch(name) else "a device"
    if isinstance(port, int):
        device = f"{device}/{port}"
    state_text = state if isinstance(state, str) and _NAME.fullmatch(state) else "unknown"
    return RdmaLink(device, state_text.upper() in ("ACTIVE", "UP"), state_text)


def _ports(text: str) -> Iterator[RdmaLink]:
    """Yield the ports that ibv_devinfo lists: lines of `hca_id`, `port` and `state`, in this order."""
    device, port = "a device", "1"
    for line in text.splitlines():
        if (hca_line := _HCA.match(line)) is not None:
            device = hca_line[1]
        elif (port_line := _PORT.fullmatch(line)) is not None:
            port = port_line[1]
        elif (state_line := _STATE.match(line)) is not None:
            yield RdmaLink(f"{device}/{port}", state_line[1] == "ACTIVE", state_line[1])


def _json(text: str) -> Any:
    """Parse JSON; None for other text, or text that is too long or nests too deep."""
    try:
        return json.loads(text) if len(text) <= _LONGEST_JSON else None
    except (ValueError, RecursionError):
        return None

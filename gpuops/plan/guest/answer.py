"""Parses the sections that `check_guest.sh` and `check_guest.ps1` print. A guest may print anything: text that cannot
be parsed is unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuops.model.guests.guest import GuestAnswer, GuestSystem, RdmaLink, SmiReport, version_of
from gpuops.plan.guest.smi import read_smi

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
_LONGEST: Final = 160
_LAST_SECOND: Final = 10**11


def read_answer(text: str) -> GuestAnswer:
    """Return the parsed answer. Raises ValueError, with a message for users, for the text of another program."""
    sections = dict(_sections(text))
    system = next((system for system in GuestSystem if f"begin {system}" in sections), None)
    if system is None:
        raise ValueError("it does not begin as the program's output does")
    if "end" not in sections:
        raise ValueError("it breaks off in the middle")
    clock, synchronized, installed = (
        sections.get(name, "").strip().partition("\n")[0].strip()[:_LONGEST]
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
        return None, text.strip().partition("\n")[0].strip()[:_LONGEST], False
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
    for line in text.splitlines()[:100]:
        name, _, version = line.strip().partition(" ")
        if name:
            yield name[:_LONGEST], version.strip()[:_LONGEST] or None


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

"""Reads the sections that `script` has a guest print. A guest may print anything: what is not understood is unknown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuops.model.guests.driver import version_of
from gpuops.model.guests.guest import GuestAnswer, GuestSystem, RdmaLink, SmiReport
from gpuops.plan.guest.smi import read_smi

MOST_BYTES: Final = 1 << 20
"""No answer is longer: eight GPUs take 200 KB."""
_MARK: Final = re.compile(r"@@ ([a-z-]+)(?: ([a-z]+))?")
_RELEASE: Final = re.compile(r"release ([0-9]{1,3}\.[0-9]{1,3})")
_RUNTIME: Final = re.compile(r"libcudart\.so\.([0-9]{1,3}(?:\.[0-9]{1,3})*)")
_LEAP: Final = re.compile(r":\s*([0-3])\s*\(")
_PORT: Final = re.compile(r"\s*port:\s*([0-9]{1,3})\s*")
_STATE: Final = re.compile(r"\s*state:\s*PORT_([A-Z]{1,12})")
_HCA: Final = re.compile(r"hca_id:\s*([\w.-]{1,64})")
_NAME: Final = re.compile(r"[\w.() #-]{1,64}")
_END: Final = "</nvidia_smi_log>"
"""Before the report and after it nvidia-smi may warn."""
_MOST_LINKS: Final = 64
_LONGEST_JSON: Final = 1 << 16
_LONGEST: Final = 160
_LAST_SECOND: Final = 10**11


def read_answer(text: str) -> GuestAnswer:
    """What the guest told. Raises ValueError, in words for people, for what that program does not print."""
    sections = dict(_sections(text))
    system = next((each for each in GuestSystem if f"begin {each}" in sections), None)
    if system is None:
        raise ValueError("it does not begin as the program's output does")
    if "end" not in sections:
        raise ValueError("it breaks off in the middle")
    smi, says, unreadable = _smi(sections.get("smi", ""))
    return GuestAnswer(
        system,
        clock_s=_seconds(_first(sections, "clock")),
        synchronized=_synchronized(_first(sections, "synchronized"), system),
        installed=_installed(_first(sections, "installed"), system),
        smi=smi,
        smi_missing="no-smi" in sections,
        smi_says=says,
        smi_unreadable=unreadable,
        toolkit=_toolkit(sections.get("toolkit", "")),
        runtimes=tuple(dict.fromkeys(_RUNTIME.findall(sections.get("runtimes", ""))))[:20],
        frameworks=dict(_frameworks(sections.get("frameworks", ""))),
        python_missing="no-python" in sections,
        rdma=_rdma(sections),
    )


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Each section's name and its lines; of two with one name the last."""
    name, lines = "", list[str]()
    for line in text.removeprefix("\ufeff").splitlines():
        mark = _MARK.fullmatch(line.strip())
        if mark is None:
            lines.append(line)
            continue
        yield name, "\n".join(lines)
        name, lines = " ".join(part for part in mark.groups() if part), []
    yield name, "\n".join(lines)


def _first(sections: Mapping[str, str], name: str) -> str:
    return sections.get(name, "").strip().partition("\n")[0].strip()[:_LONGEST]


def _seconds(text: str) -> float | None:
    found = int(text) if text.isascii() and text.isdigit() and len(text) < len(str(_LAST_SECOND)) else None
    return float(found) if found else None


def _synchronized(line: str, system: GuestSystem) -> bool | None:
    """`yes` of timedatectl, `Leap status : Normal` of chronyc; of w32tm the number of its first line, 3 = it is not.

    That line's words are in the language of the system, its number is not (RFC 5905, leap indicator).
    """
    if system is GuestSystem.WINDOWS:
        leap = _LEAP.search(line)
        return None if leap is None else leap[1] != "3"
    if line.startswith("Leap status"):
        return line.rpartition(":")[2].strip() != "Not synchronised"
    return {"yes": True, "no": False}.get(line)


def _installed(line: str, system: GuestSystem) -> str | None:
    """Windows numbers the driver 552.74 as 31.0.15.5274: its last five digits."""
    if version_of(line) is None:
        return None
    if system is GuestSystem.LINUX:
        return line
    digits = line.replace(".", "")[-5:]
    return f"{digits[:3]}.{digits[3:]}" if len(digits) == len("55274") else None


def _smi(text: str) -> tuple[SmiReport | None, str, bool]:
    """The report; without one what it says instead, and whether that is a report that cannot be read."""
    if "<nvidia_smi_log" not in text:
        return None, text.strip().partition("\n")[0].strip()[:_LONGEST], False
    first = min(text.find(each) for each in ("<?xml", "<!DOCTYPE", "<nvidia_smi_log") if each in text)
    try:
        return read_smi(text[first : text.rfind(_END) + len(_END)]), "", False
    except ValueError as error:
        return None, str(error), True


def _toolkit(text: str) -> str | None:
    """From `nvcc --version`, or from the version.json of a toolkit without nvcc."""
    if (release := _RELEASE.search(text)) is not None:
        return release[1]
    told = _json(text)
    cuda = told.get("cuda") if isinstance(told, dict) else None
    version = cuda.get("version") if isinstance(cuda, dict) else None
    return version if isinstance(version, str) and version_of(version) else None


def _frameworks(text: str) -> Iterator[tuple[str, str | None]]:
    for line in text.splitlines()[:100]:
        name, _, version = line.strip().partition(" ")
        if name:
            yield name[:_LONGEST], version.strip()[:_LONGEST] or None


def _rdma(sections: Mapping[str, str]) -> tuple[RdmaLink, ...] | None:
    """From `rdma -j link show`, or Windows' list of the same keys; from ibv_devinfo where that is all there is."""
    if "ibv" in sections:
        return tuple(_ports(sections["ibv"]))[:_MOST_LINKS]
    told = _json(sections.get("rdma", ""))
    return None if not isinstance(told, list) else tuple(map(_link, told[:_MOST_LINKS]))


def _link(told: Any) -> RdmaLink:
    fields = told if isinstance(told, dict) else {}
    name, port, state = fields.get("ifname"), fields.get("port"), fields.get("state")
    shown = name if isinstance(name, str) and _NAME.fullmatch(name) else "a device"
    words = state if isinstance(state, str) and _NAME.fullmatch(state) else "unknown"
    return RdmaLink(f"{shown}/{port}" if isinstance(port, int) else shown, words.upper() in ("ACTIVE", "UP"), words)


def _ports(text: str) -> Iterator[RdmaLink]:
    device, port = "a device", "1"
    for line in text.splitlines():
        if (named := _HCA.match(line)) is not None:
            device = named[1]
        elif (numbered := _PORT.fullmatch(line)) is not None:
            port = numbered[1]
        elif (told := _STATE.match(line)) is not None:
            yield RdmaLink(f"{device}/{port}", told[1] == "ACTIVE", told[1])


def _json(text: str) -> Any:
    """What the text says; None for what is no JSON, too long, or nests too deep."""
    try:
        return json.loads(text) if len(text) <= _LONGEST_JSON else None
    except (ValueError, RecursionError):
        return None

"""The option string of the `nvidia` kernel module: RmPVMRL read from it and written into it, all else left as it is.

`NVreg_RegistryDwords=KEY=VALUE;...` is for all GPUs, `NVreg_RegistryDwordsPerDevice=pci=ADDRESS;KEY=VALUE;pci=...` for
some; options are separated by blanks (NVIDIA vGPU docs, scheduling behaviour; esxcli system module parameters).
A GPU's own entry goes before the one for all. Nothing is normalised: a foreign byte is never rewritten.

How the driver reads the list for single GPUs: NVIDIA open-gpu-kernel-modules, nv-reg.h (RegistryDwordsPerDevice) and
os-registry.c (nv_parse_per_device_option_string, pci_str_to_bdf). It ignores blanks; `pci` is in small letters; a `pci`
that is no address ends the entries of the GPU before it; an item with a second equals sign is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import RoundRobin
from gpuops.plan.hosts.scheduler.rmpvmrl import Reading, Unread, decode

FOR_ALL: Final = "NVreg_RegistryDwords"
PER_DEVICE: Final = "NVreg_RegistryDwordsPerDevice"
KEY: Final = "RmPVMRL"

_OPTION: Final = re.compile(
    r"""(?P<name>[^\s="']+)=(?P<value>(?:"[^"]*"|'[^']*'|[^\s"'])*)|(?:"[^"]*"|'[^']*'|[^\s"'])+"""
)
_ITEM: Final = re.compile(r"[^;]+")
_PCI: Final = re.compile(
    r"(?:0x)?(?P<first>[0-9a-f]*):(?:0x)?(?P<second>[0-9a-f]*)(?::(?:0x)?(?P<slot>[0-9a-f]+)[^.]*)?"
    r"(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)
"""What the driver takes for `pci`: `bus:slot`, `domain:bus:slot`, both with or without `.function`. A number that is
left out is 0, and what follows the digits of the slot is ignored."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One `KEY=VALUE` of ours, by where its value stands in the string."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class _Group:
    """What one option says of one GPU (or of all: `address` None): where it ends, and our entries in it."""

    address: PciAddress | None
    end: int
    entries: tuple[_Entry, ...]


def unfit(options: str) -> str | None:
    """Why the string cannot be edited without guessing; None = it can."""
    if options.count('"') % 2 or options.count("'") % 2:
        return "its module options hold a quote that is not closed"
    names = [match["name"] for match in _OPTION.finditer(options)]
    twice = next((name for name in (FOR_ALL, PER_DEVICE) if names.count(name) > 1), None)
    return f"its module options give {twice} twice: which one is in force is not documented" if twice else None


def read(options: str, gpu: PciAddress, round_robin: RoundRobin | None) -> Reading:
    """What the string says of this GPU; without an entry it is best effort, the driver's default."""
    reason = unfit(options)
    if reason is not None:
        return Unread(options, reason)
    own = [entry for group in _groups(options, PER_DEVICE) if group.address == gpu for entry in group.entries]
    common = [entry for group in _groups(options, FOR_ALL) for entry in group.entries]
    entries = own or common
    values = {_number(entry.text) for entry in entries}
    if len(values) > 1 or None in values:
        return Unread("; ".join(entry.text for entry in entries), f"no one value of {KEY}")
    return decode(values.pop() or 0 if values else 0, round_robin)


def addressed(options: str) -> tuple[PciAddress, ...]:
    """The GPUs that have an entry of their own."""
    groups = () if unfit(options) else _groups(options, PER_DEVICE)
    return tuple(dict.fromkeys(group.address for group in groups if group.address is not None and group.entries))


def written(options: str, word: int, gpus: tuple[PciAddress, ...] = ()) -> str:
    """The string with this word for these GPUs; for none: for all of the host, those with an entry of their own too.

    Needs a string of which `unfit` is None. A value already equal keeps its spelling.
    """
    if gpus:
        for gpu in gpus:
            options = _with_word(options, PER_DEVICE, gpu, word)
        return options
    for gpu in addressed(options):
        options = _with_word(options, PER_DEVICE, gpu, word)
    return _with_word(options, FOR_ALL, None, word)


def differs_in(before: str, now: str, gpu: PciAddress) -> bool:
    """Whether `now` is `before` with another word for this GPU, and nothing else. Needs strings as `written` does."""
    own = [entry for group in _groups(now, PER_DEVICE) if group.address == gpu for entry in group.entries]
    words = {_number(entry.text) for entry in own}
    return any(word is not None and written(before, word, (gpu,)) == now for word in words)


def _with_word(options: str, name: str, gpu: PciAddress | None, word: int) -> str:
    groups = [group for group in _groups(options, name) if group.address == gpu]
    entries = [entry for group in groups for entry in group.entries]
    if entries:
        for entry in reversed(entries):
            if _number(entry.text) != word:
                options = f"{options[: entry.start]}{_spelled(word)}{options[entry.end :]}"
        return options
    ours = f"{KEY}={_spelled(word)}"
    if groups:
        return f"{options[: groups[0].end]};{ours}{options[groups[0].end :]}"
    if gpu is not None:
        ours = f"pci={gpu};{ours}"
    option = next((each for each in _OPTION.finditer(options) if each["name"] == name), None)
    if option is not None:
        start, end = _inner(option)
        separator = "" if start == end or options[end - 1] == ";" else ";"
        return f"{options[:end]}{separator}{ours}{options[end:]}"
    return f"{options}{' ' if options and not options[-1].isspace() else ''}{name}={ours}"


def _groups(options: str, name: str) -> list[_Group]:
    """The groups of an option, in order. In the option for all GPUs there is one, without an address."""
    found: list[_Group] = []
    for option in _OPTION.finditer(options):
        if option["name"] != name:
            continue
        start, end = _inner(option)
        for address, items in _by_device(options, start, end, name):
            entries = tuple(entry for item in items if (entry := _entry(item)) is not None)
            found.append(_Group(address, items[-1].end(), entries))
    return found


def _by_device(
    options: str, start: int, end: int, name: str
) -> Iterator[tuple[PciAddress | None, list[re.Match[str]]]]:
    """Items of a list, cut where a `pci=` begins another GPU; what is of no GPU is left out."""
    items = [item for item in _ITEM.finditer(options, start, end) if item[0].strip()]
    if name == FOR_ALL:
        if items:
            yield None, items
        return
    groups: list[tuple[PciAddress | None, list[re.Match[str]]]] = []
    for item in items:
        key, _, value = "".join(item[0].split()).partition("=")
        if key == "pci" and value and "=" not in value:
            groups.append((_address(value), [item]))
        elif groups:
            groups[-1][1].append(item)
    yield from (group for group in groups if group[0] is not None)


def _address(text: str) -> PciAddress | None:
    """The address as the driver understands it, 0000:d8:00.0 of `d8:00`; None = it skips the entries that follow."""
    match = _PCI.fullmatch(text)
    if match is None or not (match["second"] or match["slot"]):
        return None
    first, second, function = (int(match[name] or "0", 16) for name in ("first", "second", "function"))
    if match["slot"] is None:
        return PciAddress(0, first, second, function)
    return PciAddress(first, second, int(match["slot"], 16), function)


def _inner(option: re.Match[str]) -> tuple[int, int]:
    """Where the value of an option stands, without the quotes around all of it."""
    start, end = option.span("value")
    value = option["value"]
    quoted = len(value) > 1 and value[0] in "\"'" and value.find(value[0], 1) == len(value) - 1
    return (start + 1, end - 1) if quoted else (start, end)


def _entry(item: re.Match[str]) -> _Entry | None:
    key, equals, value = item[0].partition("=")
    if not equals or key.strip().lower() != KEY.lower():
        return None
    start = item.end() - len(value)
    return _Entry(start, item.end(), value)


def _number(text: str) -> int | None:
    try:
        return int(text.strip(), 0)
    except ValueError:
        return None


def _spelled(word: int) -> str:
    return f"0x{word:02x}" if word < 0x100 else f"0x{word:08x}"

"""Reads RmPVMRL from the option string of the `nvidia` kernel module, and writes it there; all other text stays.

`NVreg_RegistryDwords=KEY=VALUE;...` is for all GPUs, `NVreg_RegistryDwordsPerDevice=pci=ADDRESS;KEY=VALUE;pci=...` for
some; options are separated by blanks (NVIDIA vGPU docs, scheduling behaviour; esxcli system module parameters).
A GPU's own entry goes before the one for all. Nothing is normalised: a foreign byte is never rewritten.

How the driver reads the list for single GPUs: NVIDIA open-gpu-kernel-modules, nv-reg.h (RegistryDwordsPerDevice) and
os-registry.c (nv_parse_per_device_option_string, pci_str_to_bdf). It ignores blanks; `pci` is in small letters; a `pci`
that is no address ends the entries of the GPU before it; an item with a second equals sign is skipped.

`RmPVMRL` is the registry word of NVIDIA's vGPU scheduler, encoded and decoded as each driver branch reads it. Bits
(NVIDIA open-gpu-kernel-modules 595.45.04, nvrm_registry.h): 0 scheduler on; 1 adaptive round robin off; 3 weighted
scheduler off; 7:4 policy, 0 equal share, 1 fixed share; 23:16 time slice in ms; 21:12 frequency in Hz; 31:24 averaging
factor. Time slice and frequency overlap: which is read depends on bit 1, and a branch before vGPU 15 has no bit 1 and
reads the time slice always. The forms an administrator writes, and the ranges: NVIDIA vGPU docs, scheduling policies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.scheduler import (
    BEST_EFFORT,
    Frequency,
    RoundRobin,
    SchedulerPolicy,
    TimeSlices,
    VgpuScheduler,
)

TIME_SLICE_MS: Final = range(1, 31)
FREQUENCY_HZ: Final = range(63, 961)
AVERAGING_FACTOR: Final = range(1, 61)

_ON: Final = 1 << 0
_ADAPTIVE_OFF: Final = 1 << 1
_WEIGHTED_OFF: Final = 1 << 3
_POLICY_BITS: Final = 0xF << 4
_UNDOCUMENTED_BITS: Final = 0xF << 8 | 1 << 2
_SLICE_BITS: Final = 0xFFFFF << 12
_TIME_SLICE_BITS: Final = 0xFF << 16
_POLICIES: Final = {0: SchedulerPolicy.EQUAL_SHARE, 1: SchedulerPolicy.FIXED_SHARE}
_POLICY_NUMBERS: Final = {policy: number for number, policy in _POLICIES.items()}


@dataclass(frozen=True, slots=True)
class Unread:
    """A value of RmPVMRL that cannot be decoded, and why."""

    word: str
    why: str

    def __str__(self) -> str:
        return f"{self.word} ({self.why})"


Reading = VgpuScheduler | Unread


def depends_on_branch(scheduler: VgpuScheduler) -> bool:
    """Return whether the encoding depends on the driver branch."""
    return scheduler.policy is not SchedulerPolicy.BEST_EFFORT and scheduler.slices is not None


def encode(scheduler: VgpuScheduler, round_robin: RoundRobin | None) -> int:
    """Return the word for a scheduler. `round_robin`: how the driver branch reads it; None = unknown.

    Raises ValueError with the reason that `reason_not_encodable` returns.
    """
    reason = reason_not_encodable(scheduler, round_robin)
    if reason is not None:
        raise ValueError(reason)
    if scheduler.policy is SchedulerPolicy.BEST_EFFORT:
        return 0
    word = _ON | _POLICY_NUMBERS[scheduler.policy] << 4 | (0 if scheduler.weighted else _WEIGHTED_OFF)
    match scheduler.slices:
        case None:
            return word
        case TimeSlices(time_slice_ms=milliseconds):
            adaptive_off = _ADAPTIVE_OFF if round_robin is RoundRobin.ADAPTIVE else 0
            return word | adaptive_off | (milliseconds or 0) << 16
        case Frequency(frequency_hz=hertz, averaging=averaging):
            return word | (hertz or 0) << 12 | (averaging or 0) << 24
        case _:
            assert_never(scheduler.slices)


def reason_not_encodable(scheduler: VgpuScheduler, round_robin: RoundRobin | None) -> str | None:
    """Return why this driver branch has no word for the scheduler, with the source; None if it has one."""
    slices = scheduler.slices
    if slices is None:
        return None
    if scheduler.policy is SchedulerPolicy.BEST_EFFORT:
        return "best effort has neither time slices nor a frequency (NVIDIA vGPU docs, scheduling policies)"
    out_of_range = _out_of_range(slices)
    if out_of_range is not None:
        return out_of_range
    if round_robin is None:
        return "driver branches read time slice and frequency from the same bits, and the host's branch is not known"
    if isinstance(slices, Frequency) and round_robin is RoundRobin.PLAIN:
        return "a driver before vGPU 15 has no adaptive round robin, so no frequency (NVIDIA vGPU docs)"
    return None


def _out_of_range(slices: TimeSlices | Frequency) -> str | None:
    match slices:
        case TimeSlices(time_slice_ms=milliseconds):
            return _check_range("time slice", milliseconds, TIME_SLICE_MS, " ms")
        case Frequency(frequency_hz=hertz, averaging=averaging):
            return _check_range("frequency", hertz, FREQUENCY_HZ, " Hz") or _check_range(
                "averaging", averaging, AVERAGING_FACTOR, ""
            )
        case _:
            assert_never(slices)


def _check_range(name: str, number: int | None, allowed: range, unit: str) -> str | None:
    if number is None or number in allowed:
        return None
    return f"{name} {number}{unit} is not within {allowed[0]} to {allowed[-1]}{unit} (NVIDIA vGPU docs)"


def decode(word: int, round_robin: RoundRobin | None) -> Reading:
    """Return the scheduler that a driver of this branch uses for the word. Values out of range are returned unchanged.

    Returns `Unread` for undocumented bits, and if the branch is unknown but matters.
    """
    hexadecimal = f"0x{word:08x}"
    if not 0 <= word < 1 << 32:
        return Unread(hex(word), "not a 32-bit word")
    if not word & _ON:
        return BEST_EFFORT
    policy = _POLICIES.get((word & _POLICY_BITS) >> 4)
    if policy is None or word & _UNDOCUMENTED_BITS:
        return Unread(hexadecimal, "bits that NVIDIA does not document")
    weighted = not word & _WEIGHTED_OFF
    if not word & (_SLICE_BITS | _ADAPTIVE_OFF):
        return VgpuScheduler(policy, None, weighted)
    match round_robin:
        case None:
            return Unread(hexadecimal, "driver branches read it differently, and the host's is not known")
        case RoundRobin.PLAIN:
            if word & (_ADAPTIVE_OFF | _SLICE_BITS & ~_TIME_SLICE_BITS):
                return Unread(hexadecimal, "a word for vGPU 15 or newer, on an older driver")
            return VgpuScheduler(policy, TimeSlices(word >> 16 & 0xFF), weighted)
        case RoundRobin.ADAPTIVE if word & _ADAPTIVE_OFF:
            return VgpuScheduler(policy, TimeSlices(word >> 16 & 0xFF or None), weighted)  # 0 = the driver's default
        case RoundRobin.ADAPTIVE:
            return VgpuScheduler(policy, Frequency(word >> 12 & 0x3FF or None, word >> 24 or None), weighted)
        case _:
            assert_never(round_robin)


def describe_clamping(scheduler: VgpuScheduler) -> str | None:
    """Return the value that the driver uses instead of one out of range: the nearest allowed (NVIDIA vGPU docs)."""
    match scheduler.slices:
        case TimeSlices(time_slice_ms=int(milliseconds)) if milliseconds not in TIME_SLICE_MS:
            return f"the driver uses {TIME_SLICE_MS[-1]} ms"
        case Frequency(frequency_hz=int(hertz)) if hertz not in FREQUENCY_HZ:
            return f"the driver uses {FREQUENCY_HZ[0] if hertz < FREQUENCY_HZ[0] else FREQUENCY_HZ[-1]} Hz"
        case _:
            return None


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
class _WordPlace:
    """The value of one `RmPVMRL=VALUE`, and its position in the option string."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class _Group:
    """The part of an option that is about one GPU, or about all GPUs (`address` None): where it ends, and the values of
    `RmPVMRL` in it."""

    address: PciAddress | None
    end: int
    places: tuple[_WordPlace, ...]


def reason_not_editable(options: str) -> str | None:
    """Return why the string cannot be edited without guessing; None = it can."""
    if options.count('"') % 2 or options.count("'") % 2:
        return "its module options hold a quote that is not closed"
    names = [match["name"] for match in _OPTION.finditer(options)]
    twice = next((name for name in (FOR_ALL, PER_DEVICE) if names.count(name) > 1), None)
    return f"its module options give {twice} twice: which one is in force is not documented" if twice else None


def read(options: str, gpu: PciAddress, round_robin: RoundRobin | None) -> Reading:
    """Return the scheduler that these options give the GPU: by its own entry, else by the entry for all GPUs, else best
    effort, the driver's default."""
    reason = reason_not_editable(options)
    if reason is not None:
        return Unread(options, reason)
    own_places = [place for group in _groups(options, PER_DEVICE) if group.address == gpu for place in group.places]
    common_places = [place for group in _groups(options, FOR_ALL) for place in group.places]
    places = own_places or common_places
    words = {_parse_word(place.text) for place in places}
    if len(words) > 1 or None in words:
        return Unread("; ".join(place.text for place in places), f"{KEY} has no single valid value")
    word = words.pop() if words else None
    return decode(word or 0, round_robin)  # without an entry, the word is 0: best effort


def gpus_with_entry(options: str) -> tuple[PciAddress, ...]:
    """Return the GPUs that have an entry of their own."""
    groups = () if reason_not_editable(options) else _groups(options, PER_DEVICE)
    return tuple(dict.fromkeys(group.address for group in groups if group.address is not None and group.places))


def set_word(options: str, word: int, gpus: tuple[PciAddress, ...] = ()) -> str:
    """Return the options with this word for these GPUs; without `gpus` for all GPUs of the host, including those with
    an entry of their own. `reason_not_editable` must be None for the options. A value that is already equal keeps its
    spelling.

    >>> set_word("NVreg_A=1", 0x01)
    'NVreg_A=1 NVreg_RegistryDwords=RmPVMRL=0x01'
    >>> set_word("", 0x11, (PciAddress.parse("0000:5e:00.0"),))
    'NVreg_RegistryDwordsPerDevice=pci=0000:5e:00.0;RmPVMRL=0x11'
    """
    if gpus:
        for gpu in gpus:
            options = _with_word(options, PER_DEVICE, gpu, word)
        return options
    for gpu in gpus_with_entry(options):
        options = _with_word(options, PER_DEVICE, gpu, word)
    return _with_word(options, FOR_ALL, None, word)


def differs_only_for(before: str, now: str, gpu: PciAddress) -> bool:
    """Return whether `now` is `before` with another word for this GPU, and nothing else.

    `reason_not_editable` must be None for both.
    """
    own_places = [
        word_place for group in _groups(now, PER_DEVICE) if group.address == gpu for word_place in group.places
    ]
    words = {_parse_word(word_place.text) for word_place in own_places}
    return any(word is not None and set_word(before, word, (gpu,)) == now for word in words)


def _with_word(options: str, name: str, gpu: PciAddress | None, word: int) -> str:
    """Return the options with this word in the option `name`: for this GPU, or with None for all."""
    groups = [group for group in _groups(options, name) if group.address == gpu]
    places = [word_place for group in groups for word_place in group.places]
    # 1. Replace the values that exist, the last one first, so that the positions of the others stay right.
    if places:
        for place in reversed(places):
            if _parse_word(place.text) != word:
                options = f"{options[: place.start]}{_format_word(word)}{options[place.end :]}"
        return options
    # 2. The GPU has other entries: add ours to them.
    entry = f"{KEY}={_format_word(word)}"
    if groups:
        return f"{options[: groups[0].end]};{entry}{options[groups[0].end :]}"
    # 3. The option exists: add the GPU with our entry at its end. Else add the option.
    if gpu is not None:
        entry = f"pci={gpu};{entry}"
    option = next((match for match in _OPTION.finditer(options) if match["name"] == name), None)
    if option is not None:
        start, end = _value_span(option)
        separator = "" if start == end or options[end - 1] == ";" else ";"
        return f"{options[:end]}{separator}{entry}{options[end:]}"
    return f"{options}{' ' if options and not options[-1].isspace() else ''}{name}={entry}"


def _groups(options: str, name: str) -> list[_Group]:
    """Return the groups of an option, in order. In the option for all GPUs there is one, without an address."""
    groups: list[_Group] = []
    for option in _OPTION.finditer(options):
        if option["name"] != name:
            continue
        start, end = _value_span(option)
        for address, device_items in _items_by_device(options, start, end, name):
            places = []
            for list_item in device_items:
                key, equals, text = list_item[0].partition("=")
                if equals and key.strip().lower() == KEY.lower():
                    places.append(_WordPlace(list_item.end() - len(text), list_item.end(), text))
            groups.append(_Group(address, device_items[-1].end(), tuple(places)))
    return groups


def _items_by_device(
    options: str, start: int, end: int, name: str
) -> Iterator[tuple[PciAddress | None, list[re.Match[str]]]]:
    """Yield the items of a list by GPU: `pci=A;x=1;y=2;pci=B;x=3` has two of A and one of B, after their `pci=`. Items
    before the first `pci=`, or after one that is no address, are left out."""
    list_items = [list_item for list_item in _ITEM.finditer(options, start, end) if list_item[0].strip()]
    if name == FOR_ALL:
        if list_items:
            yield None, list_items
        return
    groups: list[tuple[PciAddress | None, list[re.Match[str]]]] = []
    for list_item in list_items:
        key, _, text = "".join(list_item[0].split()).partition("=")  # without white space
        if key == "pci" and text and "=" not in text:
            groups.append((_parse_address(text), [list_item]))
        elif groups:
            groups[-1][1].append(list_item)
    yield from (group for group in groups if group[0] is not None)


def _parse_address(text: str) -> PciAddress | None:
    """Return the address as the driver understands it; None = it skips the entries that follow.

    >>> str(_parse_address("d8:00"))
    '0000:d8:00.0'
    """
    match = _PCI.fullmatch(text)
    if match is None or not (match["second"] or match["slot"]):
        return None
    # Two numbers are bus and slot; three are domain, bus and slot.
    first, second, function = (int(match[name] or "0", 16) for name in ("first", "second", "function"))
    if match["slot"] is None:
        return PciAddress(0, first, second, function)
    return PciAddress(first, second, int(match["slot"], 16), function)


def _value_span(option: re.Match[str]) -> tuple[int, int]:
    """Return the position of an option's value, without the quotes if they enclose all of it."""
    start, end = option.span("value")
    text = option["value"]
    is_quoted = len(text) > 1 and text[0] in "\"'" and text.find(text[0], 1) == len(text) - 1
    return (start + 1, end - 1) if is_quoted else (start, end)


def _parse_word(text: str) -> int | None:
    try:
        return int(text.strip(), 0)
    except ValueError:
        return None


def _format_word(word: int) -> str:
    return f"0x{word:02x}" if word < 0x100 else f"0x{word:08x}"

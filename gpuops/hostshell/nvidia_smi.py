"""Reads and switches the MIG mode of a host's GPUs, and reads their load and their vGPUs, by nvidia-smi over SSH.

`NvidiaSmi` implements `HostShell` of `execute`.

Sources: NVIDIA nvidia-smi manual (`--query-gpu`, CSV; `-mig`): addresses have a domain of eight digits, a GPU without
MIG prints `[N/A]`, and a mode that waits for a reset of the GPU is pending. Other words in brackets are errors. NVIDIA
vGPU documentation, `nvidia-smi vgpu -q`: a `GPU` header for each GPU, then `Key : value` lines for each vGPU;
`Placement ID` in GB of frame buffer, `GPU Instance ID` in MIG mode, otherwise `N/A`; under `Utilization` the lines
`Gpu` and `Encoder`; from memory: `License Status` begins with Licensed or Unlicensed. NVIDIA Multi-Instance GPU User
Guide, `nvidia-smi mig -lgi`: a table whose last column is `Start:Size` in memory slices. If no GPU is in vGPU mode,
R580.159.04 prints one line instead, with exit status 0 (seen on an H100).

Each GPU is judged by itself: if a line cannot be read, or the exit status is about another GPU, the GPUs whose lines
can be read are still used.

Sources of the health: NVIDIA nvidia-smi manual, RETURN VALUE (14: an infoROM is corrupted, and the answer is complete;
15: a GPU has fallen off the bus or is otherwise inaccessible, while the others answer); the sentences and the words in
brackets as published outputs have them (`Unable to determine the device handle for GPU1: 0000:AF:00.0: GPU is lost.
Reboot the system to recover this GPU`, `WARNING: infoROM is corrupted at gpu 0000:AF:00.0`, `[GPU requires reset]`,
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.hostshell.ssh import CommandResult, Ssh
from gpuops.model.devices.gpu import HEALTHY, GpuHealth, PciAddress, RecoveryAction
from gpuops.model.vcenter.host_settings import SmiGpu, SmiReadings, SmiState, SmiVgpu
from gpuops.plan.guest.check_output import read_gpu_texts

ABSENT: Final = frozenset({"n/a", "not supported"})
"""The words for a feature or value that a GPU does not have."""
LONGEST_SHOWN: Final = 80
"""How many characters of nvidia-smi's output a message quotes."""
CONTRADICTORY: Final = "two answers that differ"
"""The reason for a GPU that has two different rows."""
_WRONG_COLUMN_COUNT: Final = "an answer that cannot be read"
_ADDRESS: Final = r"(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{1,2}:[0-9A-Fa-f]{1,2}\.[0-7])"
_CORRUPT_INFOROM: Final = re.compile(rf"\s*WARNING: infoROM is corrupted at gpu\s+{_ADDRESS}", re.IGNORECASE)
_NO_HANDLE: Final = re.compile(
    rf"\s*Unable to determine the device handle for gpu\s*(?:\d+:\s*)?{_ADDRESS}:\s*(?P<reason>.+)", re.IGNORECASE
)
_HEALTH_BY_WORD: Final = {
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
    """Yield the GPU and its health if the line is a sentence about a GPU."""
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
    return _HEALTH_BY_WORD.get(word_of(word).lower())


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
    """Return the health of one GPU by the texts of its XML elements (path -> text)."""
    health = health_by_cells(texts.get(path, "") for path in _VALUES)
    reset = _YES_NO.get(texts.get("gpu_reset_status/reset_required", ""))
    remap = _YES_NO.get(texts.get("remapped_rows/remapped_row_pending", ""))
    health = health.merge(GpuHealth(requires_reset=reset is True, is_row_remap_pending=remap))
    return health.merge(_health_by_action(word_of(texts.get("gpu_recovery_action", ""))))


def _health_by_action(word: str) -> GpuHealth:
    """Return the health that `gpu_recovery_action` shows."""
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
_SLOWED_BY_HEAT: Final = 0x20 | 0x40
_SLOWED_BY_POWER: Final = 0x4 | 0x80
"""Bits of the mask of clock event reasons."""
_LARGEST_READING: Final = 1 << 40
"""A larger number is no reading of a GPU."""


def read_gpus(text: str) -> Iterator[SmiGpu]:
    """Yield the readings of each GPU whose row can be read. Raises ValueError if the output is about no GPU."""
    for gpu, row in read_rows(text, len(_FIELDS) + 1).items():
        if isinstance(row, str):
            continue
        # in the order of `_FIELDS`, without the address
        use, clock, temperature, ecc, generation, width, power_limit, reasons = row
        mask = _parse_mask(reasons)
        yield SmiGpu(
            gpu,
            utilization_percent=_parse_reading(use),
            clock_mhz=_parse_reading(clock),
            temperature_c=_parse_reading(temperature),
            ecc_uncorrected=_parse_reading(ecc),
            pcie_generation=_parse_reading(generation),
            pcie_width=_parse_reading(width),
            power_limit_w=_parse_reading(power_limit.partition(".")[0]),  # 700.00 is printed for 700 W
            slowed_by_heat=None if mask is None else bool(mask & _SLOWED_BY_HEAT),
            slowed_by_power=None if mask is None else bool(mask & _SLOWED_BY_POWER),
        )


def _parse_reading(cell: str) -> int | None:
    """Return the number in a cell; None for any other text: the GPU does not report the value, which is not zero."""
    return int(cell) if cell.isascii() and cell.isdecimal() and int(cell) < _LARGEST_READING else None


def _parse_mask(cell: str) -> int | None:
    try:
        return int(cell, 16) if cell.startswith("0x") else None
    except ValueError:
        return None


INDEX: Final = "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader"
VGPUS: Final = "nvidia-smi vgpu -q"
INSTANCES: Final = "nvidia-smi mig -lgi"
_NO_VGPU_MODE: Final = "No supported devices in vGPU mode"
_GPU: Final = re.compile(r"GPU (?P<address>[^\s:]+:\S+)")
_LINE: Final = re.compile(r"\s+(?P<key>[^:]+?)\s*: (?P<value>.*)")
_INSTANCE: Final = re.compile(r"\|\s*(\d+)\s+MIG \S+\s+\d+\s+(\d+)\s+(\d+):(\d+)\s*\|")

Instances = Mapping[tuple[PciAddress, str], tuple[int, int]]
"""By GPU and id of a GPU instance, the memory slice at which it starts, and how many it has."""
FIELDS: Final = ("pci.bus_id", "mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending")
QUERY: Final = f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader"
_MODES: Final = {"enabled": True, "disabled": False}
OTHER_GPUS: Final = (14, 15)
"""Exit statuses that may be about another GPU: an infoROM is corrupted, a GPU is lost (NVIDIA nvidia-smi manual, RETURN
VALUE)."""
READING_S: Final = 20.0
"""The limit of each command of `readings`: hundreds of hosts are read every twenty minutes."""

VGPU_USE_S: Final = 10.0
"""The limit of the command of `vgpu_use`: its answer is soon too old."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """Runs nvidia-smi on hosts."""

    ssh: Ssh

    def mig(self, host: str) -> tuple[SmiState, ...]:
        """Return MIG mode, ECC and health of each GPU. Raises Refused if the host or its answer cannot be read."""
        reply = self.ssh.run(host, QUERY)
        states = {state.address: state for state in self._read(host, reply, _states)}
        for address, health in self._details(host).items():
            if address in states:
                states[address] = replace(states[address], health=states[address].health.merge(health))
        return tuple(states.values())

    def _details(self, host: str) -> Mapping[PciAddress, GpuHealth]:
        """Return the health that only `nvidia-smi -q -x` reports; {} if it fails: the modes are known without it."""
        try:
            return read_details(self.ssh.run(host, DETAILS, limit_s=READING_S).stdout)
        except (Refused, OutcomeUnknown):
            return {}

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        """Return the vGPUs that run on the host. Raises Refused if the host or its answer cannot be read."""
        listing = self.ssh.run(host, VGPUS)
        instances: Instances = {}
        if has_instances(listing.stdout):
            index, table = self.ssh.run(host, INDEX), self.ssh.run(host, INSTANCES)
            instances = read_instances(index.stdout, table.stdout)
            failed = next((reply for reply in (table, index) if reply.exit_status), None)
            if failed is not None and not instances:
                raise _exit_refusal(host, failed)
        return self._read(host, listing, lambda text: read_vgpus(text, instances))

    def vgpu_use(self, host: str) -> tuple[SmiVgpu, ...]:
        """Return the vGPUs that run on the host now and their use, without placements.

        Runs only one command, because a rotation waits for it before it suspends a desktop. Raises the errors of
        `readings`.
        """
        return self._vgpu_use(host, VGPU_USE_S)

    def _vgpu_use(self, host: str, limit_s: float) -> tuple[SmiVgpu, ...]:
        reply = self.ssh.run(host, VGPUS, limit_s=limit_s)
        return self._read(host, reply, lambda text: read_vgpus(text, {}))

    def readings(self, host: str) -> SmiReadings:
        """Return the current readings of its GPUs and vGPUs.

        Raises Refused if the host or its answer cannot be read, and OutcomeUnknown if an answer does not come in time.
        """
        reply = self.ssh.run(host, GPUS, limit_s=READING_S)
        if reply.exit_status and not _names_gpus(reply.stdout):
            # a driver that is older than R535 does not know one of these fields
            reply = self.ssh.run(host, GPUS_BEFORE_R535, limit_s=READING_S)
        return SmiReadings(self._read(host, reply, read_gpus), self._vgpu_use(host, READING_S))

    def _read(self, host: str, reply: CommandResult, read: Callable[[str], Iterable[Answer]]) -> tuple[Answer, ...]:
        """Return what can be read of an answer, even if its exit status reports a problem of another GPU.

        Raises Refused for an answer without any GPU.
        """
        # sentences about a single GPU may be printed as errors; any other error text is not part of the answer
        text = f"{reply.stdout}\n{reply.stderr}" if read_notices(reply.stderr) else reply.stdout
        try:
            return tuple(read(text))
        except ValueError as error:
            if reply.exit_status:
                raise _exit_refusal(host, reply) from error
            hint = "run nvidia-smi on the host; gpuops help mig shows what gpuops reads"
            raise Refused(f"{host}: gpuops cannot read the output of nvidia-smi: {error}", hint=hint) from error

    def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
        """Set the mode, GPU by GPU. Raises Refused with nvidia-smi's message, and OutcomeUnknown."""
        for gpu in gpus:
            reply = self.ssh.run(host, f"nvidia-smi -i {gpu} -mig {int(on)}")
            # "Enabled MIG Mode for GPU 00000000:36:00.0" (NVIDIA MIG User Guide)
            reports_success = f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU" in reply.stdout
            if reply.exit_status and not (reply.exit_status in OTHER_GPUS and reports_success):
                raise _exit_refusal(f"{host} {gpu}", reply)


def _names_gpus(text: str) -> bool:
    """Return whether the output has a sentence or a row about a GPU."""
    return bool(read_notices(text)) or any(PciAddress.parse_or_none(row.partition(",")[0]) for row in text.splitlines())


def _exit_refusal(subject: str, reply: CommandResult) -> Refused:
    """Return the error for a failed nvidia-smi. `subject`: the host, or the host and the GPU."""
    message = f"{subject}: nvidia-smi failed with exit status {reply.exit_status}: {_first_line(reply)}"
    return Refused(message, hint="repair what nvidia-smi reports on the host, then run the command again")


def _states(text: str) -> Iterator[SmiState]:
    """Yield the state of each GPU that has a row or a sentence. Raises ValueError for an answer without any."""
    notices = read_notices(text)
    rows = read_rows(text, len(FIELDS))
    for address, row in rows.items():
        yield _state(address, row, notices.pop(address, HEALTHY))
    for address, health in notices.items():
        yield SmiState(address, None, None, unread=", ".join(health.problems), health=health)


def _state(address: PciAddress, row: list[str] | str, health: GpuHealth) -> SmiState:
    """Return the state of a GPU by its row of `QUERY`, or `row` as the reason why there are no usable cells."""
    if isinstance(row, str):
        return SmiState(address, None, None, unread=row, health=health)
    words = [word_of(cell) for cell in row]
    current, pending, ecc, ecc_pending = (_MODES.get(word.lower()) for word in words)
    # a MIG mode (the first two cells) that is neither a mode nor "absent" is an error in place of the value
    unread = next((word for word in words[:2] if word.lower() not in (*_MODES, *ABSENT)), None)
    health = health.merge(health_by_cells(words))
    if unread is not None:
        reason = shorten(unread) or "nothing"
        return SmiState(address, None, None, ecc, ecc_pending, reason, health)
    return SmiState(address, current, pending, ecc, ecc_pending, health=health)


def _first_line(reply: CommandResult) -> str:
    """Return the first line of its output, errors first."""
    lines = (line.strip() for line in (*reply.stderr.splitlines(), *reply.stdout.splitlines()) if line.strip())
    return shorten(next(lines, ""), 200)


def has_instances(listing: str) -> bool:
    """Return whether a vGPU of the listing runs in a GPU instance."""
    lines = filter(None, map(_LINE.fullmatch, listing.splitlines()))
    return any(line["key"] == "GPU Instance ID" and line["value"].strip() != "N/A" for line in lines)


def read_vgpus(listing: str, instances: Instances) -> Iterator[SmiVgpu]:
    """Yield each vGPU of `nvidia-smi vgpu -q`.

    If a vGPU cannot be read, all vGPUs of its GPU are left out: the GPU would seem emptier than it is. Raises
    ValueError for any other text, and if no GPU remains.
    """
    by_gpu: dict[PciAddress, list[SmiVgpu | None]] = {}
    for gpu, facts in _blocks(listing):
        vgpus = by_gpu.setdefault(gpu, [])
        if facts is not None:
            vgpus.append(_vgpu(gpu, facts, instances))
    if not by_gpu and not read_notices(listing) and listing.strip() != _NO_VGPU_MODE:
        raise ValueError("it lists no GPU")
    readable = {gpu: vgpus for gpu, vgpus in by_gpu.items() if None not in vgpus}
    if by_gpu and not readable:
        raise ValueError(f"a vGPU of {next(iter(by_gpu))} has no name")
    for vgpus in readable.values():
        yield from (vgpu for vgpu in vgpus if vgpu is not None)


def _blocks(listing: str) -> Iterator[tuple[PciAddress, dict[str, str] | None]]:
    """Yield (GPU, None) for each GPU, then (GPU, facts) for each of its vGPUs.

    If the address in a GPU header cannot be read, the lines up to the next header are skipped.
    """
    gpu: PciAddress | None = None
    facts: dict[str, str] | None = None
    for line in listing.splitlines():
        header, fact = _GPU.fullmatch(line.strip()), _LINE.fullmatch(line)
        if header is not None:
            if gpu is not None and facts is not None:
                yield gpu, facts
            gpu, facts = PciAddress.parse_or_none(header["address"]), None
            if gpu is not None:
                yield gpu, None
        elif fact is not None and fact["key"] == "vGPU ID":
            if gpu is not None and facts is not None:
                yield gpu, facts
            facts = {}
        elif fact is not None and facts is not None:
            facts.setdefault(fact["key"], fact["value"].strip())
    if gpu is not None and facts is not None:
        yield gpu, facts


def _vgpu(gpu: PciAddress, facts: Mapping[str, str], instances: Instances) -> SmiVgpu | None:
    """Return the vGPU; None if the name of its VM or profile is missing."""
    if not facts.get("VM Name") or not facts.get("vGPU Name"):
        return None
    # nvidia-smi prints GRID A100-20C; the name in vCenter is grid_a100-20c
    profile = facts["vGPU Name"].lower().replace(" ", "_")
    instance, placement = facts.get("GPU Instance ID", "N/A"), facts.get("Placement ID", "N/A")
    # the number of memory slices is known only for a vGPU in a GPU instance
    start, slices = instances.get((gpu, instance), (None, None)) if instance != "N/A" else (_number(placement), None)
    return SmiVgpu(
        gpu,
        facts["VM Name"],
        profile,
        start,
        _percent(facts.get("Gpu", "")),
        _percent(facts.get("Encoder", "")),
        _read_licence(facts.get("License Status", "")),
        slices,
    )


def read_instances(index: str, table: str) -> Instances:
    """Return the GPU instances in `table`, the output of `nvidia-smi mig -lgi`.

    The table names GPUs by their index. `index` is the output of the command `INDEX`: the address of each index.
    """
    addresses = {}
    for row in filter(str.strip, index.splitlines()):
        number, _, text = row.partition(",")
        address = PciAddress.parse_or_none(text)
        if address is not None:
            addresses[number.strip()] = address
    rows = (match.groups() for match in map(_INSTANCE.match, table.splitlines()) if match)
    return {
        (addresses[gpu], instance): (int(start), int(size)) for gpu, instance, start, size in rows if gpu in addresses
    }


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _percent(text: str) -> int | None:
    percent = _number(text.removesuffix("%").strip())
    return percent if percent is not None and percent <= 100 else None


def _read_licence(text: str) -> bool | None:
    word = text.partition(" ")[0].lower()
    return {"licensed": True, "unlicensed": False}.get(word)

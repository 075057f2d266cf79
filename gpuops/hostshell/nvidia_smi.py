"""Reads and switches the MIG mode of a host's GPUs, and reads how they and their vGPUs are, by nvidia-smi over SSH.

Implements `HostShell` of `execute`.

Source: NVIDIA nvidia-smi manual (`--query-gpu`, CSV; `-mig`): addresses have a domain of eight digits, a GPU without
MIG says `[N/A]`, and a mode that waits for a reset of the GPU is pending. Other words in brackets are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.hostshell.gpu_details import DETAILS, read_details
from gpuops.hostshell.gpu_lines import (
    ABSENT,
    health_by_cells,
    read_notices,
    read_rows,
    shorten,
    word_of,
)
from gpuops.hostshell.gpu_readings import GPUS, GPUS_BEFORE_R535, read_gpus
from gpuops.hostshell.ssh import CommandResult, Ssh
from gpuops.hostshell.vgpu_listing import INDEX, INSTANCES, VGPUS, Instances, has_instances, read_instances, read_vgpus
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.devices.gpu_health import HEALTHY, GpuHealth
from gpuops.model.vcenter.host_settings import SmiReadings, SmiState, SmiVgpu

FIELDS: Final = ("pci.bus_id", "mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending")
QUERY: Final = f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader"
_MODES: Final = {"enabled": True, "disabled": False}
OTHER_GPUS: Final = (14, 15)
"""Exit statuses that may speak of another GPU than the one that was meant: an infoROM is corrupted, a GPU is lost
(NVIDIA nvidia-smi manual, RETURN VALUE)."""
READING_S: Final = 20.0
"""The limit of each command of `readings`: hundreds of hosts are read every twenty minutes."""

VGPU_USE_S: Final = 10.0
"""The limit of the command of `vgpu_use`: the facts of a look are soon too old."""


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """The nvidia-smi of hosts that are entered so."""

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
        """Return the health that only the long answer reports; {} if it does not come: the modes are known without."""
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
            if failed := next((reply for reply in (table, index) if reply.exit_status and not instances), None):
                raise _exit_refusal(host, failed)
        return self._read(host, listing, lambda text: read_vgpus(text, instances))

    def vgpu_use(self, host: str) -> tuple[SmiVgpu, ...]:
        """Return the vGPUs that run on the host now and their use, without placements.

        It takes one command, since a look at a desktop waits for it. Raises the errors of `readings`.
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
        """Return what can be read of an answer, whatever its exit status says of other GPUs.

        Raises Refused for an answer without any GPU.
        """
        try:
            return tuple(read(f"{reply.stdout}\n{reply.stderr}" if read_notices(reply.stderr) else reply.stdout))
        except ValueError as error:
            if reply.exit_status:
                raise _exit_refusal(host, reply) from error
            raise Refused(f"{host}: nvidia-smi answers what this gpuops cannot read: {error}") from error

    def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
        """Set the mode, GPU by GPU. Raises Refused with nvidia-smi's message, and OutcomeUnknown."""
        for gpu in gpus:
            reply = self.ssh.run(host, f"nvidia-smi -i {gpu} -mig {int(on)}")
            # "Enabled MIG Mode for GPU 00000000:36:00.0" (NVIDIA MIG User Guide)
            said_done = f"{'Enabled' if on else 'Disabled'} MIG Mode for GPU" in reply.stdout
            if reply.exit_status and not (reply.exit_status in OTHER_GPUS and said_done):
                raise Refused(f"{host} {gpu}: nvidia-smi ends with {reply.exit_status}: {_first_line(reply)}")


def _names_gpus(text: str) -> bool:
    """Return whether the answer is about a GPU, whatever its exit status."""
    return bool(read_notices(text)) or any(PciAddress.parse_or_none(row.partition(",")[0]) for row in text.splitlines())


def _exit_refusal(host: str, reply: CommandResult) -> Refused:
    return Refused(f"{host}: nvidia-smi ends with {reply.exit_status}: {_first_line(reply)}")


def _states(text: str) -> Iterator[SmiState]:
    """Yield the state of each GPU that has a row or a sentence. Raises ValueError for an answer without any."""
    notices = read_notices(text)
    rows = read_rows(text, len(FIELDS))
    for address, row in rows.items():
        yield _state(address, row, notices.pop(address, HEALTHY))
    for address, health in notices.items():
        yield SmiState(address, None, None, unread=", ".join(health.problems), health=health)


def _state(address: PciAddress, row: list[str] | str, health: GpuHealth) -> SmiState:
    if isinstance(row, str):
        return SmiState(address, None, None, unread=row, health=health)
    words = [word_of(cell) for cell in row]
    current, pending, ecc, ecc_pending = (_MODES.get(word.lower()) for word in words)
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

"""Reads and switches the MIG mode of a host's GPUs, and reads how they and their vGPUs are, by nvidia-smi over SSH.

Implements `HostShell` of `execute`.

Source: NVIDIA nvidia-smi manual (`--query-gpu`, CSV; `-mig`): addresses have a domain of eight digits, a GPU without
MIG says `[N/A]`, and a mode that waits for a reset of the GPU is pending.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from gpuops.errors import Refused, UsageError
from gpuops.hostshell.gpu_readings import GPUS, GPUS_BEFORE_R535, read_gpus
from gpuops.hostshell.ssh import COMMAND_S, CommandResult, Ssh
from gpuops.hostshell.vgpu_listing import INDEX, INSTANCES, VGPUS, Instances, has_instances, read_instances, read_vgpus
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.vcenter.host_settings import SmiReadings, SmiState, SmiVgpu

FIELDS: Final = ("pci.bus_id", "mig.mode.current", "mig.mode.pending", "ecc.mode.current", "ecc.mode.pending")
QUERY: Final = f"nvidia-smi --query-gpu={','.join(FIELDS)} --format=csv,noheader"
_MODES: Final = {"enabled": True, "disabled": False}
READING_S: Final = 20.0
"""So long one of the questions of `readings` may take: hundreds of hosts are asked every twenty minutes."""

VGPU_USE_S: Final = 10.0
"""So long the question of `vgpu_use` may take: what a look says is old soon."""


@dataclass(frozen=True, slots=True)
class NvidiaSmi:
    """The nvidia-smi of hosts that are entered so."""

    ssh: Ssh

    def mig(self, host: str) -> tuple[SmiState, ...]:
        """MIG mode of each GPU. Raises Refused where it cannot be asked, or answers what nobody can read."""
        return tuple(_states(self._told(host, QUERY), host))

    def vgpus(self, host: str) -> tuple[SmiVgpu, ...]:
        """The vGPUs that run on the host. Raises Refused where it cannot be asked, or answers what nobody can read."""
        listing = self._told(host, VGPUS)
        instances: Instances = {}
        try:
            if has_instances(listing):
                instances = read_instances(self._told(host, INDEX), self._told(host, INSTANCES))
            return tuple(read_vgpus(listing, instances))
        except ValueError as error:
            raise Refused(f"{host}: nvidia-smi answers what this gpuops cannot read: {error}") from error

    def vgpu_use(self, host: str) -> tuple[SmiVgpu, ...]:
        """The vGPUs that run on the host now and how much they are used, without where they lie: by one question, for
        which a look at a desktop waits. Raises as `readings` does."""
        try:
            return tuple(read_vgpus(self._told(host, VGPUS, VGPU_USE_S), {}))
        except ValueError as error:
            raise Refused(f"{host}: nvidia-smi answers what this gpuops cannot read: {error}") from error

    def readings(self, host: str) -> SmiReadings:
        """How its GPUs and vGPUs are now. Raises Refused where it cannot be asked, or answers what nobody can read,
        and OutcomeUnknown where an answer does not come in time."""
        first = self.ssh.run(host, GPUS, limit_s=READING_S)
        # a driver that is older than R535 does not know one of these fields, and its exit status says so
        told = self._told(host, GPUS_BEFORE_R535, READING_S) if first.exit_status else first.stdout
        try:
            return SmiReadings(tuple(read_gpus(told)), tuple(read_vgpus(self._told(host, VGPUS, READING_S), {})))
        except ValueError as error:
            raise Refused(f"{host}: nvidia-smi answers what this gpuops cannot read: {error}") from error

    def _told(self, host: str, command: str, limit_s: float = COMMAND_S) -> str:
        reply = self.ssh.run(host, command, limit_s=limit_s)
        if reply.exit_status:
            raise Refused(f"{host}: nvidia-smi ends with {reply.exit_status}: {_first(reply)}")
        return reply.stdout

    def set_mig(self, host: str, gpus: Collection[PciAddress], *, on: bool) -> None:
        """Asks for the mode, GPU by GPU. Raises Refused, naming what nvidia-smi said, and OutcomeUnknown."""
        for gpu in gpus:
            reply = self.ssh.run(host, f"nvidia-smi -i {gpu} -mig {int(on)}")
            if reply.exit_status:
                raise Refused(f"{host} {gpu}: nvidia-smi ends with {reply.exit_status}: {_first(reply)}")


def _states(told: str, host: str) -> Iterator[SmiState]:
    """One state a GPU. Raises Refused for an answer that nobody can read, or that contradicts itself."""
    seen: dict[PciAddress, SmiState] = {}
    for line in filter(str.strip, told.splitlines()):
        try:
            [row] = csv.reader([line])
        except (csv.Error, ValueError) as error:
            raise _unreadable(line, host) from error
        state = _state(row, host)
        if seen.setdefault(state.address, state) != state:
            raise Refused(f"{host}: nvidia-smi names {state.address} twice, and not alike: {_cut(line)!r}")
    yield from seen.values()


def _state(row: list[str], host: str) -> SmiState:
    try:
        address, *modes = (cell.strip().lower() for cell in row)
        current, pending, ecc, ecc_pending = (_MODES.get(mode) for mode in modes)
        return SmiState(PciAddress.parse(address), current, pending, ecc, ecc_pending)
    except (ValueError, UsageError) as error:
        raise _unreadable(",".join(row), host) from error


def _unreadable(line: str, host: str) -> Refused:
    return Refused(f"{host}: nvidia-smi answers what this gpuops cannot read: {_cut(line, 80)!r}")


def _first(reply: CommandResult) -> str:
    """The first line of what it said."""
    said = (line.strip() for line in (*reply.stderr.splitlines(), *reply.stdout.splitlines()) if line.strip())
    return _cut(next(said, ""))


def _cut(line: str, most: int = 200) -> str:
    return line if len(line) <= most else f"{line[:most]}… ({len(line)} characters)"

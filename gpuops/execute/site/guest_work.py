"""Commands in guests: the port that clusters, jobs, measurements and pools need, and the runner of their scripts.

Checkpoint hooks of nights are steps of the executor (`RunInGuest`). Scripts are not: one of them may be sent again at
any time, and the guest decides what is still to be done. What must outlive a killed call is on disk before they start:

- containers of jobs: the job's record `BEGUN`, `STOPPING` ... in the store of jobs (`gpuops/extras/jobs/job_run.py`)
- hooks of pools: the lease in the pool's book (`gpuops/extras/lending/pool_commands.py`)
- programs over clusters: a step of the executor (`gpuops/extras/clusters/cluster_runs.py`), and a mark in each guest by
  which the next run ends the processes
- measurements: the saved measurement (`kept_measurement.py`); they run in VMs of their own, whose creation and removal
  are steps. The next call powers these VMs off, which ends a command that still runs
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.model.guests.guest import CommandEnd, RunningCommand
from gpuops.model.vcenter.target import Secret, without_secrets


@runtime_checkable
class GuestWork(Protocol):
    """A vCenter that runs commands in guests."""

    @property
    def is_simulated(self) -> bool:
        """Whether it is the simulator of gpuops: measurements in its guests do not show a network."""
        ...

    def require_made(self, vm: str, name: str, notes: str) -> None:
        """Raise Refused for a VM with another name or without these notes."""
        ...

    def start_command(
        self, vm: str, name: str, command: str, op_id: str, prefix: str = "", refusals: int = 1
    ) -> RunningCommand:
        """Start a shell command in a guest, in a temporary directory whose name begins with `prefix`. `refusals`: after
        so many guests in a row have refused the login, it is tried in no other guest.

        Raises Refused without a login for guests, OutcomeUnknown.
        """
        ...

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        """Yield the end of each command; a command that still runs after `timeout_s` seconds is terminated."""
        ...

    def command_end(self, command: RunningCommand) -> CommandEnd | None:
        """Return how it ended; None = it still runs."""
        ...

    def guest_file_if_there(self, vm: str, name: str, path: str) -> bytes | None:
        """Return the content of a file of the guest; None = it does not exist."""
        ...

    def put_guest_file(self, vm: str, name: str, path: str, content: Secret) -> None:
        """Write a file of the guest, whose directory exists; replace it if it exists. Raises Refused."""
        ...

    def guest_addresses(self, vm: str) -> Mapping[str, tuple[str, ...]]:
        """Return the addresses that the guest reports, unchecked, by name of the network."""
        ...


@runtime_checkable
class KnowsSecrets(Protocol):
    """A port that has the passwords of a vCenter and its guests."""

    @property
    def secrets(self) -> tuple[Secret, ...]: ...


def guest_work(vcenter: Vcenter) -> GuestWork:
    """Return the vCenter as one that runs commands in guests. Raises Refused for a saved inventory."""
    if not isinstance(vcenter, GuestWork):
        raise Refused(
            "a saved inventory cannot run commands in guests", hint="use --vcenter ADDRESS in place of --inventory"
        )
    return vcenter


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """Runs scripts in guests, each in a temporary directory of its own whose name begins with `prefix`."""

    port: GuestWork
    prefix: str
    refusals: int = 1
    """After so many guests in a row have refused the login, it is tried in no other guest."""

    def start(self, vm: str, name: str, command: str) -> RunningCommand:
        """Start a command in a guest. Raises as `GuestWork.start_command`."""
        op_id = f"{self.prefix}{secrets.token_hex(8)}"
        return self.port.start_command(vm, name, command, op_id, self.prefix, self.refusals)

    def wait(self, command: RunningCommand, limit_s: float) -> CommandEnd:
        """Return how a command ended; it is ended after `limit_s` seconds. Raises OutcomeUnknown, NotConnected."""
        for end in self.port.wait_for_commands([command], limit_s):
            return end
        raise OutcomeUnknown(
            f"{command.name}: its guest did not report that a script ended", hint="run the command again"
        )

    def failure(self, end: CommandEnd) -> str:
        """Return `failure_reason`, with the passwords that gpuops knows removed from it."""
        return failure_reason(end, self.port.secrets if isinstance(self.port, KnowsSecrets) else ())


def failure_reason(end: CommandEnd, known_secrets: Sequence[Secret] = ()) -> str:
    """Return why a command failed, with the last line that it printed, without these secrets."""
    last_lines = [without_secrets(line, known_secrets)[:200] for line in end.printed.strip().splitlines()[-1:]]
    return ": ".join((end.error.removeprefix(f"{end.name}: ") or "it failed", *last_lines))

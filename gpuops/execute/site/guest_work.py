"""Commands in guests: the port that clusters, jobs and pools need of a vCenter, and the runner of their scripts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gpuops.errors import OutcomeUnknown, Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.vcenter.target import Secret, without_secrets


@runtime_checkable
class GuestWork(Protocol):
    """A vCenter in whose guests commands are run."""

    @property
    def simulated(self) -> bool:
        """Whether it is gpuops' own simulator: what is measured in its guests says nothing of a network."""
        ...

    def start_command(
        self, vm: str, name: str, command: str, op_id: str, prefix: str = "", refusals: int = 1
    ) -> RunningCommand:
        """A command of a shell on its way in a guest, in a temporary directory whose name begins so. `refusals`: after
        so many guests in a row that refuse the login it is tried in no other.

        Raises Refused without a login for guests, OutcomeUnknown.
        """
        ...

    def wait_for_commands(self, commands: Sequence[RunningCommand], timeout_s: float) -> Iterator[CommandEnd]:
        """How each of them ended, as it is seen; one that still runs when the time is up is ended."""
        ...

    def command_end(self, command: RunningCommand) -> CommandEnd | None:
        """How it ended; None = it runs."""
        ...

    def guest_file_if_there(self, vm: str, name: str, path: str) -> bytes | None:
        """What is in that file of the guest; None = there is none."""
        ...

    def guest_addresses(self, vm: str) -> Mapping[str, tuple[str, ...]]:
        """By name of the network, the addresses that the guest tells, whatever they are."""
        ...


@runtime_checkable
class KnowsSecrets(Protocol):
    """What knows the passwords that gpuops has for a vCenter and its guests."""

    @property
    def secrets(self) -> tuple[Secret, ...]: ...


def guest_work(vcenter: Vcenter) -> GuestWork:
    """The same vCenter, as one in whose guests commands are run. Raises Refused for a saved inventory."""
    if not isinstance(vcenter, GuestWork):
        raise Refused("a saved inventory runs nothing", hint="use --vcenter")
    return vcenter


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """Runs scripts in guests, each in a temporary directory of its own whose name begins with `prefix`."""

    port: GuestWork
    prefix: str
    refusals: int = 1
    """After so many guests in a row that refuse the login, it is tried in no other guest."""

    def start(self, vm: str, name: str, command: str) -> RunningCommand:
        """Start a command in a guest. Raises as `GuestWork.start_command`."""
        op_id = f"{self.prefix}{secrets.token_hex(8)}"
        return self.port.start_command(vm, name, command, op_id, self.prefix, self.refusals)

    def wait(self, command: RunningCommand, limit_s: float) -> CommandEnd:
        """Return how a command ended; it is ended after `limit_s` seconds. Raises OutcomeUnknown, NotConnected."""
        for end in self.port.wait_for_commands([command], limit_s):
            return end
        raise OutcomeUnknown(f"{command.name}: its guest tells no end of a script", hint="the same again finds out")

    def failure(self, end: CommandEnd) -> str:
        """Return `failure_reason` without the passwords that gpuops has."""
        return failure_reason(end, self.port.secrets if isinstance(self.port, KnowsSecrets) else ())


def failure_reason(end: CommandEnd, known_secrets: Sequence[Secret] = ()) -> str:
    """Return why a command failed, with the last line that it printed, which has none of these secrets."""
    last_lines = [without_secrets(line, known_secrets)[:200] for line in end.printed.strip().splitlines()[-1:]]
    return ": ".join((end.error.removeprefix(f"{end.name}: ") or "it failed", *last_lines))

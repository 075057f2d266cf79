"""What runs over clusters, and pools, need of a vCenter beside what any run needs: commands in guests, their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from gpuops.errors import Refused
from gpuops.execute.site.ports import Vcenter
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.vcenter.target import Secret


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

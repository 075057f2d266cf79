"""Gets the guests of a cluster ready for a run, and takes out of them again what it made, in all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, Refused
from gpuops.execute.site.guest_work import GuestWork, ScriptRunner
from gpuops.guest_scripts import cluster_run as scripts
from gpuops.guest_scripts.commands import home_directory
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.workloads.cluster import Member
from gpuops.plan.cluster_run.launch import Launch

SCRIPT_S: Final = 120.0
"""What one of the scripts may take in a guest."""
ENDED_S: Final = 20.0
"""How long a launcher whose processes were ended is waited for."""


class NotEntered(Refused):
    """The first guest lets nobody in: nothing was started in any."""


@dataclass(frozen=True, slots=True)
class ReadyGuests:
    """What the preparation has told."""

    home: str
    """Path of the home directory in the first guest."""
    known_hosts: tuple[str, ...] = ()
    """Lines of a file of ssh, by which the first guest knows the others."""


def prepare(launch: Launch, port: GuestWork) -> ReadyGuests:
    """Has every guest ready, and whatever an earlier run left in any guest of the cluster ended and removed.

    Raises NotEntered; Refused, naming the guest and its reason, or where there is no login for guests; NotConnected.
    """
    every = (*launch.members, *launch.unused)

    def script(each: Member) -> str:
        used = each not in launch.unused
        return scripts.prepare(launch, first=each is every[0]) if used else scripts.step_command("end_earlier", launch)

    ends = _each(every, port, script, entering=True)
    home = home_directory(ends[0].printed)
    if not launch.over_ssh:
        return ReadyGuests(home)
    known = tuple(line for each in launch.members for line in _known_hosts(each, launch.ssh_port, port))
    key = scripts.public_key(ends[0].printed)
    _each(launch.members, port, lambda each: scripts.step_command("admit", launch, key))
    return ReadyGuests(home, known)


def clear(launch: Launch, port: GuestWork, unfinished: Sequence[RunningCommand] = ()) -> tuple[str, ...]:
    """Ends what runs and removes what the run made; what could not be, by guest, with the reason. Raises NotConnected.

    Every guest is stopped before the first is cleaned: what still runs there may write again.
    """
    left: dict[str, str] = {}

    def each(script: str, what: str) -> None:
        for end in _ends(launch.members, port, lambda member: script):
            if end.error:
                left.setdefault(end.name, f"{end.name}: {what}: {end.error.removeprefix(f'{end.name}: ')}")

    each(scripts.step_command("stop", launch), "processes of it may run on")
    # their directories are removed by that; one that did not end had no mark yet when the others were ended
    if [end for end in port.wait_for_commands(unfinished, ENDED_S) if end.exit_code is None]:
        each(scripts.step_command("stop", launch), "processes of it may run on")
    each(scripts.step_command("clean", launch), "its files may stay")
    return tuple(left.values())


def start(launch: Launch, node: int, known_hosts: tuple[str, ...], port: GuestWork) -> RunningCommand:
    """The launcher of that node on its way. Raises OutcomeUnknown when a reply was lost, Refused."""
    return _start(launch.members[node], scripts.start(launch, node, known_hosts), port)


def look(launch: Launch, script: str, port: GuestWork) -> str:
    """What a short script prints in the first guest. Raises Refused."""
    return _each(launch.members[:1], port, lambda each: script)[0].printed


def _each(
    members: Sequence[Member], port: GuestWork, script_of: Callable[[Member], str], *, entering: bool = False
) -> tuple[CommandEnd, ...]:
    """How it ended in each guest, in the order of ranks. Raises Refused where it did not do well."""
    ends = {end.name: end for end in _ends(members, port, script_of, entering=entering)}
    failed = next((end for end in ends.values() if end.error), None)
    if failed is not None:
        raise Refused(f"{failed.name}: {_runner(port).failure(failed)}", hint="look at the guest")
    return tuple(ends[each.name] for each in members)


def _ends(
    members: Sequence[Member], port: GuestWork, script_of: Callable[[Member], str], *, entering: bool = False
) -> Iterator[CommandEnd]:
    """How it ended in each guest, also where it could not be started. Raises NotConnected, Refused for no login.

    `entering`: it is the first of a run, and raises NotEntered where the first guest does not take it.
    """
    started = []
    for each in members:
        try:
            started.append(_start(each, script_of(each), port))
        except NotConnected:
            raise
        except GpuopsError as error:
            if entering and each is members[0] and not isinstance(error, OutcomeUnknown):
                raise NotEntered(error.message, hint=error.hint) from error
            yield CommandEnd(each.name, error=error.line)
    yield from port.wait_for_commands(started, SCRIPT_S)


def _start(member: Member, script: str, port: GuestWork) -> RunningCommand:
    return _runner(port).start(member.vm, member.name, script)


def _runner(port: GuestWork) -> ScriptRunner:
    return ScriptRunner(port, scripts.PREFIX)


def _known_hosts(member: Member, ssh_port: int, port: GuestWork) -> Iterator[str]:
    """`10.1.2.11 ssh-ed25519 AAAA...`, for each key of the guest's SSH server. Raises Refused where it has none.

    An address with another port than 22 stands in brackets (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").
    """
    found, called = False, member.address if ssh_port == 22 else f"[{member.address}]:{ssh_port}"
    for path in scripts.HOST_KEYS:
        text = port.guest_file_if_there(member.vm, member.name, path)
        if text is not None:
            found = True
            yield f"{called} {scripts.public_key(text.decode('ascii', 'replace'))}"
    if not found:
        missing = f"{member.name}: its guest has no key of an SSH server ({scripts.HOST_KEYS[0]})"
        raise Refused(missing, hint="install openssh-server in the template")

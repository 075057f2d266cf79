"""Prepares the guests of a cluster for a run by `cluster_run.sh`, and removes its files and processes.

All guests of a cluster work at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, ProtocolError, Refused
from gpuops.execute.site.guest_work import GuestWork, ScriptRunner
from gpuops.extras.clusters.launch import MARK, Launch
from gpuops.guest_scripts.commands import home_directory, shell_command
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.workloads.cluster import Member

PART: Final = 256 * 1024
"""Bytes of output that are fetched at once."""
SHOWN: Final = 16 * 1024 * 1024
"""Bytes of output that are fetched at most; a guest keeps no more than that of what is not fetched."""
PREFIX: Final = "gpuops-cluster-run-"
"""Prefix of temporary directories in guests, and of ids of operations."""
HOST_KEYS: Final = tuple(f"/etc/ssh/ssh_host_{kind}_key.pub" for kind in ("ed25519", "ecdsa", "rsa"))
_KEY: Final = re.compile(r"\b((?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+={0,2})(?:\s|$)")


def step_command(action: str, launch: Launch, *arguments: str) -> str:
    """Return the command for an action of `cluster_run.sh` that prepares or clears a guest."""
    variables = {f"{MARK}_STEP": launch.mark}
    return shell_command("cluster_run", action, launch.cluster, launch.run, *arguments, variables=variables)


def prepare_command(launch: Launch, *, first: bool) -> str:
    """Return the command that prepares a guest, the first one with a key pair if the launcher uses SSH."""
    return step_command("prepare_key" if first and launch.over_ssh else "prepare", launch)


def start_command(launch: Launch, node: int, known_hosts: Sequence[str]) -> str:
    """Return the command that runs the launcher of that node until it ends."""
    port = str(launch.ssh_port) if launch.over_ssh else ""
    files = "".join(f"{line}\n" for line in known_hosts), launch.hostfile
    words = shlex.split(launch.command_lines[node])
    variables = {MARK: launch.mark, **launch.environment}
    arguments = (launch.cluster, launch.run, port, *files, str(PART), str(SHOWN), *words)
    return shell_command("cluster_run", "start", *arguments, variables=variables)


def public_key(text: str) -> str:
    """Return the key of a line that ssh-keygen wrote, without its comment. Raises ProtocolError for another text."""
    match = _KEY.search(text)
    if match is None:
        raise ProtocolError("its guest tells no public key", hint="install openssh-client in the template")
    return match[1]


SCRIPT_S: Final = 120.0
"""Seconds that a script may take in a guest."""
ENDED_S: Final = 20.0
"""Seconds to wait for a launcher after its processes were ended."""


class NotEntered(Refused):
    """The first guest refuses the login: nothing was started in any guest."""


@dataclass(frozen=True, slots=True)
class ReadyGuests:
    """The facts that the preparation of the guests returns."""

    home: str
    """Path of the home directory in the first guest."""
    known_hosts: tuple[str, ...] = ()
    """Lines of an SSH known_hosts file, by which the first guest knows the others."""


def prepare(launch: Launch, port: GuestWork) -> ReadyGuests:
    """Prepare every guest, and end and remove what an earlier run left in any guest of the cluster.

    Raises NotEntered; Refused with the guest and its reason, or if there is no login for guests; NotConnected.
    """
    every = (*launch.members, *launch.unused)

    def script(member: Member) -> str:
        is_used = member not in launch.unused
        return prepare_command(launch, first=member is every[0]) if is_used else step_command("end_earlier", launch)

    ends = _run_in_each(every, port, script, entering=True)
    home = home_directory(ends[0].printed)
    if not launch.over_ssh:
        return ReadyGuests(home)
    known_hosts = tuple(line for member in launch.members for line in _known_hosts(member, launch.ssh_port, port))
    key = public_key(ends[0].printed)
    _run_in_each(launch.members, port, lambda _: step_command("admit", launch, key))
    return ReadyGuests(home, known_hosts)


def clear(launch: Launch, port: GuestWork, unfinished: Sequence[RunningCommand] = ()) -> tuple[str, ...]:
    """End the processes of the run and remove its files. Return a line for each guest in which that failed.

    Every guest is stopped before the first is cleaned: running processes may write again. Raises NotConnected.
    """
    failures: dict[str, str] = {}

    def run_everywhere(script: str, effect: str) -> None:
        for end in _ends(launch.members, port, lambda _: script):
            if end.error:
                failures.setdefault(end.name, f"{end.name}: {effect}: {end.error.removeprefix(f'{end.name}: ')}")

    run_everywhere(step_command("stop", launch), "processes of it may run on")
    # this also removes their directories; a launcher that still runs had no mark yet at the first stop
    if [end for end in port.wait_for_commands(unfinished, ENDED_S) if end.exit_code is None]:
        run_everywhere(step_command("stop", launch), "processes of it may run on")
    run_everywhere(step_command("clean", launch), "its files may stay")
    return tuple(failures.values())


def start(launch: Launch, node: int, known_hosts: tuple[str, ...], port: GuestWork) -> RunningCommand:
    """Start the launcher of that node. Raises OutcomeUnknown if a reply was lost, Refused."""
    return _start(launch.members[node], start_command(launch, node, known_hosts), port)


def look(launch: Launch, script: str, port: GuestWork) -> str:
    """Return what a short script prints in the first guest. Raises Refused."""
    return _run_in_each(launch.members[:1], port, lambda _: script)[0].printed


def _run_in_each(
    members: Sequence[Member], port: GuestWork, script_of: Callable[[Member], str], *, entering: bool = False
) -> tuple[CommandEnd, ...]:
    """Run a script in each guest and return the ends in the order of ranks. Raises Refused if one failed."""
    ends = {end.name: end for end in _ends(members, port, script_of, entering=entering)}
    failed = next((end for end in ends.values() if end.error), None)
    if failed is not None:
        raise Refused(f"{failed.name}: {_runner(port).failure(failed)}", hint="look at the guest")
    return tuple(ends[member.name] for member in members)


def _ends(
    members: Sequence[Member], port: GuestWork, script_of: Callable[[Member], str], *, entering: bool = False
) -> Iterator[CommandEnd]:
    """Run a script in each guest and yield the ends, also of guests in which it could not be started.

    `entering`: it is the first script of a run. Raises NotEntered if the first guest then refuses it, NotConnected, and
    Refused if there is no login for guests.
    """
    started = []
    for member in members:
        try:
            started.append(_start(member, script_of(member), port))
        except NotConnected:
            raise
        except GpuopsError as error:
            if entering and member is members[0] and not isinstance(error, OutcomeUnknown):
                raise NotEntered(error.message, hint=error.hint) from error
            yield CommandEnd(member.name, error=error.line)
    yield from port.wait_for_commands(started, SCRIPT_S)


def _start(member: Member, script: str, port: GuestWork) -> RunningCommand:
    return _runner(port).start(member.vm, member.name, script)


def _runner(port: GuestWork) -> ScriptRunner:
    return ScriptRunner(port, PREFIX)


def _known_hosts(member: Member, ssh_port: int, port: GuestWork) -> Iterator[str]:
    """Yield `10.1.2.11 ssh-ed25519 AAAA...` for each key of the guest's SSH server. Raises Refused if it has none.

    An address with another port than 22 stands in brackets (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT").
    """
    has_key, address = False, member.address if ssh_port == 22 else f"[{member.address}]:{ssh_port}"
    for path in HOST_KEYS:
        text = port.guest_file_if_there(member.vm, member.name, path)
        if text is not None:
            has_key = True
            yield f"{address} {public_key(text.decode('ascii', 'replace'))}"
    if not has_key:
        missing = f"{member.name}: its guest has no key of an SSH server ({HOST_KEYS[0]})"
        raise Refused(missing, hint="install openssh-server in the template")

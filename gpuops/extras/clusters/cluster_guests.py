"""Prepares the guests of a cluster for a run by `cluster_run.sh`, and removes its files and processes.

All guests of a cluster work at once.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuops.errors import GpuopsError, NotConnected, OutcomeUnknown, ProtocolError, Refused
from gpuops.execute.site.guest_work import GuestWork, ScriptRunner
from gpuops.extras.clusters.launch import MARK, Launch
from gpuops.guest_scripts.script_commands import home_directory, shell_command
from gpuops.model.guests.guest import CommandEnd, RunningCommand
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
        raise ProtocolError("its guest printed no public key", hint="install openssh-client in the template")
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


@dataclass(slots=True)
class LaunchGuests:
    """The guests of one launch."""

    launch: Launch
    guest_work: GuestWork
    unfinished: list[RunningCommand] = field(default_factory=list)
    """The scripts and launchers whose end is not known. Their temporary directories are in the guests."""

    def prepare(self) -> ReadyGuests:
        """Prepare the guests of the launch, and end and remove what an earlier run left in any guest of the cluster.

        If the launcher uses SSH, the first guest gets a key pair, and the guests of the launch admit its public key.
        Raises NotEntered if the first guest refuses the login; Refused with the guest and its reason, or if there is no
        login for guests; NotConnected.
        """
        launch = self.launch
        all_members = (*launch.members, *launch.unused)

        def script(member: Member) -> str:
            if member in launch.unused:  # no rank of this run, but an earlier run may still use it
                return step_command("end_earlier", launch)
            return prepare_command(launch, first=member is all_members[0])

        results = self._run_in_each(all_members, script, entering=True)
        home = home_directory(results[0].printed)
        if not launch.over_ssh:
            return ReadyGuests(home)
        known_hosts = tuple(line for member in launch.members for line in self._known_hosts(member))
        key = public_key(results[0].printed)
        self._run_in_each(launch.members, lambda _: step_command("admit", launch, key))
        return ReadyGuests(home, known_hosts)

    def start(self, node: int, known_hosts: tuple[str, ...]) -> RunningCommand:
        """Start the launcher of that node. Raises OutcomeUnknown if a reply was lost, Refused."""
        return self._start(self.launch.members[node], start_command(self.launch, node, known_hosts))

    def look(self, script: str) -> str:
        """Return what a short script prints in the first guest. Raises Refused."""
        return self._run_in_each(self.launch.members[:1], lambda _: script)[0].printed

    def clear(self) -> tuple[str, ...]:
        """End the processes of the run and remove its files. Return a line for each guest in which that failed.

        The processes in all guests are ended before the first file is removed, because they may still write files.
        Raises NotConnected.
        """
        failures: dict[str, str] = {}
        unfinished = tuple(self.unfinished)

        def run_everywhere(action: str, effect: str) -> None:
            for end in self._run_and_yield_ends(self.launch.members, lambda _: step_command(action, self.launch)):
                if end.error:
                    failures.setdefault(end.name, f"{end.name}: {effect}: {end.error.removeprefix(f'{end.name}: ')}")

        run_everywhere("stop", "processes of it may run on")
        # wait for the launchers to end, which also removes their directories; one that still runs had not yet set
        # its mark when the processes were ended
        if [end for end in self.guest_work.wait_for_commands(unfinished, ENDED_S) if end.exit_code is None]:
            run_everywhere("stop", "processes of it may run on")
        run_everywhere("clean", "its files may stay")
        return tuple(failures.values())

    def _run_in_each(
        self, members: Sequence[Member], script_of: Callable[[Member], str], *, entering: bool = False
    ) -> tuple[CommandEnd, ...]:
        """Run a script in each guest and return the ends in the order of ranks. Raises Refused if one failed."""
        ends = {end.name: end for end in self._run_and_yield_ends(members, script_of, entering=entering)}
        failed = next((end for end in ends.values() if end.error), None)
        if failed is not None:
            raise Refused(
                f"{failed.name}: {self._runner.failure(failed)}",
                hint="check the guest, then run the same command again",
            )
        return tuple(ends[member.name] for member in members)

    def _run_and_yield_ends(
        self, members: Sequence[Member], script_of: Callable[[Member], str], *, entering: bool = False
    ) -> Iterator[CommandEnd]:
        """Run a script in each guest, all at once, and yield how it ended in each, or why it could not be started.

        `entering`: this is the first script of a run; if the first guest refuses it, raise NotEntered and start nothing
        in the others. Also raises NotConnected, and Refused if there is no login for guests.
        """
        commands = []
        for member in members:
            try:
                commands.append(self._start(member, script_of(member)))
            except NotConnected:
                raise
            except GpuopsError as error:
                # after an unknown outcome the script may run, so the guest must be cleaned up
                if entering and member is members[0] and not isinstance(error, OutcomeUnknown):
                    raise NotEntered(error.message, hint=error.hint) from error
                yield CommandEnd(member.name, error=error.line)
        yield from self.guest_work.wait_for_commands(commands, SCRIPT_S)
        self.unfinished = [command for command in self.unfinished if command not in commands]

    def _start(self, member: Member, script: str) -> RunningCommand:
        command = self._runner.start(member.vm, member.name, script)
        self.unfinished.append(command)
        return command

    @property
    def _runner(self) -> ScriptRunner:
        return ScriptRunner(self.guest_work, PREFIX)

    def _known_hosts(self, member: Member) -> Iterator[str]:
        """Yield `10.1.2.11 ssh-ed25519 AAAA...` for each key of the guest's SSH server. Raises Refused if it has none.

        If the port is not 22, the format is `[10.1.2.11]:2222 ssh-ed25519 ...` (sshd(8), "SSH_KNOWN_HOSTS FILE
        FORMAT").
        """
        has_key, ssh_port = False, self.launch.ssh_port
        address = member.address if ssh_port == 22 else f"[{member.address}]:{ssh_port}"
        for path in HOST_KEYS:
            text = self.guest_work.guest_file_if_there(member.vm, member.name, path)
            if text is not None:
                has_key = True
                yield f"{address} {public_key(text.decode('ascii', 'replace'))}"
        if not has_key:
            missing = f"{member.name}: its guest has no key of an SSH server ({HOST_KEYS[0]})"
            raise Refused(missing, hint="install openssh-server in the template")

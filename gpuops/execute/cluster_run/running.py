"""Runs a launch to its end: starts it in the guests, passes on what rank 0 prints, and leaves nothing behind.

What stays of a run that was killed is removed by the next one of its cluster; two of one cluster never run at once
(`use`). Ctrl-C, SIGTERM and the limit end the processes in every guest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown
from gpuops.execute.cluster.use import lease_lost_error, require_ours
from gpuops.execute.cluster_run import guests
from gpuops.execute.cluster_run.guests import ReadyGuests
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site.guest_work import GuestWork, guest_work
from gpuops.guest_scripts import cluster_run as scripts
from gpuops.model.guests.guest_command import CommandEnd, RunningCommand
from gpuops.model.workloads.cluster_run import RunEnd
from gpuops.plan.cluster_run.launch import Launch

if TYPE_CHECKING:
    from gpuops.execute.site import Site

POLL_S: Final = 1.0
PATIENCE_S: Final = 300.0
"""How long a guest, its host or vCenter may not answer before a run is given up: a VM moves, VMware Tools restart."""
MOST_FETCHED: Final = scripts.SHOWN + scripts.PART
"""Bytes of output, whatever a guest has of it."""
TIMED_OUT: Final = 124
"""As timeout(1) says it."""
Hear = Callable[[bytes], None]
"""Told of what rank 0 prints, piece by piece, as it is; whoever shows it makes it harmless."""


def run(launch: Launch, site: Site, held: HeldLease, hear: Hear) -> RunEnd:
    """How it ended; nothing of it is left in the guests but what `RunEnd.left` names.

    `held`: the use of the cluster. Raises Refused where a guest cannot be made ready, Locked where another machine has
    taken the cluster over, NotConnected where vCenter is lost: then the next run of this cluster ends what goes on.
    """
    port = guest_work(site.vcenter)
    running = _Running(launch, site, port, held, hear)
    try:
        ready = guests.prepare(launch, port)
        require_ours(held, launch.cluster)
        end = running.to_the_end(ready)
    except NotConnected:
        site.say(f"vCenter is lost: the run of {launch.cluster} may go on; the next one ends it")
        raise
    except guests.NotEntered:
        raise
    except BaseException:
        site.say(f"ending what runs in the {len(launch.members)} guests of {launch.cluster}")
        for each in guests.clear(launch, port, running.unfinished):
            site.say(f"left: {each}")
        raise
    return replace(end, left=guests.clear(launch, port, running.unfinished))


class _Running:
    """A launch on its way."""

    def __init__(self, launch: Launch, site: Site, port: GuestWork, held: HeldLease, hear: Hear) -> None:
        self._launch, self._site, self._port, self._held, self._hear = launch, site, port, held, hear
        self._running: dict[int, RunningCommand] = {}
        self._ends: dict[int, CommandEnd] = {}
        self._unseen_since_s: float | None = None
        self._directory = ""
        self._parts = 0
        self._bytes = 0
        self._cut = False

    @property
    def unfinished(self) -> tuple[RunningCommand, ...]:
        """The launchers whose end was not seen."""
        return tuple(self._running.values())

    def to_the_end(self, ready: ReadyGuests) -> RunEnd:
        """Starts every launcher, and waits for that of the first node, or for one of another node that fails; once the
        first did well, for a while for the others."""
        self._directory = f"{ready.home}/{self._launch.directory}"
        began_s, limit_s = self._site.passed_s(), self._launch.limit_s
        others_until_s: float | None = None
        for node in range(len(self._launch.command_lines)):
            self._running[node] = guests.start(self._launch, node, ready.known_hosts, self._port)
        while True:
            seen = self._look()
            if self._held.lost is not None:
                raise lease_lost_error(self._launch.cluster, self._held.lost)
            took_s = self._site.passed_s() - began_s
            failed = next((node for node, end in sorted(self._ends.items()) if end.exit_code), None)
            if 0 in self._ends and others_until_s is None:
                others_until_s = took_s + guests.ENDED_S
            over = others_until_s is not None and (not self._running or took_s >= others_until_s)
            if seen and (failed is not None or over):
                return self._end_of(failed or 0, took_s)
            if limit_s is not None and took_s >= limit_s:
                return RunEnd(TIMED_OUT, took_s, self._bytes, self._is_cut())
            self._site.pause(POLL_S)

    def _look(self) -> bool:
        """Notes which launchers have ended, and passes on all that was printed; whether that could be seen.

        Raises what is wrong for `PATIENCE_S`.
        """
        try:
            self._held.keep()
            for node, each in tuple(self._running.items()):
                self._note_end(node, self._port.command_end(each))
            self._fetch()
            self._cut = bool(self._ends) and self._is_cut()
        except LoginRefused:
            raise
        except GpuopsError as error:
            now_s = self._site.passed_s()
            if self._unseen_since_s is None:
                self._unseen_since_s = now_s
                self._site.say(f"{error.line}; it is asked again, for up to {PATIENCE_S:.0f} s")
            elif now_s - self._unseen_since_s >= PATIENCE_S:
                raise
            return False
        self._unseen_since_s = None
        return True

    def _note_end(self, node: int, end: CommandEnd | None) -> None:
        """Raises OutcomeUnknown where nobody can tell whether the launcher runs, or how it ended."""
        if end is not None and end.exit_code is None:
            raise OutcomeUnknown(f"{end.name}: {end.error}", hint="look at its guest; the same again starts anew")
        if end is not None:
            self._ends[node] = end
            del self._running[node]

    def _end_of(self, node: int, took_s: float) -> RunEnd:
        end = self._ends[node]
        if not self._bytes:
            self._hear(end.printed.encode())  # what a shell said that came to no launcher
        assert end.exit_code is not None, "only such ends are noted"
        return RunEnd(end.exit_code, took_s, self._bytes, self._cut, end.name if node else "")

    def _fetch(self) -> None:
        """Passes on the parts of the output that are there and were not passed on."""
        while self._bytes < MOST_FETCHED and (part := self._file(f"part.{self._parts}")):
            self._parts += 1
            self._bytes += len(part)
            self._hear(part)

    def _is_cut(self) -> bool:
        return self._bytes >= MOST_FETCHED or self._file("cut") is not None

    def _file(self, name: str) -> bytes | None:
        """A file of the run's directory in the guest of the first node; None = there is none."""
        first = self._launch.members[0]
        return self._port.guest_file_if_there(first.vm, first.name, f"{self._directory}/{name}")

"""`gpuops cluster run` and `cluster bench`: finds the running cluster by its markers, and runs a program over its VMs.

The benchmark measures an all-reduce over the first nodes, by TCP and by RDMA: one run for each number of nodes.

Runs a launch to its end: starts it in the guests, passes on the output of rank 0, and cleans up.

The intent is in the journal before anything is started in a guest. The next run of the cluster, or its removal, removes
and settles what a killed run left; two runs never use a cluster at once (`used_alone`). Ctrl-C, SIGTERM and the limit
end the processes in every guest."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Final

from gpuops.clock import rounds
from gpuops.errors import GpuopsError, LoginRefused, NotConnected, OutcomeUnknown, Refused, UsageError, report_exit_code
from gpuops.execute.journal import Journal
from gpuops.execute.lease.lease import HeldLease
from gpuops.execute.site import Site
from gpuops.execute.site.guest_work import guest_work
from gpuops.execute.steps.step_executor import StepExecutor
from gpuops.extras.clusters import run_request
from gpuops.extras.clusters.cluster_guests import ENDED_S, PART, SHOWN, LaunchGuests, NotEntered, ReadyGuests
from gpuops.extras.clusters.cluster_members import MarkedVm, marked_vms
from gpuops.extras.clusters.launch import Launch, plan_launch
from gpuops.extras.clusters.run import begin_program, end_cut_off_programs, lease_lost_error, used_alone
from gpuops.extras.clusters.run_request import (
    AllReduceProgram,
    BenchCell,
    BenchResult,
    BenchWish,
    RunEnd,
    RunWish,
    Transport,
)
from gpuops.guest_scripts.script_commands import shell_command
from gpuops.model.guests.guest import CommandEnd, RunningCommand
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.cluster import Member, RdmaKind, TrainingCluster
from gpuops.plan.core.plan import Outcome, Verdict
from gpuops.plan.core.rejection import summarize_similar
from gpuops.plan.core.steps import RunClusterProgram

if TYPE_CHECKING:
    from gpuops.extras.clusters.launch import LaunchPlan
    from gpuops.plan.core.rejection import Rejection

_MOST_PRINTED: Final = 1 << 20
"""The most bytes of a measurement's output that are kept."""
SIMULATED: Final = "simulated: not measured"


def _with_first_nodes(cluster: TrainingCluster, nodes: int) -> TrainingCluster:
    """Return the cluster with only its first nodes. Raises UsageError if it has fewer."""
    if nodes > len(cluster.members):
        most = len(cluster.members)
        raise UsageError(f"--nodes {nodes}: cluster {cluster.name} has {most}", hint=f"use --nodes {most} or less")
    return replace(cluster, members=cluster.members[:nodes])


def _measure(
    wish: BenchWish,
    program: AllReduceProgram,
    cluster: TrainingCluster,
    nodes: int,
    transport: Transport,
    site: Site,
    lease: HeldLease,
    *,
    simulated: bool,
) -> BenchCell:
    """Measure all sizes over the first `nodes` VMs by one transport. Return the times, or why they are missing.

    Raises the errors of `run`.
    """
    first_nodes = _with_first_nodes(cluster, nodes)
    cell = BenchCell(len(first_nodes.members), sum(member.gpus for member in first_nodes.members), transport)
    if transport is Transport.RDMA and simulated:
        return replace(cell, why_not=SIMULATED)
    run_id = secrets.token_hex(8)
    lines: list[str] = []
    launch: Launch | None = None
    for command in run_request.measuring_commands(program, wish.sizes):
        plan = plan_launch(
            RunWish(command, transport=transport, limit_s=wish.limit_s, ssh_port=wish.ssh_port), first_nodes, run_id
        )
        if plan.launch is None:
            return replace(cell, why_not="; ".join(map(str, summarize_similar(plan.rejections))))
        launch = plan.launch
        lines += launch.command_lines
    assert launch is not None, "there is a size"
    site.say(f"{transport}, {len(first_nodes.members)} of {max(wish.nodes)} nodes")
    printed = bytearray()

    def on_output(piece: bytes) -> None:
        printed.extend(piece[: _MOST_PRINTED - len(printed)])

    # one launch for the commands of all sizes, so that the guests are prepared once
    launch = replace(launch, command_lines=(_run_in_sequence(lines),), unused=cluster.members[nodes:])
    end = run(launch, site, lease, on_output)
    text = printed.decode("utf-8", "replace")
    if end.exit_code:
        last_line = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
        why = f"ended after {wish.limit_s} s" if end.exit_code == TIMED_OUT else f"exit code {end.exit_code}"
        return replace(cell, why_not=f"{why}: {last_line.strip()[:200]}", left=end.left)
    try:
        return replace(cell, times=run_request.parse_times(program, text, wish.sizes), left=end.left)
    except UsageError as error:
        return replace(cell, why_not=error.message, left=end.left)


def _run_in_sequence(lines: Sequence[str]) -> str:
    """Return one command line that runs these one after another, up to the first that fails.

    >>> _run_in_sequence(["mpirun a -m 1", "mpirun a -m 2"])
    "sh -c 'mpirun a -m 1 && mpirun a -m 2'"
    """
    return lines[0] if len(lines) == 1 else shlex.join(("sh", "-c", " && ".join(lines)))


def running_cluster(name: str, site: Site) -> TrainingCluster:
    """Return the running cluster of this name, with the current addresses of its guests.

    Raises UsageError if it does not exist, if a VM is missing or does not run, or if two clusters have the name.
    """
    inventory = site.vcenter.inventory()
    members = marked_vms(inventory, name)
    if not members:
        cluster_names = ", ".join(sorted({member.marker.cluster for member in marked_vms(inventory)}))
        hint = (
            f"existing clusters: {cluster_names}"
            if cluster_names
            else "gpuops cluster create --file cluster.yaml makes one"
        )
        raise UsageError(f"there is no cluster {name!r}", hint=hint)
    _require_complete(name, members)
    return TrainingCluster(name, tuple(_member(member, inventory, site) for member in members))


def _require_complete(name: str, members: tuple[MarkedVm, ...]) -> None:
    """Raise UsageError for two clusters with this name, a missing VM, and VMs that do not run."""
    hint = "run gpuops cluster create with its file to complete it, or gpuops cluster delete to remove it"
    if len({member.marker.id for member in members}) > 1:
        raise UsageError(f"there are two clusters {name!r}", hint="gpuops cluster show shows their VMs")
    nodes = members[0].marker.nodes
    missing = sorted(set(range(nodes)) - {member.marker.rank for member in members})
    if missing:
        ranks = ", ".join(map(str, missing))
        raise UsageError(f"cluster {name} is not complete: of its {nodes} VMs rank {ranks} is missing", hint=hint)
    stopped = [member.vm.name for member in members if member.vm.power is not PowerState.ON]
    if stopped:
        raise UsageError(f"cluster {name}: not running: {', '.join(stopped)}", hint=hint)


def _member(marked: MarkedVm, inventory: Inventory, site: Site) -> Member:
    host = inventory.host_of(marked.vm)
    guest = site.vcenter.wait_for_guest(marked.vm.ref, 0.0, address=True)
    rdma = marked.marker.rdma.value if marked.marker.rdma is not RdmaKind.NONE else None
    return Member(
        marked.vm.ref, marked.vm.name, host.name if host is not None else "", marked.marker.gpus, guest.address, rdma
    )


PRIVILEGES: Final = (
    "VirtualMachine.GuestOperations.Execute",
    "VirtualMachine.GuestOperations.Modify",
    "VirtualMachine.GuestOperations.Query",
)
"""Needed on each VM of the cluster."""
LEASE_PRIVILEGE: Final = "VirtualMachine.Config.AdvancedConfig"
"""Needed on its first VM too, whose settings mark that a run uses the cluster."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run over a cluster: its plan and its end."""

    cluster: str
    plan: LaunchPlan
    end: RunEnd | None = None
    """None = nothing was started."""

    @property
    def exit_code(self) -> int:
        """Return the exit code of the program; 3 if nothing was started, 4 if files remain in a guest."""
        if self.end is None:
            return report_exit_code(refused=self.plan.rejections)
        return self.end.exit_code or report_exit_code(partly=self.end.left)


def cluster_run(name: str, wish: RunWish, site: Site, on_output: Callable[[bytes], None], *, apply: bool) -> ClusterRun:
    """Plan a run over a cluster and, with `apply`, carry it out to its end. Return the plan and the end.

    `on_output` is called with the output of rank 0, piece by piece. Raises UsageError if a VM of the cluster does not
    run, Locked while another run uses the cluster, Refused if a guest cannot be prepared, NotConnected.
    """
    cluster = running_cluster(name, site)
    plan = plan_launch(wish, cluster, secrets.token_hex(8))
    reasons = _guest_access_rejections(cluster, site)
    if reasons:
        plan = replace(plan, launch=None, rejections=(*plan.rejections, *reasons))
    if plan.launch is None or not apply:
        return ClusterRun(name, plan)
    with used_alone(site, cluster, "cluster run") as hold:
        return ClusterRun(name, plan, run(plan.launch, site, hold, on_output))


def cluster_bench(name: str, wish: BenchWish, site: Site) -> BenchResult:
    """Measure an all-reduce for each transport and each number of nodes in `wish`, one after the other.

    Returns the measured times, and the reason for each that is missing. Raises the errors of `run_request`, and
    Refused if nothing can be measured.
    """
    cluster = running_cluster(name, site)
    work = guest_work(site.vcenter)
    # a plan that is never started: it checks the guests, and its launch is used to look for the programs
    launch_plan = plan_launch(RunWish(("true",)), _with_first_nodes(cluster, max(wish.nodes)), secrets.token_hex(8))
    reasons = summarize_similar(_guest_access_rejections(cluster, site) or launch_plan.rejections)
    if reasons or launch_plan.launch is None:
        raise Refused("; ".join(map(str, reasons)), hint=reasons[0].hint)
    with used_alone(site, cluster, "cluster bench") as lease:
        find_programs = shell_command("all_reduce_programs")
        program = wish.program or run_request.chosen_program(LaunchGuests(launch_plan.launch, work).look(find_programs))
        if program is None:
            raise Refused(
                f"{cluster.members[0].name}: its guest has no program that measures an all-reduce",
                hint="install NCCL tests, the OSU micro-benchmarks or python3-mpi4py in the template",
            )
        cells: list[BenchCell] = []
        for transport in wish.transports:
            for nodes in wish.nodes:
                cells.append(
                    _measure(wish, program, cluster, nodes, transport, site, lease, simulated=work.is_simulated)
                )
                if cells[-1].left:  # what still runs in a guest would disturb a measurement over more nodes
                    break
    return BenchResult(cluster.name, program, tuple(cells), simulated=work.is_simulated)


def _guest_access_rejections(cluster: TrainingCluster, site: Site) -> tuple[Rejection, ...]:
    """Return the reasons why programs cannot be run in the guests: missing privileges, or no login for guests.

    Does not try a login in a guest.
    """
    from gpuops.plan.core.privileges import privilege_rejection
    from gpuops.plan.core.rejection import Rejection
    from gpuops.plan.core.steps import RunInGuest

    needed = {member.vm: PRIVILEGES for member in cluster.members}
    # the lease that keeps other machines away is written into the settings of the first VM
    lacking = site.vcenter.lacking({**needed, cluster.members[0].vm: (LEASE_PRIVILEGE, *PRIVILEGES)})
    reasons = [
        privilege_rejection(member.name, missing) for member in cluster.members if (missing := lacking.get(member.vm))
    ]
    # one login is used for all guests, so one VM is enough
    no_login = site.vcenter.no_way_in(RunInGuest(cluster.members[0].vm, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(cluster.name, no_login, hint=hint))
    return tuple(reasons)


POLL_S: Final = 1.0
PATIENCE_S: Final = 300.0
"""How long a guest, its host or vCenter may not answer before the run fails: VMs move, and VMware Tools restart."""
MOST_FETCHED: Final = SHOWN + PART
"""The limit for bytes of output, however much a guest holds."""
TIMED_OUT: Final = 124
"""The exit code of timeout(1)."""
OutputListener = Callable[[bytes], None]
"""Called with the output of rank 0, piece by piece, without changes; callers that show it must escape it."""


def run(launch: Launch, site: Site, lease: HeldLease, on_output: OutputListener) -> RunEnd:
    """Run the launch, clean up the guests, and return how it ended. `RunEnd.left` names what could not be cleaned up.

    `lease`: the lease on the cluster. Raises Refused if a guest cannot be prepared, Locked if another machine has taken
    over the cluster, NotConnected if vCenter cannot be reached, StateDamaged if the journal cannot be written. If
    something may be left in a guest, the run in the journal stays open: the next run of this cluster ends both.
    """
    guests = LaunchGuests(launch, guest_work(site.vcenter))
    with site.unlocked_journal() as journal:
        executor = ProgramExecutor(guests, site, lease, on_output, journal)
        try:
            outcome = executor.begin(RunClusterProgram(launch.members[0].vm, launch.mark))
        finally:
            if executor.is_clean:
                journal.end(executor.run)
    if executor.error is not None:
        raise executor.error
    if executor.end is None:
        assert isinstance(outcome, Outcome), "a program has no task"
        raise lease_lost_error(launch.cluster, outcome.reason)
    return executor.end


class ProgramExecutor(StepExecutor[RunClusterProgram]):
    """Runs a launch as one step. It is done when it has ended and nothing of it is left in the guests."""

    end: RunEnd | None = None
    error: GpuopsError | None = None
    """Why the launch has no end."""
    is_clean = True
    """Whether nothing of the launch is in a guest."""

    def __init__(
        self, guests: LaunchGuests, site: Site, lease: HeldLease, on_output: OutputListener, journal: Journal
    ) -> None:
        run = begin_program(journal, guests.launch)
        super().__init__(site.vcenter, journal, run, lease.seen, passed_s=site.passed_s)
        self._guests, self._site, self._lease, self._on_output = guests, site, lease, on_output

    def read_back(self, step: RunClusterProgram) -> None:
        """Do nothing: `send` cleans up the guests itself, and sees what is left there."""

    def is_done(self, step: RunClusterProgram) -> bool:
        """Return whether the launch has ended and the guests are clean."""
        return self.end is not None and self.is_clean

    def objection(self, step: RunClusterProgram) -> str | None:
        """Return None: the caller has planned the launch and holds the lease."""
        return None

    def last_objection(self, step: RunClusterProgram, judged: Inventory) -> str | None:
        """Return why the launch must not start: the lease is lost, or it failed with a session that ended."""
        return self.error.line if self.error is not None else self._lease.objection()

    def send(self, step: RunClusterProgram, op_id: str) -> None:
        """Run the launch to its end, and clean up the guests."""
        self.is_clean = False
        try:
            self.end = self._run_to_end()
        except GpuopsError as error:
            self.error = error
            raise
        except BaseException:  # Ctrl-C or SIGTERM
            if self.is_clean:
                self.settle(op_id, Outcome(step, Verdict.FAILED, "interrupted"))
            raise

    def _run_to_end(self) -> RunEnd:
        guests, launch = self._guests, self._guests.launch
        try:
            ready = guests.prepare()
            end_cut_off_programs(self.journal, launch.cluster, self.run)  # `prepare` has ended their processes
            if (objection := self._lease.objection()) is not None:
                raise lease_lost_error(launch.cluster, objection)
            end = _RunningLaunch(guests, self._site, self._lease, self._on_output).run_to_end(ready)
        except NotConnected:
            self._site.say(
                f"vCenter cannot be reached: the program on {launch.cluster} may still run; the next run ends it"
            )
            raise
        except NotEntered:  # nothing was started, so there is nothing to clean up
            self.is_clean = True
            raise
        except BaseException:  # also Ctrl-C and SIGTERM: no process may stay in a guest
            self._site.say(f"ending the processes in the {len(launch.members)} guests of {launch.cluster}")
            for failure in self._clear():
                self._site.say(f"left: {failure}")
            raise
        return replace(end, left=self._clear())

    def _clear(self) -> tuple[str, ...]:
        failures = self._guests.clear()
        self.is_clean = not failures
        return failures

    def find_task(self, step: RunClusterProgram, since: datetime) -> None:
        """Return None: a program has no task."""

    def may_be_repeated(self, step: RunClusterProgram, sent: Inventory) -> bool:
        """Return False: a program must not run a second time."""
        return False

    def not_shown_reason(self, step: RunClusterProgram) -> str:
        """Return what is left in the guests."""
        return "; ".join(self.end.left) if self.end is not None else super().not_shown_reason(step)


class _RunningLaunch:
    """A launch that is being run."""

    def __init__(self, guests: LaunchGuests, site: Site, lease: HeldLease, on_output: OutputListener) -> None:
        self._guests, self._launch, self._site, self._lease, self._on_output = (
            guests,
            guests.launch,
            site,
            lease,
            on_output,
        )
        self._running: dict[int, RunningCommand] = {}
        self._ends: dict[int, CommandEnd] = {}
        self._unreadable_since_s: float | None = None
        self._directory = ""
        self._parts = 0
        self._bytes = 0
        self._cut = False

    def run_to_end(self, ready: ReadyGuests) -> RunEnd:
        """Start every launcher, wait for the end, and return it.

        The end is the first failure on any node, or the success of the first node; then the other nodes have `ENDED_S`
        to end too. After the time limit of the launch the exit code is `TIMED_OUT`.
        """
        self._directory = f"{ready.home}/{self._launch.directory}"
        passed_s, limit_s = self._site.passed_s, self._launch.limit_s
        started_s = passed_s()
        others_until_s: float | None = None
        for node in range(len(self._launch.command_lines)):
            self._running[node] = self._guests.start(node, ready.known_hosts)
        for _ in rounds((POLL_S,), inf if limit_s is None else limit_s, wait=self._site.pause, read_clock_s=passed_s):
            was_read = self._read_guests()  # if not, the output may be incomplete: look once more before returning
            if self._lease.lost is not None:
                raise lease_lost_error(self._launch.cluster, self._lease.lost)
            elapsed_s = passed_s() - started_s
            failed = next((node for node, end in sorted(self._ends.items()) if end.exit_code), None)
            if 0 in self._ends and others_until_s is None:
                others_until_s = elapsed_s + ENDED_S
            is_over = others_until_s is not None and (not self._running or elapsed_s >= others_until_s)
            if was_read and (failed is not None or is_over):
                return self._end_of(failed or 0, elapsed_s)  # without a failure: the end of the first node
        return RunEnd(TIMED_OUT, elapsed_s, self._bytes, self._is_cut())

    def _read_guests(self) -> bool:
        """Record which launchers have ended and pass on new output. Return False if a guest could not be read.

        Raises the error of a guest only if it lasts for `PATIENCE_S`, except for a refused login.
        """
        try:
            self._lease.renew_if_due()
            for node, command in tuple(self._running.items()):
                self._record_end(node, self._guests.guest_work.command_end(command))
            self._pass_on_output()
            self._cut = bool(self._ends) and self._is_cut()
        except LoginRefused:
            raise
        except GpuopsError as error:
            now_s = self._site.passed_s()
            if self._unreadable_since_s is None:
                self._unreadable_since_s = now_s
                self._site.say(f"{error.line}; trying again for up to {PATIENCE_S:.0f} s")
            elif now_s - self._unreadable_since_s >= PATIENCE_S:
                raise
            return False
        self._unreadable_since_s = None
        return True

    def _record_end(self, node: int, end: CommandEnd | None) -> None:
        """Record the end of a launcher. Raises OutcomeUnknown if it is unknown whether it runs or how it ended."""
        if end is not None and end.exit_code is None:
            raise OutcomeUnknown(f"{end.name}: {end.error}", hint="check its guest, then run the same command again")
        if end is not None:
            self._ends[node] = end
            self._guests.unfinished.remove(self._running.pop(node))

    def _end_of(self, node: int, took_s: float) -> RunEnd:
        end = self._ends[node]
        if not self._bytes:
            self._on_output(end.printed.encode())  # the error of a shell that could not start the launcher
        assert end.exit_code is not None, "only such ends are noted"
        return RunEnd(end.exit_code, took_s, self._bytes, self._cut, end.name if node else "")

    def _pass_on_output(self) -> None:
        """Pass on the new parts of the output."""
        while self._bytes < MOST_FETCHED and (part := self._run_file(f"part.{self._parts}")):
            self._parts += 1
            self._bytes += len(part)
            self._on_output(part)

    def _is_cut(self) -> bool:
        return self._bytes >= MOST_FETCHED or self._run_file("cut") is not None

    def _run_file(self, name: str) -> bytes | None:
        """Return a file of the run's directory in the guest of the first node, or None if it does not exist."""
        first = self._launch.members[0]
        return self._guests.guest_work.guest_file_if_there(first.vm, first.name, f"{self._directory}/{name}")

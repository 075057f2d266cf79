"""A `Site` is one vCenter to work on, with its journal and whoever is told of the progress."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from gpuops import clock as time_here
from gpuops.errors import GpuopsError, PolicyError, say_applied
from gpuops.execute.site.host_shell import HostShell, ShelledHosts, with_vgpus
from gpuops.execute.site.notice_way import NoticeWay
from gpuops.execute.site.policy_reads import NO_SOURCES, with_policy_reads
from gpuops.execute.site.ports import DesktopGates, Hosts, SessionSource, Vcenter, VgpuUseSource
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement import UNSAID, MeasurementSettings
from gpuops.model.vcenter.inventory import Inventory

if TYPE_CHECKING:
    from gpuops.execute.journal import Journal
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.nights.ml_queue import GuestCommand
    from gpuops.model.nights.rotation import Policy
    from gpuops.model.vcenter.target import BrokerTarget
    from gpuops.plan.core.plan import Outcome, Plan, Report
    from gpuops.plan.core.steps import Step

Consent = Callable[["Report"], None]
"""Called just before anything is changed; what it raises ends the run with nothing changed."""

WITHOUT_GUESTS: Final = "it goes on without a login to guests, whose hooks do not run"
"""What a return says of a login to guests that cannot be had."""


def agreed(report: Report) -> None:
    """The consent of a caller that asked before, or need not ask."""


def once_agreed(consent: Consent, deed: Callable[[Report], None]) -> Consent:
    """The consent, and each time that it is given the deed: before somebody has agreed nobody loses anything. Where
    there is more to do by then it is asked again, and done for that too."""

    def agreed_and_done(report: Report) -> None:
        consent(report)
        deed(report)

    return agreed_and_done


def _unwatched(outcome: Outcome) -> None:
    """The progress of a caller that does not watch."""


def _unwatched_steps(steps: Sequence[Step]) -> None:
    """The same, of steps in flight."""


def _unheard(line: str) -> None:
    """What is said to a caller that does not listen."""


@dataclass(slots=True)
class Site:
    """One vCenter to work on, and where this machine keeps its journal. Close it, or use `with`."""

    vcenter: Vcenter
    state_dir: Path
    clock: Callable[[], datetime]
    progress: Callable[[Outcome], None] = _unwatched
    """Called with the outcome of each step as it ends."""
    in_flight: Callable[[Sequence[Step]], None] = _unwatched_steps
    """Called with the steps that were sent and have not ended, each time before a plan waits."""
    passed_s: Callable[[], float] = time_here.passed_s
    """Seconds since some moment, whatever is done to the clock."""
    pause: Callable[[float], None] = time_here.pause
    """Returns so many seconds later."""
    say: Callable[[str], None] = _unheard
    """Told in one line what a run waits for, and that it goes on."""
    same_time: bool = False
    """Whether vCenter's clock and ours should show the same: a simulated one may live in a time of its own."""
    closing: ExitStack = field(default_factory=ExitStack)
    shell: HostShell | None = None
    """The way into the hosts themselves, for what vCenter cannot; None = there is none."""
    applied_by_shell: bool | None = False
    """Whether the shell changed something; None = not known."""
    no_guests: GpuopsError | None = None
    """Why there is no login to guests, where it is not known yet whether one is needed."""
    sources: Mapping[Source, SessionSource] = field(default_factory=lambda: NO_SOURCES)
    """What tells of sessions beside vCenter."""
    vgpu_use: VgpuUseSource | None = None
    """What hosts' own nvidia-smi tell of vGPUs, now or when `gpuops observe` last asked; None = nothing."""
    gpu_health: Callable[[Inventory], Inventory] | None = None
    """Adds the health of GPUs to the snapshot of a night, if the target's entry lets hosts be entered; None = it is not
    asked."""
    journal_url: str = field(default="", repr=False)
    """The PostgreSQL database that keeps the journal; empty = a file in `state_dir`."""
    policy_files: tuple[Path, ...] = ()
    """The policies that the configuration file of this machine names for the vCenter."""
    said_policy: Policy | None = None
    """The policy that the present run was given; None = none."""
    measured: MeasurementSettings = UNSAID
    """What is measured, how long that is kept, and where."""
    notices: NoticeWay | None = None
    """How notices of its runs are sent; None = they are not."""
    broker: Callable[[], BrokerTarget] | None = None
    """Finds the login to the connection broker that hands its desktops out; None = there is none."""
    gates: DesktopGates | None = None
    """The gate of that broker, for policies that say `broker: horizon`."""

    @property
    def measurements_store(self) -> tuple[Path, str]:
        """The directory of the store of measurements, and the URL of the database that keeps it instead, or empty."""
        return measurements_store(self.measured, self.state_dir, self.journal_url)

    @property
    def hosts(self) -> Hosts:
        """The settings of the vCenter's hosts, and what a shell on them adds."""
        return (
            self.vcenter.hosts if self.shell is None else ShelledHosts(self.vcenter.hosts, self.shell, self._by_shell)
        )

    @property
    def applied(self) -> bool | None:
        """Whether something was changed, in vCenter, by the shell on a host, or at the broker; None = not known."""
        by_broker = self.gates.applied if self.gates is not None else False
        each = {self.vcenter.applied, self.applied_by_shell, by_broker}
        return True if True in each else None if None in each else False

    def _by_shell(self, applied: bool | None) -> None:
        self.applied_by_shell = self.applied_by_shell or applied

    def with_vgpus(self, inventory: Inventory) -> Inventory:
        """The snapshot with the health of GPUs and how vGPUs lie on them, where there is a shell on the hosts."""
        return inventory if self.shell is None else with_vgpus(inventory, self.shell, self.say, catalog_of(inventory))

    def with_health(self, inventory: Inventory) -> Inventory:
        """The snapshot with the health of GPUs, where the target's entry lets hosts be asked for it."""
        return inventory if self.gpu_health is None else self.gpu_health(inventory)

    def _own_commands(self) -> frozenset[GuestCommand]:
        """The commands for guests that policy files of this machine name, those that nobody else can write."""
        from gpuops.config.policy import load_policy
        from gpuops.files.private_file import replaceable

        policies = [self.said_policy] if self.said_policy is not None else []
        for file in self.policy_files:
            with suppress(PolicyError, OSError):  # it names no command that could be run
                if replaceable(file) is None:
                    policies.append(load_policy(file))
        return frozenset(command for policy in policies for command in policy.commands)

    def close(self) -> None:
        self.closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it; an error that leaves the block says from here on whether something was changed before it."""
        if error is not None:
            say_applied(error, self.applied)
        self.close()

    def tagged(self, inventory: Inventory, policy: Policy) -> Inventory:
        """The same snapshot, with the tags of every VM and host where the policy asks for tags."""
        return self.vcenter.with_tags(inventory) if policy.needs_tags else inventory

    def judged(self, inventory: Inventory, policy: Policy, vms: Collection[str] | None = None) -> Inventory:
        """The same snapshot, with all that the policy judges desktops by: tags, counters, sessions, gates; and with the
        health of GPUs, where hosts may be asked for it."""
        inventory = self.with_health(inventory)
        return with_policy_reads(self.vcenter, inventory, policy, vms, self.sources, self.gates, vgpu_use=self.vgpu_use)

    def permitted(self, plan: Plan, inventory: Inventory, later: Iterable[Step] = ()) -> Plan:
        """The plan, refused when this login lacks a privilege that one of its steps, or of those to come, needs.

        Of a plan that is refused already, the steps it would have had are asked for too.
        """
        from gpuops.plan.core.privileges import attributes, needed_on_hosts_of_vms, needed_privileges, refused_without

        steps = plan.steps or plan.withheld
        if not steps:
            return plan
        every = (*steps, *later)
        lacking = self.vcenter.lacking(needed_privileges(every), attributes(steps))
        on_hosts = needed_on_hosts_of_vms(every, inventory)
        lacking_on_hosts = self.vcenter.lacking_on_objects(on_hosts) if on_hosts else {}
        return refused_without(plan, {**lacking, **lacking_on_hosts}, inventory)

    @contextmanager
    def locked_journal(
        self, vcenter: str, *, alone: bool, returning: bool = False, doing: str = ""
    ) -> Iterator[Journal]:
        """The journal of this vCenter, while its lock is held. Raises Locked, StateDamaged. `doing`: see `locked`.

        `returning` is for a run that only brings back, alone: it outlives its journal (`Journal.lost`) and the file of
        its lock (`LockHold.damaged`).
        """
        from gpuops.execute.journal import Journal
        from gpuops.execute.state.lock import locked, locked_to_return

        with ExitStack() as stack:
            now = self.clock()
            if returning:
                hold = stack.enter_context(locked_to_return(self.state_dir, vcenter, now, doing=doing))
            else:
                hold = stack.enter_context(locked(self.state_dir, vcenter, now, alone=alone, doing=doing))
            journal = Journal.open(self.state_dir, vcenter, self.clock, url=self.journal_url, returning=returning)
            journal.hold = hold
            journal.own_commands = cache(self._own_commands) if self.journal_url else None
            with closing(journal):
                yield journal

    @contextmanager
    def journal_to_read(self, vcenter: str, *, returning: bool = False) -> Iterator[Journal | None]:
        """The journal of this vCenter, to read from without the lock; None = there is none. Raises StateDamaged."""
        from gpuops.execute.journal import Journal

        journal = Journal.look_into(self.state_dir, vcenter, self.clock, url=self.journal_url, returning=returning)
        if journal is None:
            yield None
            return
        journal.own_commands = cache(self._own_commands) if self.journal_url else None
        with closing(journal):
            yield journal


def measurements_store(settings: MeasurementSettings, state_dir: Path, journal_url: str) -> tuple[Path, str]:
    """The directory of the store of measurements, and the URL of the database that keeps it instead, or empty."""
    if settings.store_dir is not None:
        return Path(settings.store_dir), ""
    return state_dir, settings.store_url or journal_url


def catalog_of(inventory: Inventory) -> Catalog:
    """The catalogue of the boards this inventory speaks of: by its GPUs, and by the profiles offered and carried."""
    from gpuops.catalog import load

    carried = {profile for vm in inventory.vms.values() for profile in vm.profiles}
    gpus = [gpu for host in inventory.hosts.values() for gpu in host.devices]
    return load(
        profiles={*inventory.offered_profiles, *carried},
        pci={(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) for gpu in gpus},
    )

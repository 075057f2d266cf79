"""A `Site` is one vCenter to work on, with its journal, and the callbacks that report progress."""

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
from gpuops.execute.site.policy_reads import NO_SOURCES, with_policy_reads
from gpuops.execute.site.ports import DesktopGates, Hosts, SessionSource, Vcenter, VgpuUseSource
from gpuops.model.desktops.evidence import Source
from gpuops.model.measurements.measurement_settings import UNSAID, MeasurementSettings
from gpuops.model.vcenter.inventory import Inventory

if TYPE_CHECKING:
    from gpuops.config.vcenter.targets import NotifySettings
    from gpuops.execute.journal import Journal
    from gpuops.model.devices.catalog import Catalog
    from gpuops.model.nights.ml_queue import GuestCommand
    from gpuops.model.nights.rotation_policy import Policy
    from gpuops.model.vcenter.target import BrokerTarget
    from gpuops.plan.core.plan import Outcome, Plan, Report
    from gpuops.plan.core.steps import Step


@dataclass(frozen=True, slots=True)
class NoticeWay:
    """The settings to send the notices of a target's runs; `gpuops.extras.notify` sends them."""

    settings: NotifySettings
    state_dir: Path
    environ: Mapping[str, str] = field(repr=False)
    clock: Callable[[], datetime] = time_here.wall_clock
    say: Callable[[str], None] = lambda line: None
    """Called with one line about notices that no receiver accepted."""


Consent = Callable[["Report"], None]
"""Called just before anything is changed; an exception from it ends the run with nothing changed."""

WITHOUT_GUESTS: Final = "it goes on without a login to guests, whose hooks do not run"
"""The warning of a return that has no login to guests."""


def agreed(plan: object) -> None:
    """Agree to the plan: the caller asked before, or does not need to ask."""


def once_agreed(consent: Consent, action: Callable[[Report], None]) -> Consent:
    """Return a consent that asks `consent` and then does `action`, which must not happen before the admin agrees.

    If the run asks again, for a larger plan, `action` is done again too.
    """

    def ask_and_act(report: Report) -> None:
        consent(report)
        action(report)

    return ask_and_act


@dataclass(slots=True)
class Site:
    """One vCenter to work on, and where this machine keeps its journal. Close it, or use `with`."""

    vcenter: Vcenter
    state_dir: Path
    clock: Callable[[], datetime]
    progress: Callable[[Outcome], None] = lambda outcome: None
    """Called with the outcome of each step as it ends."""
    in_flight: Callable[[Sequence[Step]], None] = lambda steps: None
    """Called with the steps that were sent and have not ended, each time before the executor waits."""
    passed_s: Callable[[], float] = time_here.passed_s
    """Seconds since a fixed moment, whatever is done to the clock."""
    pause: Callable[[float], None] = time_here.pause
    """Waits this many seconds."""
    say: Callable[[str], None] = lambda line: None
    """Called with one line when a run waits for something, and when it continues."""
    same_time: bool = False
    """Whether vCenter's clock and ours should agree: a simulated vCenter may have its own time."""
    closing: ExitStack = field(default_factory=ExitStack)
    shell: HostShell | None = None
    """The shell on hosts, for what vCenter has no call for; None = not configured."""
    applied_by_shell: bool | None = False
    """Whether the shell on hosts changed something; None = not known."""
    no_guests: GpuopsError | None = None
    """Why there is no login to guests, if it is not known yet whether the run needs one."""
    sources: Mapping[Source, SessionSource] = field(default_factory=lambda: NO_SOURCES)
    """Sources of sessions other than vCenter."""
    vgpu_use: VgpuUseSource | None = None
    """The use of vGPUs by nvidia-smi on hosts, read now or by the last `gpuops observe`; None = not configured."""
    gpu_health: Callable[[Inventory], Inventory] | None = None
    """Adds the health of GPUs to a snapshot, if the target's entry allows logins to hosts; None = not read."""
    journal_url: str = field(default="", repr=False)
    """The PostgreSQL database that keeps the journal; empty = a file in `state_dir`."""
    policy_files: tuple[Path, ...] = ()
    """The policies for this vCenter in the configuration file of this machine."""
    said_policy: Policy | None = None
    """The policy that was given to the present run, if any."""
    measured: MeasurementSettings = UNSAID
    """What is measured, how long measurements are kept, and where."""
    notices: NoticeWay | None = None
    """How notices of its runs are sent; None = no notices."""
    broker: Callable[[], BrokerTarget] | None = None
    """Returns the login to the connection broker of the desktops; None = not configured."""
    gates: DesktopGates | None = None
    """The gates of that broker, for policies with `broker: horizon`."""

    @property
    def measurements_store(self) -> tuple[Path, str]:
        """The directory of the store of measurements, and the URL of a database used instead, or an empty text."""
        return measurements_store(self.measured, self.state_dir, self.journal_url)

    @property
    def hosts(self) -> Hosts:
        """The port to the vCenter's hosts, extended by a shell on them if one is configured."""
        return (
            self.vcenter.hosts
            if self.shell is None
            else ShelledHosts(self.vcenter.hosts, self.shell, self._note_applied_by_shell)
        )

    @property
    def applied(self) -> bool | None:
        """Whether something was changed, in vCenter, by the shell on a host, or at the broker; None = not known."""
        applied_by_broker = self.gates.applied if self.gates is not None else False
        changes = {self.vcenter.applied, self.applied_by_shell, applied_by_broker}
        # one change that is certain outweighs those that are not known
        return True if True in changes else None if None in changes else False

    def _note_applied_by_shell(self, applied: bool | None) -> None:
        self.applied_by_shell = self.applied_by_shell or applied

    def with_vgpus(self, inventory: Inventory) -> Inventory:
        """Return the snapshot with the health of GPUs and the places of vGPUs, if there is a shell on hosts."""
        return inventory if self.shell is None else with_vgpus(inventory, self.shell, self.say, catalog_of(inventory))

    def with_health(self, inventory: Inventory) -> Inventory:
        """Return the snapshot with the health of GPUs, if the target's entry allows logins to hosts."""
        return inventory if self.gpu_health is None else self.gpu_health(inventory)

    def _own_commands(self) -> frozenset[GuestCommand]:
        """Return the guest commands in policy files of this machine that no other user can write."""
        from gpuops.config.policy import load_policy
        from gpuops.files.private_file import replaceable

        policies = [self.said_policy] if self.said_policy is not None else []
        for file in self.policy_files:
            with suppress(PolicyError, OSError):  # a file that cannot be read allows no command
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
        """Close the site. An error that leaves the block gets the note whether something was changed before it."""
        if error is not None:
            say_applied(error, self.applied)
        self.close()

    def read_tags(self, inventory: Inventory, policy: Policy) -> Inventory:
        """Return the snapshot with the tags of every VM and host, if the policy needs tags."""
        return self.vcenter.with_tags(inventory) if policy.needs_tags else inventory

    def read_for_policy(self, inventory: Inventory, policy: Policy, vms: Collection[str] | None = None) -> Inventory:
        """Return the snapshot with what the policy needs to judge desktops: tags, counters, sessions, gates.

        Adds the health of GPUs, if the target's entry allows logins to hosts.
        """
        inventory = self.with_health(inventory)
        return with_policy_reads(self.vcenter, inventory, policy, vms, self.sources, self.gates, vgpu_use=self.vgpu_use)

    def check_privileges(self, plan: Plan, inventory: Inventory, later: Iterable[Step] = ()) -> Plan:
        """Return the plan, refused if this login lacks a privilege for its steps or for `later` ones of its return.

        For a plan that is already refused, the privileges for its withheld steps are checked.
        """
        from gpuops.plan.core.privileges import attributes, needed_on_hosts_of_vms, needed_privileges, refused_without

        steps = plan.steps or plan.withheld
        if not steps:
            return plan
        all_steps = (*steps, *later)
        lacking = self.vcenter.lacking(needed_privileges(all_steps), attributes(steps))
        on_hosts = needed_on_hosts_of_vms(all_steps, inventory)
        lacking_on_hosts = self.vcenter.lacking_on_objects(on_hosts) if on_hosts else {}
        return refused_without(plan, {**lacking, **lacking_on_hosts}, inventory)

    @contextmanager
    def locked_journal(
        self, vcenter: str, *, alone: bool, returning: bool = False, doing: str = ""
    ) -> Iterator[Journal]:
        """Yield the journal of this vCenter, with its lock held. Raises Locked, StateDamaged. `doing`: see `locked`.

        `returning`: a return, which locks exclusively. It continues without its journal (`Journal.lost`) or its lock
        file (`LockHold.damaged`) if these cannot be used.
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
    def unlocked_journal(self) -> Iterator[Journal]:
        """Yield the journal of this vCenter without its lock, for steps that no rotation meets. Raises StateDamaged."""
        from gpuops.execute.journal import Journal

        with closing(Journal.open(self.state_dir, self.vcenter.uuid, self.clock, url=self.journal_url)) as journal:
            yield journal

    @contextmanager
    def journal_to_read(self, vcenter: str, *, returning: bool = False) -> Iterator[Journal | None]:
        """Yield the journal of this vCenter for reading, without the lock, or None. Raises StateDamaged."""
        from gpuops.execute.journal import Journal

        journal = Journal.look_into(self.state_dir, vcenter, self.clock, url=self.journal_url, returning=returning)
        if journal is None:
            yield None
            return
        journal.own_commands = cache(self._own_commands) if self.journal_url else None
        with closing(journal):
            yield journal


def measurements_store(settings: MeasurementSettings, state_dir: Path, journal_url: str) -> tuple[Path, str]:
    """Return the directory of the store of measurements, and the URL of a database used instead, or an empty text."""
    if settings.store_dir is not None:
        return Path(settings.store_dir), ""
    return state_dir, settings.store_url or journal_url


def catalog_of(inventory: Inventory) -> Catalog:
    """Return the catalogue of the boards in this inventory: by its GPUs, and by profiles of hosts and VMs."""
    from gpuops.catalog import load

    vm_profiles = {profile for vm in inventory.vms.values() for profile in vm.profiles}
    gpus = [gpu for host in inventory.hosts.values() for gpu in host.devices]
    return load(
        profiles={*inventory.offered_profiles, *vm_profiles},
        pci={(gpu.vendor_id, gpu.device_id, gpu.subsystem_id) for gpu in gpus},
    )

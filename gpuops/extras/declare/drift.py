"""`gpuops drift`: follows a vCenter, reports settings that drift from a site file, and sets them back if allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.api import change_abort
from gpuops.errors import (
    Locked,
    LoginRefused,
    NoPermission,
    NotConnected,
    PartlyDone,
    Refused,
    UsageError,
    report_exit_code,
)
from gpuops.execute.rotation.watch import wait_for_news
from gpuops.execute.site import Site
from gpuops.extras.declare.applying import SiteReport, apply_site, compare_now
from gpuops.extras.declare.entries import GPU_KEYS, HOST_KEYS, SiteFile
from gpuops.extras.declare.wishes import SiteDifference
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory, SettingChange
from gpuops.model.window import Window
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.hosts.change.emptying import running_vms_on
from gpuops.plan.hosts.change.rolling_plan import ChangeReport, change_window_refusals
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.reading.counters import setting_changes

HEALABLE: Final = ("assignment", "default_graphics", "vgpu_mode", "mig", "scheduler", "label", "drs", "marks")
"""Keys that may be set back without an admin: setting them stops, moves and reboots nothing."""
LONGEST_S: Final = 45.0
"""The time between two comparisons if vCenter reports no change: for some settings of hosts it reports none."""
SHORTEST_S: Final = 10.0
"""The shortest time between two comparisons; one comparison handles all changes in that time."""

LONGEST_PAST: Final = timedelta(days=1)
"""How far back the first comparison reads events."""
EVENTS_LAG: Final = timedelta(minutes=1)
"""Events are read from this long before the last comparison, which may have missed the change of such an event."""


@dataclass(frozen=True, slots=True)
class DriftLook:
    """The result of one comparison: settings that drifted, settings that are back, and settings that were set back."""

    at: datetime
    vcenter: str
    drifted: tuple[SiteDifference, ...]
    back: tuple[SiteDifference, ...]
    remaining: tuple[SiteDifference, ...]
    """All settings that differ after the comparison."""
    unmatched: tuple[Rejection, ...]
    """Why entries of the file do not fit this vCenter, for example because a VM was deleted."""
    healed: tuple[SiteReport, ...] = ()
    """The changes that set settings back, or failed to."""
    refusals: tuple[Rejection, ...] = ()
    """Why something was not set back."""
    has_news: bool = False
    """Whether a setting drifted, is back or was set back, or a reason against that is new."""

    @property
    def exit_code(self) -> int:
        """0 = nothing differs, 3 = something does, 4 = something could not be set back."""
        if any(report.failed for report in self.healed):
            return report_exit_code(partly=True)
        return report_exit_code(refused=self.remaining or self.unmatched)


@dataclass(slots=True)
class DriftWatch:
    """Compares a vCenter with a file again and again, and remembers the last result."""

    file: SiteFile
    site: Site
    heals: tuple[str, ...] = ()
    """The keys of the file that are set back."""
    window: Window | None = None
    """Keys are set back only while it is open; None = at any time."""
    reboots: bool = False
    """Whether a host without running VMs goes into maintenance mode while its MIG mode is set back, and is rebooted if
    the mode needs that."""
    known: tuple[SiteDifference, ...] = field(default=(), init=False)
    """What differed after the last comparison."""
    reasons: tuple[Rejection, ...] = field(default=(), init=False)
    """`unmatched` and `refusals` of the last comparison."""
    looked_at: datetime | None = field(default=None, init=False)
    """When vCenter was read last, by its clock."""

    def look(self) -> DriftLook:
        """Compare once, and set back the keys of `heals` in their window. Raises NotConnected, StateDamaged."""
        now = self.site.clock()
        comparison = compare_now(self.file, self.site)
        new = tuple(difference for difference in comparison.differences if difference not in self.known)
        back = tuple(difference for difference in self.known if difference not in comparison.differences)
        new = self._with_users(new, comparison.snapshot) if new else ()
        healed, refusals = tuple[SiteReport, ...](), tuple[Rejection, ...]()
        if healable := self._settings_to_set_back(comparison.differences):
            try:
                healed = self._set_back(healable)
            # for example while a rotation runs: the next comparison tries again
            except (Locked, Refused, PartlyDone) as error:
                refusals = (Rejection("drift", error.message, hint=error.hint),)
            for report in healed:
                refusals += (*report.rejections, *report.unmet, *report.failures)
            comparison = compare_now(self.file, self.site)
        reasons = (*comparison.rejections, *refusals)
        has_news = bool(new or back or reasons != self.reasons) or any(report.changed for report in healed)
        self.known, self.reasons, self.looked_at = comparison.differences, reasons, comparison.snapshot.taken_at
        return DriftLook(
            now, self.site.vcenter.uuid, new, back, self.known, comparison.rejections, healed, refusals, has_news
        )

    def _with_users(self, drifted: Collection[SiteDifference], snapshot: Inventory) -> tuple[SiteDifference, ...]:
        """Return these differences with the users who made them, as far as vCenter's events tell."""
        assert isinstance(self.site.vcenter, Connection), "events are those of a vCenter"
        since = snapshot.taken_at - LONGEST_PAST if self.looked_at is None else self.looked_at - EVENTS_LAG
        try:
            changes = setting_changes(self.site.vcenter, since)
        except NoPermission as error:
            self.site.say(f"the users who changed settings are unknown: {error.line}")
            changes = ()
        return tuple(
            replace(difference, by=self._user_who_changed(difference, changes, snapshot)) for difference in drifted
        )

    def _user_who_changed(
        self, difference: SiteDifference, changes: Collection[SettingChange], snapshot: Inventory
    ) -> str | None:
        """Return the user who made this difference, by the events of changes; None = unknown."""
        if difference.key != "drs":
            setting = (difference.ref, difference.key, difference.mark)
            users = [change.user for change in changes if (change.ref, change.setting, change.mark) == setting]
            return users[-1] if users else None  # the last change made the present setting
        cluster = snapshot.cluster_of(snapshot.vms[difference.ref])
        users = [change.user for change in changes if cluster is not None and change.ref == cluster.ref]
        # a change of a cluster may concern any of its VMs, so name a user only if no other user changed it
        return users[0] if len(set(users)) == 1 else None

    def _settings_to_set_back(self, differences: Iterable[SiteDifference]) -> list[tuple[str, str]]:
        """Return the ref of the host or VM and the key of each setting that may be set back now."""
        if next(change_window_refusals(Rolling(window=self.window), self.site.clock()), None) is not None:
            return []
        settings = (
            (difference.ref, difference.key)
            for difference in differences
            # what waits for a reboot is set already
            if not difference.pending or (self.reboots and difference.key == "mig")
        )
        return [(ref, key) for ref, key in dict.fromkeys(settings) if key in self.heals]

    def _set_back(self, settings: Sequence[tuple[str, str]]) -> tuple[SiteReport, ...]:
        """Set these settings back: together, or one by one if one of them cannot be set; MIG mode of hosts first."""
        reports = tuple[SiteReport, ...]()
        if self.reboots and (refs := {ref for ref, key in settings if key == "mig"}):
            empty = _empty_hosts(self.site.vcenter.inventory(), refs)
            reports = tuple(map(self._set_mig_back, empty))
            settings = [(ref, key) for ref, key in settings if key != "mig" or ref not in empty]
        if not settings:
            return reports
        refs = {ref for ref, _ in settings}
        report = apply_site(healing_part(self.file, self.heals), self.site, apply=True, only=refs)
        if report.feasible or len(settings) == 1:
            return (*reports, report)
        return reports + tuple(
            apply_site(healing_part(self.file, (key,)), self.site, apply=True, only=(ref,)) for ref, key in settings
        )

    def _set_mig_back(self, ref: str) -> SiteReport:
        """Set MIG mode of a host without running VMs back in maintenance mode, in which no VM starts on it."""
        part, rolling = healing_part(self.file, ("mig",)), Rolling(window=self.window)
        report = apply_site(part, self.site, rolling, apply=True, only=(ref,), in_maintenance=_refuse_to_move)
        host = self.site.vcenter.inventory().hosts.get(ref)
        if report.failed and host is not None and host.in_maintenance is False:
            change_abort(self.site)  # a VM started before maintenance mode: the host is as it was
        return report


def _empty_hosts(inventory: Inventory, refs: Collection[str]) -> list[str]:
    """Return those of the hosts on which no VM runs, and which are in service."""
    hosts = [inventory.hosts[ref] for ref in refs if ref in inventory.hosts]
    return [host.ref for host in hosts if host.in_maintenance is False and not running_vms_on(host, inventory)]


def _refuse_to_move(report: ChangeReport) -> None:
    """Raise Refused if a VM has started on the host: then it is neither moved nor stopped."""
    for planned in report.plan.planned_hosts:
        if planned.away:
            raise Refused(f"{planned.host.name} is not rebooted: {planned.away[0].vm.name} runs on it")


def check_heals(keys: Collection[str]) -> tuple[str, ...]:
    """Return the keys to set back. Raises UsageError for a key that must not be set back unattended."""
    unsafe = sorted(set(keys) - set(HEALABLE))
    if unsafe:
        hint = f"use --heal with {', '.join(HEALABLE)}; gpuops apply sets the other keys"
        raise UsageError(f"--heal {unsafe[0]} is refused: this key is not set back unattended", hint=hint)
    return tuple(keys)


def healing_part(file: SiteFile, keys: Collection[str]) -> SiteFile:
    """Return the file with only these keys, without entries that have none of them."""
    # keys that need `scheduler` are left out with it
    scheduler_keys = () if "scheduler" in keys else ("time_slice", "frequency", "averaging")
    left_out_keys: dict[str, Any] = dict.fromkeys((*({*HOST_KEYS, *GPU_KEYS} - set(keys)), *scheduler_keys))
    hosts = [
        replace(entry, **left_out_keys)
        for entry in file.hosts
        if any(getattr(entry, key) is not None for key in (*HOST_KEYS, *GPU_KEYS) if key in keys)
    ]
    vms = [
        replace(
            entry,
            devices=None,  # never set back: that may stop a VM
            drs=entry.drs if "drs" in keys else None,
            marks=entry.marks if "marks" in keys else (),
        )
        for entry in file.vms
        if ("drs" in keys and entry.drs is not None) or ("marks" in keys and entry.marks)
    ]
    return replace(file, hosts=tuple(hosts), vms=tuple(vms))


def follow(watch: DriftWatch, show: Callable[[DriftLook], None]) -> None:
    """Compare until a signal ends it: after each change that vCenter reports, and after `LONGEST_S`. Show news.

    Tries again if vCenter does not answer. Raises LoginRefused.
    """
    site, is_first = watch.site, True
    while True:
        began_s = site.passed_s()
        try:
            look = watch.look()
            if look.has_news or is_first:
                show(look)
            is_first = False
        except LoginRefused:
            raise
        except NotConnected as error:
            site.say(f"{error.line}; gpuops tries again in {LONGEST_S:.0f} s")
        wait_for_news(site, LONGEST_S)
        # changes may come in bursts: compare at most once in `SHORTEST_S`
        site.pause(max(0.0, SHORTEST_S - (site.passed_s() - began_s)))

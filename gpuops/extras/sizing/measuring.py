"""Measure how VMs share a GPU: clone them from a template, run a command in them, remove them.

Measurements are stored after each count, and the number of VMs before they are cloned. To continue an interrupted call,
or one that waits for another scheduler, run the same call again: it uses existing VMs, clones missing ones, and finally
removes all. Only VMs with the name and the notes of this measurement are removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, NotConnected, Refused, VmNotFound, report_exit_code
from gpuops.extras.sizing.measure_plan import PRIVILEGES, MeasurePlan, measure_plan
from gpuops.model.measurements.sharing_measurement import (
    MeasureWish,
    SchedulerBefore,
    SharingMeasurement,
)

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.execute.state.lock import LockHold
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.vcenter.inventory import Inventory

_ID: Final = 4
"""Bytes."""

PlanConsent = Callable[[MeasurePlan], None]
"""Called with the plan just before anything is created; an exception ends the call with nothing changed."""


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """The outcome of a call."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    applied: bool
    left: tuple[str, ...] = ()
    """Names of its VMs that could not be removed, each with its reason."""

    @property
    def exit_code(self) -> int:
        """Return 3 if nothing was started, 4 if counts failed or wait for another scheduler, or VMs remain."""
        partly = self.applied and (self.failed or self.plan.later)
        return report_exit_code(refused=self.plan.rejections, partly=partly)

    @property
    def failed(self) -> bool:
        """Return whether a count failed, or VMs remain."""
        return bool(self.left) or any(count.error for count in self.measurement.done)


def measure(
    wish: MeasureWish, site: Site, *, apply: bool, consent: PlanConsent, before: SchedulerBefore | None = None
) -> SharingMeasured:
    """Return the stored measurement; with `apply` measure the missing counts first. Removes all VMs that it creates.

    `before`: the scheduler that the caller sets back at the end; until then the measurement is kept.
    Raises UsageError for unknown options or names, Refused while another measurement of this vCenter is unfinished,
    Locked while one runs, NotConnected; then the next call continues.
    """
    from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement, measuring_port
    from gpuops.extras.sizing.measured_counts import MeasuringCall

    port = measuring_port(site.vcenter)
    stored = load_measurement(site.state_dir, site.vcenter.uuid)
    if stored is not None and stored.wish != wish:
        raise Refused(
            f"measurement {stored.id} of {stored.wish.template} did not end, and has other options",
            hint="gpuops measure --remove removes its VMs and forgets it",
        )
    measurement = stored or SharingMeasurement(secrets.token_hex(_ID), wish, before=before)
    plan = _look(measurement, site)
    if plan.rejections or not apply:
        return SharingMeasured(plan, measurement, applied=False)
    consent(plan)
    with _alone(site):
        _require_unchanged(stored, site)
        keep_measurement(site.state_dir, site.vcenter.uuid, measurement)
        run = MeasuringCall(plan, measurement, site, port)
        try:
            run.counts()
        except (NotConnected, KeyboardInterrupt, SystemExit):
            site.say(
                f"measurement {measurement.id} was cut off, and its VMs stay: the same again goes on, "
                "gpuops measure --remove removes them"
            )
            raise
        except GpuopsError:
            run.remove()
            raise
        remaining = run.remove()
        _forget_if_done(run.measurement, plan, remaining, site)
    return SharingMeasured(plan, run.measurement, applied=True, left=remaining)


@dataclass(frozen=True, slots=True)
class MeasurementLeft:
    """An unfinished measurement, and the outcome for its VMs."""

    measurement: SharingMeasurement | None
    """None = no measurement is unfinished."""
    vms: tuple[str, ...] = ()
    """Names of its VMs before the removal."""
    left: tuple[str, ...] = ()
    """VMs that could not be removed, and one that vCenter may still be cloning, each with its reason."""
    undone: str = ""
    """That the GPU has another scheduler than before the measurement, and the command that sets it back."""
    applied: bool = False


def remove_measurement(site: Site, *, apply: bool) -> MeasurementLeft:
    """Return the unfinished measurement; with `apply` remove its VMs, and forget it if no VM remains."""
    from gpuops.execute.site.kept_measurement import forget_measurement, load_measurement, measuring_port
    from gpuops.extras.sizing.measured_counts import own_vms, remove_vms
    from gpuops.extras.sizing.measured_schedulers import why_not_as_before

    measuring_port(site.vcenter)  # refuses a saved inventory
    stored = load_measurement(site.state_dir, site.vcenter.uuid)
    if stored is None:
        return MeasurementLeft(None)
    names = tuple(sorted(vm.name for vm in own_vms(stored, site.vcenter.inventory())))
    undone = why_not_as_before(stored.before, site) if stored.before is not None else ""
    if not apply:
        return MeasurementLeft(stored, names, undone=undone)
    with _alone(site):
        _require_unchanged(stored, site)
        remaining = (*remove_vms(stored, site), *_coming(stored, site))
        if not remaining:
            forget_measurement(site.state_dir, site.vcenter.uuid)
    return MeasurementLeft(stored, names, remaining, undone, applied=True)


def _forget_if_done(measurement: SharingMeasurement, plan: MeasurePlan, remaining: Sequence[str], site: Site) -> None:
    """Forget a complete measurement, so that the next call starts a new one; keep one with failed counts."""
    from gpuops.execute.site.kept_measurement import forget_measurement

    waits = plan.later or measurement.before is not None
    if not waits and not remaining and not any(count.error for count in measurement.done):
        forget_measurement(site.state_dir, site.vcenter.uuid)


def _alone(site: Site) -> AbstractContextManager[LockHold]:
    """Lock measurements in this vCenter on this machine. Raises Locked."""
    from gpuops.execute.state.lock import locked

    return locked(site.state_dir, f"{site.vcenter.uuid}-measure", site.clock(), alone=True, doing="measure")


def _require_unchanged(stored: SharingMeasurement | None, site: Site) -> None:
    """Raise Refused if another call has changed the stored measurement since `stored` was read.

    Overwriting it would leave VMs that no measurement names.
    """
    from gpuops.execute.site.kept_measurement import load_measurement

    if load_measurement(site.state_dir, site.vcenter.uuid) != stored:
        raise Refused("another call has measured in this vCenter meanwhile", hint="the same again looks at it anew")


def _look(measurement: SharingMeasurement, site: Site) -> MeasurePlan:
    from gpuops.execute.site import catalog_of
    from gpuops.plan.core.plan import Rejection
    from gpuops.plan.core.privileges import too_old
    from gpuops.plan.core.steps import RunInGuest

    inventory = site.vcenter.inventory()
    template = inventory.find_vm(measurement.wish.template)
    if template.devices is None:
        inventory = site.vcenter.observe(inventory, [template.ref])
    catalog = catalog_of(inventory)
    first = measure_plan(measurement, inventory, catalog, None)
    in_force = _in_force(first, inventory, site)
    plan = measure_plan(measurement, inventory, catalog, in_force)
    reasons = list(too_old(inventory))
    lacking = site.vcenter.lacking({template.ref: PRIVILEGES}).get(template.ref)
    if lacking:
        missing = ", ".join(sorted(lacking))
        reasons.append(Rejection(template.name, f"this login lacks {missing}", hint="ask for a role with it"))
    no_login = site.vcenter.no_way_in(RunInGuest(template.ref, "/bin/sh"))
    if no_login is not None:
        hint = "set GPUOPS_GUEST_USERNAME and GPUOPS_GUEST_PASSWORD_FILE"
        reasons.append(Rejection(template.name, no_login, hint=hint))
    return replace(plan, rejections=(*plan.rejections, *reasons))


def _in_force(plan: MeasurePlan, inventory: Inventory, site: Site) -> SchedulerPolicy | None:
    """Return the scheduler of the measured GPU; None if it is not known."""
    from gpuops.execute.site import catalog_of
    from gpuops.model.devices.scheduler import VgpuScheduler
    from gpuops.plan.hosts.scheduler.state import scheduler_of

    if plan.host is None or plan.gpu is None:
        return None
    read = site.hosts.with_settings(inventory, [plan.host.ref])
    schedulers = scheduler_of(read.hosts[plan.host.ref], catalog_of(read))
    effective = next((gpu.effective for gpu in schedulers.gpus if gpu.gpu.address == plan.gpu.address), None)
    return effective.policy if isinstance(effective, VgpuScheduler) else None


def _coming(measurement: SharingMeasurement, site: Site) -> tuple[str, ...]:
    """Return a reason if vCenter still clones the template: the clone may be of an interrupted call."""
    try:
        template = site.vcenter.inventory().find_vm(measurement.wish.template)
    except VmNotFound:
        return ()
    cloned = any("clone" in task.name.lower() for task in template.tasks)
    return (f"{template.name}: vCenter is still making a VM of it; the same again when that is done",) if cloned else ()

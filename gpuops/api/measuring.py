"""The function that measures how VMs share a GPU: makes them of a template, runs a command in them, removes them.

What is measured is kept after each count, and what is to be made before it is made. A call that was cut off, or that
waits for another scheduler, is gone on with by the same call: VMs that are there already are used, those that are not
are made, and at the end all are removed. Nothing but VMs with the name and the notes of this measurement is removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpuops.errors import GpuopsError, NotConnected, Refused, VmNotFound, report_exit_code
from gpuops.model.measurements.sharing_measurement import (
    MeasureWish,
    SchedulerBefore,
    SharingMeasurement,
)
from gpuops.plan.capacity.measure_plan import PRIVILEGES, MeasurePlan, measure_plan

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.execute.state.lock import LockHold
    from gpuops.model.devices.scheduler import SchedulerPolicy
    from gpuops.model.vcenter.inventory import Inventory

_ID: Final = 4
"""Bytes."""

PlanConsent = Callable[[MeasurePlan], None]
"""Told of the plan just before anything is made; what it raises ends the call with nothing changed."""


@dataclass(frozen=True, slots=True)
class SharingMeasured:
    """What a call came to."""

    plan: MeasurePlan
    measurement: SharingMeasurement
    applied: bool
    left: tuple[str, ...] = ()
    """Names of its VMs that could not be removed, each with its reason."""

    @property
    def exit_code(self) -> int:
        """3 = nothing was begun, 4 = counts failed, wait for another scheduler, or VMs are left."""
        partly = self.applied and (self.failed or self.plan.later)
        return report_exit_code(refused=self.plan.rejections, partly=partly)

    @property
    def failed(self) -> bool:
        """Whether a count failed, or VMs are left."""
        return bool(self.left) or any(each.error for each in self.measurement.done)


def measure(
    wish: MeasureWish, site: Site, *, apply: bool, consent: PlanConsent, before: SchedulerBefore | None = None
) -> SharingMeasured:
    """What was measured so far, and with `apply` what this call added to it. All that is made is removed again.

    `before`: what the caller sets back at last; until then the measurement is kept.
    Raises UsageError for options or names that mean nothing, or while another measurement of this vCenter waits to go
    on, Locked while one runs, NotConnected; then the next call goes on.
    """
    from gpuops.api.measured_counts import MeasuringCall
    from gpuops.execute.site.kept_measurement import keep_measurement, load_measurement, measuring_port

    port = measuring_port(site.vcenter)
    known = load_measurement(site.state_dir, site.vcenter.uuid)
    if known is not None and known.wish != wish:
        raise Refused(
            f"measurement {known.id} of {known.wish.template} did not end, and has other options",
            hint="gpuops size --measure --remove removes its VMs and forgets it",
        )
    measurement = known or SharingMeasurement(secrets.token_hex(_ID), wish, before=before)
    plan = _look(measurement, site)
    if plan.rejections or not apply:
        return SharingMeasured(plan, measurement, applied=False)
    consent(plan)
    with _alone(site):
        _unchanged(known, site)
        keep_measurement(site.state_dir, site.vcenter.uuid, measurement)
        run = MeasuringCall(plan, measurement, site, port)
        try:
            run.counts()
        except (NotConnected, KeyboardInterrupt, SystemExit):
            site.say(
                f"measurement {measurement.id} was cut off, and its VMs stay: the same again goes on, "
                "gpuops size --measure --remove removes them"
            )
            raise
        except GpuopsError:
            run.remove()
            raise
        left = run.remove()
        _forget_if_done(run.measurement, plan, left, site)
    return SharingMeasured(plan, run.measurement, applied=True, left=left)


@dataclass(frozen=True, slots=True)
class MeasurementLeft:
    """A measurement that did not end, and what became of its VMs."""

    measurement: SharingMeasurement | None
    """None = there is none."""
    vms: tuple[str, ...] = ()
    """Names of those that were there."""
    left: tuple[str, ...] = ()
    """Of them those that could not be removed, and one that vCenter may still be making, each with its reason."""
    undone: str = ""
    """That the GPU has another scheduler than before it was measured, and what sets it back: nobody reboots for it."""
    applied: bool = False


def remove_measurement(site: Site, *, apply: bool) -> MeasurementLeft:
    """The measurement that did not end; with `apply` its VMs are removed, and it is forgotten where none is left."""
    from gpuops.api.measured_counts import own_vms, remove_vms
    from gpuops.api.measured_schedulers import not_as_before
    from gpuops.execute.site.kept_measurement import forget_measurement, load_measurement, measuring_port

    measuring_port(site.vcenter)  # refuses a saved inventory
    known = load_measurement(site.state_dir, site.vcenter.uuid)
    if known is None:
        return MeasurementLeft(None)
    names = tuple(sorted(vm.name for vm in own_vms(known, site.vcenter.inventory())))
    undone = not_as_before(known.before, site) if known.before is not None else ""
    if not apply:
        return MeasurementLeft(known, names, undone=undone)
    with _alone(site):
        _unchanged(known, site)
        left = (*remove_vms(known, site), *_coming(known, site))
        if not left:
            forget_measurement(site.state_dir, site.vcenter.uuid)
    return MeasurementLeft(known, names, left, undone, applied=True)


def _forget_if_done(measurement: SharingMeasurement, plan: MeasurePlan, left: Sequence[str], site: Site) -> None:
    """What is measured whole is told once; with counts that failed the next call begins anew as well."""
    from gpuops.execute.site.kept_measurement import forget_measurement

    waits = plan.later or measurement.before is not None
    if not waits and not left and not any(each.error for each in measurement.done):
        forget_measurement(site.state_dir, site.vcenter.uuid)


def _alone(site: Site) -> AbstractContextManager[LockHold]:
    """While this lasts no other call of this machine measures in that vCenter. Raises Locked."""
    from gpuops.execute.state.lock import locked

    return locked(site.state_dir, f"{site.vcenter.uuid}-measure", site.clock(), alone=True, doing="size --measure")


def _unchanged(known: SharingMeasurement | None, site: Site) -> None:
    """Raises Refused where another call has begun, gone on with or ended a measurement since `known` was read: to write
    over what it has kept would leave its VMs to nobody."""
    from gpuops.execute.site.kept_measurement import load_measurement

    if load_measurement(site.state_dir, site.vcenter.uuid) != known:
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
    """The scheduler of the GPU that is measured; None = it is not known."""
    from gpuops.execute.site import catalog_of
    from gpuops.model.devices.scheduler import VgpuScheduler
    from gpuops.plan.hosts.scheduler.state import scheduler_of

    if plan.host is None or plan.gpu is None:
        return None
    read = site.hosts.with_settings(inventory, [plan.host.ref])
    told = scheduler_of(read.hosts[plan.host.ref], catalog_of(read))
    found = next((each.effective for each in told.gpus if each.gpu.address == plan.gpu.address), None)
    return found.policy if isinstance(found, VgpuScheduler) else None


def _coming(measurement: SharingMeasurement, site: Site) -> tuple[str, ...]:
    """The template while vCenter clones it: a call may have asked for the VM that comes before it was cut off."""
    try:
        template = site.vcenter.inventory().find_vm(measurement.wish.template)
    except VmNotFound:
        return ()
    cloned = any("clone" in task.name.lower() for task in template.tasks)
    return (f"{template.name}: vCenter is still making a VM of it; the same again when that is done",) if cloned else ()

"""Tasks that change hosts or VMs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

from gpuops.api import catalog_of, change, clone, configure, foresee, run
from gpuops.config.date_text import parse_window
from gpuops.errors import Refused, UsageError
from gpuops.model.vcenter.host_settings import Rolling
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import memory_mib
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import CloneVm, HostStep
from gpuops.plan.hosts.change.rolling_plan import ChangeReport, change_window_refusals
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.host_plan import HostRequest
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.clone import Clone
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.several import Change, Part, SeveralVms
from gpuops.report.document import Document, PrintedDocument
from gpuops.report.hosts.change_view import ChangeDocument
from gpuops.report.hosts.host_plan_view import changes, host_report_document
from gpuops.report.plan_json import TogetherDocument, report_document
from gpuops.report.vms.vm_view import vm_state
from gpuops.tasks.perform import (
    NOT_DONE,
    PARTLY,
    REFUSED,
    TaskResult,
    difference,
    inventory_after,
    reasons_of,
    result_of,
    task_result,
)
from gpuops.tasks.task_connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site, request_of, vm_of

OPTIONS: Final = ("reboot", "max_hosts", "window", "vms", "vsan_mode")
"""The options for reboots, in addition to the fields of the request."""


def host_gpu_scheduler(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    """Set the vGPU scheduler. `options`: the fields of `SetScheduler` and `OPTIONS`; the next two tasks likewise."""
    return _set_on_hosts(connection, SetScheduler, "scheduler set", options, apply=apply)


def host_graphics_mode(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    return _set_on_hosts(connection, SetMode, "mode set", options, apply=apply)


def host_passthrough(connection: ConnectionArguments, *, state: str, apply: bool, **options: Any) -> TaskResult:
    on = state == "enabled"
    verb = f"passthrough {'on' if on else 'off'}"
    return _set_on_hosts(connection, SetPassthrough, verb, {**options, "on": on}, apply=apply)


def rolling_of(options: Mapping[str, Any]) -> Rolling | None:
    """Return how to reboot hosts; None = no reboots. Raises UsageError for an option that needs `reboot=rolling`."""
    chosen = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    if chosen.pop("reboot", None) is None:
        # `window` also makes sense without reboots: nothing is set outside of it
        stray = next((name for name in chosen if name != "window"), None)
        if stray is not None:
            raise UsageError(f"{stray} needs reboot=rolling", hint=f"set reboot=rolling, or remove {stray}")
        return None
    if chosen.get("max_hosts", 1) < 1:
        raise UsageError(f"max_hosts {chosen['max_hosts']} is too small", hint="set it to 1 or more")
    return request_of(Rolling, {**chosen, "window": parse_window(chosen["window"])} if "window" in chosen else chosen)


def refuse_outside_window(window: str | None, now: datetime) -> None:
    """Raise Refused while the task's window is closed, UsageError for an invalid window; None = no window."""
    if window is None:
        return
    closed = next(iter(change_window_refusals(Rolling(window=parse_window(window)), now)), None)
    if closed is not None:
        raise Refused(str(closed), hint=closed.hint)


def _set_on_hosts(
    connection: ConnectionArguments, kind: type[HostRequest], verb: str, options: dict[str, Any], *, apply: bool
) -> TaskResult:
    """Change the settings of hosts; with `reboot=rolling` also reboot the hosts, so that the settings take effect.

    A connection without a verified certificate is refused for reboots, as for a rotation.
    """
    reboot_options = {name: options.pop(name, None) for name in OPTIONS}
    request, rolling = request_of(kind, options), rolling_of(reboot_options)
    site, warnings = open_site(connection, require_verified=rolling is not None, run=verb if rolling and apply else "")
    with site:
        if rolling is not None:
            return change_result(change(request, verb, rolling, site, apply=apply), warnings)
        refuse_outside_window(reboot_options["window"], site.clock())
        report = configure(request, site, apply=apply)
    document = host_report_document(report, verb.replace(" ", "-"))
    return _host_result(report, document, report.plan.afterwards, report.plan.steps, warnings)


def change_result(report: ChangeReport, warnings: list[str]) -> TaskResult:
    """Return the result of a rolling change. It has the same keys as that of a change without reboots."""
    steps = [planned.step for planned in report.plan.planned_hosts]
    return _host_result(report, ChangeDocument.made_of(report), report.afterwards, steps, warnings)


def _host_result(
    report: Report[HostStep] | ChangeReport,
    document: PrintedDocument,
    afterwards: Sequence[str],
    steps: Sequence[HostStep],
    warnings: list[str],
) -> TaskResult:
    """Return the result of a change of hosts, with the settings of each host before and after."""
    host_settings = [(report.before.hosts[step.host].name, changes(step)) for step in steps if report.plan.feasible]
    fields = {
        "changed": report.changed,
        "because": list(report.plan.because),
        "afterwards": list(afterwards),
        "plan": document,
        "diff": [
            difference(
                host,
                {setting.what: setting.before for setting in settings},
                {setting.what: setting.after for setting in settings},
            )
            for host, settings in host_settings
        ],
    }
    headline = PARTLY if report.plan.feasible else REFUSED  # printed only if the task fails
    return task_result(fields, report.exit_code, reasons_of(report), (*warnings, *report.plan.warnings), headline)


def vm_gpu(
    connection: ConnectionArguments,
    *,
    state: str,
    apply: bool,
    after_clone: Mapping[str, Any] | None = None,
    shell: HostShellArguments = NO_SHELL,
    **options: Any,
) -> TaskResult:
    """Attach GPUs to a VM or detach them.

    `options` are the fields of `Attach` and `Detach`; None or False = not given. `after_clone` are the options of a
    `vm_clone` before this task: in check mode its VM does not exist yet, so the plan is made for the VM as it will be.
    Raises UsageError for an option that does not fit `state`, and the errors of `gpuops attach`, `gpuops detach` and
    `gpuops clone`.
    """
    request = _attach_or_detach(options, state)
    # in check mode `vm_clone` has not made the VM, so the request is planned on the VM that it would make
    planned_clone = clone_of(after_clone) if after_clone is not None and not apply else None
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply) if planned_clone is None else foresee(request, planned_clone, site)
    after = inventory_after(report)
    task = result_of(report, report_document(report, request.run_kind), after, warnings)
    vm = report.before.find_vm(request.vm)
    task.result["vm"] = vm_state(after.vms[vm.ref], after) if vm.ref in after.vms else None
    return task


def vm_gpus(
    connection: ConnectionArguments,
    vms: Sequence[Mapping[str, Any]],
    *,
    partial: bool,
    apply: bool,
    shell: HostShellArguments = NO_SHELL,
) -> TaskResult:
    """Attach and detach GPUs of several VMs with one login, one read and one plan.

    Each of `vms` holds the state and the options of one VM. `partial`: change the VMs that can be changed, and name the
    others (exit code 4). Raises UsageError for an option that does not fit the state of its VM, before anything is
    read, and for a VM that is named twice.
    """
    request = SeveralVms(tuple(_attach_or_detach(vm, vm["state"]) for vm in vms), partial)
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply)
        now = site.clock()
    after = inventory_after(report)
    task = result_of(report, TogetherDocument.made_of(report), after, warnings)
    parts = request.parts(report.before, catalog_of(report.before), now)
    task.result["vms"] = [_vm_result(part, report, after) for part in parts]
    return task


def _vm_result(part: Part, report: Report, after: Inventory) -> Document:
    """Return the result for one VM of a task with several: `asked` is its name in the task."""
    outcomes = [outcome for outcome in report.outcomes if outcome.step.vm == part.vm]
    failures = [outcome.reason for outcome in outcomes if outcome.verdict in NOT_DONE]
    vm = after.vms.get(part.vm) if part.vm else None
    planned = report.plan.feasible and part.plan.feasible and bool(part.plan.steps)
    is_done = any(outcome.verdict is Verdict.DONE for outcome in outcomes)
    return {
        "asked": part.request.vm,
        "changed": is_done if report.applied else planned,
        "failed": bool(part.plan.rejections or failures),
        "because": list(part.plan.because),
        "reasons": [*(rejection.line for rejection in part.plan.rejections), *failures],
        "vm": vm_state(vm, after) if vm is not None else None,
    }


def _attach_or_detach(options: Mapping[str, Any], state: str) -> Change:
    """Return the request that a task's options make. Raises UsageError for an option that does not fit `state`."""
    request_class = Attach if state == "present" else Detach
    options_given = {name: option for name, option in options.items() if option is not None and option is not False}
    options_given["vm"] = vm_of(options_given)
    options_given.pop("state", None)
    for name in options_given.keys() - {field.name for field in fields(request_class)}:
        fitting_state = "absent" if state == "present" else "present"
        raise UsageError(f"{name} cannot be used with state={state}", hint=f"remove it, or set state={fitting_state}")
    return request_class(**options_given)


def vm_clone(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    """Make a VM from a template. `options` are the fields of `Clone`, with `memory` as text (`64 GB`).

    None = not given. Raises GpuopsError.
    """
    request = clone_of(options)
    site, warnings = open_site(connection)
    with site:
        cloning, inventory = clone(request, site, apply=apply)
    reasons = [rejection.line for rejection in cloning.rejections]
    new, existing = cloning.new, cloning.existing_vm
    vm = existing or (inventory.vms.get(new.vm) if new is not None else None)
    fields = {
        "changed": new is not None and not reasons,
        "there": new is None and existing is not None,
        "diff": [difference(new.name, {}, _predicted_vm(new, inventory))] if new is not None else [],
        "because": [] if new is not None or existing is None else [f"{existing.name} is there already"],
        "vm": vm_state(vm, inventory) if vm is not None else None,
        "clone": {name: option for name, option in options.items() if option is not None},
    }
    # exit code 3: refused, as the command ends
    return task_result(fields, 3 if reasons else 0, reasons, warnings, REFUSED)


def _predicted_vm(new: CloneVm, inventory: Inventory) -> Document:
    """Return what is known of a VM before it is cloned."""
    return {
        "name": new.name,
        "template": inventory.vm(new.source).name,
        "host": inventory.hosts[new.host].name,
        "power": "poweredOff",
        "vcpus": new.vcpus,
        "memory_mib": new.memory_mib,
    }


def clone_of(options: Mapping[str, Any]) -> Clone:
    """Return the request of a task's options. Raises UsageError for an invalid `memory`."""
    memory = options.get("memory")
    other_options = {name: option for name, option in options.items() if name != "memory"}
    return request_of(Clone, {**other_options, "memory_mib": memory_mib(memory) if memory is not None else None})

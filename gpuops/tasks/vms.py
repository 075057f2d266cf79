"""Tasks that give VMs GPUs, take them away, or make a VM from a template. The modules `vm_*` call them.

Check mode makes the same plan and carries nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gpuops.api import catalog_of, clone, foresee, run
from gpuops.errors import UsageError
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.workload import memory_mib
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.steps import CloneVm
from gpuops.plan.vm.attach import Attach
from gpuops.plan.vm.clone import Clone
from gpuops.plan.vm.detach import Detach
from gpuops.plan.vm.several import Change, Part, SeveralVms
from gpuops.report.document import Document
from gpuops.report.plan_json import TogetherDocument, report_document
from gpuops.report.vms.vm_state import vm_state
from gpuops.tasks.connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site, request_of, vm_of
from gpuops.tasks.perform import BAD, REFUSED, TaskResult, difference, inventory_after, result_of, task_result


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
    Raises UsageError for an option that has no meaning here, and the errors of `gpuops attach`, `gpuops detach` and
    `gpuops clone`.
    """
    request = _request(options, state)
    # in check mode `vm_clone` has not made the VM, so the request is planned on the VM that it would make
    cloned = clone_of(after_clone) if after_clone is not None and not apply else None
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply) if cloned is None else foresee(request, cloned, site)
    after = inventory_after(report)
    answer = result_of(report, report_document(report, request.run_kind), after, warnings)
    vm = report.before.find_vm(request.vm)
    answer.result["vm"] = vm_state(after.vms[vm.ref], after) if vm.ref in after.vms else None
    return answer


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
    others (exit code 4). Raises UsageError for options that have no meaning, before anything is read, and for a VM that
    is named twice.
    """
    request = SeveralVms(tuple(_request(vm, vm["state"]) for vm in vms), partial)
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply)
        now = site.clock()
    after = inventory_after(report)
    answer = result_of(report, TogetherDocument.made_of(report), after, warnings)
    parts = request.parts(report.before, catalog_of(report.before), now)
    answer.result["vms"] = [_share(part, report, after) for part in parts]
    return answer


def _share(part: Part, report: Report, after: Inventory) -> Document:
    """Return the result for one VM of a task with several: `asked` is its name in the task."""
    outcomes = [outcome for outcome in report.outcomes if outcome.step.vm == part.vm]
    bad = [outcome.reason for outcome in outcomes if outcome.verdict in BAD]
    vm = after.vms.get(part.vm) if part.vm else None
    planned = report.plan.feasible and part.plan.feasible and bool(part.plan.steps)
    is_done = any(outcome.verdict is Verdict.DONE for outcome in outcomes)
    return {
        "asked": part.request.vm,
        "changed": is_done if report.applied else planned,
        "failed": bool(part.plan.rejections or bad),
        "because": list(part.plan.because),
        "reasons": [*(rejection.line for rejection in part.plan.rejections), *bad],
        "vm": vm_state(vm, after) if vm is not None else None,
    }


def _request(options: Mapping[str, Any], state: str) -> Change:
    """Return the request that a task's options make. Raises UsageError for an option that does not fit `state`."""
    verb = Attach if state == "present" else Detach
    options_given = {name: option for name, option in options.items() if option is not None and option is not False}
    options_given["vm"] = vm_of(options_given)
    options_given.pop("state", None)
    for name in options_given.keys() - {field.name for field in fields(verb)}:
        fitting_state = "absent" if state == "present" else "present"
        raise UsageError(f"{name} cannot be used with state={state}", hint=f"remove it, or set state={fitting_state}")
    return verb(**options_given)


def vm_clone(connection: ConnectionArguments, *, apply: bool, **options: Any) -> TaskResult:
    """Make a VM from a template. `options` are the fields of `Clone`, with `memory` as text (`64 GB`).

    None = not given. Raises GpuopsError.
    """
    request = clone_of(options)
    site, warnings = open_site(connection)
    with site:
        cloning, inventory = clone(request, site, apply=apply)
    reasons = [rejection.line for rejection in cloning.rejections]
    new, existing = cloning.new, cloning.there
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

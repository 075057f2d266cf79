"""Tasks that give VMs GPUs, take them away, or make a VM from a template. The modules `vm_*` call them.

Check mode makes the same plan and carries nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from gpuops.errors import UsageError
from gpuops.plan.core.outcome import Verdict
from gpuops.tasks.connection import NO_SHELL, ConnectionArguments, HostShellArguments, open_site
from gpuops.tasks.result import BAD, TaskResult, inventory_after, reasons_line, result_of

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory
    from gpuops.plan.core.outcome import Report
    from gpuops.plan.vm.clone import Clone, Cloning, NewClone
    from gpuops.plan.vm.several import Change, Part
    from gpuops.report.document import Document


def vm_gpu(
    connection: ConnectionArguments,
    *,
    present: bool,
    options: Mapping[str, Any],
    apply: bool,
    after_clone: Mapping[str, Any] | None = None,
    shell: HostShellArguments = NO_SHELL,
) -> TaskResult:
    """`options` are the fields of `Attach` and `Detach`, as the commands have them; None or False = not given.

    `after_clone` are the options of `vm_clone`: a VM that it has not made yet, because nothing is applied, is planned
    for as it will be. Raises UsageError for one that means nothing here, and whatever `gpuops attach`, `gpuops detach`
    and the clone raise.
    """
    from gpuops.api import foresee, run
    from gpuops.report.vms.vm_state import vm_state

    request = _request(options, present=present)
    clone = clone_of(after_clone) if after_clone is not None and not apply else None
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply) if clone is None else foresee(request, clone, site)
    after = inventory_after(report)
    answer = result_of(report, request.run_kind, after, warnings)
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
    """Each of `vms` is `present` and the options of one VM; all of them by one login, one read and one plan.

    `partial`: those that can be done are done, and the others are named (exit code 4). Raises UsageError for options
    that mean nothing, before anything is read, and for a VM that is named twice.
    """
    from gpuops.api import catalog_of, run
    from gpuops.plan.vm.several import SeveralVms

    changes = tuple(
        _request({k: v for k, v in each.items() if k != "present"}, present=each["present"]) for each in vms
    )
    request = SeveralVms(changes, partial)
    site, warnings = open_site(connection, shell=shell)
    with site:
        report = run(request, site, apply=apply)
        now = site.clock()
    after = inventory_after(report)
    answer = result_of(report, "together", after, warnings)
    parts = request.parts(report.before, catalog_of(report.before), now)
    answer.result["vms"] = [_share(part, report, after) for part in parts]
    return answer


def _share(part: Part, report: Report, after: Inventory) -> Document:
    """What became of one VM of many; `asked` is how the task names it."""
    from gpuops.report.vms.vm_state import vm_state

    ended = [outcome for outcome in report.outcomes if outcome.step.vm == part.vm]
    bad = [outcome.reason for outcome in ended if outcome.verdict in BAD]
    vm = after.vms.get(part.vm) if part.vm else None
    planned = report.plan.feasible and part.plan.feasible and bool(part.plan.steps)
    done = any(outcome.verdict is Verdict.DONE for outcome in ended)
    return {
        "asked": part.request.vm,
        "changed": done if report.applied else planned,
        "failed": bool(part.plan.rejections or bad),
        "because": list(part.plan.because),
        "reasons": [*map(str, part.plan.rejections), *bad],
        "vm": vm_state(vm, after) if vm is not None else None,
    }


def _request(options: Mapping[str, Any], *, present: bool) -> Change:
    """The request that a task's options are. Raises UsageError for one that means nothing with its state."""
    from gpuops.plan.vm.attach import Attach
    from gpuops.plan.vm.detach import Detach

    verb = Attach if present else Detach
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given.keys() - {field.name for field in fields(verb)}:
        other = "absent" if present else "present"
        raise UsageError(
            f"{name} means nothing with state={'present' if present else 'absent'}", hint=f"it goes with state={other}"
        )
    return verb(**given)


def vm_clone(connection: ConnectionArguments, options: Mapping[str, Any], *, apply: bool) -> TaskResult:
    """`options` are the fields of `Clone`, with `memory` as people write it; None = not given. Raises GpuopsError."""
    from gpuops.api import clone

    request = clone_of(options)
    site, warnings = open_site(connection)
    with site:
        found, seen = clone(request, site, apply=apply)
    reasons = [each.line for each in found.rejections]
    result: Document = {
        "changed": found.new is not None and not reasons,
        "there": found.new is None and found.there is not None,
        "diff": [_difference(found.new, seen)] if found.new is not None else [],
        "because": [] if found.new is not None or found.there is None else [f"{found.there.name} is there already"],
        "reasons": reasons,
        "vm": _clone_state(request, found, seen),
        "clone": {name: value for name, value in options.items() if value is not None},
    }
    message = reasons_line(reasons, "refused, nothing changed") if reasons else ""
    return TaskResult(result, 3 if reasons else 0, message, tuple(warnings))


def clone_of(options: Mapping[str, Any]) -> Clone:
    """The request that a task's options are. Raises UsageError for memory that is none."""
    from gpuops.model.workloads.workload import memory_mib
    from gpuops.plan.vm.clone import Clone

    given = {name: value for name, value in options.items() if value is not None}
    memory = given.pop("memory", None)
    return Clone(**given, memory_mib=memory_mib(memory) if memory is not None else None)


def _clone_state(request: Clone, found: Cloning, seen: Inventory) -> Document | None:
    """The VM as it is, or as it will be; None where it will not."""
    from gpuops.plan.vm.clone import FORESEEN
    from gpuops.report.vms.vm_state import vm_state

    vm = found.there or seen.vms.get(f"{FORESEEN}{request.vm}")
    return vm_state(vm, seen) if vm is not None else None


def _difference(new: NewClone, seen: Inventory) -> Document:
    """What of it can be told before it is there."""
    after = {
        "name": new.name,
        "template": seen.vm(new.source).name,
        "host": seen.hosts[new.host].name,
        "power": "poweredOff",
        "vcpus": new.vcpus,
        "memory_mib": new.memory_mib,
    }
    return {"before_header": new.name, "after_header": new.name, "before": {}, "after": after}

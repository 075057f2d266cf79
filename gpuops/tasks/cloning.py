"""Cloning: a task that makes a VM from a template, if there is none of its name yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuops.tasks.answer import Answer, reasons_line
from gpuops.tasks.connection import Said, open_site

if TYPE_CHECKING:
    from gpuops.model.inventory import Inventory
    from gpuops.plan.vm.clone import Clone, Cloning, NewClone
    from gpuops.report.plan_json import Document


def vm_clone(said: Said, options: Mapping[str, Any], *, apply: bool) -> Answer:
    """`options` are the fields of `Clone`, with `memory` as people write it; None = not given. Raises GpuopsError."""
    from gpuops.api import clone

    request = clone_of(options)
    site, warnings = open_site(said)
    with site:
        found, seen = clone(request, site, apply=apply)
    reasons = [each.line for each in found.rejections]
    result: Document = {
        "changed": found.new is not None and not reasons,
        "there": found.new is None and found.there is not None,
        "diff": [_difference(found.new, seen)] if found.new is not None else [],
        "because": [] if found.new is not None or found.there is None else [f"{found.there.name} is there already"],
        "reasons": reasons,
        "vm": _state(request, found, seen),
        "clone": {name: value for name, value in options.items() if value is not None},
    }
    message = reasons_line(reasons, "refused, nothing changed") if reasons else ""
    return Answer(result, 3 if reasons else 0, message, tuple(warnings))


def clone_of(options: Mapping[str, Any]) -> Clone:
    """The request that a task's options are. Raises UsageError for memory that is none."""
    from gpuops.model.workload import memory_mib
    from gpuops.plan.vm.clone import Clone

    given = {name: value for name, value in options.items() if value is not None}
    memory = given.pop("memory", None)
    return Clone(**given, memory_mib=memory_mib(memory) if memory is not None else None)


def _state(request: Clone, found: Cloning, seen: Inventory) -> Document | None:
    """The VM as it is, or as it will be; None where it will not."""
    from gpuops.plan.vm.clone import FORESEEN
    from gpuops.report.vm_state import vm_state

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

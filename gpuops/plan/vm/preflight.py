"""Preflight: every reason why a VM's GPU devices cannot be changed now, asked before anything is planned in detail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuops.model.vm import Vm
from gpuops.plan.core.plan import Rejection

_NEEDED: Final = ("config", "runtime", "recentTask", "rootSnapshot", "summary.config")
"""Property paths of a VM without which a change would be made blind."""

Reason = str | tuple[str, str]
"""A reason, or a reason and the next move."""
VmCheck = Callable[[Vm], Reason | None]


def reachable(vm: Vm) -> Reason | None:
    if vm.connected is None:
        return "its connection state cannot be read"
    return None if vm.connected else "is not connected: its host or its files are out of reach"


def no_template(vm: Vm) -> Reason | None:
    if vm.template is None:
        return "whether it is a template cannot be read"
    return ("is a template", "convert it to a virtual machine first, or deploy one from it") if vm.template else None


def no_question(vm: Vm) -> Reason | None:
    if vm.question is None:
        return None
    return f"waits for an answer: {vm.question}", "answer it in the vSphere Client (gpuops answers no question)"


def no_task(vm: Vm) -> Reason | None:
    if not vm.tasks:
        return None
    tasks = ", ".join(f"{task.name} ({task.state})" for task in vm.tasks)
    return f"a task is pending: {tasks}", "try again when it is done"


def readable(vm: Vm) -> Reason | None:
    hidden = [path for path in vm.unreadable if path.startswith(_NEEDED)]
    if hidden:
        return f"cannot be read whole by this login: {', '.join(hidden)}"
    if vm.devices is None or vm.extra_config is None:
        return "its devices and settings were not read"
    return None


VM_CHECKS: Final[tuple[VmCheck, ...]] = (reachable, no_template, no_question, no_task, readable)


def state_blockers(vm: Vm) -> tuple[Rejection, ...]:
    """Every reason in the VM's own state, its power aside."""
    found = (check(vm) for check in VM_CHECKS)
    return tuple(_rejection(vm, reason) for reason in found if reason is not None)


def _rejection(vm: Vm, reason: Reason) -> Rejection:
    rule, hint = reason if isinstance(reason, tuple) else (reason, "")
    return Rejection(vm.name, rule, hint=hint)

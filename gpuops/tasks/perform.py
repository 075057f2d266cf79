"""`perform`, by which a module of Ansible runs its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any, Final, TypeVar, cast

from gpuops.extensions import task_module
from gpuops.tasks.connection import ConnectionArguments, HostShellArguments
from gpuops.tasks.requests import vm_of
from gpuops.tasks.result import TaskResult

_MODULES: Final = {
    "hosts": ("host_gpu_scheduler", "host_graphics_mode", "host_passthrough"),
    "reads": (
        *("gpu_capacity_info", "gpu_placement", "gpu_readiness_info"),
        *("guest_gpu_info", "host_gpu_info", "vm_gpu_info"),
    ),
    "rotation": ("rotation", "rotation_info", "rotation_timers_info"),
    "simulator": ("sim_vcenter",),
    "vms": ("vm_clone", "vm_gpu", "vm_gpus"),
}
"""Ansible modules by the file of their tasks. Those of extras stand in `gpuops.extensions`."""

Group = TypeVar("Group", ConnectionArguments, HostShellArguments)


def task_of(module: str) -> Callable[..., TaskResult]:
    """Return the function of a module. Only its file is loaded."""
    file = task_module(module) or "gpuops.tasks." + next(file for file, names in _MODULES.items() if module in names)
    return cast("Callable[..., TaskResult]", getattr(import_module(file), module))


def perform(module: str, arguments: Mapping[str, Any], *, apply: bool) -> TaskResult:
    """Run the task of a module with all of its arguments; `apply` is False in check mode. Raises GpuopsError."""
    task, options = task_of(module), dict(arguments)
    connection = [_take_group(ConnectionArguments, options)] if "hostname" in options else []
    if "host_shell" in options:
        options["shell"] = _take_group(HostShellArguments, options)
    if "moid" in options:
        options["vm"] = vm_of(options)
    if "apply" in signature(task).parameters:
        options["apply"] = apply
    return task(*connection, **options)


def _take_group(group: type[Group], options: dict[str, Any]) -> Group:
    return group(**{field.name: options.pop(field.name) for field in fields(group)})

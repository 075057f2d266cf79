"""Keeps the settings that a VM had before gpuops changed them, in one extraConfig key of the VM.

Problem: detach must restore exactly what attach changed, perhaps months later and from another machine.
Choice: the values are stored with the VM (`gpuops.baseline`, JSON) by the same reconfigure that changes them, so that
no value is ever changed without being kept. A kept value is never overwritten: a second attach adds only what the first
did not change. The key is removed together with the last passthrough device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from gpuops.model.stored import from_stored, stored_as, to_stored
from gpuops.model.vcenter.vm import Vm
from gpuops.plan.core.steps import VmChange

KEY: Final = "gpuops.baseline"
_VERSION: Final = 1
_Setting = TypeVar("_Setting", bool, int)
_BOOLEAN, _INTEGER = (bool, type(None)), (int, type(None))


@stored_as(
    "Baseline",
    memory_locked="memory_locked",
    memory_reservation_mib="memory_reservation_mib",
    cpu_hot_add="cpu_hot_add",
    cores_per_numa_node="cores_per_numa_node",
    extra_config="extra_config",
)
@dataclass(frozen=True, slots=True)
class Baseline:
    """Settings before gpuops changed them; None = not changed, so nothing to restore."""

    memory_locked: bool | None = None
    memory_reservation_mib: int | None = None
    cpu_hot_add: bool | None = None
    cores_per_numa_node: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)
    """An empty string = the key did not exist."""


def read(vm: Vm) -> Baseline | None:
    """Return the settings that are kept with the VM; None if the key exists but is not as gpuops writes it."""
    text = (vm.extra_config or {}).get(KEY, "")
    if not text:
        return Baseline()
    try:
        fields = json.loads(text)
        version = fields.pop("v")
        baseline = from_stored(Baseline, fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return baseline if version == _VERSION and _sound(baseline) else None


def write(baseline: Baseline) -> str:
    """Return the text for the key: short, and equal for equal settings."""
    fields = {name: setting for name, setting in to_stored(baseline).items() if setting is not None}
    return json.dumps({"v": _VERSION, **fields}, sort_keys=True, separators=(",", ":"))


def kept_with(vm: Vm, change: VmChange) -> VmChange:
    """Return the change, extended by keeping the settings that it changes. Already kept settings stay as they are."""
    old, new = read(vm), _current_settings(vm, change)
    if old is None or new == Baseline():
        # Nothing to keep, or a text that gpuops did not write and must not overwrite.
        return change
    merged = Baseline(
        memory_locked=_first(old.memory_locked, new.memory_locked),
        memory_reservation_mib=_first(old.memory_reservation_mib, new.memory_reservation_mib),
        cpu_hot_add=_first(old.cpu_hot_add, new.cpu_hot_add),
        cores_per_numa_node=_first(old.cores_per_numa_node, new.cores_per_numa_node),
        extra_config={**new.extra_config, **old.extra_config},
    )
    return change if merged == old else replace(change, extra_config={**change.extra_config, KEY: write(merged)})


def restore_settings(vm: Vm, *, memory_too: bool) -> VmChange:
    """Return the change that restores the kept settings and removes the key; without `memory_too` the memory stays
    fully reserved.

    Settings that already have their old value are not in it. It is empty if the kept settings cannot be read.
    """
    baseline = read(vm)
    if baseline is None:
        return VmChange()
    extra_config = vm.extra_config or {}
    keys = {**baseline.extra_config, KEY: ""}
    return VmChange(
        extra_config={key: setting for key, setting in keys.items() if extra_config.get(key, "") != setting},
        memory_locked=_if_other(baseline.memory_locked, vm.memory_locked) if memory_too else None,
        memory_reservation_mib=_reservation(baseline, vm) if memory_too else None,
        cpu_hot_add=_if_other(baseline.cpu_hot_add, vm.cpu_hot_add),
        cores_per_numa_node=_if_other(baseline.cores_per_numa_node, vm.cores_per_numa_node),
    )


def _current_settings(vm: Vm, change: VmChange) -> Baseline:
    """Return the current values of the settings that the change would change."""
    extra_config = vm.extra_config or {}
    locking = change.memory_locked is not None
    return Baseline(
        # Unset means off (vSphere API, memoryReservationLockedToMax).
        memory_locked=bool(vm.memory_locked) if locking else None,
        # A locked reservation follows the memory size: the number before would be lost.
        memory_reservation_mib=vm.memory_reservation_mib if locking else None,
        cpu_hot_add=None if change.cpu_hot_add is None else vm.cpu_hot_add,
        cores_per_numa_node=None if change.cores_per_numa_node is None else vm.cores_per_numa_node,
        extra_config={key: extra_config.get(key, "") for key in change.extra_config},
    )


def _reservation(baseline: Baseline, vm: Vm) -> int | None:
    before = baseline.memory_reservation_mib
    if before is not None and vm.memory_mib is not None:
        # The VM may have been given less memory since: a reservation above its size is refused.
        before = min(before, vm.memory_mib)
    return _if_other(before, vm.memory_reservation_mib)


def _first(old: _Setting | None, new: _Setting | None) -> _Setting | None:
    return new if old is None else old


def _if_other(before: _Setting | None, now: _Setting | None) -> _Setting | None:
    return None if before == now else before


def _sound(baseline: Baseline) -> bool:
    return (
        isinstance(baseline.memory_locked, _BOOLEAN)
        and isinstance(baseline.memory_reservation_mib, _INTEGER)
        and isinstance(baseline.cpu_hot_add, _BOOLEAN)
        and isinstance(baseline.cores_per_numa_node, _INTEGER)
        and isinstance(baseline.extra_config, dict)
        and all(isinstance(setting, str) for setting in baseline.extra_config.values())
    )

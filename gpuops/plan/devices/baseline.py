"""What a VM's settings were before gpuops changed them, kept with the VM in one extraConfig key.

Problem: detach must restore exactly what attach changed, perhaps months later and from another machine.
Choice: the values travel with the VM (`gpuops.baseline`, JSON) and are written in the same reconfigure that changes
them, so there is no moment in which a value is changed and not kept. A value once kept is never overwritten: a second
attach adds only what the first did not touch. The key goes when the last passthrough device goes.
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
    """Settings as they were before; None = not changed, so nothing to restore."""

    memory_locked: bool | None = None
    memory_reservation_mib: int | None = None
    cpu_hot_add: bool | None = None
    cores_per_numa_node: int | None = None
    extra_config: Mapping[str, str] = field(default_factory=dict)
    """An empty value = there was no such key."""


def read(vm: Vm) -> Baseline | None:
    """What is kept with the VM. None = the key is there, and cannot be read as gpuops wrote it."""
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
    """The text for the key: short, and the same for the same values."""
    fields = {name: value for name, value in to_stored(baseline).items() if value is not None}
    return json.dumps({"v": _VERSION, **fields}, sort_keys=True, separators=(",", ":"))


def kept_with(vm: Vm, change: VmChange) -> VmChange:
    """The change, keeping beside it what it changes. Values that are already kept stay as they are."""
    old, new = read(vm), _touched(vm, change)
    if old is None or new == Baseline():
        # Nothing to keep, or a text that gpuops did not write: not ours to overwrite.
        return change
    merged = Baseline(
        memory_locked=_first(old.memory_locked, new.memory_locked),
        memory_reservation_mib=_first(old.memory_reservation_mib, new.memory_reservation_mib),
        cpu_hot_add=_first(old.cpu_hot_add, new.cpu_hot_add),
        cores_per_numa_node=_first(old.cores_per_numa_node, new.cores_per_numa_node),
        extra_config={**new.extra_config, **old.extra_config},
    )
    return change if merged == old else replace(change, extra_config={**change.extra_config, KEY: write(merged)})


def restored(vm: Vm, *, memory_too: bool) -> VmChange:
    """The change that restores what is kept and drops the key; without `memory_too` the reservation stays full.

    What is as it was, is not in it. Nothing at all where the kept values cannot be read.
    """
    baseline = read(vm)
    if baseline is None:
        return VmChange()
    there = vm.extra_config or {}
    keys = {**baseline.extra_config, KEY: ""}
    return VmChange(
        extra_config={key: value for key, value in keys.items() if there.get(key, "") != value},
        memory_locked=_if_other(baseline.memory_locked, vm.memory_locked) if memory_too else None,
        memory_reservation_mib=_reservation(baseline, vm) if memory_too else None,
        cpu_hot_add=_if_other(baseline.cpu_hot_add, vm.cpu_hot_add),
        cores_per_numa_node=_if_other(baseline.cores_per_numa_node, vm.cores_per_numa_node),
    )


def _touched(vm: Vm, change: VmChange) -> Baseline:
    """What the settings that the change touches are now."""
    there = vm.extra_config or {}
    locking = change.memory_locked is not None
    return Baseline(
        # Unset means off (vSphere API, memoryReservationLockedToMax).
        memory_locked=bool(vm.memory_locked) if locking else None,
        # A locked reservation follows the memory size: the number before would be lost.
        memory_reservation_mib=vm.memory_reservation_mib if locking else None,
        cpu_hot_add=None if change.cpu_hot_add is None else vm.cpu_hot_add,
        cores_per_numa_node=None if change.cores_per_numa_node is None else vm.cores_per_numa_node,
        extra_config={key: there.get(key, "") for key in change.extra_config},
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
        and all(isinstance(value, str) for value in baseline.extra_config.values())
    )

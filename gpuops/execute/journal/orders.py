"""The order of a run: what it needs to go on after a crash. The journal stores it before the first request is sent.

The stored form never changes: other versions of gpuops read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from gpuops.config.date_text import parse_window
from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.journal.record import dump_step, load_step
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.stored import from_stored, stored_as, to_stored
from gpuops.model.vcenter.host_settings import Displacement, Rolling, VsanMode
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.steps import HostStep, PowerOnVm, ReconfigureVm, RelocateVm, ShutDownGuest, Step, VmChange

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ChangeOrder:
    """The settings of each host, the order of the hosts, and how they are rebooted."""

    verb: str
    """The command: `scheduler set`."""
    steps: tuple[HostStep, ...]
    names: dict[str, str]
    """Names of the hosts, by ref."""
    gpus: dict[str, tuple[PciAddress, ...]]
    """The GPUs that the host's driver listed before the change, by ref of the host."""
    mig: dict[str, tuple[PciAddress, ...]] = field(default_factory=dict)
    """The GPUs among them that were in MIG mode and must be in MIG mode again after the change."""
    rolling: Rolling = field(default_factory=Rolling)
    lock_vm: str | None = None
    """The lock VM of the rotation. Its lease prevents rotations during the change."""
    uuids: dict[str, str] = field(default_factory=dict)
    """Hardware uuids by ref, where they are known."""

    def but(self, ended_hosts: frozenset[str]) -> tuple[HostStep, ...]:
        """Return the steps of the other hosts."""
        return tuple(step for step in self.steps if step.host not in ended_hosts)


@stored_as(
    "JournalMove",
    vm="vm",
    name="name",
    source="source",
    target="target",
    target_name="target_name",
    powered_off="powered_off",
    pins="pins",
)
@dataclass(frozen=True, slots=True)
class JournalMove:
    """One move as the journal stores it: from host to host, with the VM running or powered off."""

    vm: str
    name: str
    source: str
    target: str
    target_name: str
    powered_off: bool
    pins: Mapping[str, str] = field(default_factory=dict)
    """The extraConfig entries that bind the VM's vGPUs to GPUs of the new host; set before it starts there."""

    @property
    def steps(self) -> tuple[Step, ...]:
        relocate = RelocateVm(self.vm, self.target)
        if not self.powered_off:
            return (relocate,)
        bind = (ReconfigureVm(self.vm, VmChange(extra_config=self.pins)),) if self.pins else ()
        return (ShutDownGuest(self.vm, then_off=True), relocate, *bind, PowerOnVm(self.vm, self.target))

    def is_done(self, vm: Vm) -> bool:
        return vm.host == self.target and vm.power is PowerState.ON


@dataclass(frozen=True, slots=True)
class MovesOrder:
    """The moves of a defragmentation, in their order."""

    moves: tuple[JournalMove, ...]
    verb: ClassVar[str] = "defrag"


@dataclass(frozen=True, slots=True)
class ClusterOrder:
    """The cluster that a run makes."""

    cluster: str
    id: str
    earlier_vms: tuple[str, ...]
    """The VMs of the cluster that existed before the run."""


def dump_order(order: ChangeOrder | MovesOrder | ClusterOrder) -> str:
    """Return the order as JSON."""
    match order:
        case ChangeOrder(rolling=rolling):
            body: dict[str, Any] = {
                "format": _FORMAT,
                "verb": order.verb,
                "steps": [dump_step(step) for step in order.steps],
                "names": order.names,
                "gpus": _format_addresses(order.gpus),
                "mig": _format_addresses(order.mig),
                "uuids": order.uuids,
                "rolling": {
                    "max_hosts": rolling.max_hosts,
                    "window": rolling.window.name if rolling.window is not None else None,
                    "vms": rolling.vms,
                    "vsan_mode": rolling.vsan_mode,
                },
                "lock_vm": order.lock_vm,
            }
        case MovesOrder(moves):
            body = {"format": _FORMAT, "verb": order.verb, "moves": list(map(to_stored, moves))}
        case ClusterOrder():
            body = {"cluster": order.cluster, "id": order.id, "stood": order.earlier_vms}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def load_cluster_order(text: str) -> ClusterOrder:
    """Return the order of a run that makes a cluster. A key that is missing is read as empty."""
    body = json.loads(text or "{}")
    return ClusterOrder(body.get("cluster", ""), body.get("id", ""), tuple(body.get("stood", ())))


def load_change_order(text: str) -> ChangeOrder | MovesOrder:
    """Return the order of a change of hosts or moves. Raises StateDamaged."""
    try:
        body = json.loads(text)
        if body["format"] != _FORMAT:
            raise ValueError(body["format"])
        if body["verb"] == MovesOrder.verb:
            return MovesOrder(tuple(from_stored(JournalMove, move) for move in body["moves"]))
        rolling = body["rolling"]
        return ChangeOrder(
            verb=body["verb"],
            steps=tuple(_host_step(step) for step in body["steps"]),
            names=dict(body["names"]),
            gpus=_parse_addresses(body["gpus"]),
            mig=_parse_addresses(body.get("mig", {})),  # missing in orders of earlier versions
            uuids=dict(body.get("uuids", {})),
            rolling=Rolling(
                max_hosts=int(rolling["max_hosts"]),
                window=parse_window(rolling["window"]) if rolling["window"] else None,
                vms=Displacement(rolling["vms"]),
                vsan_mode=VsanMode(rolling["vsan_mode"]),
            ),
            lock_vm=body["lock_vm"],
        )
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise StateDamaged(
            f"the journal holds a change that this version cannot read: {text[:80]}",
            hint="use the gpuops that wrote it, or a later one",
        ) from error


def _format_addresses(gpus: Mapping[str, tuple[PciAddress, ...]]) -> dict[str, list[str]]:
    return {ref: [str(address) for address in addresses] for ref, addresses in gpus.items()}


def _parse_addresses(gpus: Mapping[str, list[str]]) -> dict[str, tuple[PciAddress, ...]]:
    return {ref: tuple(PciAddress.parse(address) for address in addresses) for ref, addresses in gpus.items()}


def _host_step(body: Mapping[str, Any]) -> HostStep:
    """Return the step of a host that the journal holds. Raises TypeError for any other step, StateDamaged."""
    step = load_step(body)
    if not isinstance(step, HostStep):
        raise TypeError(type(step).__name__)
    return step

"""Rebuilds an unfinished change from the journal: which hosts are done, which VMs left the others, their ids now.

A host that is removed from vCenter and added again gets a new id, and so do its VMs; the journal holds the old ids.
A host is recognized by the uuid of its hardware, a VM by its instance uuid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeVar

from gpuops.execute.journal.orders import ChangeOrder
from gpuops.execute.journal.record import Intended, IntentState, Recorded, load_step
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import host_now, vm_now
from gpuops.plan.core.steps import (
    ConfigureGraphics,
    ConfigureMig,
    ConfigureModes,
    ConfigureModule,
    ConfigurePassthrough,
    EndTurn,
    EnterMaintenance,
    LeaveMaintenance,
    PowerOffVm,
    PowerOnVm,
    RebootHost,
    RelocateVm,
    ShutDownGuest,
)


@dataclass(frozen=True, slots=True)
class DisplacedVm:
    """A VM that was taken from its host and is not known to be back."""

    vm: str
    name: str
    stopped: bool
    """Whether it was shut down; otherwise it runs on another host."""
    uuid: str | None = None
    """Its instance uuid; None = not known."""


@dataclass(slots=True)
class History:
    """The state of a change after the intents of a run, taken in order."""

    ended: set[str] = field(default_factory=set)
    """Hosts that are done."""
    begun: set[str] = field(default_factory=set)
    """Hosts that were begun, including those that are done."""
    reboots: dict[str, RebootHost] = field(default_factory=dict)
    """The reboot that was requested, by host."""
    reboot_requested_at: dict[str, datetime] = field(default_factory=dict)
    """The time of that request by vCenter's clock, by host."""
    taken: dict[str, dict[str, DisplacedVm]] = field(default_factory=dict)
    """The VMs that were taken from each host and are not known to be back: host -> VM (ref) -> VM."""
    given_up: frozenset[str] = frozenset()
    """Hosts and VMs that an admin gave up."""

    @property
    def left_open(self) -> frozenset[str]:
        """The hosts that were begun and are neither done nor given up."""
        return frozenset(self.begun - self.ended - self.given_up)

    def _note(self, intended: Intended) -> None:
        """Note what this step shows about its host or VM."""
        step, failed = load_step(intended.step), intended.state is IntentState.FAILED
        match step:
            case EndTurn(host=host):
                self.ended.add(host)
                self.taken.pop(host, None)
            case RebootHost(host=host):
                self.begun.add(host)
                if not failed:  # after a failed request, the reboot is requested again
                    self.reboots[host] = step
                    self.reboot_requested_at[host] = intended.seen
            case EnterMaintenance(host=host) | LeaveMaintenance(host=host):
                self.begun.add(host)
            case ConfigureModule(host=host) | ConfigureGraphics(host=host):
                self.begun.add(host)
            case ConfigurePassthrough(host=host) | ConfigureModes(host=host) | ConfigureMig(host=host):
                self.begun.add(host)
            case _:
                self._note_vm(step, intended)

    def _note_vm(self, step: Recorded, intended: Intended) -> None:
        """Note whether the step takes a VM from its host or brings one back."""
        match step:
            case RelocateVm(vm=vm, host=host) if vm in self.taken.get(host, {}):
                self._note_return(host, vm, intended)  # a move to the host that it was taken from brings it back
            case PowerOnVm(vm=vm):
                for host in self.taken:  # the step does not name the host that the VM was taken from
                    self._note_return(host, vm, intended)
            case RelocateVm(vm=vm):
                self._note_taken(vm, intended, stopped=False)
            case ShutDownGuest(vm=vm) | PowerOffVm(vm=vm):
                self._note_taken(vm, intended, stopped=True)
            case _:
                pass

    def _note_taken(self, vm: str, intended: Intended, *, stopped: bool) -> None:
        # failed steps count too, because the guest may still shut down later; a VM that stayed on its host does no harm
        host = str(intended.before.get("host") or "")
        self.begun.add(host)
        name = str(intended.before.get("name", vm))
        taken_before = self.taken.setdefault(host, {}).get(vm)
        stopped = stopped or (taken_before is not None and taken_before.stopped)
        self.taken[host][vm] = DisplacedVm(vm, name, stopped, intended.before.get("uuid"))

    def _note_return(self, host: str, vm: str, intended: Intended) -> None:
        if intended.state is IntentState.DONE:
            self.taken.get(host, {}).pop(vm, None)


def history_of(intents: Iterable[Intended], given_up: Collection[str] = ()) -> History:
    """Return the history that these intents make, without what an admin gave up.

    Raises StateDamaged for a step that this version cannot read.
    """
    history = History(given_up=frozenset(given_up))
    for intended in intents:
        history._note(intended)
    return history


def vms_taken_from(host: str, history: History) -> Mapping[str, DisplacedVm]:
    """Return the VMs that belong to the host and are not back, by ref."""
    if host in history.given_up:
        return {}
    return {ref: vm for ref, vm in history.taken.get(host, {}).items() if ref not in history.given_up}


Value = TypeVar("Value")

Ids = Mapping[str, str]
"""Current ids by the ids in the journal, without ids that did not change."""

_REF_FIELDS = ("host", "vm")
"""The fields of a step that hold the id of a host or VM."""


def ids_now(uuids: Mapping[str, str], intents: Iterable[Intended], inventory: Inventory) -> Ids:
    """Return the current ids of the hosts and VMs whose ids changed, by their ids in the journal.

    `uuids`: the hardware uuids of the hosts, by their ids at the start of the change.
    """
    current_ids: dict[str, str] = {}
    for ref, host_uuid in uuids.items():
        host = host_now(ref, host_uuid, inventory)
        if host is not None:
            current_ids[ref] = host.ref
    for intended in intents:
        [(_, fields)] = intended.step.items()
        uuid = intended.before.get("uuid")
        if uuid is None:
            continue
        ref = fields["vm"] if "vm" in fields else fields["host"]
        target = vm_now(ref, uuid, inventory) if "vm" in fields else host_now(ref, uuid, inventory)
        if target is not None:
            current_ids[ref] = target.ref
    return {ref: current_id for ref, current_id in current_ids.items() if ref != current_id}


def order_now(order: ChangeOrder, ids: Ids) -> ChangeOrder:
    """Return the order with the current ids of its hosts."""
    return replace(
        order,
        steps=tuple(replace(step, host=ids.get(step.host, step.host)) for step in order.steps),
        names=_with_current_ids(order.names, ids),
        gpus=_with_current_ids(order.gpus, ids),
        mig=_with_current_ids(order.mig, ids),
        uuids=_with_current_ids(order.uuids, ids),
    )


def intents_now(intents: Iterable[Intended], ids: Ids) -> Iterator[Intended]:
    """Yield the intents with the current ids of their hosts and VMs."""
    for intended in intents:
        if not ids:
            yield intended
            continue
        step = {
            kind: {
                name: ids.get(content, content) if name in _REF_FIELDS else content for name, content in fields.items()
            }
            for kind, fields in intended.step.items()
        }
        before = dict(intended.before)
        if before.get("host") in ids:
            before["host"] = ids[before["host"]]
        yield replace(intended, step=step, before=before)


def _with_current_ids(by_ref: Mapping[str, Value], ids: Ids) -> dict[str, Value]:
    return {ids.get(ref, ref): attribute for ref, attribute in by_ref.items()}

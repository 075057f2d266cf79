"""Finds the ids that the hosts and VMs of a change have now.

A host that is removed from vCenter and added again has another id, and so have its VMs; the journal speaks of the old
ones. A host is known by the uuid of its hardware, a VM by its instance uuid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from gpuops.execute.change.change_order import ChangeOrder
from gpuops.execute.journal.remembered import Intended
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import host_now, vm_now

Value = TypeVar("Value")

Ids = Mapping[str, str]
"""The id that something has now, by the one that the journal knows it by; one that did not change is left out."""

_FIELDS = ("host", "vm")


def ids_now(uuids: Mapping[str, str], intents: Iterable[Intended], inventory: Inventory) -> Ids:
    """The ids that changed. `uuids`: those of the hosts of the change, by the id they had when it was begun."""
    found: dict[str, str] = {}
    for ref, uuid in uuids.items():
        host = host_now(ref, uuid, inventory)
        if host is not None:
            found[ref] = host.ref
    for intended in intents:
        [(_, fields)] = intended.step.items()
        known = intended.before.get("uuid")
        if known is None:
            continue
        ref = fields["vm"] if "vm" in fields else fields["host"]
        there = vm_now(ref, known, inventory) if "vm" in fields else host_now(ref, known, inventory)
        if there is not None:
            found[ref] = there.ref
    return {ref: now for ref, now in found.items() if ref != now}


def order_now(order: ChangeOrder, ids: Ids) -> ChangeOrder:
    """The order, its hosts by the ids they have now."""
    return replace(
        order,
        steps=tuple(replace(step, host=ids.get(step.host, step.host)) for step in order.steps),
        names=_keyed(order.names, ids),
        gpus=_keyed(order.gpus, ids),
        mig=_keyed(order.mig, ids),
        uuids=_keyed(order.uuids, ids),
    )


def intents_now(intents: Iterable[Intended], ids: Ids) -> Iterator[Intended]:
    """The intents, their hosts and VMs by the ids they have now."""
    for intended in intents:
        if not ids:
            yield intended
            continue
        step = {
            kind: {name: ids.get(value, value) if name in _FIELDS else value for name, value in fields.items()}
            for kind, fields in intended.step.items()
        }
        before = dict(intended.before)
        if before.get("host") in ids:
            before["host"] = ids[before["host"]]
        yield replace(intended, step=step, before=before)


def _keyed(by_ref: Mapping[str, Value], ids: Ids) -> dict[str, Value]:
    return {ids.get(ref, ref): value for ref, value in by_ref.items()}

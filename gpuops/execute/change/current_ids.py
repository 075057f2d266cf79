"""Finds the current ids of the hosts and VMs of a change.

A host that is removed from vCenter and added again gets a new id, and so do its VMs; the journal holds the old ids.
A host is recognized by the uuid of its hardware, a VM by its instance uuid.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from gpuops.execute.journal.orders import ChangeOrder
from gpuops.execute.journal.remembered import Intended
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import host_now, vm_now

Value = TypeVar("Value")

Ids = Mapping[str, str]
"""Current ids by the ids in the journal, without ids that did not change."""

_FIELDS = ("host", "vm")


def ids_now(uuids: Mapping[str, str], intents: Iterable[Intended], inventory: Inventory) -> Ids:
    """Return the ids that changed. `uuids`: the hardware uuids of the hosts by their ids at the start of the change."""
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
    return {ref: now for ref, now in current_ids.items() if ref != now}


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
            kind: {name: ids.get(content, content) if name in _FIELDS else content for name, content in fields.items()}
            for kind, fields in intended.step.items()
        }
        before = dict(intended.before)
        if before.get("host") in ids:
            before["host"] = ids[before["host"]]
        yield replace(intended, step=step, before=before)


def _with_current_ids(by_ref: Mapping[str, Value], ids: Ids) -> dict[str, Value]:
    return {ids.get(ref, ref): attribute for ref, attribute in by_ref.items()}

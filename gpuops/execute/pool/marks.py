"""Marks the VMs that lend their GPUs, so that nights, moves and rolling changes see them without the pool's book."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Final

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook
from gpuops.plan.core.steps import SetAttribute
from gpuops.plan.pool.members import lends

_UNSEEN: Final = "nights, moves and rolling changes do not see that it lends"


def mark_servers(book: LeaseBook, inventory: Inventory, vcenter: Vcenter) -> Mapping[str, str]:
    """Every server that lends carries the name of its pool; by instance UUID a warning for each that does not.

    To be called before a client is let in: a night asks for the mark once more just before it suspends. Raises
    NotConnected.
    """
    wanted = {each.uuid: book.pool.name for each in book.servers if lends(each, book)}
    return dict(_marked(wanted, book, inventory, vcenter))


def unmark_servers(
    book: LeaseBook, before: LeaseBook | None, inventory: Inventory, vcenter: Vcenter
) -> Mapping[str, str]:
    """No server carries it that lends nothing, and none of `before` that is none any more; warnings likewise.

    To be called once clients are cut off. Raises NotConnected.
    """
    there = (*(before.servers if before is not None else ()), *book.servers)
    lending = {each.uuid for each in book.servers if lends(each, book)}
    return dict(_marked({each.uuid: "" for each in there if each.uuid not in lending}, book, inventory, vcenter))


def _marked(
    wanted: Mapping[str, str], book: LeaseBook, inventory: Inventory, vcenter: Vcenter
) -> Iterator[tuple[str, str]]:
    op_id = f"gpuops-pool-mark-{secrets.token_hex(4)}"
    for vm in inventory.vms.values():
        uuid = vm.instance_uuid or ""
        value = wanted.get(uuid)
        if value is None or vm.attributes.get(POOL_MARK, "") == value:
            continue
        if not value and vm.attributes[POOL_MARK] != book.pool.name:
            continue  # another pool's by now
        try:
            if value and POOL_MARK not in vcenter.defined_attributes():
                vcenter.define_attribute(POOL_MARK, op_id)
            vcenter.submit(SetAttribute(vm.ref, POOL_MARK, value), inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as error:
            told = _UNSEEN if value else "they still take it for one that lends"
            yield uuid, f"{vm.name}: its mark {POOL_MARK} is not as it should be ({error.line}): {told}"

"""Marks the VMs that lend their GPUs, so that nights, moves and rolling changes see them without the pool's book."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook, PoolServer
from gpuops.plan.core.steps import SetAttribute
from gpuops.plan.pool.members import lends


def mark_servers(book: LeaseBook, inventory: Inventory, vcenter: Vcenter) -> tuple[str, ...]:
    """Mark every server that lends with the name of its pool, and return a warning for each that could not be marked.

    Call it before clients are set up: `rotate night` reads the mark again just before it suspends. Raises NotConnected.
    """
    marks = {server.uuid: book.pool.name for server in book.servers if lends(server, book)}
    return tuple(_marked(marks, book.pool.name, inventory, vcenter))


def unmark_servers(
    servers: Iterable[PoolServer], book: LeaseBook, inventory: Inventory, vcenter: Vcenter
) -> tuple[str, ...]:
    """Clear the mark of these servers, except those that lend in this book; return warnings as `mark_servers` does.

    Call it once clients are cut off. Raises NotConnected.
    """
    leaving = {server.uuid for server in servers} - {server.uuid for server in book.servers if lends(server, book)}
    return tuple(_marked(dict.fromkeys(leaving, ""), book.pool.name, inventory, vcenter))


def _marked(marks: Mapping[str, str], pool: str, inventory: Inventory, vcenter: Vcenter) -> Iterator[str]:
    op_id = f"gpuops-pool-mark-{secrets.token_hex(4)}"
    for vm in inventory.vms.values():
        value, mark = marks.get(vm.instance_uuid or ""), vm.attributes.get(POOL_MARK, "")
        if value is None or mark == value or (not value and mark != pool):  # another pool's by now
            continue
        try:
            if value and POOL_MARK not in vcenter.defined_attributes():
                vcenter.define_attribute(POOL_MARK, op_id)
            vcenter.submit(SetAttribute(vm.ref, POOL_MARK, value), inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as error:
            effect = "do not see that it lends" if value else "still see it as a server that lends"
            yield f"{vm.name}: its mark {POOL_MARK} is not as it should be ({error.line}): nights and moves {effect}"

"""Marks the VMs that lend their GPUs, so that nights, moves and rolling changes see them without the pool's book."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from gpuops.advise.lending_servers import POOL_MARK
from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import LeaseBook
from gpuops.plan.core.steps import SetAttribute
from gpuops.plan.pool.members import lends


def mark_servers(book: LeaseBook, inventory: Inventory, vcenter: Vcenter) -> Iterator[str]:
    """Mark every server that lends with the name of its pool, and clear that mark on all other VMs.

    Yields a line for each VM whose mark could not be changed: the next command tries it again. Run it before clients
    are set up, because `rotate night` reads the mark again just before it suspends; and after clients were cut off.
    Raises NotConnected.
    """
    pool, op_id = book.pool.name, f"gpuops-pool-mark-{secrets.token_hex(4)}"
    lending = {server.uuid for server in book.servers if lends(server, book)}
    for vm in inventory.vms.values():
        mark, is_lending = vm.attributes.get(POOL_MARK, ""), vm.instance_uuid in lending
        if is_lending is (mark == pool):
            continue
        try:
            if is_lending and POOL_MARK not in vcenter.defined_attributes():
                vcenter.define_attribute(POOL_MARK, op_id)
            vcenter.submit(SetAttribute(vm.ref, POOL_MARK, pool if is_lending else ""), inventory, op_id)
        except NotConnected:
            raise
        except GpuopsError as error:
            effect = "do not see that it lends" if is_lending else "still see it as a server that lends"
            yield f"{vm.name}: its mark {POOL_MARK} is not as it should be ({error.line}): nights and moves {effect}"

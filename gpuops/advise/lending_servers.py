"""Whether a VM lends its GPUs over the network now, as its mark says. Pure.

`gpuops pool` sets the custom attribute `gpuops.pool` on every VM that serves a pool, and clears it once the VM lends
nothing any more. So every command sees it, from a saved inventory and on other machines too, without the pool's book:
no night takes such a VM, none is moved, and its host is emptied only once it has been drained.
"""

from __future__ import annotations

from typing import Final

from gpuops.model.vcenter.vm import Vm

POOL_MARK: Final = "gpuops.pool"


def lends(vm: Vm) -> str | None:
    """That it lends, and for which pool; None = it does not."""
    pool = vm.attributes.get(POOL_MARK, "")
    return f"lends its GPUs over the network (pool {pool})" if pool else None

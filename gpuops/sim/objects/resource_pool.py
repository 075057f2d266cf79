"""ResourcePool: what VMs may use of a cluster's CPU and memory."""

from __future__ import annotations

from typing import Any

from gpuops.sim.entities import PoolEntity
from gpuops.sim.managed_object import prop

MIB = 1 << 20


class ResourcePool(PoolEntity):
    """A resource pool on the wire."""

    wsdl_name = "ResourcePool"

    @prop("owner")
    def _owner(self) -> Any:
        return self.owner()

    @prop("vm")
    def _vms(self) -> Any:
        return list(self.members.values())

    @prop("resourcePool")
    def _pools(self) -> Any:
        return self.pools

    @prop("config")
    def _config(self) -> Any:
        from pyVmomi import vim

        totals = self.owner().totals()
        return vim.ResourceConfigSpec(
            entity=self.ref,
            changeVersion="1",
            cpuAllocation=_allocation(totals["totalCpu"], 4000),
            memoryAllocation=_allocation(totals["totalMemory"] // MIB, 163840),
        )

    @prop("runtime")
    def _runtime(self) -> Any:
        from pyVmomi import vim

        totals = self.owner().totals()
        running = [vm.state for vm in self.all_members() if vm.state.power == "poweredOn"]
        memory = sum(vm.reserved_mib for vm in running) * MIB
        used = sum(vm.reserved_mib or vm.guest_memory_mib for vm in running) * MIB
        mhz = sum(vm.cpu_reservation_mhz for vm in running)
        return vim.ResourcePool.RuntimeInfo(
            memory=_usage(totals["totalMemory"], memory, used),
            cpu=_usage(totals["totalCpu"], mhz, sum(vm.cpu_usage_mhz for vm in running)),
            overallStatus="green",
        )

    @prop("summary")
    def _summary(self) -> Any:
        from pyVmomi import vim

        configured = sum(vm.state.memory_mib for vm in self.all_members())
        return vim.ResourcePool.Summary(
            name=self.name, config=self._config(), runtime=self._runtime(), configuredMemoryMB=configured
        )


def _allocation(reservation: int, shares: int) -> Any:
    from pyVmomi import vim

    return vim.ResourceAllocationInfo(
        reservation=reservation,
        expandableReservation=True,
        limit=-1,
        shares=vim.SharesInfo(shares=shares, level="normal"),
    )


def _usage(total: int, reserved: int, used: int) -> Any:
    from pyVmomi import vim

    return vim.ResourcePool.ResourceUsage(
        reservationUsed=reserved,
        reservationUsedForVm=reserved,
        unreservedForPool=max(0, total - reserved),
        unreservedForVm=max(0, total - reserved),
        overallUsage=used,
        maxUsage=total,
    )

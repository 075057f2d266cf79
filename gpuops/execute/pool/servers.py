"""The servers of a pool: their program starts and stops, shares are admitted and dismissed, health is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.pool.guest_calls import PoolVms, why
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.lease_book import LentShare, PoolServer, ServerState
from gpuops.model.workloads.remote_gpu import RemoteProgram, ServerCondition, ServerHealth
from gpuops.plan.pool import guest_scripts
from gpuops.plan.pool.guest_scripts import AdmittedShare, ServerCall


@dataclass(frozen=True, slots=True)
class ServerGuests:
    """The guests of the servers of one pool."""

    vms: PoolVms
    program: RemoteProgram

    def start(self, server: PoolServer) -> None:
        """It serves from then on, and admits nobody yet. Raises Refused, StepFailed, OutcomeUnknown, NotConnected."""
        vm, call = self._call(server)
        self.vms.run(vm, call.start())
        self.vms.run(vm, call.check())

    def stop(self, server: PoolServer) -> None:
        """It serves nobody from then on; a VM that is off serves nobody anyway. Raises as `start`."""
        if self._gone(server) is None:
            vm, call = self._call(server)
            self.vms.run(vm, call.stop())

    def health(self, server: PoolServer) -> ServerHealth:
        """What is known of it now. Raises NotConnected: a vCenter that is lost says nothing of a server."""
        gone = self._gone(server)
        if gone is not None:
            return ServerHealth(server.name, ServerCondition.DEAD, gone)
        try:
            vm, call = self._call(server)
            end = self.vms.end(vm, call.look())
        except NotConnected:
            raise
        except GpuopsError as error:
            return ServerHealth(server.name, ServerCondition.UNKNOWN, error.message)
        if end.error:
            # a script that ended tells what its program says; one that did not end tells nothing
            told = ServerCondition.UNKNOWN if end.exit_code is None else ServerCondition.DEAD
            return ServerHealth(server.name, told, why(end))
        shares = guest_scripts.served(end.printed)
        if not self.program.server.used:
            return ServerHealth(server.name, ServerCondition.SERVES, shares=shares)
        try:
            used = guest_scripts.measured(self.vms.run(vm, call.used()), server.name)
        except NotConnected:
            raise
        except GpuopsError as error:
            why_not = f"its use is not measured: {error.message}"
            return ServerHealth(server.name, ServerCondition.SERVES, why_not, shares=shares)
        return ServerHealth(server.name, ServerCondition.SERVES, measured=used, shares=shares)

    def admit(
        self, server: PoolServer, lease: str, share: LentShare, client: str, seconds_left: int, key: str
    ) -> AdmittedShare:
        """The client at that address may use its share for so long. Raises as `start`."""
        vm, call = self._call(server)
        printed = self.vms.run(vm, call.admit(lease, share, client, seconds_left, key))
        return guest_scripts.admitted(printed, share, call.address)

    def dismiss(self, server: PoolServer, lease: str, gpu: int) -> None:
        """The lease is cut off from that GPU; from one of a VM that is off it is. Raises as `start`."""
        if self._gone(server) is None:
            vm, call = self._call(server)
            self.vms.run(vm, call.dismiss(lease, gpu))

    def _gone(self, server: PoolServer) -> str | None:
        """Why nothing runs in its guest for certain; None = something may. One that is not seen may run, where this
        login sees less than others do; unless somebody has said that it is dead."""
        vm = self.vms.vm(server.uuid)
        if vm is None:
            return "its VM is not in this vCenter any more" if server.state is ServerState.DEAD else None
        return "its VM is powered off" if vm.power is PowerState.OFF else None

    def _call(self, server: PoolServer) -> tuple[Vm, ServerCall]:
        vm = self.vms.running(server.uuid, server.name)
        gpus = tuple(each.index for each in server.gpus)
        return vm, ServerCall(self.program, self.vms.address(vm), gpus)

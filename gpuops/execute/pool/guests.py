"""Runs the hooks of a pool's program in the guests of servers and clients.

Every hook may run again, whatever an earlier command did before it was killed. In a guest one script runs at a time,
and a lease that was revoked there is never granted again: so commands need no lock of their own.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpuops.config.remote_gpu_file import load_program
from gpuops.errors import GpuopsError, Locked, NotConnected, Refused, StateDamaged, StepFailed
from gpuops.execute.pool.book import PoolBooks, known_book
from gpuops.execute.site import Site
from gpuops.execute.site.guest_work import guest_work
from gpuops.model.guests.guest_command import CommandEnd
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, ServerState
from gpuops.model.workloads.remote_gpu import ServerCondition, ServerHealth
from gpuops.plan.pool import guest_scripts, lending

SCRIPT_S: Final = 120.0
"""How long one script may take in a guest."""


@dataclass(slots=True)
class PoolGuests:
    """The guests of a pool, and its book. What fails is recorded, and tried again by the next command."""

    site: Site
    inventory: Inventory
    book: LeaseBook
    """The book as last written, including the leases that this command closed."""
    failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def do_work(self, books: PoolBooks) -> None:
        """Cut off clients whose leases are over, then set up new ones. Raises NotConnected, Locked, StateDamaged."""
        if self.book.pool.program is None:
            return

        def write(decide: Callable[[LeaseBook], LeaseBook]) -> None:
            name = self.book.pool.name
            _, after = books.change(name, lambda book: decide(known_book(book, name)), lambda *_: None)
            ids = {lease.id for lease in after.leases}
            self.book = after.with_leases(lease for lease in self.book.leases if lease.id not in ids and not lease.open)

        for lease in lending.to_disable(self.book, self.site.clock()):
            self._try(f"lease {lease.id} of {lease.client}", partial(self._disable, lease.id, write))
        for lease in lending.to_enable(self.book):
            self._try(f"lease {lease.id} of {lease.client}", partial(self._enable, lease.id, write))

    def healths(self) -> tuple[ServerHealth, ...]:
        """Return the health of each server that is not dead, by its hook. Raises NotConnected."""
        if self.book.pool.program is None:
            return ()
        living = (ServerState.SERVING, ServerState.DRAINING)
        return tuple(self._health(server.name) for server in self.book.servers if server.state in living)

    def _health(self, name: str) -> ServerHealth:
        try:
            vm, address = self._server(name)
            end = self._end(vm, guest_scripts.health(load_program(self.book.pool.program or ""), address))
        except NotConnected:
            raise
        except GpuopsError as error:
            return ServerHealth(name, ServerCondition.UNKNOWN, error.message)
        if end.error:
            # a hook that did not end says nothing about the server
            condition = ServerCondition.UNKNOWN if end.exit_code is None else ServerCondition.DEAD
            return ServerHealth(name, condition, _why(end))
        return ServerHealth(name, ServerCondition.SERVES, shares=guest_scripts.served_shares(end.printed))

    def _enable(self, id: str, write: Callable[[Callable[[LeaseBook], LeaseBook]], None]) -> None:
        write(lambda book: lending.enabling(book, id))
        lease = self.book.lease(id)
        if lease is None or lease not in lending.to_enable(self.book):
            return  # another command has ended it
        program = load_program(self.book.pool.program or "")
        client = self._running(lease.wish.client_uuid, lease.client)
        client_address = self._address(client)
        endpoints = []
        for share in lease.shares:
            left_s = int((lease.ends_at - self.site.clock()).total_seconds()) if lease.ends_at is not None else 0
            if left_s < 1:
                raise Refused(f"{lease.client}: its lease is over", hint="ask for another one")
            vm, server = self._server(share.server)
            script = guest_scripts.grant_in_server(program, id, share, server, client_address, left_s)
            endpoints.append((server, guest_scripts.granted_port(self._run(vm, script), share.server)))
        self._run(client, guest_scripts.grant_in_client(program, id, endpoints))
        write(lambda book: lending.enabled(book, id))

    def _disable(self, id: str, write: Callable[[Callable[[LeaseBook], LeaseBook]], None]) -> None:
        """Cut the client off. Its shares are free once every server has revoked them."""
        write(lambda book: lending.disabling(book, id))
        lease = self.book.lease(id)
        if lease is None or lease not in lending.to_disable(self.book, self.site.clock()):
            return  # another command has done it
        failed = len(self.failed)
        for share in lease.shares:
            revoke = partial(self._revoke_share, id, share.server, share.gpu)
            self._try(f"lease {id} of {lease.client}", revoke)
        self._clear_client(lease)
        if len(self.failed) == failed:
            write(lambda book: lending.cut_off(book, id, self.site.clock()))

    def _revoke_share(self, lease: str, server: str, gpu: int) -> None:
        pool_server = self.book.server(server)
        vm = self._vm(pool_server.uuid) if pool_server is not None else None
        if pool_server is None or (vm is None and pool_server.state is ServerState.DEAD):
            return  # nothing can be asked of a VM that this login does not see
        if vm is None or vm.power is not PowerState.OFF:
            vm, address = self._server(server)
            program = load_program(self.book.pool.program or "")
            self._run(vm, guest_scripts.revoke_in_server(program, lease, gpu, address))

    def _clear_client(self, lease: GpuLease) -> None:
        """Clear the guest of the client. A failure is only a warning: the servers cut the client off."""
        try:
            client = self._running(lease.wish.client_uuid, lease.client)
            self._run(client, guest_scripts.revoke_in_client(load_program(self.book.pool.program or ""), lease.id))
        except NotConnected:
            raise
        except GpuopsError as error:
            self.warnings.append(f"{lease.client}: its environment may stay: {error.message}")

    def _try(self, subject: str, action: Callable[[], None]) -> None:
        try:
            action()
        except (NotConnected, Locked, StateDamaged):
            raise  # vCenter or the book cannot be reached: the next guest would fail too
        except GpuopsError as error:
            # most errors of guests begin with the name of the VM
            self.failed.append(error.line if error.line.startswith(f"{subject}: ") else f"{subject}: {error.line}")

    def _vm(self, uuid: str) -> Vm | None:
        return next(iter(self.inventory.vms_with_uuid(uuid)), None)

    def _running(self, uuid: str, name: str) -> Vm:
        """Return the VM, which runs. Raises Refused."""
        vm = self._vm(uuid)
        if vm is None:
            hint = "gpuops inventory --vms shows what it sees"
            raise Refused(f"{name} is not in this vCenter, or this login may not see it", hint=hint)
        if vm.power is not PowerState.ON:
            raise Refused(f"{vm.name} does not run: its guest cannot be reached", hint=f"power {vm.name} on")
        return vm

    def _server(self, name: str) -> tuple[Vm, str]:
        """Return the VM of a server and its address. Raises Refused."""
        server = self.book.server(name)
        vm = self._running(server.uuid if server is not None else "", name)
        return vm, self._address(vm)

    def _address(self, vm: Vm) -> str:
        """Return the guest's address in the network of the pool. Raises Refused."""
        network = self.book.pool.network
        addresses = guest_work(self.site.vcenter).guest_addresses(vm.ref)
        address = guest_scripts.first_address(addresses.get(network, ()))
        if address is None:
            networks = ", ".join(sorted(addresses)) or "none"
            message = f"{vm.name}: its guest reports no address in the network {network} (it has: {networks})"
            raise Refused(message, hint=f"give it a network card in {network}, and VMware Tools time to report")
        return address

    def _run(self, vm: Vm, script: str) -> str:
        """Return what the script printed. Raises StepFailed, OutcomeUnknown, NotConnected, Refused.

        Errors have neither the script nor all that it printed: a hook may print what it should not.
        """
        end = self._end(vm, script)
        if end.error:
            raise StepFailed(f"{vm.name}: {_why(end)}", hint="look at the guest; the same command tries it again")
        return end.printed

    def _end(self, vm: Vm, script: str) -> CommandEnd:
        port = guest_work(self.site.vcenter)
        op_id = f"{guest_scripts.PREFIX}{secrets.token_hex(8)}"
        command = port.start_command(vm.ref, vm.name, script, op_id, guest_scripts.PREFIX)
        [end] = port.wait_for_commands([command], SCRIPT_S)
        return end


def _why(end: CommandEnd) -> str:
    """Return why a script failed, with the last line that it printed."""
    lines = end.printed.strip().splitlines()
    return end.error.removeprefix(f"{end.name}: ") + (f": {lines[-1][:200]}" if lines else "")

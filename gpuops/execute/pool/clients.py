"""The clients of a pool: a lease is enabled in the guests of its servers and of its client, and disabled there again.

Both may be called again at any time, after whichever step of an earlier call somebody was killed: what is there stays,
what is missing is made. A client is told addresses and ports of servers, and no name of anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpuops import clock
from gpuops.config.remote_gpu_file import rendered
from gpuops.errors import GpuopsError, NotConnected, Refused
from gpuops.execute.pool.guest_calls import PoolVms
from gpuops.execute.pool.servers import ServerGuests
from gpuops.execute.site.guest_work import guest_work
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LentShare, PoolServer
from gpuops.model.workloads.remote_gpu import CutOff, LeaseKey, RemoteProgram, ServerHealth
from gpuops.plan.pool import guest_scripts
from gpuops.plan.pool.guest_scripts import ClientCall


@dataclass(frozen=True, slots=True)
class PoolGuests:
    """The guests of one pool, as its book has them."""

    book: LeaseBook
    program: RemoteProgram
    servers: ServerGuests

    @staticmethod
    def of(
        book: LeaseBook,
        program: RemoteProgram,
        inventory: Inventory,
        vcenter: Vcenter,
        still_alone: Callable[[], None] = lambda: None,
    ) -> PoolGuests:
        """`still_alone` is called before each script. Raises Refused for a saved inventory."""
        vms = PoolVms(inventory, guest_work(vcenter), book.pool.network, still_alone)
        return PoolGuests(book, program, ServerGuests(vms, program))

    def start_server(self, server: PoolServer) -> None:
        """It serves from then on, and admits nobody yet.

        Raises Refused, StepFailed, OutcomeUnknown, NotConnected; the same again goes on.
        """
        self.servers.start(server)

    def stop_server(self, server: PoolServer) -> None:
        """It serves nobody from then on, and every share of it is cut off. Raises as `start_server`."""
        self.servers.stop(server)

    def health(self, server: PoolServer) -> ServerHealth:
        """What is known of it now. Raises NotConnected: a vCenter that is lost says nothing of a server."""
        return self.servers.health(server)

    def enable(self, lease: GpuLease, now: datetime) -> None:
        """Its client may use its shares until `ends_at`. Raises as `start_server`; Refused for a lease that is over.

        The client's environment comes last: it is there only where every server admits the client.
        """
        if lease.ends_at is None or lease.ends_at <= now:
            raise Refused(f"{lease.client}: its lease is over", hint="ask for another one")
        if reason := self.program.too_many(len(lease.shares)):  # of a program whose file was changed since
            raise Refused(f"{lease.client}: {reason}", hint="give it back, and ask for fewer GPUs")
        vms, call, began_s = self.servers.vms, ClientCall(self.program), clock.passed_s()
        client = vms.running(lease.wish.client_uuid, lease.client)
        address = vms.address(client)
        printed = vms.run(client, call.key(lease.id))
        key = guest_scripts.digest(printed, client.name) if self.program.key is LeaseKey.CLIENT else ""
        shares = []
        for share in lease.shares:
            # the scripts before this one took their time, and its own counts from when it is begun
            left_s = (lease.ends_at - now).total_seconds() - (clock.passed_s() - began_s)
            if left_s < 1:
                raise Refused(f"{lease.client}: its lease is over", hint="ask for another one")
            shares.append(self.servers.admit(self._server(share.server), lease.id, share, address, int(left_s), key))
        told = [
            {
                "address": f"[{each.address}]" if ":" in each.address else each.address,
                "port": each.port,
                "gpu": each.share.gpu,
                "memory_mib": each.share.memory_mib,
                "told": each.told,
            }
            for each in shares
        ]
        values = {"lease": lease.id, "shares": told, "key_file": guest_scripts.key_file(lease.id)}
        vms.run(client, call.enter(lease.id, rendered(self.program.client.environment, values)))

    def disable(self, lease: GpuLease, freed: Callable[[LentShare], None] = lambda share: None) -> tuple[str, ...]:
        """Its client is cut off; what could not be taken out of the client's guest, with the reason.

        Raises where it is not cut off: as `start_server`, after every server that could be asked was, and `freed` was
        called with each share that is cut off all the same.
        """
        lost: GpuopsError | None = None
        done = list[LentShare]()
        for share in lease.shares:
            try:
                self.servers.dismiss(self._server(share.server), lease.id, share.gpu)
            except NotConnected:
                raise
            except GpuopsError as error:
                lost = lost or error
            else:
                done.append(share)
        left = self._leave(lease)
        if lost is not None:
            for share in done:
                freed(share)
            raise lost
        return left

    def _leave(self, lease: GpuLease) -> tuple[str, ...]:
        vms = self.servers.vms
        try:
            client = vms.running(lease.wish.client_uuid, lease.client)
            vms.run(client, ClientCall(self.program).leave(lease.id))
        except NotConnected:
            raise
        except GpuopsError as error:
            gone = vms.vm(lease.wish.client_uuid) is None
            if self.program.cut_off is CutOff.CLIENT and not gone:
                raise  # nothing else ends it; of one that is gone nothing is left, and one that is hidden is told of
            return (f"{lease.client}: its environment may stay: {error.message}",)
        return ()

    def _server(self, name: str) -> PoolServer:
        found = self.book.server(name)
        if found is None:
            raise Refused(f"{name} is no server of the pool {self.book.pool.name}", hint="gpuops pool show")
        return found

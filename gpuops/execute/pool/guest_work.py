"""Does in guests what the book of a pool wants, one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gpuops.config.remote_gpu_file import load_program
from gpuops.errors import GpuopsError, Locked, NotConnected, StateDamaged
from gpuops.execute.pool.book import PoolBooks, known_book
from gpuops.execute.pool.clients import PoolGuests
from gpuops.execute.site import Site
from gpuops.execute.state.lock import locked
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LentShare, PoolServer, ServerState
from gpuops.plan.pool import lending, served
from gpuops.plan.pool.deleting import may_go
from gpuops.plan.pool.served import Leftover

WAIT_S: Final = 600.0
"""So long a call waits for another one that works in the guests of its pool."""
PAUSE_S: Final = 0.5
EACH: Final = ""
"""In place of a server's name: each that lends."""


def pool_guests(
    book: LeaseBook, inventory: Inventory, site: Site, still_alone: Callable[[], None] = lambda: None
) -> PoolGuests | None:
    """The guests of the pool; None = people set them up. `still_alone` is called before each script."""
    if book.pool.program is None:
        return None
    return PoolGuests.of(book, load_program(book.pool.program), inventory, site.vcenter, still_alone)


@dataclass(slots=True)
class PoolGuestWork:
    """What a book wants of guests, done one by one; what fails is told, and tried again by the next call."""

    site: Site
    pool: str
    inventory: Inventory
    books: PoolBooks
    seen: LeaseBook
    """The book as it was last written, with the leases that came to their end in this call."""
    failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    """Instance UUIDs of servers that left the pool, and whose guests are seen to."""
    still_alone: Callable[[], None] = lambda: None
    """Raises Locked once another machine may be at it."""

    def done(self, start: str | None, leftovers: Iterable[Leftover]) -> None:
        """All of it. Raises NotConnected, StateDamaged, and Locked where another process is at it for too long, or may
        be at it since."""
        if pool_guests(self.seen, self.inventory, self.site) is None:
            self.left.update(each.uuid for each in lending.leaving(self.seen))
            return
        with alone(self.site, self.books, self.pool) as self.still_alone:
            self._start(start)
            for lease in lending.to_disable(self.seen, self.site.clock()):
                self._tried(lease, self._disable)
            for lease in lending.to_enable(self.seen):
                self._tried(lease, self._enable)
            self._cut_off_leftovers(leftovers)

    def _cut_off_leftovers(self, leftovers: Iterable[Leftover]) -> None:
        for each in leftovers:
            self._write(lambda book: book)  # a lease may have begun since the guest was asked
            server = self.seen.server(each.server)
            if server is not None and not served.is_held(self.seen, each):
                dismiss = self._guests().servers.dismiss
                self._noted(each.server, partial(dismiss, server, each.lease, each.gpu))
                self.warnings.append(f"{each}: it is cut off")

    def _start(self, start: str | None) -> None:
        guests = self._guests()
        for server in self.seen.servers:
            if server.state is ServerState.SERVING and (server.to_start or start in (EACH, server.name)):
                self._noted(server.name, partial(self._started, server, guests))
        for server in lending.leaving(self.seen):
            self._noted(server.name, partial(self._stopped, server, guests))

    def _started(self, server: PoolServer, guests: PoolGuests) -> None:
        guests.start_server(server)
        self._write(lambda book: lending.started(book, server.name))

    def _stopped(self, server: PoolServer, guests: PoolGuests) -> None:
        vm = guests.servers.vms.vm(server.uuid)
        if vm is not None and vm.power is PowerState.ON:
            guests.stop_server(server)
        self.left.add(server.uuid)  # what does not run serves nobody, and of one that is not seen `left_behind` tells

    def without_left(self, marked: Mapping[str, str]) -> bool:
        """Servers that left the pool are out of its book, once nothing of it is in their guests and marks; and with the
        last server the pool, which is what this returns. `marked`: by instance UUID why a mark is there still."""
        self.failed += [why for uuid, why in marked.items() if uuid in self.left]
        if left := self.left - marked.keys():
            self._write(lambda book: lending.without(book, left))
        return may_go(self.seen) and self.books.remove(self.pool, may_go)

    def _guests(self) -> PoolGuests:
        guests = pool_guests(self.seen, self.inventory, self.site, self.still_alone)
        assert guests is not None, "a pool without a program has no work in guests"
        return guests

    def _tried(self, lease: GpuLease, deed: Callable[[str], None]) -> None:
        self._noted(f"lease {lease.id} of {lease.client}", partial(deed, lease.id))

    def _noted(self, subject: str, deed: Callable[[], None]) -> None:
        try:
            deed()
        except (NotConnected, Locked, StateDamaged):
            raise  # nothing more can be done, or be written down
        except GpuopsError as error:
            # most errors of guests begin with the name of the VM
            self.failed.append(error.line if error.line.startswith(f"{subject}: ") else f"{subject}: {error.line}")

    def _disable(self, id: str) -> None:
        now = self.site.clock()
        self._write(lambda book: lending.disabling(book, id))
        lease = self.seen.lease(id)
        # another process may have done it meanwhile
        if lease is None or lease not in lending.to_disable(self.seen, now):
            return
        # what a server holds that cannot be asked keeps nobody from the GPUs of the others
        self.warnings += self._guests().disable(lease, partial(self._freed, id))
        self._write(lambda book: lending.cut_off(book, id, self.site.clock()))

    def _freed(self, id: str, share: LentShare) -> None:
        self._write(lambda book: lending.cut_off_from(book, id, share, self.site.clock()))

    def _enable(self, id: str) -> None:
        self._write(lambda book: lending.enabling(book, id))
        lease = self.seen.lease(id)
        if lease is None or lease not in lending.to_enable(self.seen):
            return
        self._guests().enable(lease, self.site.clock())
        self._write(lambda book: lending.enabled(book, id))

    def _write(self, decide: Callable[[LeaseBook], LeaseBook]) -> None:
        pool = self.pool
        _, after = self.books.change(pool, lambda found: decide(known_book(found, pool)))
        there = {each.id for each in after.leases}
        over = [each for each in self.seen.leases if each.id not in there and not each.open]
        self.seen = after.with_leases(over)


@contextmanager
def alone(site: Site, books: PoolBooks, pool: str) -> Iterator[Callable[[], None]]:
    """While this lasts no other process works in the guests of this pool; see `PoolBooks.alone`. Raises Locked, after a
    while."""
    until_s = site.passed_s() + WAIT_S
    name = f"{site.vcenter.uuid}-pool-{pool}"
    with ExitStack() as stack:
        while True:
            try:
                with ExitStack() as both:
                    both.enter_context(locked(site.state_dir, name, site.clock(), alone=True, doing="pool"))
                    still_alone = both.enter_context(books.alone(pool))
                    stack.enter_context(both.pop_all())
                break
            except Locked:
                if site.passed_s() >= until_s:
                    raise
                site.pause(PAUSE_S)
        yield still_alone

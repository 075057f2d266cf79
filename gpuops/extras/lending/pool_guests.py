"""Runs the hooks of a pool's program in the guests of servers and clients, and marks the servers that lend.

Lease ids, addresses and paths come from guests or from files that others wrote, so each is checked before it is sent.
Hooks may run again after a command was killed, and commands need no lock: see `gpuops/guest_scripts/pool.sh`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from ipaddress import ip_address
from typing import Final

from gpuops.advise.managed_vms import POOL_MARK
from gpuops.errors import GpuopsError, Locked, NotConnected, OutcomeUnknown, Refused, StateDamaged, StepFailed
from gpuops.execute.site import Site
from gpuops.execute.site.guest_work import ScriptRunner, guest_work
from gpuops.execute.steps.vm_runs import execute_steps, settled_run, step_failure
from gpuops.extras.lending import lending
from gpuops.extras.lending.lease_book import GpuLease, LeaseBook, LentShare, ServerState
from gpuops.extras.lending.pool_book import PoolBooks, known_book
from gpuops.extras.lending.pool_file import RemoteProgram, load_program
from gpuops.extras.lending.pool_members import ServerHealth, is_lending, vm_with
from gpuops.guest_scripts.script_commands import shell_command
from gpuops.model.guests.guest import CommandEnd
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.plan.core.guest_address import unicast_address
from gpuops.plan.core.steps import SetAttribute

PREFIX: Final = "gpuops-pool-"
"""Prefix of temporary directories in guests, and of ids of operations."""
HOOK_FAILED: Final = 1
"""The exit code of a script whose hook failed. `health` ends with another code if its hook could not be run."""
SCRIPT_S: Final = 120.0
"""How long one script may take in a guest."""
MARKS: Final = "pool marks"
"""The kind of run that marks servers, in journals. Several commands may mark at once."""
LONGEST_MARKING: Final = timedelta(hours=1)
"""A run of marks that is open for longer than this was killed."""
_LEASE: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,62}")
_PORT: Final = re.compile(r"^port ([0-9]{1,5})$", re.MULTILINE)
_SHARE: Final = re.compile(r"^lease ([0-9a-z][0-9a-z-]{0,62}) ([0-9]{1,3}) ([0-9]{1,9})$", re.MULTILINE)


def hook_command(action: str, hook: str, *arguments: int, **variables: str | int) -> str:
    """Return the command that runs a hook in a guest; `pool.sh` has the actions, their arguments and variables.

    Raises Refused for a lease id with other characters: it becomes a path in the guest.
    """
    lease = str(variables.get("LEASE", "0"))
    if not _LEASE.fullmatch(lease):
        raise Refused(
            f"{lease[:80]!r} is not the id of a lease",
            hint="a lease id has only lower-case letters, digits and hyphens: see gpuops pool show",
        )
    return shell_command("pool", action, hook, *arguments, variables=variables)


def granted_port(printed: str, server: str) -> int:
    """Return the port that `grant_server` printed. Raises StepFailed."""
    port = _PORT.search(printed)
    if port is None:
        raise StepFailed(
            f"{server}: its guest printed no port",
            hint="check that the hook grant.server of the program prints a line `port N`",
        )
    return int(port[1])


def served_shares(printed: str) -> dict[tuple[str, int], int]:
    """Return the MiB that each share uses, by lease and GPU, as the health hook printed them."""
    return {(lease, int(gpu)): int(used_mib) for lease, gpu, used_mib in _SHARE.findall(printed)}


def first_address(texts: Sequence[str]) -> str | None:
    """Return the first address at which others can reach a guest, IPv4 before IPv6, or None."""
    reachable = [str(parsed) for text in texts if (parsed := unicast_address(text)) is not None]
    return min(reachable, key=lambda text: ip_address(text).version, default=None)


@dataclass(slots=True)
class PoolGuests:
    """The guests of a pool, and its book. Failures are recorded, and the next command tries again."""

    site: Site
    inventory: Inventory
    books: PoolBooks
    book: LeaseBook
    """The book as last written, including the leases that this command ended."""
    failed: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def do_work(self) -> None:
        """Cut off clients whose leases are over, then set up new ones. Raises NotConnected, Locked, StateDamaged."""
        if self.book.pool.program is not None:
            for lease in lending.to_disable(self.book, self.site.clock()):
                self._note_failure_of(lease, partial(self._run_hooks, lease.id, enable=False))
            for lease in lending.to_enable(self.book):
                self._note_failure_of(lease, partial(self._run_hooks, lease.id, enable=True))

    def healths(self) -> tuple[ServerHealth, ...]:
        """Return the health of each server that is not dead, as its health hook reports it; () without a program.

        Raises NotConnected; any other error makes the health of that server unknown.
        """
        if self.book.pool.program is None:
            return ()
        running, healths = [], []
        for name in (server.name for server in self.book.servers if server.state is not ServerState.DEAD):
            try:
                vm, address = self._running_server(name)
                script = hook_command("health", self._program().health, SERVER_ADDRESS=address)
                running.append(self._runner().start(vm.ref, name, script))  # all of them run at the same time
            except NotConnected:
                raise
            except GpuopsError as error:
                healths.append(ServerHealth(name, why=error.message))
        ends = guest_work(self.site.vcenter).wait_for_commands(running, SCRIPT_S)
        return (*healths, *(_health(end, self._runner().failure(end)) for end in ends))

    def revoke_all(self, server: str) -> None:
        """Cut every client off from a server that was dead, because leases ended while its guest was not reachable.

        Raises like `_run_script`.
        """
        if self.book.pool.program is not None:
            vm, address = self._running_server(server)
            self._run_script(vm, hook_command("revoke_all", self._program().revoke.server, SERVER_ADDRESS=address))

    def _run_hooks(self, id: str, *, enable: bool) -> None:
        """Set up the client of this lease, or cut it off, and record the begin and the end."""
        self._write(lambda book: lending.hooks_begin(book, id, self.site.clock()))
        due = lending.to_enable(self.book) if enable else lending.to_disable(self.book, self.site.clock())
        for lease in (lease for lease in due if lease.id == id):  # none if another command has done it meanwhile
            if self._set_up_client(lease) if enable else self._cut_client_off(lease):
                self._write(lambda book: lending.hooks_ended(book, id, enable, self.site.clock()))

    def _write(self, change: Callable[[LeaseBook], LeaseBook]) -> None:
        """Change the stored book, and update `book`, in which the leases that this command ended stay."""
        name = self.book.pool.name
        _, (after, _) = self.books.change(name, lambda book, _: (change(known_book(book, name)), ()))
        ended = [lease for lease in self.book.leases if not lease.holds]
        self.book = after.with_leases(ended).with_leases(after.leases)

    def _set_up_client(self, lease: GpuLease) -> bool:
        """Lend each share on its server, then give the client their addresses. Return True, or raise an error.

        Raises Refused, StepFailed, OutcomeUnknown, NotConnected.
        """
        program, client = self._program(), self._running_vm(lease.wish.client_uuid, lease.wish.client)
        client_address, endpoints = self._address(client), list[str]()
        for share in lease.shares:
            left_s = int((lease.ends_at - self.site.clock()).total_seconds())
            if left_s < 1:
                raise Refused(f"{lease.wish.client}: its lease is over", hint="lend again with gpuops pool lend")
            vm, address = self._running_server(share.server)
            script = hook_command(
                "grant_server", program.grant.server, program.ports.first, program.ports.last, LEASE=lease.id,
                GPU=share.gpu, MEMORY_MIB=share.memory_mib, SECONDS_LEFT=left_s, SERVER_ADDRESS=address,
                CLIENT_ADDRESS=client_address,
            )  # fmt: skip
            port = granted_port(self._run_script(vm, script), share.server)
            endpoints.append(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
        hook, shares = program.grant.client, ",".join(endpoints)
        self._run_script(client, hook_command("grant_client", hook, LEASE=lease.id, SHARES=shares))
        return True

    def _cut_client_off(self, lease: GpuLease) -> bool:
        """Cut the client off, and return whether every server has revoked its share.

        A failure in the client's guest is only a warning, because the servers end the use of the shares.
        """
        revoked = [self._note_failure_of(lease, partial(self._revoke_share, lease, share)) for share in lease.shares]
        try:
            client = self._running_vm(lease.wish.client_uuid, lease.wish.client)
            self._run_script(client, hook_command("revoke_client", self._program().revoke.client, LEASE=lease.id))
        except NotConnected:
            raise
        except GpuopsError as error:
            self.warnings.append(f"{lease.wish.client}: its settings for the lent GPUs may remain: {error.message}")
        return all(revoked)

    def _revoke_share(self, lease: GpuLease, share: LentShare) -> None:
        """Revoke a share on its server, unless the server's VM is off, or is missing and reported dead.

        Raises StepFailed, OutcomeUnknown, Refused, NotConnected.
        """
        server = self.book.server(share.server)
        vm = vm_with(server.uuid, self.inventory) if server is not None else None
        if server is None or (server.is_reported_dead if vm is None else vm.power is PowerState.OFF):
            return  # nothing serves the share now, and `revoke_all` runs before this server lends again
        try:
            running, address = self._running_server(share.server)
            hook = self._program().revoke.server
            script = hook_command("revoke_server", hook, LEASE=lease.id, GPU=share.gpu, SERVER_ADDRESS=address)
            self._run_script(running, script)
        except (StepFailed, OutcomeUnknown, Refused) as error:
            if server.state is not ServerState.DEAD:
                raise
            hint = f"if its guest stays unreachable, power {server.name} off: its leases then end"
            raise StepFailed(error.message, hint=hint) from error

    def _note_failure_of(self, lease: GpuLease, action: Callable[[], object]) -> bool:
        """Run the action, and add its error to `failed`; return whether it worked.

        Raises NotConnected, Locked, StateDamaged.
        """
        try:
            action()
            return True
        except (NotConnected, Locked, StateDamaged):
            raise  # vCenter or the book cannot be reached: the next guest would fail too
        except GpuopsError as error:
            self.failed.append(f"lease {lease.id} of {lease.wish.client}: {error.line}")
            return False

    def _program(self) -> RemoteProgram:
        """Return the program of the pool, which has one. Raises PolicyError, UsageError."""
        return load_program(self.book.pool.program or "")

    def _running_vm(self, uuid: str, name: str) -> Vm:
        """Return the VM with this UUID. Raises Refused if it does not run or is missing."""
        vm = vm_with(uuid, self.inventory)
        if vm is None or vm.power is not PowerState.ON:
            problem = "does not run" if vm is not None else "was deleted, or this login may not read it"
            raise Refused(f"{name} {problem}", hint=f"power on {name}, then run the same command again")
        return vm

    def _running_server(self, name: str) -> tuple[Vm, str]:
        """Return the running VM of a server and its address. Raises Refused."""
        server = self.book.server(name)
        vm = self._running_vm(server.uuid if server is not None else "", name)
        return vm, self._address(vm)

    def _address(self, vm: Vm) -> str:
        """Return the guest's address in the network of the pool. Raises Refused."""
        network = self.book.pool.network
        addresses = guest_work(self.site.vcenter).guest_addresses(vm.ref)
        address = first_address(addresses.get(network, ()))
        if address is None:
            networks = ", ".join(sorted(addresses)) or "none"
            message = f"{vm.name}: its guest reports no address in the network {network} (it has: {networks})"
            raise Refused(
                message, hint=f"give it a network card in {network}, and wait until VMware Tools reports the address"
            )
        return address

    def _run_script(self, vm: Vm, script: str) -> str:
        """Return what the script printed. Raises StepFailed, OutcomeUnknown, NotConnected, Refused.

        Error messages contain neither the script nor all of its output, because a hook may print secrets.
        """
        runner = self._runner()
        end = runner.wait(runner.start(vm.ref, vm.name, script), SCRIPT_S)
        if end.error:
            hint = "check this guest, then run the same command again"
            raise StepFailed(f"{vm.name}: {runner.failure(end)}", hint=hint)
        return end.printed

    def _runner(self) -> ScriptRunner:
        """Return the runner of scripts in guests of this vCenter. Raises Refused for a saved inventory."""
        return ScriptRunner(guest_work(self.site.vcenter), PREFIX)


def mark_servers(book: LeaseBook, inventory: Inventory, site: Site) -> Iterator[str]:
    """Set the pool's name as a mark on every server that lends, and remove it from all other VMs.

    Nights, moves and rolling changes read this mark, not the pool's book. Run this before clients are set up, because
    `rotate night` reads the mark again just before it suspends a VM, and again after clients were cut off.
    Yields a line for each VM whose mark could not be changed; the next command tries again. Raises NotConnected,
    StateDamaged.
    """
    uuids = {server.uuid for server in book.servers if is_lending(server, book)}
    steps = [
        SetAttribute(vm.ref, POOL_MARK, book.pool.name if vm.instance_uuid in uuids else "")
        for vm in inventory.vms.values()
        if (vm.instance_uuid in uuids) is not (vm.attributes.get(POOL_MARK, "") == book.pool.name)
    ]
    if not steps:
        return
    killed_before = site.clock() - LONGEST_MARKING  # an open run that began earlier was killed: it is closed first
    with (
        site.unlocked_journal() as journal,
        settled_run(MARKS, inventory, journal, site, begun_before=killed_before) as run,
    ):
        outcomes = execute_steps(steps, inventory, journal, run, site)
    for step in steps:
        if failure := step_failure(outcomes[step.vm]):
            effect = "do not see that it lends" if step.value else "still see it as a server that lends"
            problem = f"its mark {POOL_MARK} could not be changed ({failure}): nights and moves {effect}"
            yield f"{inventory.vm(step.vm).name}: {problem}"


def _health(end: CommandEnd, reason: str) -> ServerHealth:
    """Return the health of a server by the end of its hook; `reason`: why the hook failed, if it did."""
    if end.error:  # a hook that did not run, or did not end, shows nothing of the server
        return ServerHealth(end.name, why=reason, is_dead=end.exit_code == HOOK_FAILED)
    return ServerHealth(end.name, served_shares(end.printed))

"""Gives up one host of an unfinished change, or one VM that was taken from a host, for good.

This is for hosts and VMs that do not respond any more: it writes to the journal and changes nothing in vCenter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from gpuops.errors import Locked, Refused
from gpuops.execute.change.unfinished_change import DisplacedVm, History, history_of, ids_now, intents_now, order_now
from gpuops.execute.journal import Journal, Run
from gpuops.execute.journal.orders import ChangeOrder, MovesOrder, load_change_order
from gpuops.execute.runs import RESUME_CHANGE, note_returned, open_change
from gpuops.execute.site import Site, agreed
from gpuops.execute.site.agreement import apply_agreed
from gpuops.execute.state.lock import rotating
from gpuops.model.nights.history import GivenUp, Thing
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import NAMED_UNTIL_BACK, Abandonment, host_now, state_of

STATUS: Final = "gpuops change status shows what is open"


def abandon(
    site: Site, thing: Thing, name: str, *, apply: bool = True, consent: Callable[[Abandonment], None] = agreed
) -> Abandonment:
    """Give up the host of that name, or the VM that was taken from a host. The change ends if nothing else is left.

    Raises Refused if the host or VM is not part of an open change, Locked while another run works on the change.
    """
    inventory = site.vcenter.inventory()
    look = partial(_describe_abandonment, thing=thing, name=name, inventory=inventory)
    with site.journal_to_read(inventory.vcenter) as readable_journal:
        abandonment = look(readable_journal)
    holder = rotating(site.state_dir, inventory.vcenter)
    if holder is not None:
        raise Locked(f"{holder} is changing this vCenter: nothing is given up", hint="gpuops change status shows it")

    def give_up(current: Abandonment, journal: Journal) -> Abandonment:
        run = open_change(journal)
        assert run is not None, "only what is part of an open change is given up"
        journal.give_up(current.things, run)
        note_returned(journal, inventory)
        if not _OpenChange.of(run, journal, inventory).open_host_names():
            journal.end(run)
        return replace(current, applied=True)

    lock = partial(site.locked_journal, inventory.vcenter, alone=True)
    return apply_agreed(abandonment, consent, give_up, apply=apply, lock=lock, look_again=look)


def _describe_abandonment(journal: Journal | None, thing: Thing, name: str, inventory: Inventory) -> Abandonment:
    """Return what would be given up with that host or VM, and what follows, by the current journal.

    Raises Refused if it is not part of an open change and was not given up earlier.
    """
    run = open_change(journal)
    if journal is not None and run is not None:
        open_change_state = _OpenChange.of(run, journal, inventory)
        target = open_change_state.host(name) if thing is Thing.HOST else open_change_state.vm(name)
        if target is not None:
            return open_change_state.without(target)
    given_up_before = journal.given_up() if journal is not None else ()
    before = next(
        (
            given_up
            for given_up in given_up_before
            if given_up.thing is thing and name in (given_up.name, f"moid:{given_up.ref}")
        ),
        None,
    )
    if before is not None:
        return Abandonment((before,), (f"it was given up at {format_zoned_minute(before.at)}",), already=True)
    if run is None:
        raise Refused(f"{name}: no change of hosts is open", hint=STATUS)
    objection = (
        "is not an open host of the unfinished change"
        if thing is Thing.HOST
        else "was not taken from a host, or is already back"
    )
    raise Refused(f"{name} {objection}", hint=STATUS)


@dataclass(frozen=True, slots=True)
class _OpenChange:
    """The open change, with the current ids of its hosts and VMs."""

    run: Run
    order: ChangeOrder
    history: History
    inventory: Inventory
    journal: Journal

    @classmethod
    def of(cls, run: Run, journal: Journal, inventory: Inventory) -> _OpenChange:
        open_run, order = journal.state.runs[run.id], load_change_order(run.order)
        if isinstance(order, MovesOrder):
            raise Refused(
                "the open change moves VMs, and such a change cannot be given up in parts",
                hint="gpuops change abort ends it",
            )
        ids = ids_now(order.uuids, open_run.intents.values(), inventory)
        given_up = {ids.get(ref, ref) for ref in open_run.given_up}
        history = history_of(intents_now(open_run.intents.values(), ids), given_up)
        return cls(run, order_now(order, ids), history, inventory, journal)

    def open_host_names(self) -> tuple[str, ...]:
        """Return the names of the hosts that are not done and not given up."""
        closed_hosts = self.history.ended | self.history.given_up
        return tuple(self.order.names[step.host] for step in self.order.steps if step.host not in closed_hosts)

    def host(self, name: str) -> GivenUp | None:
        """Return the open host with that name, ref or first label of its name; None if it is not exactly one."""
        closed_hosts = self.history.ended | self.history.given_up
        names = {ref: name_of_host for ref, name_of_host in self.order.names.items() if ref not in closed_hosts}
        exact = [ref for ref, name_of_host in names.items() if name in (name_of_host, ref)]
        matches = exact or [ref for ref, name_of_host in names.items() if name_of_host.split(".")[0] == name]
        if len(matches) != 1:
            return None
        [ref] = matches
        current_host = host_now(ref, self.order.uuids.get(ref), self.inventory)
        uuid = self.order.uuids.get(ref) or (current_host.uuid if current_host is not None else None)
        return GivenUp(Thing.HOST, ref, uuid, names[ref], self.order.verb, self.journal.clock())

    def vm(self, name: str) -> GivenUp | None:
        """Return the VM of that name that was taken from a host and is not back; None if it is not exactly one."""
        matches = [taken_vm for taken_vm in self._list_taken_vms() if name in (taken_vm.name, f"moid:{taken_vm.vm}")]
        return self._as_given_up(matches[0]) if len(matches) == 1 else None

    def without(self, target: GivenUp) -> Abandonment:
        """Return what follows from giving this host or VM up."""
        after = replace(self.history, given_up=self.history.given_up | {target.ref})
        open_names = replace(self, history=after).open_host_names()
        taken_vms = tuple(self.history.taken.get(target.ref, {}).values())
        # VMs that were shut down for the host are given up with it; those that were moved keep running elsewhere
        along = tuple(self._as_given_up(vm) for vm in taken_vms if vm.stopped)
        return Abandonment(
            (target, *along),
            tuple(self._consequences(target, taken_vms, ends=not open_names)),
            ()
            if not open_names
            else (f"{RESUME_CHANGE} continues with {', '.join(open_names)}; gpuops change abort ends it",),
        )

    def _consequences(self, target: GivenUp, taken_vms: Iterable[DisplacedVm], *, ends: bool) -> Iterator[str]:
        """Yield for the admin what follows. `ends`: the change has no other open host."""
        now = state_of(target, self.inventory)
        if target.thing is Thing.HOST:
            yield f"{target.name} stays as it is ({now}); the new setting may or may not be in force on it"
            elsewhere = ", ".join(sorted(vm.name for vm in taken_vms if not vm.stopped))
            if elsewhere:
                yield f"{elsewhere}: not moved back, they stay where they are"
            stopped = ", ".join(sorted(vm.name for vm in taken_vms if vm.stopped))
            if stopped:
                yield f"{stopped}: shut down for the change, and not started again"
        else:
            yield f"{target.name} stays as it is ({now}): it is neither started nor moved back to its host"
        yield NAMED_UNTIL_BACK
        if ends:
            yield f"{self.order.verb} has nothing else to do: the change ends, and other changes and nights can run"

    def _list_taken_vms(self) -> list[DisplacedVm]:
        given_up = self.history.given_up
        return [
            vm
            for host, vms in self.history.taken.items()
            if host not in given_up
            for ref, vm in vms.items()
            if ref not in given_up
        ]

    def _as_given_up(self, vm: DisplacedVm) -> GivenUp:
        return GivenUp(Thing.VM, vm.vm, vm.uuid, vm.name, self.order.verb, self.journal.clock())

"""Gives up for good one host of a change that did not end, or one VM that was taken from a host.

It is written into the journal and nothing is asked of vCenter: it is for what does not answer any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from gpuops.errors import Locked, Refused
from gpuops.execute.change import moves
from gpuops.execute.change.change_order import ChangeOrder, load_order
from gpuops.execute.change.current_ids import ids_now, intents_now, order_now
from gpuops.execute.change.history import History, Taken, history_of
from gpuops.execute.journal import Journal, Run
from gpuops.execute.runs.exclusion import open_change
from gpuops.execute.runs.given_up import note_returned
from gpuops.execute.runs.run_kind import RESUME_CHANGE
from gpuops.execute.site import Site
from gpuops.execute.state.lock import rotating
from gpuops.model.nights.journal import GivenUp, Thing
from gpuops.model.time_text import format_zoned_minute
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.abandonment import NAMED_UNTIL_BACK, Abandonment, host_now, state_of

Agreed = Callable[[Abandonment], None]
"""Called just before anything is written; what it raises ends the run with nothing changed."""

STATUS: Final = "gpuops change status shows what is open"


def abandon(
    site: Site, thing: Thing, name: str, *, apply: bool = True, consent: Agreed = lambda found: None
) -> Abandonment:
    """Gives up the host of that name, or the VM that was taken from a host; the change ends when nothing else is left.

    Raises Refused where no change holds it, Locked while somebody is at the change.
    """
    inventory = site.vcenter.inventory()
    with site.journal_to_read(inventory.vcenter) as seen:
        found = _found(seen, thing, name, inventory)
    holder = rotating(site.state_dir, inventory.vcenter)
    if holder is not None:
        raise Locked(f"{holder} is changing this vCenter: nothing is given up", hint="gpuops change status shows it")
    if found.already or not apply:
        return replace(found, applied=apply)
    consent(found)
    with site.locked_journal(inventory.vcenter, alone=True) as journal:
        found = _found(journal, thing, name, inventory)
        run = open_change(journal)
        if found.already or run is None:
            return replace(found, applied=True)
        journal.give_up(found.things, run)
        note_returned(journal, inventory)
        if not _Open.of(run, journal, inventory).left():
            journal.end(run)
        return replace(found, applied=True)


def _found(journal: Journal | None, thing: Thing, name: str, inventory: Inventory) -> Abandonment:
    """What is meant, as the journal has it now. Raises Refused."""
    run = open_change(journal)
    if journal is not None and run is not None:
        if moves.load_moves(run.order) is not None:
            raise Refused("the change that is open is moves of VMs", hint="gpuops change abort ends it")
        standing = _Open.of(run, journal, inventory)
        meant = standing.host(name) if thing is Thing.HOST else standing.vm(name)
        if meant is not None:
            return standing.without(meant)
    before = next((each for each in journal.given_up() if _is_called(each, thing, name)), None) if journal else None
    if before is not None:
        return Abandonment((before,), (f"it was given up at {format_zoned_minute(before.at)}",), already=True)
    if run is None:
        raise Refused(f"{name}: no change of hosts is open", hint=STATUS)
    what = "is no host of the change that is open" if thing is Thing.HOST else "was taken from no host, or is back"
    raise Refused(f"{name} {what}", hint=STATUS)


def _is_called(given: GivenUp, thing: Thing, name: str) -> bool:
    return given.thing is thing and name in (given.name, f"moid:{given.ref}")


@dataclass(frozen=True, slots=True)
class _Open:
    """The change that is open, its hosts and VMs by the ids they have now."""

    run: Run
    order: ChangeOrder
    history: History
    inventory: Inventory
    journal: Journal

    @classmethod
    def of(cls, run: Run, journal: Journal, inventory: Inventory) -> _Open:
        mine, order = journal.state.runs[run.id], load_order(run.order)
        ids = ids_now(order.uuids, mine.intents.values(), inventory)
        given_up = {ids.get(ref, ref) for ref in mine.given_up}
        history = history_of(intents_now(mine.intents.values(), ids), given_up)
        return cls(run, order_now(order, ids), history, inventory, journal)

    def left(self) -> tuple[str, ...]:
        """Names of the hosts that are under way or to do."""
        over = self.history.ended | self.history.given_up
        return tuple(self.order.names[step.host] for step in self.order.steps if step.host not in over)

    def host(self, name: str) -> GivenUp | None:
        """The host of that name, or of that first label, that is under way or to do."""
        over = self.history.ended | self.history.given_up
        names = {ref: each for ref, each in self.order.names.items() if ref not in over}
        exact = [ref for ref, each in names.items() if name in (each, ref)]
        meant = exact or [ref for ref, each in names.items() if each.split(".")[0] == name]
        if len(meant) != 1:
            return None
        [ref] = meant
        there = host_now(ref, self.order.uuids.get(ref), self.inventory)
        uuid = self.order.uuids.get(ref) or (there.uuid if there is not None else None)
        return GivenUp(Thing.HOST, ref, uuid, names[ref], self.order.verb, self.journal.clock())

    def vm(self, name: str) -> GivenUp | None:
        """The VM of that name that was taken from a host and is not back."""
        meant = [each for each in self._taken() if name in (each.name, f"moid:{each.vm}")]
        return self._given_up(meant[0]) if len(meant) == 1 else None

    def without(self, meant: GivenUp) -> Abandonment:
        """What it means to give this up."""
        after = replace(self.history, given_up=self.history.given_up | {meant.ref})
        left = replace(self, history=after).left()
        taken = tuple(self.history.taken.get(meant.ref, {}).values())
        along = tuple(self._given_up(each) for each in taken if each.stopped)
        return Abandonment(
            (meant, *along),
            tuple(self._means(meant, taken, ends=not left)),
            () if not left else (f"{RESUME_CHANGE} goes on with {', '.join(left)}; gpuops change abort ends it",),
        )

    def _means(self, meant: GivenUp, taken: Iterable[Taken], *, ends: bool) -> Iterator[str]:
        now = state_of(meant, self.inventory)
        if meant.thing is Thing.HOST:
            yield f"{meant.name} stays as it is ({now}); what was to be set on it may be set or not"
            elsewhere = ", ".join(sorted(each.name for each in taken if not each.stopped))
            if elsewhere:
                yield f"{elsewhere}: not moved back, they stay where they are"
            stopped = ", ".join(sorted(each.name for each in taken if each.stopped))
            if stopped:
                yield f"{stopped}: shut down for it, and not started again"
        else:
            yield f"{meant.name} stays as it is ({now}): it is neither started nor moved back to its host"
        yield NAMED_UNTIL_BACK
        if ends:
            yield f"nothing else is left of {self.order.verb}: the change ends, rolls and nights are free to go on"

    def _taken(self) -> list[Taken]:
        given_up = self.history.given_up
        return [
            each
            for host, vms in self.history.taken.items()
            if host not in given_up
            for ref, each in vms.items()
            if ref not in given_up
        ]

    def _given_up(self, taken: Taken) -> GivenUp:
        return GivenUp(Thing.VM, taken.vm, taken.uuid, taken.name, self.order.verb, self.journal.clock())

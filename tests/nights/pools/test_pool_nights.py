"""Nights with pools of lent GPUs: nobody keeps what is over or loses what is lent, whatever is killed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

import pytest

from gpuops.execute.pool import by_night, marks
from gpuops.model.workloads.lease_book import GpuLease, LeaseBook, LeaseState, ServerState
from gpuops.plan.pool import by_night as night_plan
from gpuops.plan.pool import lending, room
from gpuops.sim.state.vm_state import Power
from tests.nights.pools import checkers
from tests.nights.pools.checkers import violations
from tests.nights.pools.played import PoolStory
from tests.nights.pools.site import MINUTE, WHOLE_MIB
from tests.nights.pools.story import play
from tests.nights.pools.tally import MET, tally


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("seed", range(4))
def test_no_night_with_pools_breaks_an_invariant(seed: int) -> None:
    """A pool that nights take from, one that they give to, both, and both beside one that is left alone."""
    story = play(seed)
    assert violations(story) == []
    assert story.guests.shares and story.met["lease lent"], "these nights did something"


@pytest.mark.long
def test_the_same_seed_is_the_same_story() -> None:
    one, other = play(2), play(2)
    assert [(at, book) for at, book in one.books] == [(at, book) for at, book in other.books]
    assert one.told == other.told and one.kills == other.kills


@pytest.mark.drawn_cases(4)
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_kills_and_troubles_meet_nearly_every_point_of_a_night_with_pools() -> None:
    found = tally(range(100, 165), jobs=1)
    assert found.violations == []
    assert {each for each in MET if not found.met[each]} == set()
    assert len(found.unmet()) <= 2, "of the points at which processes are killed"


@dataclass(frozen=True)
class Careless:
    """An engine that is careless about one thing, by what stands in the place of its own. `said`: the invariant that it
    breaks in one of these stories."""

    said: str
    instead: tuple[tuple[Any, str, Any], ...]
    seeds: range = range(12)


def _without_grace(book: LeaseBook, server: str, grace: timedelta, *words: Any) -> LeaseBook:
    return lending.take_back(book, server, timedelta(), *words)


CARELESS: Final = {
    "a-night-waits-for-no-client": Careless(
        "PG",
        (
            (marks, "lends", lambda server, book: server.state is ServerState.SERVING),
            (by_night, "last_end", lambda book, servers: None),
        ),
    ),
    "who-is-over-is-not-cut-off": Careless("PD", ((lending, "to_disable", lambda book, now: ()),)),
    "no-server-lends-again": Careless("PF", ((night_plan, "_is_back", lambda *words: False),)),
    "a-night-gives-no-grace": Careless("PE", ((night_plan, "take_back", _without_grace),)),
    "what-a-night-gives-lasts-as-long-as-any": Careless("PC", ((room, "lends_until", lambda server: None),)),
    "what-is-ending-is-free": Careless(
        "PB", ((GpuLease, "holds", property(lambda lease: lease.state is LeaseState.LENT)),), range(40)
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CARELESS)
def test_a_careless_engine_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    careless = CARELESS[name]
    for whose, what, instead in careless.instead:
        monkeypatch.setattr(whose, what, instead)
    found = set[str]()
    for seed in careless.seeds:
        found |= {each.partition(":")[0] for each in violations(play(seed))}
        if careless.said in found:
            return
    pytest.fail(f"{careless.said} was not broken, {sorted(found) or 'nothing'} was")


@pytest.mark.long
def test_a_checker_sees_what_it_is_for() -> None:
    """A story that went wrong: each invariant is broken once, by hand."""
    story = play(0)
    assert violations(story) == []
    desktop, night = min(story.site.desktops), story.mornings[0]
    night.power |= {desktop: Power.SUSPENDED, "night-01": Power.ON}
    assert _told(story) == {"PA": 2}
    night.named.add(desktop)
    night.power["night-01"] = Power.OFF
    share = story.guests.shares[0]
    story.guests.shares.append(replace(share, until=share.until + 30 * MINUTE, ended=None))
    assert _told(story)["PC"] == 1, "it lasts longer than its lease"
    story.guests.shares.pop()
    at, book = story.books[-1]
    lease = next(each for _, earlier in story.books for each in earlier.leases if each.state is LeaseState.LENT)
    twice = replace(lease, id="again", shares=(replace(lease.shares[0], memory_mib=WHOLE_MIB),))
    story.books.append((at, book.with_leases([lease, twice])))
    assert _told(story) == {"PB": 2}, "too much is lent, and to one client twice"
    story.books.pop()
    night.after.shares.append(("gpu-01", "over"))
    night.after.lets.append((story.site.clients[0], "over"))
    story.left.add("over")
    told = _told(story)
    assert set(told) == {"PD"} and told["PD"] >= 2
    night.after.shares.pop()
    night.after.lets.pop()
    story.left.clear()
    night.after.lending -= {"gpu-01"}
    assert _told(story) == {"PF": 1}
    night.after.lending.add("gpu-01")
    taken = next(each for each in story.world.ledger if each.method == "ShutdownGuest")
    again = [taken, taken, replace(taken, name=story.site.clients[0])]
    story.world = SimpleNamespace(ledger=again, tasks=SimpleNamespace(history=list))
    assert _told(story) == {"PH": 1, "PG": 1}
    assert all(f"{name} " in str(checkers.__doc__) for name in ("PA", "PB", "PC", "PD", "PE", "PF", "PG", "PH"))


def _told(story: PoolStory) -> dict[str, int]:
    return dict(Counter(each.partition(":")[0] for each in violations(story)))

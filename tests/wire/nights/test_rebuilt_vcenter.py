"""A vCenter that was rebuilt in the night: another instance uuid, no attributes, the same VMs. A return names what the
night took; `rotate adopt` takes it over, and the next return brings it back."""

from __future__ import annotations

from collections import Counter

import pytest

from gpuops.api import rotate_adopt
from gpuops.errors import Refused
from gpuops.plan.rotation.returns.foreign_nights import Adoption
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from tests.wire.nights.test_rotation import DESKTOPS, ML, Wire


def rebuild(wire: Wire) -> str:
    """The vCenter is installed anew; returns the instance uuid that it had."""
    before = wire.status().vcenter
    happening = "vcenter.rebuilt"
    with wire.server.world.lock:
        OUTSIDE_EVENTS[happening].strike(wire.server.world, [], Rule(Effect.HAPPEN, happening=happening))
    assert wire.status().vcenter != before
    return before


def adopt(wire: Wire, from_vcenter: str, *, apply: bool = True) -> Adoption:
    return wire._with(lambda site: rotate_adopt(site, from_vcenter, apply=apply))


def test_a_return_names_what_the_night_took_and_brings_it_back_once_it_is_adopted(wire: Wire) -> None:
    wire.night()
    before = rebuild(wire)
    count = len(wire.entries())
    morning = wire.day()
    assert morning.exit_code == 4
    assert {named.subject for named in morning.plan.unmet} == DESKTOPS | ML
    assert {named.hint for named in morning.plan.unmet} == {
        f"make sure that this vCenter has replaced that one, then gpuops rotate adopt --from {before}"
    }
    assert morning.plan.because == (), "it does not say that no night has taken anything"
    assert len(wire.entries()) == count
    assert not adopt(wire, before, apply=False).applied
    adopted = adopt(wire, before)
    assert (set(adopted.adopted), adopted.not_here, adopted.applied) == (DESKTOPS | ML, (), True)
    assert wire.day().exit_code == 0
    assert wire.to_power("poweredOn") == Counter(DESKTOPS | ML)
    assert wire.to_power("poweredOff") == Counter(ML)
    assert wire.status().vms == ()
    with pytest.raises(Refused, match="no VM of an open night"):
        adopt(wire, before)


def test_nothing_is_adopted_of_a_vcenter_without_a_night_or_of_this_one(wire: Wire) -> None:
    wire.night()
    with pytest.raises(Refused, match="its nights need no adoption"):
        adopt(wire, wire.status().vcenter)
    with pytest.raises(Refused, match="no VM of an open night of vCenter no-such-uuid"):
        adopt(wire, "no-such-uuid")

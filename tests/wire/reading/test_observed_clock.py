"""vCenter's clock comes with what is observed; a clock that is not shown, or stands still, is asked for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pytest_mock import MockerFixture

from gpuops.model.vcenter.target import Target
from gpuops.sim.server import SimServer
from gpuops.sim.services.service_instance import ServiceInstance
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session


def test_the_clock_comes_with_the_read(lab: SimServer, lab_target: Target, mocker: MockerFixture) -> None:
    with Session(lab_target) as session:
        before = collect.inventory(session)
        asked = mocker.spy(collect, "_read_vcenter_time")
        lab.world.clock.advance(600)
        after = collect.observe(session, before, [before.find_vm("vdi-01").ref])
    assert (after.taken_at - before.taken_at).total_seconds() >= 600
    assert asked.call_count == 0


@pytest.mark.parametrize("shown", [None, datetime(1, 1, 1, tzinfo=UTC)], ids=["not shown", "never set, as in vcsim"])
def test_a_clock_that_is_not_shown_or_stands_still_is_asked_for(
    lab: SimServer, lab_target: Target, monkeypatch: pytest.MonkeyPatch, shown: datetime | None
) -> None:
    monkeypatch.setitem(ServiceInstance.property_table, "serverClock", lambda self: shown)
    with Session(lab_target) as session:
        before = collect.inventory(session)
        for seconds in (600, 1200):
            lab.world.clock.advance(600)
            after = collect.observe(session, before, [before.find_vm("vdi-01").ref])
            assert (after.taken_at - before.taken_at).total_seconds() >= seconds

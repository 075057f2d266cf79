"""What a login may do is asked for all objects in a few calls, however many there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpuops.plan.doctor.login_privileges import objects_to_ask, privileges_to_ask
from gpuops.sim.server import SimServer
from gpuops.vsphere import authorization
from gpuops.vsphere.reading import collect
from gpuops.vsphere.session import Session
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long


def test_the_questions_do_not_grow_with_the_fleet(serve: Callable[[str], SimServer]) -> None:
    def calls(scenario: str) -> int:
        server = serve(scenario)
        with Session(target_of(server)) as session:
            (login,) = server.world.sessions
            objects = objects_to_ask(collect.inventory(session))
            before = login.calls
            privileges_held = authorization.held_on(session, objects, privileges_to_ask())
            assert set(privileges_held) == {ref for refs in objects.values() for ref in refs}
            return int(login.calls) - int(before)

    small, large = calls("fleet:hosts=20,vms=40"), calls("fleet:hosts=40,vms=150")
    assert small == large <= 8

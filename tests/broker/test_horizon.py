"""The client of Horizon against the simulated Connection Server, over real HTTP and TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.broker import horizon
from gpuops.broker.horizon import Horizon
from gpuops.errors import BrokerUnreachable, GpuopsError, LoginRefused, NotTrusted
from gpuops.execute.site.policy_reads import BrokerSessions
from gpuops.model.desktops.broker import DesktopPowerPolicy, DesktopSession, PoolKind
from gpuops.model.vcenter.target import BrokerTarget, Secret, Target
from gpuops.sim.horizon_server import USER_PREFIX
from gpuops.sim.scenario.build import build
from gpuops.sim.server import HorizonListener, SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.vsphere.connection import Connection
from tests.wire.conftest import target_of


@pytest.fixture(scope="module")
def server() -> Iterator[SimServer]:
    with SimServer(build("vdi")) as server:
        yield server
        assert server.world.bugs == []


@pytest.fixture(scope="module")
def served(server: SimServer) -> HorizonListener:
    return server.serve_horizon()


@pytest.fixture
def target(server: SimServer, served: HorizonListener) -> BrokerTarget:
    return BrokerTarget(replace(target_of(server), port=served.port, username=served.username), served.domain)


@pytest.fixture
def broker(target: BrokerTarget, served: HorizonListener) -> Iterator[Horizon]:
    with Horizon(target) as broker:
        yield broker
    assert served.endpoint.logins == 0, "every login is logged out"


@pytest.mark.long
def test_pools_say_which_can_be_gated(broker: Horizon) -> None:
    pools = {pool.name: pool for pool in broker.pools()}
    assert {name: pool.refusal is None for name, pool in pools.items()} == {
        "office": True,
        "contractors": True,
        "kiosk": False,
        "finance": False,
    }
    assert pools["kiosk"].kind is PoolKind.INSTANT_CLONE
    assert pools["finance"].power_policy is DesktopPowerPolicy.ALWAYS_ON


def test_who_and_what(broker: Horizon) -> None:
    login = broker.identity()
    assert (login.user, login.cluster) == (r"VSPHERE\administrator", "sim-pod")
    assert login.product.startswith("Horizon Connection Server 8.")


@pytest.mark.long
def test_lists_come_page_by_page(broker: Horizon, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = broker.machines()
    monkeypatch.setattr(horizon, "PAGE_SIZE", 7)
    assert broker.machines() == whole
    assert len(whole) == 119


def test_a_machine_is_read_by_itself(broker: Horizon) -> None:
    """It names the session that is on it; one that is not there is no error."""
    used = next(session for session in broker.sessions() if session.machine is not None)
    listed = {machine.id: machine for machine in broker.machines()}
    assert used.machine is not None
    machine_alone = broker.machine(used.machine)
    assert machine_alone == listed[used.machine] and machine_alone.session == used.id
    assert broker.machine("../../config/v2/environment-properties") is None


def test_no_user_is_kept(broker: Horizon) -> None:
    sessions = broker.sessions()
    assert len(sessions) == 10
    assert USER_PREFIX not in repr(sessions)
    assert not [field.name for field in fields(DesktopSession) if "user" in field.name]


@pytest.mark.long
def test_sessions_are_those_of_vms(server: SimServer, served: HorizonListener, broker: Horizon) -> None:
    vms = {vm.name: vm for _, vm in served.pod.machines()}
    with server.world.lock:
        session = served.pod.session_of(vms["vdi-097"])
        assert session is not None
        served.pod.disconnect(session)
    with Connection(target_of(server)) as vcenter:
        inventory = vcenter.inventory()
    inventory_vms = list(inventory.vms.values())
    sessions = BrokerSessions(lambda: broker).sessions(inventory_vms, inventory)
    session_by_name = {vm.name: sessions.get(vm.ref) for vm in inventory_vms}
    unused = session_by_name["vdi-001"]
    assert unused is not None and (unused.count, unused.used) == (0, False), (
        "the broker knows it, and it has no session"
    )
    assert session_by_name["vdi-120"] is None, "no machine of the broker: nothing is known"
    assert session_by_name["ml-01"] is None
    disconnected, connected = session_by_name["vdi-097"], session_by_name["vdi-098"]
    assert disconnected is not None and connected is not None
    assert (disconnected.count, disconnected.used, connected.count, connected.used) == (1, True, 1, True), (
        "one is disconnected: it counts"
    )
    assert connected.youngest_s is not None
    assert (disconnected.disconnected_s, connected.disconnected_s) == (0, None)


def test_a_gate_keeps_users_out_and_the_ledger_has_it(
    server: SimServer, served: HorizonListener, broker: Horizon
) -> None:
    machine = next(candidate for candidate in broker.machines() if candidate.name == "vdi-002")
    assert broker.enter_maintenance([machine.id]) == {}
    office, vm = next(pool_and_vm for pool_and_vm in served.pod.machines() if pool_and_vm[1].name == "vdi-002")
    with server.world.lock:
        assert served.pod.log_in(office, vm) is None
    assert next(candidate for candidate in broker.machines() if candidate.id == machine.id).in_maintenance is True
    assert broker.exit_maintenance([machine.id]) == {}
    methods = [entry.method for entry in server.ledger if entry.name == "vdi-002"]
    assert methods == ["enter-maintenance", "exit-maintenance"]


def test_a_machine_that_is_not_there_is_told(broker: Horizon) -> None:
    assert broker.enter_maintenance(["no-such-machine"]) == {"no-such-machine": "no such machine"}
    assert broker.enter_maintenance([]) == {}


def test_an_access_token_that_ends_is_refreshed(served: HorizonListener, broker: Horizon) -> None:
    served.endpoint.end_access()
    assert len(broker.pools()) == 4
    served.endpoint.end_access()
    served.endpoint._refresh.clear()
    assert len(broker.pools()) == 4, "a login is made once more"


def test_a_server_that_is_away_is_asked_again(
    served: HorizonListener, broker: Horizon, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        served.pod.down = len(pauses) < 2

    monkeypatch.setattr("gpuops.clock.pause", pause)
    served.pod.down = True
    assert len(broker.pools()) == 4
    served.pod.down = True
    monkeypatch.setattr("gpuops.clock.pause", lambda seconds: None)
    with pytest.raises(BrokerUnreachable, match=r"overloaded or starting \(status 503\)"):
        broker.pools()
    served.pod.down = False


WRONG: dict[str, tuple[dict[str, Any], type[GpuopsError], str]] = {
    "password": ({"password": Secret("canary")}, LoginRefused, "refuses the login of"),
    "user": ({"username": "nobody"}, LoginRefused, "refuses the login of"),
    "authority": ({"ca_files": ()}, NotTrusted, "issuer that is not trusted here"),
    "pin": ({"pin": "0" * 64}, NotTrusted, "is not the pinned one"),
    "port": ({"port": 1}, BrokerUnreachable, "is not reachable"),
    "name": ({"host": "127.0.0.2"}, BrokerUnreachable, "is not reachable"),
}


@pytest.mark.parametrize("case", WRONG)
def test_whom_it_does_not_talk_to(target: BrokerTarget, case: str) -> None:
    wrong, kind, words = WRONG[case]
    with pytest.raises(kind, match=words) as caught:
        Horizon(replace(target, server=replace(target.server, **wrong)))
    assert caught.value.exit_code == 5
    assert "canary" not in f"{caught.value.line}{caught.value!r}"


def test_tokens_are_shown_nowhere(broker: Horizon, target: BrokerTarget) -> None:
    printed = f"{broker!r}{vars(broker)}{target!r}"
    assert broker._access.reveal() not in printed
    assert target.server.password.reveal() not in printed


def test_a_power_policy_works_against_a_night(server: SimServer, served: HorizonListener) -> None:
    vms = {vm.name: vm for _, vm in served.pod.machines()}
    with server.world.lock:
        vm = vms["vdi-101"]
        vm.state.power = Power.OFF
        vm.state.seats = ()
        server.world.clock.advance(120)
        assert vm.state.power is Power.ON, "the pool finance is always powered on"


@pytest.mark.long
def test_users_come_by_the_seed(server: SimServer, served: HorizonListener) -> None:
    with server.world.lock:
        before = set(served.pod.sessions)
        server.world.clock.advance(3600)
        assert set(served.pod.sessions) - before


def test_one_without_tls_is_reached_on_this_machine_alone(tmp_path: Path) -> None:
    with SimServer(build("vdi"), tls=False) as server:
        served = server.serve_horizon()
        plain = Target("127.0.0.1", served.username, Secret(server.password), port=served.port, tls=False)
        with Horizon(BrokerTarget(plain, served.domain)) as broker:
            assert broker.identity().cluster == "sim-pod"


def test_moments_are_those_of_the_server(server: SimServer, broker: Horizon) -> None:
    started = [session.started_at for session in broker.sessions()]
    now = server.world.clock.now()
    assert all(moment is not None and timedelta() <= now - moment < timedelta(days=1) for moment in started)
    assert all(isinstance(moment, datetime) and moment.tzinfo is UTC for moment in started)

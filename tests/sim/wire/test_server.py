"""Unmodified pyVmomi against the server: versions, logins, TLS, faults; its process, ready file and own door."""

from __future__ import annotations

import http.client
import ssl
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.errors import LoginRefused, TargetError, UsageError, VcenterUnreachable
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.sim.wire import sim_client as ready_file
from gpuops.sim.wire.sim_client import ReadyFile, SimClient
from gpuops.sim.world import World
from tests.sim.lab import connect
from tests.sim.objects.test_tasks import machine
from tests.sim.small_world import small_world


def test_pyvmomi_negotiates_the_simulated_version(si: Any) -> None:
    assert si._stub.version == "vim.version.v8_0_3_0"
    assert si.content.about.apiVersion == "8.0.3.0"
    assert si.content.about.apiType == "VirtualCenter"


def test_an_older_vcenter_is_one_argument() -> None:
    with SimServer(small_world(api_version="7.0.3.0"), tls=False) as server:
        si = connect(server)
        assert si._stub.version == "vim.version.v7_0_3_0"
        Disconnect(si)


def test_properties_are_read_by_fetch(si: Any) -> None:
    root = si.content.rootFolder
    folder = root.childEntity[0]
    assert (root.name, folder.name, folder.parent) == ("Datacenters", "machines", root)
    assert [vm.name for vm in folder.childEntity] == ["ml-01", "ml-02", "ml-03"]
    assert folder.childEntity[0].overallStatus == "green"


def test_a_wrong_password_is_an_invalid_login(server: SimServer, si: Any) -> None:
    manager = si.content.sessionManager
    manager.Logout()
    with pytest.raises(vim.fault.InvalidLogin):
        manager.Login(server.username, "wrong")
    with pytest.raises(vim.fault.InvalidLogin):
        manager.Login("nobody", server.password)
    assert manager.Login(server.username, server.password).userName == server.username


def test_without_a_login_nothing_is_read(server: SimServer, si: Any) -> None:
    root = si.content.rootFolder
    si.content.sessionManager.Logout()
    with pytest.raises(vim.fault.NotAuthenticated):
        _ = root.name
    with pytest.raises(vim.fault.NotAuthenticated):
        si.content.sessionManager.Logout()
    assert si.content.sessionManager.currentSession is None


def test_the_session_knows_its_user(server: SimServer, si: Any) -> None:
    manager = si.content.sessionManager
    current = manager.currentSession
    assert current.userName == server.username
    assert [session.key for session in manager.sessionList] == [current.key]
    assert manager.SessionIsActive(current.key, server.username)
    assert not manager.SessionIsActive("no-such-session", server.username)


def test_an_idle_session_ends_after_thirty_minutes(world: World, si: Any) -> None:
    root = si.content.rootFolder
    world.clock.advance(31 * 60)
    with pytest.raises(vim.fault.NotAuthenticated):
        _ = root.name


def test_time_that_others_let_pass_ends_no_session(world: World, server: SimServer, si: Any) -> None:
    second_client = connect(server)
    world.clock.schedule(3600, lambda: world.get("vm-1").touch("name"))
    collector = second_client.content.propertyCollector
    options = vmodl.query.PropertyCollector.WaitOptions(maxWaitSeconds=3700)
    assert collector.WaitForUpdatesEx("", options) is None
    assert si.content.rootFolder.name == second_client.content.rootFolder.name
    Disconnect(second_client)


def test_a_method_that_is_not_simulated_names_itself(si: Any) -> None:
    with pytest.raises(vmodl.fault.NotSupported, match="CreateFolder is not simulated for Folder"):
        si.content.rootFolder.CreateFolder("x")


def test_a_method_of_another_type_is_unknown_to_this_one(si: Any) -> None:
    with pytest.raises(vmodl.fault.MethodNotFound) as caught:
        vim.HostSystem.ShutdownHost_Task(si.content.rootFolder, True)
    assert caught.value.method == "ShutdownHost_Task"
    assert caught.value.receiver == si.content.rootFolder


def test_a_method_newer_than_the_client_is_unknown_to_it(world: World, server: SimServer, si: Any) -> None:
    body = (
        '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>'
        '<WaitForUpdatesEx xmlns="urn:vim25"><_this type="PropertyCollector">propertyCollector</_this>'
        "<options><maxWaitSeconds>0</maxWaitSeconds></options></WaitForUpdatesEx></soapenv:Body></soapenv:Envelope>"
    )
    assert b"WaitForUpdatesExResponse" in _post(server, si, body, "4.1")[1]
    status, reply = _post(server, si, body, "4.0")
    assert status == 500
    assert b'xsi:type="MethodNotFound"' in reply


def test_an_unknown_object_is_named(si: Any) -> None:
    with pytest.raises(vmodl.fault.ManagedObjectNotFound) as caught:
        _ = vim.VirtualMachine("vm-999", si._stub).name
    assert caught.value.obj._moId == "vm-999"


def test_a_bug_in_the_simulator_is_a_system_error_and_recorded(world: World, si: Any) -> None:
    with pytest.raises(vmodl.fault.SystemError) as caught:
        vim.VirtualMachine("vm-1", si._stub).ResetVM_Task()
    assert "KeyError" in caught.value.reason
    assert len(world.bugs) == 1
    world.bugs.clear()


def test_fields_newer_than_the_client_are_not_sent(server: SimServer) -> None:
    with SimServer(small_world(), tls=False) as second_server:
        si = connect(second_server, preferredApiVersions=["vim.version.version12"])
        vm = vim.VirtualMachine("vm-1", si._stub)
        assert vm.name == "ml-01"
        assert _raw_fetch(second_server, si, "vm-1", "config.hardware.device", "6.7").count(b"numaNode") == 0
        Disconnect(si)


def _raw_fetch(server: SimServer, si: Any, moid: str, path: str, version: str) -> bytes:
    body = (
        '<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"><soapenv:Body>'
        f'<Fetch xmlns="urn:vim25"><_this type="VirtualMachine">{moid}</_this><prop>{path}</prop></Fetch>'
        "</soapenv:Body></soapenv:Envelope>"
    )
    status, content = _post(server, si, body, version)
    assert status == 200, content
    return content


def _post(server: SimServer, si: Any, body: str, version: str) -> tuple[int, bytes]:
    headers = {"SOAPAction": f'"urn:vim25/{version}"', "Cookie": si._stub.cookie}
    with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
        connection.request("POST", "/sdk", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read()


def test_the_certificate_is_verified_by_its_own_authority_only() -> None:
    with SimServer(small_world()) as server:
        Disconnect(connect(server))
        Disconnect(connect(server, host="localhost"))
        stranger = http.client.HTTPSConnection("127.0.0.1", server.port, context=ssl.create_default_context())
        with pytest.raises(ssl.SSLCertVerificationError):
            stranger.request("GET", "/sdk/vimServiceVersions.xml")
        stranger.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "vcenter.example.com"])
def test_only_loopback_is_served(host: str) -> None:
    with pytest.raises(UsageError, match="loopback only"):
        SimServer(small_world(), host=host)


def test_a_taken_port_is_said_plainly(server: SimServer) -> None:
    with pytest.raises(UsageError, match=f"port {server.port}"):
        SimServer(small_world(), port=server.port, tls=False)


SECRETS = ("GPUOPS_PASSWORD", "VMWARE_PASSWORD", "GOVC_URL", "PGPASSWORD", "GPUOPS_JOURNAL_URL")


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_it_inherits_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "https://Cn4ry@vc.example.com")
    monkeypatch.setenv("KEPT", "yes")
    path = tmp_path / "ready.json"
    running = sim_client.start(path, ["--scenario", "lab"])
    try:
        environ = Path(f"/proc/{running.pid}/environ").read_bytes()
    finally:
        sim_client.stop(path, running)
    assert b"Cn4ry" not in environ
    assert b"KEPT=yes" in environ


def test_the_ready_file_round_trips_and_is_private(server: SimServer, tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready_file.write(path, ready_file.of(server))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ready_file.read(path) == ready_file.of(server)
    assert list(tmp_path.iterdir()) == [path]


def test_a_ready_file_hides_the_password_in_its_repr(server: SimServer) -> None:
    assert server.password not in repr(ready_file.of(server))


@pytest.mark.parametrize("content", [None, "", "[]", '{"url": "https://127.0.0.1/sdk"}'])
def test_what_is_no_ready_file_is_said(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ready.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(TargetError, match=r"ready\.json"):
        ready_file.read(path)


def test_the_ledger_is_read_from_outside(world: World, server: SimServer, si: Any) -> None:
    remote = SimClient(ready_file.of(server))
    machine(si).PowerOnVM_Task()
    assert remote.ledger() == []
    remote.advance(10)
    (entry,) = remote.ledger()
    assert (entry["method"], entry["name"], entry["after"]) == ("PowerOnVM_Task", "ml-01", {"power": "poweredOn"})
    assert remote.ledger(after_sequence=1) == []
    assert remote.bugs() == []


def test_trouble_is_injected_from_outside(server: SimServer, si: Any) -> None:
    remote = SimClient(ready_file.of(server))
    remote.inject(Rule(Effect.HTTP, method="CurrentTime", times=None))
    with pytest.raises(Exception, match="503"):
        si.CurrentTime()
    remote.clear_injected()
    si.CurrentTime()


def test_state_is_saved_and_restored_by_whoever_built_the_world(world: World, server: SimServer) -> None:
    remote = SimClient(ready_file.of(server))
    with pytest.raises(UsageError, match="cannot be saved"):
        remote.state()
    saved_state: dict[str, Any] = {"vms": 3}
    world.state_hooks = (lambda: dict(saved_state), saved_state.update)
    assert remote.state() == {"vms": 3}
    remote.restore({"vms": 4})
    assert saved_state == {"vms": 4}


def test_the_door_wants_the_password(server: SimServer) -> None:
    wrong = ReadyFile(server.url, server.username, "wrong", server.ca_file, server.pid)
    with pytest.raises(LoginRefused):
        SimClient(wrong).ledger()


def test_over_tls_with_its_own_authority() -> None:
    with SimServer(small_world()) as server:
        remote = SimClient(ready_file.of(server))
        assert remote.clock()["mode"] == "stepped"
    with pytest.raises(VcenterUnreachable):
        remote.clock()

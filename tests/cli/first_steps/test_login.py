"""`gpuops login test`: user, versions, and the reader used from then on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuops.cli.app import app
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.vsphere.reading.bulk import json_pages
from tests.cli.conftest import Lab, lab_on

Serve = Callable[..., tuple[Lab, SimServer]]


@pytest.fixture
def serve(tmp_path: Path, clean: Path, request: pytest.FixtureRequest) -> Serve:
    """The scenario `lab` as a vCenter of some API version."""

    def started(**options: Any) -> tuple[Lab, SimServer]:
        server = SimServer(build("lab", **options))
        request.addfinalizer(server.close)
        opened = lab_on(server, tmp_path, clean)
        lab = opened.__enter__()
        request.addfinalizer(lambda: opened.__exit__(None, None, None))
        return lab, server

    return started


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by one with every page that is read over VI/JSON."""
    pages_read: list[str] = []
    honest = json_pages.pieces

    def counted(reply: bytes, **options: Any) -> Any:
        pages_read.append("page")
        return honest(reply, **options)

    monkeypatch.setattr(json_pages, "pieces", counted)
    return pages_read


def reader_file(clean: Path) -> Path:
    return clean / ".local/state/gpuops/readers.json"


@pytest.mark.long
def test_vi_json_is_used_once_it_was_compared(serve: Serve, reads: list[str], clean: Path) -> None:
    lab, _ = serve()
    assert lab.run("inventory").exit_code == 0
    assert reads == [], "it was not compared yet"
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, tested.output
    assert "VMware vCenter Server 8.0.3" in tested.stdout
    assert "VI/JSON and SOAP give equal snapshots of 2 hosts and 28 VMs" in tested.stdout
    [path] = clean.rglob("readers.json")
    assert path.stat().st_mode & 0o777 == 0o600
    reads.clear()
    over_json = lab.run("inventory")
    assert reads
    reads.clear()
    over_soap = lab.run("inventory", "--reader", "soap")
    assert reads == []
    assert over_json.stdout.splitlines()[1:] == over_soap.stdout.splitlines()[1:]


@pytest.mark.long
def test_it_says_so_in_json(serve: Serve) -> None:
    lab, _ = serve()
    document = json.loads(lab.run("login", "test", "--output", "json").stdout)
    assert (document["kind"], document["reader"], document["vi_json"]["equal"]) == ("login-test", "json", True)
    assert (document["user"], document["api_version"]) == ("administrator@vsphere.local", "8.0.3.0")


@pytest.mark.long
@pytest.mark.parametrize("changed", ["uuid", "version", "build", "api_version"])
def test_another_version_is_to_be_compared_again(serve: Serve, reads: list[str], clean: Path, changed: str) -> None:
    lab, _ = serve()
    assert lab.run("login", "test").exit_code == 0
    [path] = clean.rglob("readers.json")
    document = json.loads(path.read_text())
    [entry] = document["equal"].values()
    entry[changed] = "other"
    path.write_text(json.dumps(document))
    reads.clear()
    assert lab.run("inventory").exit_code == 0
    assert reads == []


@pytest.mark.long
@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"schema_version": 2, "equal": {}}', '{"schema_version": 1, "equal": []}']
)
def test_a_damaged_record_is_none(serve: Serve, reads: list[str], clean: Path, damage: str) -> None:
    lab, _ = serve()
    assert lab.run("login", "test").exit_code == 0
    [path] = clean.rglob("readers.json")
    path.write_text(damage)
    reads.clear()
    assert lab.run("inventory").exit_code == 0
    assert reads == []
    assert lab.run("login", "test").exit_code == 0
    assert json.loads(path.read_text())["equal"]


@pytest.mark.long
def test_a_record_that_others_can_write_is_none(serve: Serve, reads: list[str], clean: Path) -> None:
    lab, _ = serve()
    assert lab.run("login", "test").exit_code == 0
    [path] = clean.rglob("readers.json")
    path.chmod(0o666)
    reads.clear()
    assert lab.run("inventory").exit_code == 0
    assert reads == []


@pytest.mark.long
def test_a_difference_is_shown_and_forgets_what_was_equal(
    serve: Serve, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, _ = serve()
    assert lab.run("login", "test").exit_code == 0
    honest = json_pages.pieces
    monkeypatch.setattr(
        json_pages, "pieces", lambda reply, **options: honest(reply.replace(b'"ml-07"', b'"ml-70"'), **options)
    )
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, tested.output
    assert ".name: SOAP 'ml-07', VI/JSON 'ml-70'" in tested.stdout
    assert "SOAP is used here" in tested.stdout
    [path] = clean.rglob("readers.json")
    assert json.loads(path.read_text())["equal"] == {}


@pytest.mark.long
def test_a_reader_that_fails_is_said(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, _ = serve()
    monkeypatch.setattr(json_pages, "check_json_reply", lambda reply: b"<html>")
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, tested.output
    assert "nothing can be read over VI/JSON" in tested.stdout
    assert lab.run("inventory", "--reader", "json").exit_code == 5


@pytest.mark.long
@pytest.mark.parametrize("version", ["7.0.3.0", "8.0.0.2"])
def test_an_older_vcenter_is_read_over_soap(serve: Serve, reads: list[str], version: str) -> None:
    lab, _ = serve(api_version=version)
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, tested.output
    assert "SOAP only: VI/JSON needs API 8.0.1.0 or later" in tested.stdout
    refused = lab.run("inventory", "--reader", "json")
    assert (refused.exit_code, reads) == (3, [])
    assert "does not offer VI/JSON" in refused.stderr


def test_a_wrong_password_ends_as_everywhere(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    _, server = serve()
    monkeypatch.setenv("GPUOPS_PASSWORD", "wrong")
    way = ("--vcenter", f"https://127.0.0.1:{server.port}", "--username", "me", "--ca-file", str(server.ca_file))
    refused = CliRunner().invoke(app, ["login", "test", *way])
    assert refused.exit_code == 5
    assert "user name or password refused" in refused.stderr


@pytest.mark.long
def test_a_surprise_on_the_way_is_one_warning(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, _ = serve()
    assert lab.run("login", "test").exit_code == 0
    monkeypatch.setattr(json_pages, "check_json_reply", lambda reply: b"<html>")
    inventory = lab.run("inventory")
    assert inventory.exit_code == 0
    assert inventory.stderr.count("gpuops reads over SOAP from now on, because VI/JSON failed:") == 1
    assert "28 VMs" in inventory.stdout


def test_a_word_that_is_no_reader(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    lab, _ = serve()
    monkeypatch.setenv("GPUOPS_READER", "xml")
    refused = lab.run("inventory")
    assert refused.exit_code == 2
    assert "the value of GPUOPS_READER is not a reader" in refused.stderr


def permit_in_folder(server: SimServer, privileges: set[str], folder: str) -> None:
    """The login reads everything, and has these privileges in one folder of VMs."""
    authority = server.world.authority
    authority.permit(server.username, READ_ONLY)
    [matching_folder] = [candidate for candidate in server.world.by_type("Folder") if candidate.display_name == folder]
    authority.permit(server.username, authority.add_role("some", privileges), matching_folder.moid)


NIGHT = {
    "VirtualMachine.Interact.Suspend",
    "VirtualMachine.Interact.PowerOn",
    "VirtualMachine.Interact.PowerOff",
    "Global.SetCustomField",
}


@pytest.mark.long
def test_an_administrator_may_everything(serve: Serve) -> None:
    lab, _ = serve()
    tested = lab.run("login", "test")
    assert "privileges on 2 hosts and 28 VMs:" in tested.stdout
    assert "lacks" not in tested.stdout
    assert "rotate night, day             may\n" in tested.stdout


@pytest.mark.long
def test_what_each_verb_lacks_is_said_with_its_place_and_the_next_move(serve: Serve) -> None:
    lab, server = serve()
    permit_in_folder(server, NIGHT, "ml")
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, "what is lacking is no failure of the login"
    output = tested.stdout
    assert "scheduler, mode, passthrough  lacks Host.Config.PciPassthru, Host.Config.Settings on all hosts" in output
    night = output[output.index("rotate night, day") :].splitlines()[:2]
    assert night[0].endswith(
        "VirtualMachine.Interact.Suspend on VMs in /lab-dc/vm/misc, /lab-dc/vm/misc/a, /lab-dc/vm/misc/b and 1 more"
    )
    assert night[1].strip() == "may on VMs in /lab-dc/vm/ml"
    assert "inventory, capacity, place    may: needs read access only" in output
    assert "gpuops help login" in output
    assert "gpuops template show roles/night.yaml" in output


@pytest.mark.long
def test_the_same_in_json(serve: Serve) -> None:
    lab, server = serve()
    permit_in_folder(server, NIGHT, "vdi")
    document = json.loads(lab.run("login", "test", "--output", "json").stdout)["privileges"]
    assert (document["told"], document["asked_vms"]) == (True, 28)
    verbs = {verb["verb"]: verb for verb in document["verbs"]}
    assert (verbs["rotate night, day"]["allowed"], verbs["rotate night, day"]["role"]) == (False, "roles/night.yaml")
    (need,) = verbs["rotate night, day"]["needs"]
    assert (need["on"], need["allowed"], need["privileges"]) == ("VM", ["/lab-dc/vm/vdi"], sorted(NIGHT))
    (lacking,) = need["lacking"]
    assert lacking == {
        "privileges": sorted(NIGHT),
        "places": ["/lab-dc/vm/misc", "/lab-dc/vm/misc/a", "/lab-dc/vm/misc/b", "/lab-dc/vm/ml"],
    }
    assert verbs["inventory, capacity, place"]["allowed"]


def test_a_vcenter_that_does_not_tell_is_no_failure(serve: Serve) -> None:
    lab, server = serve()
    server.world.injector.add(Rule(Effect.FAULT, method="HasPrivilegeOnEntities", fault="SystemError", times=None))
    tested = lab.run("login", "test")
    assert tested.exit_code == 0, tested.output
    assert "privileges: vCenter does not report" in tested.stdout


@pytest.mark.long
def test_a_simulated_vcenter_with_a_broker_is_tested_without_the_extra_too(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an installation from the wheel without extras: None in sys.modules is a package that is not there."""
    monkeypatch.setitem(sys.modules, "httpx", None)
    result = CliRunner().invoke(app, ["login", "test", "--vcenter", "sim:vdi", "--output", "json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["broker"] is None
    assert (
        "gpuops does not log in to the simulated broker: a broker needs httpx, and it is not installed" in result.stderr
    )

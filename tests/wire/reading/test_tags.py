"""Tags over the wire: the real vSphere Automation SDK against the simulated vCenter's JSON-RPC endpoint."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.errors import LoginRefused, NotTrusted, ProtocolError, Refused
from gpuops.execute.site import catalog_of
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import Secret, Target
from gpuops.model.workloads.workload import Workload
from gpuops.plan.queue.place import Place
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import certificates
from gpuops.vsphere.reading import collect
from gpuops.vsphere.reading.tags import with_tags
from gpuops.vsphere.session import Session
from tests.sim.lab import category_spec
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

TAGGING = "com.vmware.cis.tagging"


def tag(server: SimServer, category: str, name: str, *refs: str, kind: str = "VirtualMachine") -> None:
    """Makes a tag in a category of its own and attaches it."""

    def invoke(service: str, operation: str, **parameters: Any) -> Any:
        return server.world.tags.invoke(f"{TAGGING}.{service}", operation, parameters)

    with server.world.changed:
        category_id = invoke("category", "create", create_spec=category_spec(category))
        tag_id = invoke("tag", "create", create_spec={"name": name, "description": "", "category_id": category_id})
        objects = [{"type": kind, "id": ref} for ref in refs]
        invoke("tag_association", "attach_tag_to_multiple_objects", tag_id=tag_id, object_ids=objects)


def test_every_vm_has_its_tags_or_none(lab: SimServer, session: Session, inventory: Inventory) -> None:
    first, second = inventory.find_vm("vdi-01").ref, inventory.find_vm("vdi-02").ref
    tag(lab, "role", "desktop", first, second)
    tag(lab, "owner", "office", first)
    tagged = with_tags(session, inventory)
    assert tagged.vm(first).tags == ("owner:office", "role:desktop")
    assert tagged.vm(second).tags == ("role:desktop",)
    assert tagged.find_vm("ml-07").tags == ()
    assert inventory.vm(first).tags is None, "None = not asked for"


def test_the_login_for_tags_is_given_back(lab: SimServer, session: Session, inventory: Inventory) -> None:
    before = [session.key for session in lab.world.sessions]
    with_tags(session, inventory)
    assert [session.key for session in lab.world.sessions] == before


def test_the_environment_decides_nothing_about_trust(
    session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "nothing-here.pem"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert with_tags(session, inventory).find_vm("vdi-01").tags == ()


def test_another_authority_is_not_trusted_for_tags(
    session: Session, inventory: Inventory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_authority = certificates.create(tmp_path)
    # undone before the session logs out, which it does on a connection of its own
    monkeypatch.setattr(session, "target", replace(session.target, ca_files=(str(other_authority.ca_file),)))
    with pytest.raises(NotTrusted, match="from an issuer that is not trusted here"):
        with_tags(session, inventory)


def test_verification_switched_off_holds_for_tags_too(session: Session, inventory: Inventory, tmp_path: Path) -> None:
    other_authority = certificates.create(tmp_path)
    session.target = replace(session.target, ca_files=(str(other_authority.ca_file),), verify=False)
    assert with_tags(session, inventory).find_vm("vdi-01").tags == ()


def test_a_password_changed_meanwhile_is_a_refused_login(session: Session, inventory: Inventory) -> None:
    session.target = replace(session.target, password=Secret("old"))
    with pytest.raises(LoginRefused, match="to read tags"):
        with_tags(session, inventory)


def test_an_answer_that_is_no_list_of_tags_is_a_protocol_error(
    lab: SimServer, session: Session, inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab.world.tags, "invoke", lambda *_: None)
    with pytest.raises(ProtocolError, match="does not return tags"):
        with_tags(session, inventory)


def test_tags_are_not_read_in_the_clear() -> None:
    with SimServer(build("lab"), tls=False) as server:
        target = Target("127.0.0.1", server.username, Secret(server.password), port=server.port, tls=False)
        with Session(target) as session, pytest.raises(Refused, match="needs https"):
            with_tags(session, collect.inventory(session))


def test_the_sdk_is_loaded_only_when_tags_are_asked_for() -> None:
    command = (
        "import sys, gpuops.vsphere.connection; print([m for m in sys.modules if m.startswith(('vmware', 'com.'))])"
    )
    completed = subprocess.run([sys.executable, "-c", command], capture_output=True, encoding="utf-8", check=True)
    assert completed.stdout.strip() == "[]"


def test_the_target_of_the_fixture_is_verified(lab: SimServer) -> None:
    assert target_of(lab).verify


def test_hosts_have_their_tags_too(lab: SimServer, session: Session, inventory: Inventory) -> None:
    host = inventory.find_host("esx-02.lab").ref
    tag(lab, "site", "north", host, kind="HostSystem")
    tagged = with_tags(session, inventory)
    assert (tagged.hosts[host].tags, tagged.find_host("esx-01.lab").tags) == (("site:north",), ())
    request = Place((Workload("a", 4, 8192, "a40-8q", tag=("site:north",)),))
    assert request.needs_tags
    (placed,) = request.placements(tagged, catalog_of(tagged)).placed
    assert placed.placement.host.name == "esx-02.lab"

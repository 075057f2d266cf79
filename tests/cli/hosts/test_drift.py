"""`gpuops drift` on the command line, and followed in virtual time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.execute.site import Site
from gpuops.extras.declare.drift import DriftLook, DriftWatch, follow, healing_part
from gpuops.extras.declare.site_file import load_site, parse_site
from gpuops.sim.server import SimServer
from gpuops.sim.state.drs import Behavior, Override
from gpuops.sim.state.gpu_admission import VgpuPolicy
from gpuops.vsphere.connection import Connection
from tests.cli.conftest import Lab
from tests.sim.lab import Lab as Client
from tests.sim.lab import connect
from tests.wire.conftest import target_of

SITE = """
version: 1
hosts:
  - {host: esx-01, assignment: performance}
vms:
  - {vm: ml-01, devices: {profile: a100-3-20c}, drs: cluster, marks: [{attribute: gpuops.role, value: ml}]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "site.yaml"
    path.write_text(SITE, encoding="utf-8")
    return path


def undo_policy(server: SimServer) -> None:
    [host] = [host for host in server.world.by_type("HostSystem") if host.state.name == "esx-01.lab"]
    host.state.policy = VgpuPolicy.CONSOLIDATION
    host.graphics_changed()


def undo(server: SimServer) -> None:
    """Somebody changes what the file is about."""
    undo_policy(server)
    world = server.world
    [vm] = [vm for vm in world.by_type("VirtualMachine") if vm.state.name == "ml-01"]
    [cluster] = world.by_type("ClusterComputeResource")
    cluster.drs.overrides[vm.moid] = Override(behavior=Behavior.MANUAL)
    cluster.touch("configurationEx", "configuration")


def test_one_look_names_each_drift_and_sets_back_what_it_may(lab: Lab, file: Path) -> None:
    assert lab.run("drift", "--file", str(file), "--once").exit_code == 0
    undo(lab.server)
    drifted = lab.run("drift", "--file", str(file), "--once", "--output", "json")
    document = json.loads(drifted.stdout)
    assert (drifted.exit_code, [drift["key"] for drift in document["drifted"]]) == (3, ["assignment", "drs"])
    assert lab.effects == []
    healed = lab.run("drift", "--file", str(file), "--once", "--heal", "drs")
    assert healed.exit_code == 3, "the other key is left alone"
    assert "set back: ml-01 drs: manual -> cluster" in healed.stdout
    closed = lab.run("drift", "--file", str(file), "--once", "--heal", "assignment", "--window", "Tue 22:00-23:00 UTC")
    assert (closed.exit_code, "set back" in closed.stdout) == (3, False)
    assert lab.run("drift", "--file", str(file), "--once", "--heal", "assignment").exit_code == 0
    assert lab.run("assert", "--file", str(file)).exit_code == 0


def test_a_key_that_stops_something_is_not_set_back_unattended(lab: Lab, file: Path) -> None:
    refused = lab.run("drift", "--file", str(file), "--heal", "devices")
    assert (refused.exit_code, "gpuops apply sets the other keys" in refused.stderr) == (2, True)


def test_only_the_named_keys_are_set_back() -> None:
    site = parse_site(SITE, "site.yaml")
    part = healing_part(site, ("drs",))
    assert (part.hosts, [(entry.devices, entry.drs, entry.marks) for entry in part.vms]) == (
        (), [(None, site.vms[0].drs, ())]
    )  # fmt: skip


class Enough(Exception):
    """Ends a watch."""


def test_drift_is_said_within_a_minute(lab: Lab, file: Path, tmp_path: Path) -> None:
    clock = lab.server.world.clock
    looks: list[DriftLook] = []
    began: list[Any] = []

    def show(look: DriftLook) -> None:
        looks.append(look)
        if len(looks) == 1:
            undo(lab.server)
            began.append(clock.now())
        else:
            raise Enough

    with Connection(target_of(lab.server)) as connection:
        site = Site(connection, tmp_path / "state", clock.now, passed_s=lambda: clock.now().timestamp())
        site.pause = lambda seconds: clock.advance(seconds)
        with pytest.raises(Enough):
            follow(DriftWatch(load_site(file), site), show)
    assert [difference.key for difference in looks[1].drifted] == ["assignment", "drs"]
    assert (looks[1].at - began[0]).total_seconds() <= 60


@contextmanager
def another_client(server: SimServer, user: str) -> Iterator[Client]:
    """Unmodified pyVmomi, logged in as this user."""
    server.world.sessions.passwords[user] = "theirs"
    service = connect(server, user=user, pwd="theirs")
    try:
        yield Client(server.world, service)
    finally:
        Disconnect(service)


def set_mark(client: Client, name: str, attribute: str, value: str) -> None:
    manager = client.si.content.customFieldsManager
    [key] = [field.key for field in manager.field if field.name == attribute]
    manager.SetField(client.vm(name), key, value)


def override_drs(client: Client, name: str, behavior: str) -> None:
    config = vim.cluster.DrsVmConfigInfo(key=client.vm(name), enabled=True, behavior=behavior)
    has_override = any(each.key._moId == config.key._moId for each in client.cluster().configurationEx.drsVmConfig)
    spec = vim.cluster.DrsVmConfigSpec(operation="edit" if has_override else "add", info=config)
    client.run(client.cluster().ReconfigureComputeResource_Task(vim.cluster.ConfigSpecEx(drsVmConfigSpec=[spec]), True))


def detach(client: Client, name: str) -> None:
    removed = [
        vim.vm.device.VirtualDeviceSpec(operation="remove", device=device) for device in client.passthrough(name)
    ]
    client.run(client.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(deviceChange=removed)))


def drifted_by(look: DriftLook) -> dict[str, str | None]:
    return {difference.title: difference.by for difference in look.drifted}


def test_drift_names_who_did_it_where_events_tell(lab: Lab, file: Path, tmp_path: Path) -> None:
    with (
        Connection(target_of(lab.server)) as connection,
        another_client(lab.server, "LAB\\alice") as alice,
        another_client(lab.server, "LAB\\bob") as bob,
    ):
        watch = DriftWatch(load_site(file), Site(connection, tmp_path / "state", lab.server.world.clock.now))
        assert watch.look().drifted == ()
        set_mark(bob, "ml-01", "gpuops.role", "bob")
        set_mark(alice, "ml-01", "gpuops.role", "alice")
        detach(bob, "ml-01")
        override_drs(alice, "ml-01", "manual")
        undo_policy(lab.server)
        assert drifted_by(watch.look()) == {
            "assignment": None,  # vCenter has no event about it
            "devices": "LAB\\bob",
            "drs": "LAB\\alice",
            "mark gpuops.role": "LAB\\alice",
        }
        override_drs(bob, "ml-02", "manual")
        override_drs(alice, "ml-01", "partiallyAutomated")
        assert drifted_by(watch.look()) == {"drs": None}, "bob changed the cluster too"


def test_one_look_names_the_users_of_the_last_day(lab: Lab, file: Path) -> None:
    with another_client(lab.server, "LAB\\alice") as alice, another_client(lab.server, "LAB\\bob") as bob:
        set_mark(alice, "ml-01", "gpuops.role", "desktop")
        override_drs(alice, "ml-01", "manual")
        look = lab.run("drift", "--file", str(file), "--once")
        assert "ml-01 mark gpuops.role: desktop -> ml, by LAB\\alice\n" in look.stdout
        assert "ml-01 drs: manual -> cluster, by LAB\\alice\n" in look.stdout
        override_drs(bob, "ml-02", "manual")
    document = json.loads(lab.run("drift", "--file", str(file), "--once", "--output", "json").stdout)
    assert [(each["key"], each["by"]) for each in document["drifted"]] == [
        ("drs", None), ("mark gpuops.role", "LAB\\alice")
    ], "bob changed the cluster too"  # fmt: skip
    assert "by" not in document["remaining"][0]

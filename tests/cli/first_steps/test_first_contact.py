"""`gpuops bundle --first-contact`: what it says of each rule, where vCenter goes by the rule and where it does not."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim, vmodl

from gpuops.api import Site, assumptions, catalog_of
from gpuops.api.first_contact import first_contact
from gpuops.catalog.catalog_files import contact_session
from gpuops.clock import wall_clock
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.hostshell.ssh import Ssh
from gpuops.model.assumption import JudgedAssumption, Standing
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.doctor.assumptions import READERS, REPLAYED, judge_assumptions
from gpuops.sim.core.call import Call
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.operations import maintenance
from gpuops.sim.outside_events.host_events import lose_gpu, restart_vcenter
from gpuops.sim.scenario.build import build
from gpuops.sim.scenario.deviations import deviate
from gpuops.sim.server import SimServer
from gpuops.vsphere.connection import Connection
from tests.cli.conftest import Lab as CommandLab
from tests.sim.lab import Lab, connect
from tests.wire.conftest import target_of
from tests.wire.reading.test_gpu_health import SimulatedSsh

FIRST, SECOND = "esx-01.lab", "esx-02.lab"
PIN: Final = "pciPassthru0.cfg.gpu-pci-id"


def refuse_call(lab: Lab, change: Callable[[], None]) -> None:
    with pytest.raises(vmodl.MethodFault):
        change()


def set_option(lab: Lab, name: str, key: str, value: str) -> None:
    option = vim.option.OptionValue(key=key, value=value)
    lab.run(lab.vm(name).ReconfigVM_Task(vim.vm.ConfigSpec(extraConfig=[option])))


def suspend(lab: Lab, name: str) -> None:
    lab.run(lab.vm(name).SuspendVM_Task())


def clone(lab: Lab) -> None:
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(), powerOn=False, template=False)
    lab.run(lab.vm("ml-09").CloneVM_Task(lab.vm("ml-09").parent, "copy", spec))


def pinned_start(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")
    set_option(lab, "ml-07", PIN, "0000:af:00.0")
    lab.power_on("ml-07", FIRST)


def two_starts(lab: Lab) -> None:
    """Two VMs on the host with two A40: the second in the smallest size of a GPU that is free."""
    lab.power_on("vdi-12", SECOND)


def refused_start(lab: Lab) -> None:
    refuse_call(lab, lambda: lab.power_on("ml-06", FIRST))


def suspend_and_wait(lab: Lab) -> None:
    suspend(lab, "vdi-01")
    lab.let_pass(120)


def suspend_big(lab: Lab) -> None:
    lab.power_on("ml-01", FIRST)
    suspend(lab, "ml-01")


def refused_suspend(lab: Lab) -> None:
    lab.power_on("ml-05", SECOND)
    refuse_call(lab, lambda: suspend(lab, "ml-05"))


def start_and_wait(lab: Lab) -> None:
    lab.power_on("vdi-06", FIRST)
    lab.let_pass(301)


def suspend_and_settle(lab: Lab) -> None:
    suspend(lab, "vdi-01")
    lab.let_pass(301)


def change_mode(lab: Lab) -> None:
    config = lab.host(SECOND).config.graphicsConfig
    [device] = [device for device in config.deviceType if device.deviceId == "0000:af:00.0"]
    device.vgpuMode = "sameSize"
    lab.host(SECOND).configManager.graphicsManager.UpdateGraphicsConfig(config)


def lose(lab: Lab) -> None:
    with lab.world.lock:
        lose_gpu(next(host for host in lab.world.by_type("HostSystem") if host.name == FIRST), Rule(Effect.HAPPEN))


def attach(lab: Lab) -> None:
    lab.attach("ml-07", "grid_a100-3-20c")


def nothing(lab: Lab) -> None:
    """The scenario shows it already."""


STATES: Final[dict[str, Callable[[Lab], None]]] = {
    "vgpu-device-keys": attach,
    "gpu-choice": two_starts,
    "gpu-instance-start": lambda lab: lab.power_on("ml-01", FIRST),
    "vgpu-pin": pinned_start,
    "no-gpu-fault": refused_start,
    "suspend-frees-slot": suspend_and_wait,
    "suspend-refusal": refused_suspend,
    "suspend-duration": suspend_big,
    "suspended-vm-memory": nothing,
    "suspended-vm-host": suspend_and_settle,
    "drs-vgpu-vms": start_and_wait,
    "clone-attributes": clone,
    "clone-options": clone,
    "gpu-counter-instances": nothing,
    "gpu-counter-names": nothing,
    "vgpu-mode-change": change_mode,
    "smi-lost-gpu": lose,
}
"""What brings `lab` into a state in which a look shows whether the rule holds: the effect of the session's commands."""
CONFIRMED_ALONE: Final = ("broker-maintenance", "lost-gpu-listed")
"""Rules that a look can confirm and not contradict: `tests/wire/nights/gated/test_deviations.py`."""
ONLY_BY_A_FAILURE: Final = {"lost-gpu-listed", "smi-lost-gpu", "smi-corrupt-inforom"}
"""Rules that no session settles: no test site removes a GPU from its bus or corrupts its infoROM."""
NOT_CONFIRMED: Final = ("vgpu-mode-change",)
"""Rules that a look can contradict and not confirm."""


def look(id: str, *, deviating: bool, folder: Path) -> JudgedAssumption:
    """What a first contact says of a rule, after the commands of the session that settle it."""
    world = build("lab")
    if deviating:
        deviate(world, [id])
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        service = connect(server)
        STATES[id](Lab(world, service))
        Disconnect(service)
        effects = len(list(world.ledger))
        site = Site(connection, folder, wall_clock)
        site.shell = NvidiaSmi(cast("Ssh", SimulatedSsh(server)))
        inventory = site.with_vgpus(connection.inventory())
        inventory = site.hosts.with_settings(inventory, [host.ref for host in gpu_hosts(inventory)])
        contact = first_contact(site, inventory)
        assert len(list(world.ledger)) == effects, "a look changes nothing"
        assert contact.unread == ()
    assert world.bugs == []
    rows = judge_assumptions(assumptions().values(), contact, catalog_of(inventory))
    [row] = [row for row in rows if row.row.id == id]
    assert not deviating or {
        assumption.row.id for assumption in rows if assumption.standing is Standing.CONTRADICTED
    } <= {id}
    return row


def test_every_readable_rule_has_a_judge_and_a_state() -> None:
    readable = {row.id for row in assumptions().values() if row.read}
    assert readable == {*READERS, *REPLAYED}
    assert {id for id in readable if assumptions()[id].deviation} == {*STATES, *CONFIRMED_ALONE}


def test_the_session_settles_every_rule_that_is_not_sure() -> None:
    settled = [id for step in contact_session() for id in step.settles]
    unsure = {row.id for row in assumptions().values() if row.deviation}
    assert sorted(settled) == sorted(unsure - ONLY_BY_A_FAILURE)
    for step in contact_session():
        looks = any("--first-contact" in command for command in step.commands)
        assert looks is all(id in STATES for id in step.settles)
        assert looks is not bool(step.contradicted)


@pytest.mark.quick_cases(5)
@pytest.mark.parametrize("id", STATES)
def test_a_look_finds_the_deviation(id: str, tmp_path: Path) -> None:
    row = look(id, deviating=True, folder=tmp_path)
    assert row.standing is Standing.CONTRADICTED


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("id", [id for id in STATES if id not in NOT_CONFIRMED])
def test_a_look_confirms_the_rule_where_it_holds(id: str, tmp_path: Path) -> None:
    row = look(id, deviating=False, folder=tmp_path)
    assert row.standing is Standing.CONFIRMED


def mark_clone(lab: Lab) -> None:
    """Somebody, or a program, gives the clone the attributes of its source."""
    clone(lab)
    lab.let_pass(5)
    for definition in lab.si.content.customFieldsManager.field:
        values = {value.key: value.value for value in lab.vm("ml-09").customValue}
        if definition.key in values:
            lab.vm("copy").setCustomValue(definition.name, values[definition.key])


def strip_clone(lab: Lab) -> None:
    """Somebody removes the options of passthrough devices from the clone."""
    clone(lab)
    lab.let_pass(5)
    for option in lab.vm("copy").config.extraConfig:
        if option.key.startswith("pciPassthru"):
            set_option(lab, "copy", option.key, "")


@pytest.mark.parametrize(("id", "change"), [("clone-attributes", mark_clone), ("clone-options", strip_clone)])
def test_a_clone_that_was_changed_afterwards_contradicts_nothing(
    id: str, change: Callable[[Lab], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATES, id, change)
    assert look(id, deviating=False, folder=tmp_path).standing is Standing.NOT_SEEN


def test_mig_mode_is_seen_on_both_sides_of_a_boot(lab: CommandLab) -> None:
    """What the session compares: `gpuops host mig show` before and after the restart of the host."""
    deviate(lab.server.world, ["mig-mode-after-boot"])
    before = lab.run("host", "mig", "show", "--host", FIRST).stdout.splitlines()[1:]
    [host] = [host for host in lab.server.world.by_type("HostSystem") if host.name == FIRST]
    with lab.server.world.lock:
        maintenance.go_down(host, Call(method="RebootHost_Task", version="8.0.3.0"), 60.0)
        lab.server.world.clock.advance(61)
    after = lab.run("host", "mig", "show", "--host", FIRST).stdout.splitlines()[1:]
    changed = [line for line in before if line not in after]
    assert len(changed) == 2
    assert all(line.endswith("on") for line in changed), "two GPUs in MIG mode are not any more"


@pytest.mark.parametrize("deviating", [False, True])
def test_sessions_are_seen_on_both_sides_of_a_restart(deviating: bool) -> None:
    """What the session compares: `govc session.ls` before and after the restart of vCenter."""
    world = build("lab")
    if deviating:
        deviate(world, ["sessions-after-restart"])
    with world.lock:
        before = {world.sessions.open("root").key}
        restart_vcenter(world, Rule(Effect.HAPPEN, for_s=1.0))
        after = {session.key for session in world.sessions}
    assert bool(before & after) is deviating


def test_it_is_on_the_terminal_and_without_names_in_the_bundle(lab: CommandLab, tmp_path: Path) -> None:
    """The look is read-only; the same call with --dry-run writes nothing."""
    deviate(lab.server.world, ["gpu-counter-instances"])
    path = tmp_path / "contact.zip"
    bundle = lab.run("bundle", "--first-contact", "--yes", "--save", str(path))
    assert bundle.exit_code == 0, bundle.output
    assert "gpu-counter-instances    contradicted  esx-01.lab has GPU counters with the instance gpu-0" in bundle.stdout
    assert "vgpu-device-keys         confirmed     a device of vdi-01 has the key 13000" in bundle.stdout
    assert "mig-mode-after-boot      not seen      needs a change" in bundle.stdout
    assert "govc vm.power -suspend" in bundle.stdout
    assert lab.effects == []
    with zipfile.ZipFile(path) as archive:
        text = archive.read("first-contact.json").decode()
    rows = {row["id"]: row for row in json.loads(text)["assumptions"]}
    evidence = rows["gpu-counter-instances"]["evidence"]
    assert rows["gpu-counter-instances"]["standing"] == "contradicted"
    assert evidence["facts"][0]["instance"] == "gpu-0"
    assert not any(name in text for name in ("esx-01", "vdi-01", "lab-cluster"))
    document = json.loads(lab.run("bundle", "--first-contact", "--dry-run", "--output", "json").stdout)
    assert len(document["first_contact"]["assumptions"]) == len(assumptions())

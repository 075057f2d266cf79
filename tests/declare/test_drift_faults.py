"""Each fault of the simulator that undoes a setting is named within 60 s, set back if allowed, and else left alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from pyVmomi import vim

from gpuops.execute.site import Site
from gpuops.extras.declare.applying import apply_site
from gpuops.extras.declare.drift import DriftLook, DriftWatch, follow
from gpuops.extras.declare.view import subject
from gpuops.extras.declare.wishes import SiteDifference
from gpuops.hostshell.nvidia_smi import NvidiaSmi
from gpuops.sim.core.ledger import Entry
from gpuops.sim.core.object_store import somebody
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.inventory.entities import HostEntity, VmEntity
from gpuops.sim.operations import cluster_change, device_settings
from gpuops.sim.operations.vms import reconfigure
from gpuops.sim.outside_events.fault_file import OUTSIDE_EVENTS
from gpuops.sim.outside_events.vm_events import power_on
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.state.board import GpuMode
from gpuops.sim.world import World
from gpuops.vsphere.connection import Connection
from tests.declare.play import SimulatedSsh, entities_called
from tests.declare.worlds import site_of
from tests.sim.guests import nvidia_smi
from tests.wire.conftest import target_of
from tests.wire.hosts.clusters import cluster


def undo(world: World, action: Mapping[str, Any]) -> None:
    """Do an action of `drifts.yaml`: `do` names it, `at` is a pattern of hosts or VMs, other keys are its arguments."""
    arguments = {key: value for key, value in action.items() if key not in ("do", "at")}
    with world.lock:
        for entity in entities_called(world, action["at"]) if "at" in action else [world]:
            if action["do"] in OUTSIDE_EVENTS:
                OUTSIDE_EVENTS[action["do"]].act(entity, Rule(Effect.HAPPEN, **arguments))
            else:
                ACTIONS[action["do"]](entity, **arguments)


def _set_graphics(
    host: HostEntity, *, policy: str = "", default: str = "", gpu: str = "", graphics: str = "", mode: str = ""
) -> None:
    state = host.state
    config = host.read("config.graphicsConfig")
    devices = [
        vim.host.GraphicsConfig.DeviceType(
            deviceId=device.deviceId,
            graphicsType=graphics if graphics and device.deviceId == gpu else device.graphicsType,
            vgpuMode=mode if mode and device.deviceId == gpu else device.vgpuMode,
        )
        for device in config.deviceType
    ]
    changed = vim.host.GraphicsConfig(
        hostDefaultGraphicsType=default or state.default_graphics_type,
        sharedPassthruAssignmentPolicy=policy or state.policy,
        deviceType=devices,
    )
    device_settings.update_graphics(host, somebody(host.world, "UpdateGraphicsConfig"), changed)


def _set_passthrough(host: HostEntity, *, gpu: str, enabled: bool) -> None:
    config = vim.host.PciPassthruConfig(id=gpu, passthruEnabled=enabled)
    device_settings.update_passthrough(host, somebody(host.world, "UpdatePassthruConfig"), [config])


def _set_label(host: HostEntity, *, gpu: str, label: str) -> None:
    override = vim.host.AssignableHardwareConfig.AttributeOverride(
        instanceId=f"pcie-{gpu}", name="hardwareLabel", value=label
    )
    config = vim.host.AssignableHardwareConfig(attributeOverride=[override])
    device_settings.update_labels(host, somebody(host.world, "UpdateAssignableHardwareConfig"), config)


def _load_options(host: HostEntity, *, options: str) -> None:
    host.state.module_options = host.state.loaded_module_options = options


def _boot_with(host: HostEntity, *, options: str) -> None:
    host.boot = replace(host.boot, options=options)


def _boot_without_driver(host: HostEntity) -> None:
    host.boot = replace(host.boot, driver_late_s=None)


def _start_later(vm: VmEntity, *, after_s: float) -> None:
    vm.world.clock.schedule(after_s, lambda: power_on(vm, Rule(Effect.HAPPEN)))


def _switch_mig(host: HostEntity, *, gpu: str, to: bool) -> None:
    nvidia_smi.answer(host, f"nvidia-smi -i {gpu} -mig {int(to)}")


def _reconfigure(vm: VmEntity, spec: Any) -> None:
    reconfigure.reconfigure(vm, somebody(vm.world, "ReconfigVM_Task"), spec)


def _remove_devices(vm: VmEntity) -> None:
    devices = [device for device in vm.read("config.hardware.device") if device.key in _keys(vm)]
    changes = [vim.vm.device.VirtualDeviceSpec(operation="remove", device=device) for device in devices]
    _reconfigure(vm, vim.vm.ConfigSpec(deviceChange=changes))


def _keys(vm: VmEntity) -> set[int]:
    return {device.key for device in vm.state.devices}


def _set_options(vm: VmEntity, *, options: Mapping[str, str]) -> None:
    extra_config = [vim.option.OptionValue(key=key, value=value) for key, value in options.items()]
    _reconfigure(vm, vim.vm.ConfigSpec(extraConfig=extra_config))


def _set_drs(vm: VmEntity, *, behavior: str = "") -> None:
    """Set the override of the VM; without `behavior` remove it."""
    cluster = vm.host().compute_resource()
    is_new = vm.moid not in cluster.drs.overrides
    operation = "add" if is_new else "edit"
    change = vim.cluster.DrsVmConfigSpec(
        operation=operation if behavior else "remove",
        removeKey=None if behavior else vm.ref,
        info=vim.cluster.DrsVmConfigInfo(key=vm.ref, enabled=True, behavior=behavior) if behavior else None,
    )
    spec = vim.cluster.ConfigSpecEx(drsVmConfigSpec=[change])
    cluster_change.reconfigure(cluster, somebody(vm.world, "ReconfigureComputeResource_Task"), spec, modify=True)


def _set_mark(vm: VmEntity, *, attribute: str, value: str) -> None:
    vm.world.get("CustomFieldsManager").SetField(
        somebody(vm.world, "SetField"), entity=vm.ref, key=_field(vm.world, attribute), value=value
    )


def _remove_attribute(world: World, *, attribute: str) -> None:
    world.get("CustomFieldsManager").RemoveCustomFieldDef(
        somebody(world, "RemoveCustomFieldDef"), key=_field(world, attribute)
    )


def _field(world: World, attribute: str) -> int:
    return next(key for key, field in world.custom_fields.fields.items() if field.name == attribute)


ACTIONS: Final[Mapping[str, Callable[..., None]]] = {
    "graphics": _set_graphics,
    "passthrough": _set_passthrough,
    "label": _set_label,
    "options loaded": _load_options,
    "boots with options": _boot_with,
    "boots without driver": _boot_without_driver,
    "nvidia-smi -mig": _switch_mig,
    "starts when its host is back": _start_later,
    "devices removed": _remove_devices,
    "options of VM": _set_options,
    "drs": _set_drs,
    "mark": _set_mark,
    "attribute removed": _remove_attribute,
}


CASES: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "drifts.yaml").read_text(encoding="utf-8"))
WATCHED_S = 180.0
"""How long a watch goes on after vCenter shows what was undone."""


class Enough(Exception):
    """Ends a watch."""


@dataclass
class Watched:
    """A watch of one case: what it showed, and when vCenter began to show what was undone."""

    case: dict[str, Any]
    world: World
    looks: list[DriftLook] = field(default_factory=list)
    visible_at: datetime | None = None
    effects: int = 0
    """How many changes the ledger had when the watch began."""

    def show(self, look: DriftLook) -> None:
        self.looks.append(look)
        if self.visible_at is None:
            assert differing(look) == [], "at first nothing differs"
            for action in self.case["undo"]:
                undo(self.world, action)
            self.visible_at = self.world.clock.now() + timedelta(seconds=self.case.get("visible_after_s", 1))

    def pause(self, seconds: float) -> None:
        with self.world.lock:
            self.world.clock.advance(seconds)
        assert self.visible_at is not None
        if (self.world.clock.now() - self.visible_at).total_seconds() > WATCHED_S:
            raise Enough

    @property
    def own_changes(self) -> list[Entry]:
        return [entry for entry in self.world.ledger if entry.session and entry.sequence > self.effects]

    def named_after_s(self, name: str) -> float:
        assert self.visible_at is not None
        [*moments] = [look.at for look in self.looks if look.at >= self.visible_at and name in news_of(look)]
        assert moments, f"{name} is not named: {[news_of(look) for look in self.looks]}"
        return (moments[0] - self.visible_at).total_seconds()


def in_words(difference: SiteDifference) -> str:
    pending = " (pending)" if difference.pending else ""
    return f"{subject(difference)} {difference.title}{pending}"


def news_of(look: DriftLook) -> list[str]:
    return [*map(in_words, look.drifted), *(str(rejection) for rejection in look.unmatched)]


def differing(look: DriftLook) -> list[str]:
    return sorted([*map(in_words, look.remaining), *(str(rejection) for rejection in look.unmatched)])


def watched(case: dict[str, Any], folder: Path, heals: Collection[str], *, reboots: bool = False) -> Watched:
    """Return the watch of a case, which went on for three minutes. Its world is `lab` unless it has another."""
    world = case.get("world") or build("lab")
    for action in case.get("first", ()):
        undo(world, action)
    world.clock.advance(10)
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        watch = Watched(case, world)
        shell = NvidiaSmi(SimulatedSsh(world))  # type: ignore[arg-type]
        clock = world.clock
        site = Site(connection, folder, clock.now, passed_s=lambda: clock.now().timestamp(), shell=shell)
        file = site_of(yaml.safe_dump({"version": 1, **case["file"]}))
        if case.get("applied"):
            assert apply_site(file, site, apply=True).remaining == ()
        watch.effects = len(world.ledger)
        site.pause = watch.pause
        with pytest.raises(Enough):
            follow(DriftWatch(file, site, tuple(heals), reboots=reboots), watch.show)
    return watch


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", CASES)
def test_what_is_undone_is_named_within_a_minute_and_left_alone(name: str, tmp_path: Path) -> None:
    watch = watched(CASES[name], tmp_path, ())
    for text in CASES[name]["named"]:
        assert watch.named_after_s(text) <= 60
    assert differing(watch.looks[-1]) == sorted(CASES[name]["named"])
    assert watch.own_changes == []


@pytest.mark.quick_cases(3)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "heal" in case])
def test_what_may_be_set_back_is(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    watch = watched(case, tmp_path, (case["heal"],))
    assert differing(watch.looks[-1]) == sorted(case.get("remains", ()))
    if "why" in case:
        assert case["why"] in str(watch.looks[-1].refusals)
    else:
        assert any(report.changed for look in watch.looks for report in look.healed)


def test_what_drifts_is_named_while_a_rotation_holds_the_lock(tmp_path: Path) -> None:
    world = build("lab")
    clock = world.clock
    file = site_of(yaml.safe_dump({"version": 1, **CASES["the assignment policy is changed"]["file"]}))
    with SimServer(world) as server, Connection(target_of(server)) as connection:
        site = Site(connection, tmp_path, clock.now)
        watch = DriftWatch(file, site, ("assignment",))
        with Site(connection, tmp_path, clock.now).locked_journal(connection.uuid, alone=True):
            undo(world, {"do": "graphics", "at": "esx-01.lab", "policy": "consolidation"})
            look = watch.look()
            assert [in_words(difference) for difference in look.drifted] == ["esx-01.lab assignment"]
            assert [refusal.subject for refusal in look.refusals] == ["drift"]
            assert (look.healed, look.exit_code, watch.look().has_news) == ((), 3, False)
        assert [report.changed for report in watch.look().healed] == [True]


LOST_MIG = {**CASES["a host crashes and comes back without MIG mode"], "remains": []}


def host_changes(watch: Watched) -> list[str]:
    """Return what the ledger has of maintenance mode and reboots, and of starts of VMs."""
    methods = ("EnterMaintenanceMode_Task", "RebootHost_Task", "ExitMaintenanceMode_Task", "PowerOnVM_Task")
    entries = [entry for entry in watch.world.ledger if entry.method in methods]
    return list(dict.fromkeys(entry.method for entry in entries))


def test_mig_mode_is_in_force_again_before_a_vm_starts_on_a_host_that_came_back(tmp_path: Path) -> None:
    watch = watched(LOST_MIG, tmp_path, ("mig",), reboots=True)
    assert differing(watch.looks[-1]) == []
    assert [gpu.mode for gpu in entities_called(watch.world, "esx-01.lab")[0].state.gpus[:2]] == [
        GpuMode.MULTI_INSTANCE, GpuMode.MULTI_INSTANCE
    ]  # fmt: skip
    assert host_changes(watch) == ["EnterMaintenanceMode_Task", "RebootHost_Task", "ExitMaintenanceMode_Task"]
    assert not any(report.failed for look in watch.looks for report in look.healed)


def test_a_host_on_which_a_vm_started_first_is_not_rebooted(tmp_path: Path) -> None:
    undone = [*LOST_MIG["undo"], {"do": "starts when its host is back", "at": "vdi-01", "after_s": 300}]
    watch = watched({**LOST_MIG, "undo": undone}, tmp_path, ("mig",), reboots=True)
    assert differing(watch.looks[-1]) == [
        "esx-01.lab 0000:3b:00.0 mig (pending)", "esx-01.lab 0000:af:00.0 mig (pending)"
    ]  # fmt: skip
    assert host_changes(watch) == ["PowerOnVM_Task"]


@pytest.mark.parametrize("reboots", [False, True])
def test_from_hopper_on_mig_mode_is_in_force_at_once(reboots: bool, tmp_path: Path) -> None:
    world = cluster(1, [], gpus=2, board="h100", mode="multiInstanceGpu")
    undone = [{**action, "at": "esx-01"} for action in LOST_MIG["undo"]]
    case = {**LOST_MIG, "world": world, "undo": undone, "file": {"hosts": [{"host": "esx-01", "mig": True}]}}
    watch = watched(case, tmp_path, ("mig",), reboots=reboots)
    assert differing(watch.looks[-1]) == []
    maintenance = ["EnterMaintenanceMode_Task", "ExitMaintenanceMode_Task"]
    assert host_changes(watch) == (maintenance if reboots else []), "a reboot would end MIG mode again"

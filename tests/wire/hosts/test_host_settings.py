"""Settings of hosts on the wire: read and changed through real SOAP, in the journal first, in force after a reboot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import vim

from gpuops.api import Site, configure, scheduler_show
from gpuops.clock import wall_clock
from gpuops.errors import VcenterUnreachable
from gpuops.execute.journal import Journal
from gpuops.model.devices.gpu import AssignmentPolicy, Passthrough, PciAddress
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.vcenter.host_settings import GraphicsDevice, SizeMode
from gpuops.plan.core.plan import Report, Verdict
from gpuops.plan.core.scope import Scope
from gpuops.plan.core.steps import HostStep
from gpuops.plan.hosts.graphics.mode import SetMode
from gpuops.plan.hosts.graphics.passthrough import SetPassthrough
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.hosts.scheduler.scheduler_state import HostScheduler
from gpuops.sim.fault_injection.rule import Effect, Phase, Rule
from gpuops.sim.server import SimServer
from gpuops.sim.state.vm_state import Power
from gpuops.sim.vcenter.authority import READ_ONLY
from gpuops.vsphere.connection import Connection
from tests.sim.lab import connect
from tests.wire.conftest import target_of

pytestmark = pytest.mark.long

EQUAL = SetScheduler(SchedulerPolicy.EQUAL_SHARE, gpu=("0000:d8:00.0",), host="esx-01.lab")
AFTER = "foreign=1 NVreg_RegistryDwordsPerDevice=pci=0000:d8:00.0;RmPVMRL=0x01"


@dataclass
class Bench:
    """A site on `lab`, and its hosts by name."""

    server: SimServer
    site: Site

    def state(self, name: str = "esx-01.lab") -> Any:
        [host] = [host for host in self.server.world.by_type("HostSystem") if host.display_name == name]
        return host.state

    def set(self, request: SetScheduler = EQUAL) -> Report[HostStep]:
        return configure(request, self.site, apply=True)

    def host_scheduler(self, name: str = "esx-01.lab") -> HostScheduler:
        [host] = scheduler_show(self.site, Scope(host=name)).hosts
        return host

    @property
    def effects(self) -> list[str]:
        return [change.method for change in self.server.world.ledger]


@pytest.fixture
def bench(lab: SimServer, tmp_path: Path) -> Iterator[Bench]:
    with Connection(target_of(lab)) as vcenter:
        bench = Bench(lab, Site(vcenter, tmp_path, wall_clock))
        for host in lab.world.by_type("HostSystem"):
            host.state.module_options = host.state.loaded_module_options = "foreign=1"
        yield bench


def test_a_policy_is_configured_pending_and_after_a_reboot_in_force(bench: Bench) -> None:
    report = bench.set()
    assert (report.exit_code, [outcome.verdict for outcome in report.outcomes]) == (0, [Verdict.DONE])
    assert bench.effects == ["UpdateModuleOptionString"]
    listing = bench.host_scheduler()
    a40 = listing.gpus[2]
    assert (listing.settings.reboot_pending, a40.reboot_pending) == (True, True)
    assert (str(a40.configured), str(a40.effective), str(listing.branch)) == ("equal-share", "best-effort", "R550")
    world = bench.server.world
    [host] = [host for host in world.by_type("HostSystem") if host.display_name == "esx-01.lab"]
    si = connect(bench.server)
    vim.HostSystem(host.moid, si._stub).RebootHost_Task(force=True)
    world.clock.advance(3600)
    Disconnect(si)
    a40 = bench.host_scheduler().gpus[2]
    assert (str(a40.configured), str(a40.effective), a40.reboot_pending) == ("equal-share", "equal-share", False)


def test_any_other_client_sees_the_same_string(bench: Bench) -> None:
    bench.set()
    si = connect(bench.server)
    [moid] = [host.moid for host in bench.server.world.by_type("HostSystem") if host.display_name == "esx-01.lab"]
    system = vim.HostSystem(moid, si._stub).configManager.kernelModuleSystem
    assert system.QueryConfiguredModuleOptionString("nvidia") == AFTER
    assert {module.name: module.optionString for module in system.QueryModules()}["nvidia"] == "foreign=1"
    Disconnect(si)


def test_a_second_run_changes_nothing_and_says_so(bench: Bench) -> None:
    bench.set()
    second_run = bench.set()
    assert (second_run.changed, second_run.exit_code) == (False, 0)
    assert second_run.plan.because == ("esx-01.lab is set to equal-share already; a reboot is pending",)
    assert bench.effects == ["UpdateModuleOptionString"]


def test_a_dry_run_writes_nothing(bench: Bench) -> None:
    report = configure(EQUAL, bench.site, apply=False)
    assert (report.changed, bench.effects, bench.state().module_options) == (True, [], "foreign=1")


def test_a_host_with_a_suspended_desktop_is_refused(bench: Bench) -> None:
    report = bench.set(SetScheduler(SchedulerPolicy.EQUAL_SHARE, gpu=("0000:3b:00.0",), host="esx-02*"))
    assert (report.exit_code, bench.effects) == (3, [])
    assert str(report.plan.rejections[0]) == "esx-02.lab: vdi-11 is suspended on it with a vGPU"


@pytest.mark.parametrize(
    ("phase", "verdict"), [(Phase.AFTER, Verdict.DONE), (Phase.BEFORE, Verdict.UNKNOWN)], ids=["arrived", "did not"]
)
def test_a_lost_reply_is_answered_by_looking_and_never_sent_again(bench: Bench, phase: Phase, verdict: Verdict) -> None:
    bench.server.world.injector.add(Rule(Effect.RESET, "UpdateModuleOptionString", phase=phase))
    report = bench.set()
    assert [outcome.verdict for outcome in report.outcomes] == [verdict]
    assert report.exit_code == (0 if verdict is Verdict.DONE else 4)
    assert bench.effects == (["UpdateModuleOptionString"] if verdict is Verdict.DONE else [])


def test_a_session_that_ends_just_before_the_call_is_renewed(bench: Bench) -> None:
    bench.server.world.injector.add(Rule(Effect.EXPIRE, "UpdateModuleOptionString"))
    report = bench.set()
    assert [outcome.verdict for outcome in report.outcomes] == [Verdict.DONE]
    assert bench.effects == ["UpdateModuleOptionString"]


def test_the_report_has_the_settings_that_were_read_back(bench: Bench) -> None:
    report = bench.set()
    [outcome] = report.outcomes
    assert report.after is not None
    settings = report.after.hosts[outcome.step.host].settings
    assert settings is not None
    assert settings.module_options == AFTER


@pytest.mark.parametrize("session_ends", [False, True])
def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(bench: Bench, mocker: Any, session_ends: bool) -> None:
    hosts = bench.site.vcenter.hosts
    real, looks = type(hosts).with_settings, []
    if session_ends:  # the host is looked at once more before the request goes out again
        bench.server.world.injector.add(Rule(Effect.EXPIRE, "UpdateModuleOptionString"))

    def look_and_change(*arguments: Any) -> Any:
        looks.append(arguments)
        if len(looks) == 3 + session_ends:  # after the two looks that the plan is made on
            bench.state().module_options = "foreign=2"
        return real(*arguments)

    mocker.patch.object(type(hosts), "with_settings", look_and_change)
    report = bench.set()
    [outcome] = report.outcomes
    assert (outcome.verdict, report.exit_code) == (Verdict.FAILED if session_ends else Verdict.SKIPPED, 4)
    assert outcome.reason == "its module options were changed by somebody else since the plan was made"
    assert bench.state().module_options == "foreign=2"


def test_a_login_that_may_only_read_is_told_what_it_lacks(bench: Bench) -> None:
    bench.server.world.authority.permit(bench.server.username, READ_ONLY)
    report = bench.set()
    assert (report.exit_code, bench.effects) == (3, [])
    assert "Host.Config.Settings" in " ".join(map(str, report.plan.rejections))
    listing = bench.host_scheduler()
    assert {gpu.configured for gpu in listing.gpus} == {None}
    assert (listing.settings.reboot_pending, listing.branch) == (None, None)
    assert any("Host.Config.Settings" in reason for reason in listing.settings.unread)


def test_a_host_without_the_driver_says_so(bench: Bench) -> None:
    bench.state().driver_version = ""
    assert str(bench.set().plan.rejections[0]) == "esx-01.lab: has no kernel module nvidia"


def test_a_host_out_of_reach_is_unknown(bench: Bench) -> None:
    bench.state().connection = "notResponding"
    assert bench.host_scheduler().settings.unread == ("it is not connected",)
    assert str(bench.set().plan.rejections[0]) == "esx-01.lab: is not connected"


def test_the_intent_is_in_the_journal_before_it_is_sent(bench: Bench, mocker: Any) -> None:
    mocker.patch.object(type(bench.site.vcenter.hosts), "configure", side_effect=VcenterUnreachable("gone"))
    with pytest.raises(VcenterUnreachable):
        bench.set()
    journal = Journal.look_into(bench.site.state_dir, bench.site.vcenter.uuid, wall_clock)
    assert journal is not None
    [run] = journal.open_runs(["setscheduler"])
    [intended] = journal.state.runs[run.id].intents.values()
    assert intended.step["ConfigureModule"]["after"] == AFTER
    assert intended.before["name"] == "esx-01.lab"
    journal.close()


def test_a_vgpu_mode_changes_at_once_and_all_else_stays(bench: Bench) -> None:
    resume(bench)
    before = (
        bench.site.vcenter.hosts.with_settings(*inventory_and_ref(bench, "esx-02.lab")).find_host("esx-02.lab").settings
    )
    report = configure(SetMode(vgpu_mode=SizeMode.SAME_SIZE, gpu=("af:00.0",), host="esx-02*"), bench.site, apply=True)
    assert (report.exit_code, report.plan.afterwards, bench.effects) == (0, (), ["UpdateGraphicsConfig"])
    inventory = bench.site.vcenter.hosts.with_settings(*inventory_and_ref(bench, "esx-02.lab"))
    after = inventory.find_host("esx-02.lab").settings
    assert before is not None
    assert before.graphics is not None
    assert after is not None
    changed = GraphicsDevice(PciAddress.parse("af:00.0"), "sharedDirect", "sameSize")
    assert after.graphics == replace(
        before.graphics,
        devices=tuple(changed if device.address == changed.address else device for device in before.graphics.devices),
    )


def test_passthrough_is_pending_until_the_host_reboots(bench: Bench) -> None:
    request = SetPassthrough(True, ("3b:00.0",), "a100-ml", "esx-01.lab")
    report = configure(request, bench.site, apply=True)
    assert (report.exit_code, bench.effects) == (0, ["UpdatePassthruConfig"])
    gpu = bench.site.vcenter.inventory().find_host("esx-01.lab").gpus[0]
    assert gpu.passthrough == Passthrough(capable=True, enabled=True, active=False, label="a100-ml")
    second_run = configure(request, bench.site, apply=True)
    assert "a reboot is pending" in second_run.plan.because[0]
    back = configure(SetPassthrough(False, ("3b:00.0",), None, "esx-01.lab"), bench.site, apply=True)
    assert back.exit_code == 0
    assert not bench.site.vcenter.inventory().find_host("esx-01.lab").gpus[0].passthrough.enabled  # type: ignore[union-attr]


def test_gpus_that_nvlink_joins_are_warned_of_when_one_goes_alone(bench: Bench) -> None:
    resume(bench)

    def warnings_for(*devices: str) -> tuple[str, ...]:
        return configure(SetPassthrough(True, devices, None, "esx-02.lab"), bench.site, apply=False).plan.warnings

    [warning] = warnings_for("86:00.0")
    assert warning.startswith("esx-02.lab offers Nvidia:2@grid_a100d-80c%NVLink: a GPU without its NVLink peers forms")
    assert "0000:8a:00.0 would not be switched" in warning
    assert warnings_for("86:00.0", "8a:00.0") == ()


def test_a_host_that_rebinds_does_so_at_once(bench: Bench) -> None:
    bench.state("esx-01.lab").rebinds_without_reboot = True
    report = configure(SetPassthrough(True, ("3b:00.0",), None, "esx-01.lab"), bench.site, apply=True)
    assert (report.exit_code, report.plan.afterwards) == (0, ())
    assert bench.site.vcenter.inventory().find_host("esx-01.lab").gpus[0].passthrough.active  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("request_", "privilege"),
    [
        (SetMode(assignment=AssignmentPolicy.CONSOLIDATION, host="esx-01.lab"), "Host.Config.Settings"),
        (SetPassthrough(True, ("3b:00.0",), None, "esx-01.lab"), "Host.Config.PciPassthru"),
    ],
)
def test_each_change_names_the_privilege_it_needs(bench: Bench, request_: Any, privilege: str) -> None:
    bench.server.world.authority.permit(bench.server.username, READ_ONLY)
    report = configure(request_, bench.site, apply=True)
    assert [str(rejection) for rejection in report.plan.rejections] == [f"esx-01.lab: this login lacks {privilege}"]
    assert bench.effects == []


def inventory_and_ref(bench: Bench, name: str) -> tuple[Any, list[str]]:
    inventory = bench.site.vcenter.inventory()
    return inventory, [inventory.find_host(name).ref]


def resume(bench: Bench) -> None:
    """Shut down the suspended desktop on esx-02."""
    [vm] = [vm for vm in bench.server.world.by_type("VirtualMachine") if vm.display_name == "vdi-11"]
    vm.state.power = Power.OFF


@pytest.mark.parametrize("spelled", ["0000:d8:00", "d8:00", "d8:00.0"])
def test_an_address_means_to_gpuops_what_it_means_to_the_driver(bench: Bench, spelled: str) -> None:
    options = 'NVreg_RegistryDwordsPerDevice="pci={};RmPVMRL={}"'
    si = connect(bench.server)
    [moid] = [host.moid for host in bench.server.world.by_type("HostSystem") if host.display_name == "esx-01.lab"]
    vim.HostSystem(moid, si._stub).configManager.kernelModuleSystem.UpdateModuleOptionString(
        "nvidia", options.format(spelled, "0x11")
    )
    Disconnect(si)
    a40 = bench.host_scheduler().gpus[2]
    assert (str(a40.configured), a40.reboot_pending) == ("fixed-share", True)
    assert bench.set(SetScheduler(SchedulerPolicy.BEST_EFFORT, gpu=("0000:d8:00.0",), host="esx-01.lab")).changed
    assert bench.state().module_options == options.format(spelled, "0x00")

"""What is recorded: nights and changes of hosts, most of them killed at a stage of their own, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpuops.sim.state.drs import Behavior, Override
from gpuops.sim.world import World
from tests.harness.office import desktop, gpu, hosts, ml_vm, policy, scenario
from tests.recorded.states import GUEST_LOGIN

NEVER: Final = "-"
HOUR_S: Final = 3600.0
NIGHT: Final = ("rotate", "night", "--policy", "{policy}", "--yes")
DAY: Final = ("rotate", "day", "--policy", "{policy}", "--yes")
RESUME: Final = ("rotate", "resume", "--yes")
FROM_MARKERS: Final = ("rotate", "restore", "--from-markers", "--policy", "{policy}", "--yes")
STATUS: Final = ("rotate", "status", "--policy", "{policy}", "--output", "json")
HISTORY: Final = ("history", "--output", "json")
AUDIT: Final = ("rotate", "audit", "verify", "--output", "json")
LOOKS: Final = (STATUS, HISTORY, AUDIT)
CHANGE_STATUS: Final = ("change", "status", "--output", "json")
CHANGE_RESUME: Final = ("change", "resume", "--yes")
CHANGE_ABORT: Final = ("change", "abort", "--yes")
CHANGE_LOOKS: Final = (CHANGE_STATUS, HISTORY, AUDIT)
ROLLING: Final = ("--host", "esx-01", "--reboot", "rolling", "--running-vms", "shut-down", "--yes")
SCHEDULER: Final = ("host", "scheduler", "set", "--scheduler", "equal-share", *ROLLING)

Words = Sequence[str]


def office(**ml: Any) -> dict[str, Any]:
    """Two hosts with three idle desktops on an A40 each, a busy one, and an ML VM for each A40."""
    vms = [desktop(number, f"esx-{1 + number // 4:02}") for number in range(1, 7)]
    vms.append(desktop(7, "esx-02", cpu_usage_mhz=5200))
    return scenario([*vms, ml_vm(1, "esx-01", **ml), ml_vm(2, "esx-02", **ml)])


def fleet(**keys: Any) -> dict[str, Any]:
    """Three hosts, desktops on two of them: one host's desktops fit on the others, one of them cannot be moved."""
    pinned = {"extra_config": {"pciPassthru0.cfg.gpu-pci-id": "0000:3b:00.0"}}
    vms = [
        desktop(1, "esx-01", cpu_usage_mhz=900),
        desktop(2, "esx-01", cpu_usage_mhz=900, **pinned),
        desktop(3, "esx-02", cpu_usage_mhz=900),
        ml_vm(1, "esx-03", devices=[]),
    ]
    return scenario(vms, hosts(3), options={"vgpu.hotmigrate.enabled": True}, **keys)


@dataclass(frozen=True, slots=True)
class Act:
    """One command of the evening. `kill`: see `victim.py`."""

    words: Words
    kill: str = NEVER
    later_s: float = 0.0
    exit_code: int = 0
    checkpoints: bool = False
    """The journal gets a checkpoint much earlier than usual."""


@dataclass(frozen=True, slots=True)
class Story:
    """The evening, and the commands that every later version must run on what it left."""

    name: str
    about: str
    acts: Sequence[Act]
    morning: Sequence[Words]
    kind: str = "night"
    journal: str = "sqlite"
    scenario: Mapping[str, Any] = field(default_factory=office)
    policy: Mapping[str, Any] = field(default_factory=policy)
    prepare: Callable[[World], None] | None = None
    morning_later_s: float = 10 * HOUR_S
    files: Mapping[str, str] = field(default_factory=dict)
    vms_off: Sequence[str] = ()
    """Desktops that are not back when all is done: an admin gave them up."""
    vms_on: Sequence[str] = ()
    vms_with_marker: Sequence[str] = ()


def night(name: str, kill: str, about: str, **options: Any) -> Story:
    """A night that is killed, and the morning after it."""
    return Story(name, about, [Act(NIGHT, kill)], (*LOOKS, DAY), **options)


def resumed_night(name: str, kill: str, about: str, **options: Any) -> Story:
    """A night that is killed, finished a quarter of an hour later, and its morning."""
    return Story(name, about, [Act(NIGHT, kill)], (*LOOKS, RESUME, DAY), morning_later_s=0.0, **options)


def day(
    name: str, kill: str, about: str, *, words: Words = DAY, morning: Sequence[Words] = (DAY,), **options: Any
) -> Story:
    """A night, and a morning that is killed."""
    return Story(
        name, about, [Act(NIGHT), Act(words, kill, 10 * HOUR_S)], (*LOOKS, *morning), morning_later_s=0.0, **options
    )


def change(
    name: str, kill: str, about: str, words: Words = SCHEDULER, end: Words = CHANGE_RESUME, **options: Any
) -> Story:
    """A rolling change that is killed, and its end."""
    options = {"scenario": fleet(), "kind": "change", "morning_later_s": 0.0, **options}
    return Story(name, about, [Act(words, kill)], (*CHANGE_LOOKS, end), **options)


# --- worlds and policies of a few nights ---


def _office_with_hook() -> dict[str, Any]:
    """The office, whose ML VMs keep their work by a program that takes its time."""
    username, password = GUEST_LOGIN
    guest = {
        "id": "ubuntu64Guest",
        "name": "Ubuntu",
        "login": {"username": username, "password": password},
        "programs": [{"path": "/usr/local/bin/save", "takes_s": 20.0}],
    }
    scenario_keys = office(guest="trained")
    return {**scenario_keys, "guests": {**scenario_keys["guests"], "trained": guest}}


HOOK_POLICY: Final = policy(ml={"checkpoint": {"grace_s": 60, "hook": {"program": "/usr/local/bin/save"}}})


def _ml_vm_elsewhere() -> dict[str, Any]:
    """An ML VM that must move to the host on which desktops are suspended for it."""
    vms = [desktop(number, "esx-02") for number in range(1, 4)]
    busy = [desktop(number, "esx-01", cpu_usage_mhz=5200) for number in (4, 5)]
    return scenario([*vms, *busy, ml_vm(1, "esx-01")])


def _broker_office() -> dict[str, Any]:
    return {**office(), "desktop_pools": [{"name": "office", "vms": ["vdi-*"]}]}


GATED_POLICY: Final = policy(broker="horizon", parked=False)


def _override(world: World) -> None:
    """DRS moves ml-01 by an override of its own, which a night replaces."""
    [cluster] = world.by_type("ClusterComputeResource")
    [vm] = [vm for vm in world.by_type("VirtualMachine") if vm.name == "ml-01"]
    cluster.drs.overrides = {vm.moid: Override(behavior=Behavior.FULL)}


DRS_POLICY: Final = policy(drs_override="manual")


LOCK_POLICY: Final = policy(lock_vm="gpuops-lock")
INIT: Final = Act(("rotate", "init", "--policy", "{policy}"))

SPARE_POLICY: Final[dict[str, Any]] = {
    "version": 1,
    "name": "spare",
    "mode": "spare-capacity",
    "spare": {"keep_free": {"a40-8q": 1}, "calm_s": 60},
    "ml": {"queue": [{"vm": "ml-01"}, {"vm": "ml-02"}], "stop": {"grace_s": 60, "then": "power-off"}},
}
WINDOW_POLICY: Final = policy(windows=[{"zone": "UTC", "opens": "18:00", "closes": "05:00", "back_by": "07:00"}])
WATCH: Final = ("rotate", "watch", "--policy", "{policy}")


def _idle_host() -> dict[str, Any]:
    """Two hosts; on one of them nothing runs."""
    return scenario([desktop(1, "esx-01"), ml_vm(1, "esx-02"), ml_vm(2, "esx-01")])


EMPTY_HOST: Final = ("--host", "esx-03", "--reboot", "rolling", "--yes")
DEFRAG: Final = ("defrag", "--yes")
ATTACH: Final = ("attach", "--vm", "ml-01", "--profile", "a40-8q", "--power", "on")


def _two_desktops() -> dict[str, Any]:
    """Two hosts with a desktop each, which one of them could have both of."""
    vms = [desktop(1, "esx-01", cpu_usage_mhz=900), desktop(2, "esx-02", cpu_usage_mhz=900)]
    return scenario(vms, options={"vgpu.hotmigrate.enabled": True})


JOBS_POLICY: Final = policy(ml={"jobs": {"vms": ["ml-*"], "mounts": ["/data"]}})
SUBMIT: Final = Act((
    "job", "submit", "--image", "quay.io/lab/train:2", "--profile", "a40-48c", "--duration", "3h", "--owner", "vision",
    "--policy", "{policy}", "--", "python", "train.py",
))  # fmt: skip
JOB_LIST: Final = ("job", "list", "--output", "json")
OBSERVE: Final = Act(("observe", "--once"))
OBSERVED: Final = ("observe", "status", "--output", "json")

POOL_FILE: Final = """\
version: 1
name: lab
network: VM Network
servers: [server-01]
keep: 1GiB
owner: attribute:gpuops.owner
quota: {memory: 40GiB}
"""
POOL: Final = (
    Act(("attach", "--vm", "server-01", "--device", "0000:af:00.0", "--power", "on")),
    Act(("pool", "create", "--file", "{folder}/pool.yaml")),
    Act(("pool", "lend", "--client", "client-01", "--gpu-memory", "8GiB", "--for", "23h")),
)
POOL_SHOW: Final = ("pool", "show", "--output", "json")


def _pool_office() -> dict[str, Any]:
    """The office, with a second GPU in each host that a pool lends."""
    server = ml_vm(1, "esx-01", name="server-01", folder="misc", devices=[])
    client = ml_vm(1, "esx-01", name="client-01", folder="misc", devices=[], attributes={"gpuops.owner": "vision"})
    vms = [*office()["vms"], server, client]
    return scenario(vms, hosts(gpus=[gpu(), gpu("0000:af:00.0", passthrough=True)]))


NIGHTS: Final = (
    night("night-begun", "after:begun::1", "nothing is taken yet"),
    night("night-original", "after:original::1", "a desktop's state is saved"),
    night("night-marker-intent", "after:intent:SetAttribute:1", "the first marker is about to be set"),
    night("night-marker-set", "before:settled:SetAttribute:1", "the first marker is set unnoticed"),
    resumed_night("night-suspend-intent", "after:intent:SuspendVm:1", "the first suspend was not sent"),
    resumed_night("night-suspend-sent", "before:submitted:SuspendVm:1", "the first suspend was sent, its task is lost"),
    resumed_night("night-suspend-task", "after:submitted:SuspendVm:2", "a suspend is under way"),
    resumed_night("night-suspend-done", "before:settled:SuspendVm:2", "a suspend has ended unnoticed"),
    night("night-suspended", "after:settled:SuspendVm:3", "all desktops of a host are suspended"),
    resumed_night("night-start-intent", "after:intent:PowerOnVm:1", "the first ML VM is about to be started"),
    night("night-start-done", "before:settled:PowerOnVm:1", "the first ML VM runs unnoticed"),
    night("night-all-but-end", "before:ended::1", "all is done but the end of the run"),
    night("night-whole", NEVER, "it is not killed"),
    day("day-begun", "after:begun::1", "a morning has just begun"),
    day("day-stop-intent", "after:intent:ShutDownGuest:1", "the first ML VM is about to be stopped", morning=(RESUME,)),
    day("day-stop-done", "before:settled:ShutDownGuest:1", "it has stopped unnoticed"),
    day("day-resume-task", "after:submitted:ResumeVm:1", "the first desktop comes back"),
    day("day-resume-done", "before:settled:ResumeVm:2", "the second is back unnoticed", morning=(RESUME,)),
    day("day-returned", "after:returned::1", "the journal says that a VM is back"),
    day("day-marker-intent", "after:intent:SetAttribute:2", "a marker is about to be cleared"),
    day("restore-one", "before:settled:ResumeVm:1", "one desktop is restored in an emergency",
        words=("rotate", "restore", "--vm", "vdi-01", "--vm", "ml-01", "--yes")),
    night("lost-whole", NEVER, "the journal of a whole night is lost", journal="lost"),
    night("lost-suspend-task", "after:submitted:SuspendVm:2", "and of one that is killed", journal="lost",
          vms_with_marker=["ml-01", "vdi-03"]),
    day("lost-day", "before:settled:ResumeVm:1", "and of a morning that is killed", journal="lost",
        vms_with_marker=["ml-01", "vdi-01"]),
    Story("lost-restored", "markers alone, under a lock VM", [INIT, Act(NIGHT, "before:ended::1")],
          (*LOOKS, FROM_MARKERS), journal="lost", policy=LOCK_POLICY),
    night("pg-whole", NEVER, "the journal is in PostgreSQL", journal="postgresql"),
    resumed_night("pg-suspend-task", "after:submitted:SuspendVm:2", "a suspend is under way", journal="postgresql"),
    day("pg-day", "before:settled:ResumeVm:1", "the first desktop is back unnoticed", journal="postgresql"),
    Story("pg-books", "all books in one PostgreSQL",
          [SUBMIT, OBSERVE, *POOL, Act(NIGHT, "after:submitted:SuspendVm:1")],
          (*LOOKS, JOB_LIST, POOL_SHOW, OBSERVED, DAY), journal="postgresql", scenario=_pool_office(),
          policy=JOBS_POLICY, files={"pool.yaml": POOL_FILE}, vms_on=["server-01"]),
    Story("books", "jobs, a lent GPU and measurements",
          [SUBMIT, OBSERVE, *POOL, Act(NIGHT, "before:settled:SuspendVm:1")],
          (*LOOKS, JOB_LIST, POOL_SHOW, OBSERVED, DAY), scenario=_pool_office(), policy=JOBS_POLICY,
          files={"pool.yaml": POOL_FILE}, vms_on=["server-01"]),
    night("moved", "before:settled:RelocateVm:1", "an ML VM has moved", scenario=_ml_vm_elsewhere(),
          policy=policy({"vm": "ml-01", "relocate": True})),
    night("kept-off-drs", "before:settled:SetVmDrs:1", "DRS is kept off an ML VM", prepare=_override,
          policy=DRS_POLICY),
    day("hook", "after:submitted:RunInGuest:1", "a program in a guest keeps its work", scenario=_office_with_hook(),
        policy=HOOK_POLICY),
    day("powered-off", "after:intent:PowerOffVm:1", "a guest did not shut down",
        scenario=office(guest="bare")),
    night("gate-closed", "before:settled:CloseGate:2", "a broker's gate is closed unnoticed", scenario=_broker_office(),
          policy=GATED_POLICY),
    day("gate-opened", "before:settled:OpenGate:1", "a gate is open again unnoticed", scenario=_broker_office(),
        policy=GATED_POLICY),
    Story("left-out", "a night is left out, the next is killed",
          [Act(("rotate", "skip-next", "--policy", "{policy}")), Act(NIGHT),
           Act(NIGHT, "after:settled:SuspendVm:1", 24 * HOUR_S)],
          (*LOOKS, DAY), policy=WINDOW_POLICY),
    Story("given-up", "a desktop is given up", [Act(NIGHT, "after:settled:SuspendVm:2"),
          Act(("rotate", "abandon", "--vm", "vdi-01", "--yes"), later_s=600.0)], (*LOOKS, DAY),
          vms_off=["vdi-01"], vms_with_marker=["vdi-01"]),
    Story("checkpoint", "two nights; the journal has a checkpoint",
          [Act(NIGHT, checkpoints=True), Act(DAY, later_s=10 * HOUR_S, checkpoints=True),
           Act(NIGHT, "after:submitted:SuspendVm:2", 14 * HOUR_S)], (*LOOKS, DAY)),
    Story("lock-vm", "a lease is held by a run that is dead", [INIT, Act(NIGHT, "after:submitted:SuspendVm:2")],
          (*LOOKS, DAY), policy=LOCK_POLICY),
    Story("watch", "a watch has started an ML VM", [Act(WATCH, "after:settled:PowerOnVm:1")], (*LOOKS, DAY),
          scenario=_idle_host(), policy=SPARE_POLICY),
)  # fmt: skip

CHANGES: Final = (
    change("change-begun", "after:begun::1", "no host is touched yet"),
    change("change-module-intent", "after:intent:ConfigureModule:1", "its module options are about to be set"),
    change("change-module-set", "before:settled:ConfigureModule:1", "they are set unnoticed"),
    change("change-move-task", "after:submitted:RelocateVm:1", "a desktop is on its way"),
    change("change-moved", "before:settled:RelocateVm:1", "a desktop has moved unnoticed", end=CHANGE_ABORT),
    change("change-shut-down", "before:settled:ShutDownGuest:1", "a desktop has shut down unnoticed"),
    change("change-enters", "after:submitted:EnterMaintenance:1", "the host enters maintenance mode"),
    change("change-in-maintenance", "before:settled:EnterMaintenance:1", "it is there unnoticed", end=CHANGE_ABORT),
    change("change-reboot-task", "after:submitted:RebootHost:1", "the host reboots"),
    change("change-rebooted", "before:settled:RebootHost:1", "it is back unnoticed"),
    change("change-leaves", "before:settled:LeaveMaintenance:1", "it has left maintenance mode unnoticed"),
    change("change-back", "before:settled:PowerOnVm:1", "a desktop is back unnoticed"),
    change("change-turn", "after:intent:EndTurn:1", "all is done for the host"),
    change("change-all-but-end", "before:ended::1", "all is done but the end of the run"),
    change("pg-change-move-task", "after:submitted:RelocateVm:1", "in PostgreSQL", journal="postgresql"),
    change("pg-change-rebooted", "before:settled:RebootHost:1", "in PostgreSQL", journal="postgresql",
           end=CHANGE_ABORT),
    change("lost-change", "after:settled:EnterMaintenance:1", "the journal is lost; no marker names the VM that is off",
           journal="lost", end=SCHEDULER, vms_off=["vdi-02"]),
    change("change-graphics", "before:settled:ConfigureGraphics:1", "a graphics type is set unnoticed",
           ("host", "mode", "set", "--default-type", "shared", *EMPTY_HOST)),
    change("change-passthrough", "before:settled:ConfigurePassthrough:1", "a GPU is for VMs whole unnoticed",
           ("host", "passthrough", "on", "--gpu", "0000:3b:00.0", *EMPTY_HOST)),
    change("change-modes", "before:settled:ConfigureModes:1", "the same by the call of vSphere 9.1",
           ("host", "passthrough", "on", "--gpu", "0000:3b:00.0", *EMPTY_HOST), scenario=fleet(api_version="9.1.0.0")),
    change("defrag", "after:submitted:RelocateVm:1", "a desktop is on its way to make room", DEFRAG,
           scenario=_two_desktops()),
    change("attach", "before:settled:ReconfigureVm:1", "a VM has its vGPU unnoticed", ATTACH, end=ATTACH,
           vms_on=["ml-01"]),
)  # fmt: skip

STORIES: Final = (*NIGHTS, *CHANGES)

"""The parts of a VM that change while it runs: `runtime`, `summary`, `guest`, files and snapshots."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from pyVmomi import vim

from gpuops.sim.render.config_target import guest_name
from gpuops.sim.render.defaults import default, filled
from gpuops.sim.render.devices import Identity, disk_file, identity
from gpuops.sim.render.vm_config import managed_by, version
from gpuops.sim.state.vm_state import Power, SnapshotState, VgpuBacking, VmState

OVERHEAD_BYTES = 110 << 20
"""Memory overhead of a small VM; only shown, never counted."""


def runtime(vm: VmState, *, now: datetime, connection: str, host_mhz: int) -> Any:
    """Return the RuntimeInfo; `host_mhz` is the speed of the host's CPUs."""
    is_on = vm.power is Power.ON
    return default(
        "VirtualMachineRuntimeInfo",
        host=vim.HostSystem(vm.host),
        connectionState=connection,
        powerState=vm.power.value,
        suspendTime=vm.suspend_time,
        suspendInterval=suspend_interval_s(vm, now),
        bootTime=vm.boot_time if is_on else None,
        question=question(vm),
        memoryOverhead=OVERHEAD_BYTES if is_on else None,
        maxCpuUsage=vm.cpus * host_mhz if is_on else None,
        maxMemoryUsage=vm.memory_mib if is_on else None,
        numMksConnections=vm.console_connections if is_on else 0,
        cleanPowerOff=None if is_on else vm.clean_power_off,
        minRequiredEVCModeKey="intel-cascadelake" if is_on else None,
        suspendedToMemory=False if vm.power is Power.SUSPENDED else None,
        iommuActive=False if is_on else None,
    )


def suspend_interval_s(vm: VmState, now: datetime) -> int | None:
    """Return the seconds since the VM was suspended; None if it was not since its last power-on."""
    if vm.suspend_time is None:
        return None
    return max(0, int((now - vm.suspend_time).total_seconds()))


def question(vm: VmState) -> Any:
    question = vm.question
    if question is None:
        return None
    choices = [vim.ElementDescription(key=key, label=label, summary=label) for key, label in question.choices]
    return vim.vm.QuestionInfo(
        id=question.id,
        text=question.text,
        choice=vim.option.ChoiceOption(valueIsReadonly=False, choiceInfo=choices, defaultIndex=question.default),
        message=[vim.vm.Message(id="msg.question", text=question.text)],
    )


def quick_stats(vm: VmState, now: datetime) -> Any:
    """Return the QuickStats: CPU in MHz, memory in MiB; both are 0 unless the VM runs."""
    is_on = vm.power is Power.ON
    usage_mhz = vm.cpu_usage_mhz if is_on else 0
    memory_mib = vm.guest_memory_mib if is_on else 0
    return default(
        "VirtualMachineQuickStats",
        overallCpuUsage=usage_mhz,
        overallCpuDemand=usage_mhz,
        guestMemoryUsage=memory_mib,
        hostMemoryUsage=(vm.reserved_mib or memory_mib) if is_on else 0,
        guestHeartbeatStatus="green" if vm.tools_run else "gray",
        distributedCpuEntitlement=usage_mhz,
        distributedMemoryEntitlement=memory_mib,
        privateMemory=memory_mib,
        consumedOverheadMemory=OVERHEAD_BYTES >> 20 if is_on else 0,
        uptimeSeconds=uptime_s(vm, now),
        activeMemory=memory_mib,
    )


def config_summary(vm: VmState) -> Any:
    return default(
        "VirtualMachineConfigSummary",
        name=vm.name,
        template=vm.is_template,
        vmPathName=f"{vm.home}.vmx",
        memorySizeMB=vm.memory_mib,
        cpuReservation=vm.cpu_reservation_mhz,
        memoryReservation=vm.reserved_mib,
        numCpu=vm.cpus,
        numEthernetCards=len(vm.network_cards),
        numVirtualDisks=len(vm.hardware.disks),
        uuid=vm.uuid,
        instanceUuid=vm.instance_uuid,
        guestId=vm.guest_id or vm.template.guest_id,
        guestFullName=guest_name(vm),
        annotation=vm.annotation,
        managedBy=managed_by(vm),
        numVmiopBackings=sum(isinstance(device.backing, VgpuBacking) for device in vm.devices),
        hwVersion=version(vm),
    )


def summary(
    vm: VmState, running: Any, entity: Any, custom: list[Any], now: datetime, vm_identity: Identity | None = None
) -> Any:
    """`summary` of the VM `entity`, with its rendered `runtime` and its custom values."""
    return vim.vm.Summary(
        vm=entity,
        runtime=running,
        guest=guest_summary(vm, vm_identity),
        config=config_summary(vm),
        storage=storage_summary(vm),
        quickStats=quick_stats(vm, now),
        overallStatus="green",
        customValue=custom,
    )


def uptime_s(vm: VmState, now: datetime) -> int:
    """Return the seconds since the guest booted; 0 if the VM does not run."""
    return int((now - vm.boot_time).total_seconds()) if vm.power is Power.ON and vm.boot_time else 0


def tools_running(vm: VmState) -> str:
    """guest.toolsRunningStatus."""
    return "guestToolsRunning" if vm.tools_run else "guestToolsNotRunning"


def guest(vm: VmState, vm_identity: Identity | None = None) -> Any:
    """Return the GuestInfo; most fields are only set while VMware Tools run."""
    vm_identity = vm_identity or identity(vm)
    running = tools_running(vm) == "guestToolsRunning"
    return filled(
        vim.vm.GuestInfo,
        toolsStatus="toolsOk" if running else "toolsNotRunning" if vm.template.tools else "toolsNotInstalled",
        toolsVersionStatus="guestToolsUnmanaged" if vm.template.tools else "guestToolsNotInstalled",
        toolsVersionStatus2="guestToolsUnmanaged" if vm.template.tools else "guestToolsNotInstalled",
        toolsRunningStatus=tools_running(vm),
        toolsVersion="12416" if vm.template.tools else "0",
        guestId=(vm.guest_id or vm.template.guest_id) if running else None,
        guestFamily=("linuxGuest" if vm.template.linux else "windowsGuest") if running else None,
        guestFullName=vm.template.guest_name if running else None,
        hostName=vm.name if running else None,
        ipAddress=vm_identity.address if running else None,
        net=_net(vm, vm_identity) if running else [],
        ipStack=[_ip_stack()] if running else [],
        guestState="running" if running else "notRunning",
        guestOperationsReady=running,
        interactiveGuestOperationsReady=running,
        guestStateChangeSupported=running,
    )


def _ip_config(address: str) -> Any:
    kind = vim.net.IpConfigInfo
    return kind(ipAddress=[kind.IpAddress(ipAddress=address, prefixLength=15, state="preferred")])


def _ip_stack() -> Any:
    """Return a stack with a default route by the first address of the guests' range.

    Terraform waits until the guest has an address that a default route serves.
    """
    route = vim.net.IpRouteConfigInfo
    gateway = route.Gateway(ipAddress="198.18.0.1", device="0")
    routes = [route.IpRoute(network="0.0.0.0", prefixLength=0, gateway=gateway)]  # noqa: S104 - a route
    return vim.vm.GuestInfo.StackInfo(ipRouteConfig=route(ipRoute=routes))


def _net(vm: VmState, vm_identity: Identity) -> list[Any]:
    """GuestNicInfo of each network card; the first one has the VM's IP address."""
    return [
        vim.vm.GuestInfo.NicInfo(
            network=card.network_name,
            macAddress=card.mac or f"00:50:56:{vm_identity.mac}",
            ipAddress=[] if number else [vm_identity.address],
            ipConfig=None if number else _ip_config(vm_identity.address),
            connected=card.starts_connected,
            deviceConfigId=card.key,
        )
        for number, card in enumerate(vm.hardware.cards)
    ]


ALSO_IN_SUMMARY: Final = (
    "guestId", "guestFullName", "toolsStatus", "toolsVersionStatus", "toolsVersionStatus2", "toolsRunningStatus",
    "hostName", "ipAddress",
)  # fmt: skip
"""The fields of `guest` that `summary.guest` repeats."""


def guest_summary(vm: VmState, vm_identity: Identity | None = None) -> Any:
    guest_info = guest(vm, vm_identity)
    fields = {name: getattr(guest_info, name) for name in ALSO_IN_SUMMARY}
    return filled(vim.vm.Summary.GuestSummary, **fields, hwVersion=version(vm))


def storage_summary(vm: VmState) -> Any:
    # half of each disk is in use (`<< 29` is half a GiB in bytes)
    committed = (vm.hardware.gib << 29) + (vm.suspend_file_mib << 20)
    return filled(
        vim.vm.Summary.StorageSummary,
        committed=committed,
        uncommitted=vm.hardware.gib << 29,
        unshared=committed,
        timestamp=vm.changed_at or vm.created_at,
    )


def storage(vm: VmState) -> Any:
    summary = storage_summary(vm)
    usage = filled(
        vim.vm.StorageInfo.UsageOnDatastore,
        datastore=vim.Datastore(vm.datastore),
        committed=summary.committed,
        uncommitted=summary.uncommitted,
        unshared=summary.unshared,
    )
    return filled(vim.vm.StorageInfo, perDatastoreUsage=[usage], timestamp=summary.timestamp)


def layout(vm: VmState) -> Any:
    home = vm.home
    return vim.vm.FileLayout(
        configFile=[f"{home.rpartition('/')[2]}.nvram"],
        logFile=["vmware.log"],
        disk=[
            vim.vm.FileLayout.DiskLayout(key=disk.key, diskFile=[disk_file(disk, home)]) for disk in vm.hardware.disks
        ],
    )


def layout_ex(vm: VmState) -> Any:
    """layoutEx: the VM's files; the checkpoint of a suspended VM has the types `suspend` and `suspendMemory`."""
    home = vm.home
    # (type, name, size in bytes)
    file_rows = [("config", f"{home}.vmx", 4096), ("nvram", f"{home}.nvram", 270840)]
    for disk in vm.hardware.disks:
        file = disk_file(disk, home)
        file_rows += [
            ("diskDescriptor", file, 512),
            ("diskExtent", f"{file.removesuffix('.vmdk')}-flat.vmdk", disk.kib << 9),
        ]
    if vm.suspend_file_mib:
        file_rows += [
            ("suspend", f"{home}.vmss", 4 << 20),
            ("suspendMemory", f"{home}.vmem", vm.suspend_file_mib << 20),
        ]
    files = [
        vim.vm.FileLayoutEx.FileInfo(key=key, name=name, type=type_, size=size, uniqueSize=size, accessible=True)
        for key, (type_, name, size) in enumerate(file_rows)
    ]
    return vim.vm.FileLayoutEx(file=files, timestamp=vm.changed_at or vm.created_at)


def snapshot_tree(vm: VmState, moid: str) -> Any:
    """The `snapshot` property: the tree, and the current one. None without snapshots."""
    if not vm.snapshots:
        return None
    return vim.vm.SnapshotInfo(
        currentSnapshot=vim.vm.Snapshot(vm.current_snapshot) if vm.current_snapshot else None,
        rootSnapshotList=_snapshot_trees(vm, moid, None),
    )


def _snapshot_trees(vm: VmState, moid: str, parent: str | None) -> list[Any]:
    """Return the trees of the snapshots taken after `parent`; of the first snapshots if it is None."""
    return [_snapshot_tree(vm, moid, snapshot) for snapshot in vm.snapshots if snapshot.parent == parent]


def _snapshot_tree(vm: VmState, moid: str, snapshot: SnapshotState) -> Any:
    """Return the VirtualMachineSnapshotTree of a snapshot, with all snapshots below it. `moid` is that of the VM."""
    return default(
        "VirtualMachineSnapshotTree",
        snapshot=vim.vm.Snapshot(snapshot.moid),
        vm=vim.VirtualMachine(moid),
        name=snapshot.name,
        description=snapshot.description,
        id=snapshot.id,
        createTime=snapshot.created_at,
        state=snapshot.power.value,
        childSnapshotList=_snapshot_trees(vm, moid, snapshot.moid),
    )

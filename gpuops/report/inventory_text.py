"""An inventory as text for people: a tree of hosts, NUMA nodes and GPUs, or a table of VMs."""

from __future__ import annotations

import re

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from gpuops.advise.capacity import Slots
from gpuops.model.host import Host
from gpuops.model.profile_name import parse
from gpuops.model.vm import PowerState, VgpuDevice, Vm
from gpuops.report.changes import describe
from gpuops.report.fleet import Fleet, Free, GpuView, HostView, NodeView
from gpuops.report.units import count, size
from gpuops.report.visible import visible

_NAME_OF_SERIES = re.compile(r".*\d[abcq]")
_POWER = {PowerState.ON: "on", PowerState.OFF: "off", PowerState.SUSPENDED: "suspended", None: "power unknown"}


def fleet_text(fleet: Fleet) -> RenderableType:
    """The heading, a tree per host with GPUs, and a line for the hosts without."""
    trees = [_host(view) for view in fleet.hosts]
    rest = [Text(f"{count(fleet.hosts_without_gpus, 'host')} without GPUs", "dim")] if fleet.hosts_without_gpus else []
    return Group(Text(heading(fleet), "bold"), *trees, *rest)


def heading(fleet: Fleet) -> str:
    """`vCenter 8.0.3.0: 2 hosts with 8 GPUs, 14 VMs, read 2026-11-21 02:49 UTC`."""
    gpus = sum(len(view.gpus) for view in fleet.hosts)
    taken_at = f"{fleet.inventory.taken_at:%Y-%m-%d %H:%M %Z}"
    return (
        f"vCenter {visible(fleet.inventory.api_version)}: {count(len(fleet.hosts), 'host')} with {count(gpus, 'GPU')}, "
        f"{count(len(fleet.inventory.vms), 'VM')}, read {taken_at}"
    )


def vms_text(fleet: Fleet) -> RenderableType:
    """A table: each VM, its power, host, size and GPU devices."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("VM", "power", "host", "vCPUs", "memory", "GPU devices", "path"):
        table.add_column(column, overflow="fold")
    for vm in fleet.vms:
        host = fleet.inventory.host_of(vm)
        table.add_row(
            _plain(vm.name),
            _POWER[vm.power],
            _plain(host.name if host else "unknown"),
            "unknown" if vm.vcpus is None else str(vm.vcpus),
            size(vm.memory_mib),
            _plain(_devices(vm)),
            _plain(vm.path),
        )
    return table


def _host(view: HostView) -> Tree:
    tree = Tree(_host_label(view.host, view.cluster), guide_style="dim")
    for node in view.nodes:
        _node(tree.add(_node_label(node)), node)
    if together := _on_several_gpus(view):
        tree.add(Text("free on this host: ").append(_free(together), "green"))
    for vm in view.waiting:
        tree.add(Text(f"{visible(vm.name)}  {_POWER[vm.power]}  ").append(visible(_devices(vm)), "dim"))
    return tree


def _host_label(host: Host, cluster: str | None) -> Text:
    label = Text(visible(host.name), "bold")
    facts = [f"cluster {visible(cluster)}" if cluster else "standalone"]
    facts += [f"ESXi {visible(host.version)}"] if host.version else []
    facts += [f"{host.cpu_threads} threads"] if host.cpu_threads is not None else []
    facts += [f"{size(host.memory_mib)} memory"] if host.memory_mib is not None else []
    label.append(f"  {', '.join(facts)}", "dim")
    if host.connected is False:
        label.append("  not connected", "bold red")
    if host.in_maintenance:
        label.append("  in maintenance", "yellow")
    if host.unreadable:
        label.append(f"  cannot read {', '.join(map(visible, host.unreadable))}", "yellow")
    return label


def _node_label(view: NodeView) -> Text:
    if view.node is None:
        return Text("NUMA node unknown", "yellow")
    facts = f"  {view.node.logical_cpus} threads, {size(view.node.memory_mib)}"
    return Text(f"NUMA node {view.node.id}").append(facts, "dim")


def _node(tree: Tree, node: NodeView) -> None:
    for view in node.gpus:
        branch = tree.add(_gpu_label(view))
        if view.free and not view.whole:
            branch.add(Text("free: ").append(_free(view.free), "green"))
        for vm in view.holders or ():
            branch.add(Text(f"{visible(vm.name)}  {_POWER[vm.power]}  ").append(visible(_devices(vm)), "dim"))
        if view.holders is None:
            branch.add(Text("holders unknown", "yellow"))


def _gpu_label(view: GpuView) -> Text:
    gpu = view.gpu
    label = Text(f"{gpu.address}  {visible(gpu.name)}  ").append(
        f"{size(gpu.memory_mib)}  " if gpu.memory_mib else "", "dim"
    )
    label.append(view.mode)
    if view.reboot_pending:
        label.append("  host reboot pending", "bold yellow")
    return label


def _on_several_gpus(view: HostView) -> Free:
    """The host's figures that say more than one of its GPUs does."""
    return {
        name: slots
        for name, slots in view.free.items()
        if sum(name in gpu.free and gpu.free[name].possible for gpu in view.gpus) > 1
    }


def _free(free: Free) -> str:
    """`7 grid_a100-1-5c, 4 nvidia_a40-8a|c|q`: profiles that differ in the series alone share a figure.

    Profiles without room are left out, unless none has any.
    """
    series: dict[tuple[str, str], list[str]] = {}
    for name in sorted((name for name, slots in free.items() if slots.possible), key=by_size):
        stem = without_series(name)
        series.setdefault((figure(free[name]), stem), []).append(name[len(stem) :])
    some = [f"{figure} {visible(stem)}{'|'.join(letters)}" for (figure, stem), letters in series.items()]
    return ", ".join(some) or "none"


def without_series(name: str) -> str:
    """The name without the letter of its series, where it ends with one: `nvidia_a40-8`."""
    return name[:-1] if _NAME_OF_SERIES.fullmatch(name) else name


def by_size(name: str) -> tuple[str, int, int, str]:
    """The key that sorts profiles of one GPU model by frame buffer."""
    parts = parse(name)
    return (parts.board, parts.size_gb, parts.slices or 0, name) if parts else ("", 0, 0, name)


def figure(slots: Slots) -> str:
    """`3`, `3 to 4`, `at least 3`, `?`."""
    if slots.at_most is None:
        return f"at least {slots.at_least}" if slots.at_least else "?"
    return str(slots.at_most) if slots.exact else f"{slots.at_least} to {slots.at_most}"


def _devices(vm: Vm) -> str:
    """`2 x vGPU grid_a40-8q, DirectPath 0000:3b:00.0`."""
    if vm.devices is None:
        return "not read"
    texts: dict[str, int] = {}
    for device in vm.devices:
        text = f"vGPU {device.profile}" if isinstance(device, VgpuDevice) else describe(device)
        texts[text] = texts.get(text, 0) + 1
    return ", ".join(text if number == 1 else f"{number} x {text}" for text, number in texts.items()) or "none"


def _plain(text: str) -> Text:
    return Text(visible(text))

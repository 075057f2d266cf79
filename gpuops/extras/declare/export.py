"""Writes a site file of the present state, as short as possible: a general entry for each GPU model, then exceptions.

Names become patterns: prefixes and suffixes that select no other name, those that select the most names first.
"""

from __future__ import annotations

import glob
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from gpuops.extras.declare.entries import (
    GPU_KEYS,
    DeviceWish,
    HostEntry,
    MarkWish,
    SiteFile,
    VmEntry,
    entry_keys,
)
from gpuops.extras.declare.wishes import gpu_state
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import AssignmentPolicy, PciAddress, PhysicalGpu
from gpuops.model.devices.scheduler import VgpuScheduler
from gpuops.model.nights.night_record import parse_marker
from gpuops.model.vcenter.host import Host
from gpuops.model.vcenter.host_settings import HostSettings, SharedType, SizeMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import DirectPathDevice, DynamicDevice, VgpuDevice, Vm, VmDrs, is_gpu
from gpuops.plan.core.passthru_devices import gpu_names, pci_types
from gpuops.plan.core.scope import gpu_hosts
from gpuops.plan.hosts.scheduler.scheduler_change import for_gpu
from gpuops.plan.hosts.scheduler.scheduler_state import scheduler_of

_MARK_PREFIX: Final = "gpuops."
"""Only attributes with this prefix are exported: others, such as the time of the last backup, belong to other tools."""
_WIDTH: Final = 116
"""The longest line of YAML, without its indentation."""
_LONGEST_TEXT: Final = 200
"""The most characters of a text in a site file."""

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Export:
    """A site file of the present state, and the settings that a site file cannot describe."""

    file: SiteFile
    left_out: tuple[str, ...] = ()


def export_site(inventory: Inventory, catalog: Catalog) -> Export:
    """Return the site file of this snapshot, which must contain the settings of all hosts with GPUs."""
    hosts = [host for host in gpu_hosts(inventory) if _is_readable(host)]
    left_out = [f"{host.name}: its settings cannot be read" for host in gpu_hosts(inventory) if not _is_readable(host)]
    entries = (*_host_keys(hosts, inventory), *_gpu_entries(hosts, inventory, catalog))
    vms = (*_device_entries(inventory, left_out), *_drs_entries(inventory), *_mark_entries(inventory))
    return Export(SiteFile(1, entries, vms), tuple(left_out))


def yaml_text(export: Export, heading: str) -> str:
    """Return the file as YAML, an entry in each line, with comments: `heading`, and what is left out."""
    # without characters that end a line and with it the comment: a name may contain one
    comments = ("".join(filter(str.isprintable, line)) for line in (heading, *export.left_out))
    lines = [f"# {line}" for line in comments] + ["version: 1"]
    for key, entries in (("hosts", export.file.hosts), ("vms", export.file.vms)):
        if entries:
            lines.append(f"{key}:")
        for entry in entries:
            flow = _entry_yaml(entry, allow_unicode=True)
            if not flow.replace("\n", "").isprintable():  # for example U+0085, which ends a line in YAML
                flow = _entry_yaml(entry, allow_unicode=False)
            lines.append("  - " + textwrap.indent(flow.rstrip("\n"), "    ").lstrip())
    return "\n".join(lines) + "\n"


def _entry_yaml(entry: HostEntry | VmEntry, *, allow_unicode: bool) -> str:
    return yaml.safe_dump(
        entry_keys(entry), default_flow_style=True, sort_keys=False, allow_unicode=allow_unicode, width=_WIDTH
    )


def patterns_for(names: Collection[str], all_names: Iterable[str]) -> tuple[str, ...]:
    """Return few patterns that fit these names and no other name of `all_names`.

    >>> patterns_for(["vdi-01", "vdi-02", "ml-1"], ["vdi-01", "vdi-02", "ml-1", "ml-2"])
    ('vdi-*', 'ml-1')
    """
    selected_names = set(names)
    fitting = Counter(pattern for name in set(all_names) for pattern in _patterns_of(name))
    selected = Counter(pattern for name in selected_names for pattern in _patterns_of(name))
    # patterns that select several of the names, and no other name
    useful = [pattern for pattern, number in selected.items() if number > 1 and number == fitting[pattern]]
    members: dict[str, set[str]] = {pattern: set() for pattern in useful}
    for name in selected_names:
        for pattern in _patterns_of(name):
            if pattern in members:
                members[pattern].add(name)
    uncovered, chosen = set(selected_names), []
    # the pattern that selects the most names first; of equal ones the longest, which fits the fewest later names
    for pattern in sorted(useful, key=lambda pattern: (-selected[pattern], -len(pattern), pattern)):
        if len(members[pattern] & uncovered) > 1:
            chosen.append(pattern)
            uncovered -= members[pattern]
    return (*chosen, *(glob.escape(name) for name in sorted(uncovered)))


def _patterns_of(name: str) -> Iterator[str]:
    """Yield all patterns of one asterisk that fit the name: `*`, its prefixes and its suffixes."""
    yield "*"
    for length in range(1, len(name) + 1):
        yield glob.escape(name[:length]) + "*"
        yield "*" + glob.escape(name[-length:])


# hosts


def _is_readable(host: Host) -> bool:
    settings = host.settings or HostSettings()
    return settings.graphics is not None and settings.passthrough is not None


def _host_keys(hosts: Sequence[Host], inventory: Inventory) -> Iterator[HostEntry]:
    """Yield entries for the graphics defaults of hosts: one for all hosts, then one for each group that differs."""
    by_settings: dict[tuple[str, str], list[str]] = {}  # by default type and assignment policy: names of hosts
    for host in hosts:
        graphics = (host.settings or HostSettings()).graphics
        assert graphics is not None, "_is_readable"
        by_settings.setdefault((graphics.default_type, graphics.assignment_policy), []).append(host.name)
    general = _general_hosts(hosts, inventory)
    for (default_type, assignment), names in _largest_first(by_settings):
        yield HostEntry(
            host=general or _host_patterns(names, inventory),
            # a site file cannot set another type
            default_graphics=SharedType(default_type) if default_type in list(SharedType) else None,
            assignment=AssignmentPolicy(assignment),
        )
        general = ()  # only the first entry is general


def _gpu_entries(hosts: Sequence[Host], inventory: Inventory, catalog: Catalog) -> Iterator[HostEntry]:
    """Yield a general entry for each GPU model, and then what differs from it."""
    gpus = {
        (host.name, gpu.address): (gpu.name, _settings_of(gpu, host, catalog)) for host in hosts for gpu in host.gpus
    }
    general = {model: _common_settings(gpus.values(), model) for model in sorted({model for model, _ in gpus.values()})}
    for model, settings in general.items():
        if settings:
            yield _host_entry(settings, host=_general_hosts(hosts, inventory), model=glob.escape(model))
    # by model, GPUs and deviating settings: the names of the hosts
    exceptions: dict[tuple[str, tuple[PciAddress, ...], tuple[tuple[str, Any], ...]], list[str]] = {}
    for host in hosts:
        by_settings: dict[tuple[str, tuple[tuple[str, Any], ...]], list[PciAddress]] = {}
        for gpu in host.gpus:
            model, settings = gpus[host.name, gpu.address]
            # a GPU without a label needs no exception, unless the general entry has a label
            common = {"label": "", **general[model]}
            deviating_settings = {key: setting for key, setting in settings.items() if common.get(key) != setting}
            if deviating_settings:
                by_settings.setdefault((model, tuple(deviating_settings.items())), []).append(gpu.address)
        for (model, deviation), addresses in by_settings.items():
            exceptions.setdefault((model, tuple(addresses), deviation), []).append(host.name)
    for (_, gpus_of_hosts, deviation), names in exceptions.items():
        yield _host_entry(dict(deviation), host=_host_patterns(names, inventory), gpu=gpus_of_hosts)


def _settings_of(gpu: PhysicalGpu, host: Host, catalog: Catalog) -> dict[str, Any]:
    """Return the configured settings of the GPU by key of the file, without unreadable and inapplicable ones."""
    states = {key: gpu_state(key, gpu, host, catalog)[0] for key in GPU_KEYS}
    settings: dict[str, Any] = {"passthrough": states["passthrough"] == "on"} if states["passthrough"] else {}
    settings |= {"label": states["label"]} if states["label"] is not None else {}
    if gpu.passed_through:  # it has no graphics type, vGPU mode, MIG mode and scheduler
        return settings
    if states["graphics"] in list(SharedType):
        settings["graphics"] = SharedType(states["graphics"])
    board = catalog.board_by_pci(gpu.vendor_id, gpu.device_id, gpu.subsystem_id)
    if states["mig"] is not None and (board is None or board.mig is not None):
        settings["mig"] = states["mig"] == "on"
    if settings.get("mig"):  # in MIG mode a GPU has no vGPU mode and scheduler
        return settings
    if states["vgpu_mode"] in list(SizeMode):
        settings["vgpu_mode"] = SizeMode(states["vgpu_mode"])
    schedulers = {scheduler.gpu.address: scheduler.configured for scheduler in scheduler_of(host, catalog).gpus}
    configured = schedulers.get(gpu.address)
    if isinstance(configured, VgpuScheduler) and configured.weighted:
        request = for_gpu(configured, str(gpu.address), host.name)
        if request.requested_scheduler() == configured:
            settings["scheduler"] = request.scheduler, request.time_slice, request.frequency, request.averaging
    return settings


def _common_settings(gpus: Iterable[tuple[str, Settings]], model: str) -> Settings:
    """Return the most common setting of each key; a label that most GPUs do not have is left to the exceptions."""
    counts: dict[str, Counter[Any]] = {}
    for gpu_model, settings in gpus:
        if gpu_model == model:
            for key, setting in settings.items():
                counts.setdefault(key, Counter())[setting] += 1
    common = {key: count.most_common(1)[0][0] for key, count in counts.items()}
    return {key: common[key] for key in sorted(common) if common[key] != ""}


def _host_entry(settings: Settings, **selection: Any) -> HostEntry:
    """Return the entry with these settings; that of `scheduler` is a tuple of the four scheduler keys."""
    keys = dict(settings)
    if "scheduler" in keys:
        keys["scheduler"], keys["time_slice"], keys["frequency"], keys["averaging"] = keys["scheduler"]
    return HostEntry(**selection, **keys)


def _general_hosts(hosts: Sequence[Host], inventory: Inventory) -> tuple[str, ...]:
    """Return `*` if all hosts with GPUs are exported, else patterns for those that are."""
    if len(hosts) == len(gpu_hosts(inventory)):
        return ("*",)
    return _host_patterns([host.name for host in hosts], inventory)


def _host_patterns(names: Collection[str], inventory: Inventory) -> tuple[str, ...]:
    return patterns_for(names, [host.name for host in gpu_hosts(inventory)])


def _largest_first(groups: Mapping[Any, list[str]]) -> list[tuple[Any, list[str]]]:
    return sorted(groups.items(), key=lambda group: (-len(group[1]), str(group[0])))


# VMs


def _device_entries(inventory: Inventory, left_out: list[str]) -> Iterator[VmEntry]:
    """Yield an entry for each set of GPU devices; add VMs whose devices a file cannot describe to `left_out`."""
    by_devices: dict[DeviceWish, list[Vm]] = {}
    for vm in _exported_vms(inventory):
        wish = _device_wish(vm)
        if wish is not None:
            by_devices.setdefault(wish, []).append(vm)
        elif any(map(is_gpu, vm.devices or ())):
            left_out.append(f"{vm.name}: a site file cannot describe its devices ({gpu_names(vm)})")
    for wish, vms in by_devices.items():
        yield VmEntry(vm=_vm_patterns(vms, inventory), devices=wish)


def _device_wish(vm: Vm) -> DeviceWish | None:
    """Return the GPU devices of the VM; None if it has none, devices of several kinds, or a device group."""
    gpus = [device for device in vm.devices or () if is_gpu(device)]
    if not gpus or any(getattr(device, "group", None) is not None for device in gpus):
        return None
    count = len(gpus) if len(gpus) > 1 else None
    match gpus[0]:
        case VgpuDevice(profile=profile):
            wish = DeviceWish(profile=profile, count=count)
            is_alike = all(isinstance(device, VgpuDevice) and device.profile == profile for device in gpus)
        case DynamicDevice(allowed=allowed, label=label):
            wish = DeviceWish(
                label=label, device_type=tuple(pci_types([pair]) for pair in sorted(allowed)), count=count
            )
            is_alike = all(
                isinstance(device, DynamicDevice) and (device.allowed, device.label) == (allowed, label)
                for device in gpus
            )
        case _:
            devices = [device for device in gpus if isinstance(device, DirectPathDevice)]
            wish = DeviceWish(device=tuple(sorted(device.address for device in devices)))
            is_alike = len(devices) == len(gpus)
    return wish if is_alike else None


def _drs_entries(inventory: Inventory) -> Iterator[VmEntry]:
    by_override: dict[VmDrs, list[Vm]] = {}
    for vm in _exported_vms(inventory):
        drs = inventory.drs_of(vm)
        if drs is not None and drs is not VmDrs.CLUSTER:
            by_override.setdefault(drs, []).append(vm)
    for drs, vms in by_override.items():
        yield VmEntry(vm=_vm_patterns(vms, inventory), drs=drs)


def _mark_entries(inventory: Inventory) -> Iterator[VmEntry]:
    """Yield entries for the custom attributes of gpuops, except markers of nights."""
    by_mark: dict[MarkWish, list[Vm]] = {}
    for vm in _exported_vms(inventory):
        for name, value in vm.attributes.items():
            if name.startswith(_MARK_PREFIX) and 0 < len(value) <= _LONGEST_TEXT and parse_marker(value) is None:
                by_mark.setdefault(MarkWish(name, value), []).append(vm)
    for mark, vms in by_mark.items():
        yield VmEntry(vm=_vm_patterns(vms, inventory), marks=(mark,))


def _exported_vms(inventory: Inventory) -> list[Vm]:
    return sorted((vm for vm in inventory.vms.values() if not vm.template), key=lambda vm: (vm.name, vm.ref))


def _vm_patterns(vms: Sequence[Vm], inventory: Inventory) -> tuple[str, ...]:
    """Return patterns for these VMs; for a VM with an ambiguous name or a slash in its name, its uuid."""
    all_vms = _exported_vms(inventory)
    name_counts = Counter(vm.name for vm in all_vms)
    selected_counts = Counter(vm.name for vm in vms)
    # names that a pattern can select: no slash, not too long, and no VM outside of `vms` has the name
    selectable_names = {
        vm.name
        for vm in vms
        if "/" not in vm.name
        and len(glob.escape(vm.name)) < _LONGEST_TEXT
        and selected_counts[vm.name] == name_counts[vm.name]
    }
    ambiguous_vms = [vm for vm in vms if vm.name not in selectable_names]
    ids = (f"uuid:{vm.instance_uuid}" if vm.instance_uuid else f"moid:{vm.ref}" for vm in ambiguous_vms)
    return (*patterns_for(selectable_names, [vm.name for vm in all_vms]), *ids)

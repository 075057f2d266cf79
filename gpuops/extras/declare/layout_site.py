"""Makes a site file from a layout in the form of NVIDIA's mig-parted or vgpu-device-manager.

Only the modes of GPUs are set as the layout needs them. ESXi itself makes GPU instances and vGPUs when VMs start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from gpuops.advise.gpu_profiles import LayoutVerdict, judge_part, part_for
from gpuops.config.layout_file import find_layout, parse_layouts
from gpuops.errors import UsageError
from gpuops.execute.site import Site, catalog_of
from gpuops.extras.declare.entries import HostEntry, SiteFile
from gpuops.extras.declare.site_file import load_site
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.catalog import Catalog
from gpuops.model.devices.gpu import PciAddress, PhysicalGpu, VgpuMode
from gpuops.model.devices.mig import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.vcenter.host_settings import SharedType, SizeMode
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.capacity.gpu_models import board_of
from gpuops.plan.core.command_line import Names, Option
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.core.scope import Scope

_LAYOUT_HINT = "choose other hosts by --host, or another layout; gpuops help profiles explains layouts"


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """The options that choose a layout of a file in NVIDIA's form, and the hosts that get it."""

    layout: Annotated[str | None, Option("Only the layout of this name.", "NAME")] = None
    host: Annotated[
        tuple[str, ...], Option("A host that gets the layout, or a pattern. May be repeated.", "HOST", Names.HOSTS)
    ] = ()
    mode_only: Annotated[
        bool, Option("Set only the modes of GPUs that the layout needs; ESXi makes GPU instances.")
    ] = False


def load_wishes(path: Path, options: LayoutOptions) -> Callable[[Site], SiteFile]:
    """Return a function that gets a vCenter and returns its site file: that of `path`, or one made from its layout.

    Raises PolicyError for the file, and UsageError for options that do not go with it.
    """
    layout_file = next(filter(_has_layouts, sorted(path.glob("*.yaml"))), None) if path.is_dir() else None
    if layout_file is not None:
        raise UsageError(f"{layout_file} is a file of layouts, not a site file", hint=f"set --file {layout_file}")
    if path.is_dir() or not _has_layouts(path):
        if options != LayoutOptions():
            raise UsageError(
                f"--layout, --host and --mode-only need a file with {' or '.join(LayoutForm)}; {path} has neither",
                hint="remove these options: a site file selects its hosts itself",
            )
        site_file = load_site(path)
        return lambda site: site_file
    layout = _chosen_layout(path, options)

    def make_site_file(site: Site) -> SiteFile:
        inventory = site.vcenter.inventory()
        return site_of_layout(layout, options.host, inventory, catalog_of(inventory))

    return make_site_file


def _has_layouts(path: Path) -> bool:
    content = parse_yaml(read_text(path), str(path))
    return isinstance(content, dict) and any(form in content for form in LayoutForm)


def _chosen_layout(path: Path, options: LayoutOptions) -> GpuLayout:
    """Return the layout that the options choose. Raises PolicyError, UsageError."""
    layouts = parse_layouts(read_text(path), str(path))
    if options.layout is None and len(layouts) > 1:
        names = ", ".join(layout.name for layout in layouts[:10])
        raise UsageError(f"{path} has {len(layouts)} layouts: {names}", hint="choose one of them with --layout NAME")
    layout = layouts[0] if options.layout is None else find_layout(options.layout, layouts, path)
    if not options.host:
        raise UsageError(f"{path} names no hosts", hint="add --host NAME, or --host '*' for all hosts with GPUs")
    counted = next((name for part in layout.parts for name, _ in part.counts), None)
    if counted is not None and not options.mode_only:
        parts = "GPU instances" if layout.form is LayoutForm.GPU_INSTANCES else "vGPUs"
        raise UsageError(
            f"{path}: layout {layout.name!r} has {parts} ({counted}), which ESXi makes itself when VMs start",
            hint="add --mode-only to set only the modes of GPUs that they need",
        )
    return layout


def site_of_layout(layout: GpuLayout, hosts: tuple[str, ...], inventory: Inventory, catalog: Catalog) -> SiteFile:
    """Return the site file that sets the mode of each GPU of these hosts as the layout needs it.

    GPUs in DirectPath I/O, and GPUs that the layout does not name, are left out.
    """
    misfits: list[Rejection] = []
    # by GPU address and settings: refs of hosts (as keys), so that hosts with equal GPUs get one entry
    refs_by_wish: dict[tuple[PciAddress, tuple[tuple[str, Any], ...]], dict[str, None]] = {}
    has_matching_gpu = False
    for scope in (Scope(host=name) for name in hosts):
        if not scope.hosts(inventory):
            misfits.append(scope.nowhere("hosts", inventory))
        for host in scope.hosts(inventory):
            for gpu in host.gpus:
                part = None if gpu.passed_through else part_for(layout, gpu, host)
                if part is None:
                    continue
                has_matching_gpu = True
                settings = _settings(part, layout.form, gpu, catalog)
                if isinstance(settings, str):
                    misfits.append(Rejection(f"{host.name} {gpu.address}", settings, hint=_LAYOUT_HINT))
                elif settings:
                    refs_by_wish.setdefault((gpu.address, tuple(settings.items())), {})[host.ref] = None
    if not has_matching_gpu and not misfits:
        misfits.append(Rejection("hosts", f"have no GPU for which layout {layout.name!r} is made", hint=_LAYOUT_HINT))
    entries = (
        HostEntry(host=tuple(refs), gpu=(address,), **dict(wish)) for (address, wish), refs in refs_by_wish.items()
    )
    return SiteFile(1, tuple(entries), misfits=tuple(misfits))


def _settings(part: LayoutPart, form: LayoutForm, gpu: PhysicalGpu, catalog: Catalog) -> dict[str, Any] | str:
    """Return the keys of an entry that bring the GPU into the mode of the part, or why it cannot have the part."""
    board = board_of(gpu, catalog)
    if board is None:
        return f"{gpu.name} is not in the catalogue"
    if form is LayoutForm.VGPUS and not part.counts:
        return "the layout has no vGPUs for this GPU, so it needs no mode"
    judgement = judge_part(part, form, board)
    if judgement.verdict is not LayoutVerdict.FITS:
        return judgement.because
    settings: dict[str, Any] = {} if board.mig is None else {"mig": judgement.mode is VgpuMode.MULTI_INSTANCE}
    if form is LayoutForm.VGPUS:
        settings["graphics"] = SharedType.SHARED_DIRECT
        if judgement.mode is not None and judgement.mode is not VgpuMode.MULTI_INSTANCE:
            settings["vgpu_mode"] = SizeMode(judgement.mode)
    return settings

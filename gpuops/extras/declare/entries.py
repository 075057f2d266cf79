"""The entries of a site file, which says what hosts and VMs should be. `templates/site.yaml` is the commented example.

A key that an entry does not have is left as it is. If several entries select the same GPU or VM, the last entry that
has a key decides: begin with general entries, and let exceptions follow.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from msgspec import Meta

from gpuops.errors import UsageError
from gpuops.model.devices.gpu import AssignmentPolicy
from gpuops.model.devices.scheduler import SchedulerPolicy
from gpuops.model.file_keys import NOT_IN_FILE, Before, Mistaken, Text
from gpuops.model.fleet_change import ChosenGpus
from gpuops.model.vcenter.host import NumaPolicy
from gpuops.model.vcenter.host_settings import SharedType, SizeMode
from gpuops.model.vcenter.vm import VmDrs
from gpuops.plan.core.rejection import Rejection
from gpuops.plan.hosts.scheduler.scheduler_change import SetScheduler
from gpuops.plan.placement.vm_demand import PinPolicy
from gpuops.plan.vm.vm_blockers import MoveMode, PowerPolicy


def _as_list(content: object) -> object:
    return [content] if isinstance(content, str) else content


Names = Annotated[tuple[Text, ...], Meta(max_length=10_000), Before(_as_list, Text | tuple[Text, ...])]
"""One name or pattern, or a list of them."""
Gpus = Annotated[ChosenGpus, Before(_as_list, Text | tuple[Text, ...])]
"""The PCI address of one GPU, or a list of them."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """What the GPUs of some hosts should be. Each of `host`, `cluster`, `tag`, `model` and `gpu` narrows the choice."""

    host: Names = ()
    cluster: Text | None = None
    tag: Names = ()
    model: Text | None = None
    gpu: Gpus = ()
    default_graphics: SharedType | None = None
    assignment: AssignmentPolicy | None = None
    graphics: SharedType | None = None
    vgpu_mode: SizeMode | None = None
    mig: bool | None = None
    scheduler: SchedulerPolicy | None = None
    time_slice: Text | None = None
    frequency: Text | None = None
    averaging: Annotated[int, Meta(ge=1, le=60)] | None = None
    passthrough: bool | None = None
    label: Annotated[str, Meta(max_length=200)] | None = None

    def __post_init__(self) -> None:
        """Raise Mistaken for an entry that selects no host, sets nothing, or has invalid scheduler keys."""
        if not (self.host or self.cluster or self.tag):
            raise Mistaken(
                "selects no host", "add `host`, `cluster` or `tag`; `host: '*'` selects every host with GPUs"
            )
        if self.scheduler is None and any((self.time_slice, self.frequency, self.averaging)):
            raise Mistaken("`time_slice`, `frequency` and `averaging` need `scheduler`", "add `scheduler`")
        if all(getattr(self, key) is None for key in (*HOST_KEYS, *GPU_KEYS)):
            raise Mistaken(
                "has no key that sets something on its hosts", f"add one of {', '.join((*HOST_KEYS, *GPU_KEYS))}"
            )
        if (scheduler := self.scheduler_request()) is not None:
            try:
                scheduler.requested_scheduler()
            except UsageError as error:
                raise Mistaken(error.message, error.hint) from error

    def scheduler_request(self) -> SetScheduler | None:
        """Return the request that sets this scheduler, without hosts; None if the entry names no scheduler."""
        if self.scheduler is None:
            return None
        return SetScheduler(self.scheduler, self.time_slice, self.frequency, self.averaging)


HOST_KEYS: Final = ("default_graphics", "assignment")
"""Keys that set something on a host."""
GPU_KEYS: Final = ("graphics", "vgpu_mode", "mig", "scheduler", "passthrough", "label")
"""Keys that set something on single GPUs of a host."""


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """The GPU devices that a VM should have, and what may be done to it for that."""

    profile: Text | None = None
    count: Annotated[int, Meta(ge=1, le=64)] | None = None
    device: Gpus = ()
    dynamic: bool = False
    label: Text | None = None
    device_type: Names = ()
    absent: bool = False
    others: Literal["keep", "replace"] | None = None
    numa: NumaPolicy = NumaPolicy.PREFERRED
    pin: PinPolicy = PinPolicy.AUTO
    move: MoveMode | None = None
    power: PowerPolicy = PowerPolicy.REFUSE

    def __post_init__(self) -> None:
        kinds = (self.profile is not None, bool(self.device), self.is_dynamic, self.absent)
        if sum(kinds) != 1:
            raise Mistaken("needs exactly one of `profile`, `device`, `dynamic` and `absent`")
        if self.count is not None and (self.device or self.absent):
            raise Mistaken("has `count`, which only goes with `profile` and `dynamic`", "remove `count`")

    @property
    def is_dynamic(self) -> bool:
        return self.dynamic or self.label is not None or bool(self.device_type)


@dataclass(frozen=True, slots=True)
class MarkWish:
    """A custom attribute that a VM should have with this value, or should not have (`absent`)."""

    attribute: Text
    value: Text | None = None
    absent: bool = False

    def __post_init__(self) -> None:
        if (self.value is not None) is self.absent:
            raise Mistaken("needs either `value` or `absent: true`")


@dataclass(frozen=True, slots=True)
class VmEntry:
    """What some VMs should be. Each of `vm`, `folder` and `tag` narrows the choice; templates are never selected."""

    vm: Names = ()
    folder: Text | None = None
    tag: Names = ()
    devices: DeviceWish | None = None
    drs: VmDrs | None = None
    marks: Annotated[tuple[MarkWish, ...], Meta(max_length=100)] = ()

    def __post_init__(self) -> None:
        if not (self.vm or self.folder or self.tag):
            raise Mistaken("selects no VM", "add `vm`, `folder` or `tag`")
        if self.devices is None and self.drs is None and not self.marks:
            raise Mistaken("has no key that sets something on its VMs", "add `devices`, `drs` or `marks`")


@dataclass(frozen=True, slots=True)
class SiteFile:
    """The complete file, or all files of a directory one after another."""

    version: Literal[1]
    hosts: Annotated[tuple[HostEntry, ...], Meta(max_length=10_000)] = ()
    vms: Annotated[tuple[VmEntry, ...], Meta(max_length=100_000)] = ()
    policies: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    """Paths of rotation policies, relative to the directory of the file."""

    misfits: Annotated[tuple[Rejection, ...], NOT_IN_FILE] = ()
    """Why a layout in NVIDIA's form, from which this file was made, does not fit the GPUs; empty for a site file."""

    @property
    def needs_tags(self) -> bool:
        return any(entry.tag for entry in self.hosts) or any(entry.tag for entry in self.vms)


def entry_keys(entry: HostEntry | VmEntry | DeviceWish | MarkWish) -> dict[str, object]:
    """Return the keys of an entry that differ from their defaults, with values as in YAML."""
    keys: dict[str, object] = {}
    for field in fields(entry):
        setting = getattr(entry, field.name)
        if setting != field.default:
            keys[field.name] = _yaml_value(setting)
    return keys


def _yaml_value(setting: object) -> object:
    """Return the value as in YAML; a tuple of one text becomes the text."""
    if isinstance(setting, DeviceWish | MarkWish):
        return entry_keys(setting)
    if isinstance(setting, tuple):
        parts = [_yaml_value(part) for part in setting]
        return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts
    return setting if isinstance(setting, bool | int) else str(setting)

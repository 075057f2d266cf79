"""Reads layouts of GPUs from YAML files in the form of NVIDIA's mig-parted or vgpu-device-manager.

Both forms are version `v1` of their specifications (api/spec/v1 of both repositories). `templates/mig-layout.yaml` is
the commented example. `gpuops host mig check` and `--mig-layout` of other commands read it here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from gpuops.config.decoding import Section, read_as
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.mig import GpuLayout, LayoutForm, LayoutPart
from gpuops.model.file_keys import Before, Reads, Text

_HINT: Final = "templates/mig-layout.yaml shows every key, with comments"
_DEVICE_ID: Final = re.compile(r"0x(?P<device>[0-9a-f]{4})(?P<vendor>[0-9a-f]{4})", re.IGNORECASE)
_ALL: Final = "all"
MOST_LAYOUTS: Final = 1000


def _model_ids(text: str) -> tuple[int, int]:
    """Return vendor and device of a GPU model."""
    match = _DEVICE_ID.fullmatch(text)
    if match is None:
        raise ValueError("should be a device id and a vendor id: 0x233110DE is device 2331 of NVIDIA, 10de")
    return int(match["vendor"], 16), int(match["device"], 16)


def _as_list(content: Any) -> Any:
    """Return a list of one for a single text; everything else is decoded as it is."""
    return [content] if isinstance(content, str) else content


def _numbers_or_all(content: Any) -> Any:
    """Return None for `all`. The type then refuses what is no list of numbers."""
    if content is None or (isinstance(content, str) and content != _ALL):
        raise ValueError("should be `all`, or a list of numbers: [0, 1]")
    return None if content == _ALL else content


DeviceId = Annotated[tuple[int, int], Reads(_model_ids, Text)]
Numbers = tuple[Annotated[int, Meta(ge=0, le=63)], ...]
Counts = Annotated[dict[Text, Annotated[int, Meta(ge=0, le=128)]], Meta(max_length=100)]


class _PartSection(Section, kw_only=True, rename="kebab"):
    """Which GPUs a part is of."""

    device_filter: Annotated[
        tuple[DeviceId, ...], Meta(max_length=100), Before(_as_list, tuple[DeviceId, ...] | DeviceId)
    ] = ()
    devices: Annotated[
        Annotated[Numbers, Meta(min_length=1, max_length=64)] | None,
        Before(_numbers_or_all, Numbers | Literal["all"]),
    ]

    def part(self, counts: dict[str, int], *, is_mig_on: bool = True) -> LayoutPart:
        return LayoutPart(
            gpus=None if self.devices is None else tuple(dict.fromkeys(self.devices)),
            models=self.device_filter,
            counts=tuple((name, number) for name, number in counts.items() if number),
            is_mig_on=is_mig_on,
        )


class MigPartSection(_PartSection, kw_only=True):
    """GPU instances of some GPUs."""

    mig_enabled: bool
    mig_devices: Counts | None = None

    def __post_init__(self) -> None:
        if self.mig_enabled and self.mig_devices is None:
            raise ValueError("`mig-devices` is missing, which `mig-enabled: true` needs; {} = none yet")
        if not self.mig_enabled and self.mig_devices:
            raise ValueError("`mig-devices` has GPU instances although `mig-enabled` is false")

    def layout_part(self) -> LayoutPart:
        return self.part(self.mig_devices or {}, is_mig_on=self.mig_enabled)


class VgpuPartSection(_PartSection, kw_only=True):
    """vGPUs of some GPUs."""

    vgpu_devices: Counts

    def layout_part(self) -> LayoutPart:
        return self.part(self.vgpu_devices)


MigParts = Annotated[tuple[MigPartSection, ...], Meta(min_length=1, max_length=64)]
VgpuParts = Annotated[tuple[VgpuPartSection, ...], Meta(min_length=1, max_length=64)]
_SomeLayouts: Final = Meta(min_length=1, max_length=MOST_LAYOUTS)


class LayoutFile(Section, rename="kebab"):
    """The whole YAML file."""

    version: Literal["v1"]
    mig_configs: Annotated[dict[Text, MigParts], _SomeLayouts] | UnsetType | None = UNSET
    vgpu_configs: Annotated[dict[Text, VgpuParts], _SomeLayouts] | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        configs = {"mig-configs": self.mig_configs, "vgpu-configs": self.vgpu_configs}
        if bool(self.mig_configs) is bool(self.vgpu_configs):  # both or neither
            given_key = next((key for key, layouts in configs.items() if layouts is not UNSET), None)
            if given_key is not None and not self.mig_configs:
                raise ValueError(f"`{given_key}` is empty: it should have at least one layout")
            raise ValueError("use either `mig-configs` (GPU instances) or `vgpu-configs` (vGPUs)")

    def layouts(self) -> tuple[GpuLayout, ...]:
        form = LayoutForm.GPU_INSTANCES if self.mig_configs else LayoutForm.VGPUS
        configs = self.mig_configs or self.vgpu_configs or {}
        return tuple(
            GpuLayout(name, form, tuple(section.layout_part() for section in sections))
            for name, sections in configs.items()
        )


def load_layouts(path: Path) -> tuple[GpuLayout, ...]:
    """Return the layouts of this file, in its order. Raises PolicyError, one line: file, place, reason."""
    return parse_layouts(read_text(path), str(path))


def parse_layouts(text: str, name: str) -> tuple[GpuLayout, ...]:
    """Return the layouts of a YAML text; `name` stands for it in errors. Raises PolicyError."""
    return read_as(LayoutFile, parse_yaml(text, name), name, _HINT).layouts()


def parse_layout_option(text: str, name: str = "--mig-layout", folder: Path | None = None) -> GpuLayout:
    """Return the layout of `FILE:NAME`. Raises UsageError; PolicyError if the file is invalid.

    `name` is the name of the option in errors. A relative path starts at `folder`, or at the current directory.
    """
    path, _, layout = text.partition(":")
    if not path or not layout:
        raise UsageError(
            f"{name} {text!r} is not FILE:NAME",
            hint="give the path of a layout file and the name of a layout in it",
        )
    file = (folder or Path()) / Path(path).expanduser()
    return find_layout(layout, load_layouts(file), file)


def find_layout(name: str, layouts: Iterable[GpuLayout], file: Path) -> GpuLayout:
    """Return the layout with this name. Raises UsageError that suggests similar names."""
    by_name = {layout.name: layout for layout in layouts}
    if name in by_name:
        return by_name[name]
    near = get_close_matches(name, by_name, n=3)
    suggestion = f"; did you mean {', '.join(near)}?" if near else f"; it has: {', '.join(list(by_name)[:10])}"
    raise UsageError(f"{file} has no layout {name!r}{suggestion}", hint="use the name of a layout in this file")

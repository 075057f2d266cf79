"""Changes of a fleet, as options of `gpuops what-if` or as YAML, checked and made into values.

`templates/what-if.yaml` is the commented example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from msgspec import Meta

from gpuops.config.decoding import Reads, Section, Text, WrongContent, decode, keys_of, read_as, reads_by
from gpuops.config.layout_file import parse_layout_option
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.fleet_change import (
    AddHosts,
    AddVms,
    ApplyLayout,
    ChangeGpuMode,
    ChangeProfile,
    FleetChange,
    GpuServing,
    LoseGpu,
    LoseHost,
)

_HINT: Final = "templates/what-if.yaml shows every key, with comments"
MOST_HOSTS: Final = 1000
MOST_GPUS: Final = 16
"""In one host."""
MOST_VMS: Final = 10_000
_HOSTS: Final = re.compile(
    r"(?P<count>\d{1,6})x(?P<model>[^:]+):(?P<gpus>\d{1,6})(?::(?P<mode>[a-z-]+))?", re.IGNORECASE
)
_COPIES: Final = re.compile(r"(?P<count>\d{1,6})")
_VMS: Final = re.compile(r"(?P<count>\d{1,6})x(?P<of>.+)", re.IGNORECASE)

Made = TypeVar("Made", bound=Section)


def _file_and_name(text: str) -> str:
    path, _, layout = text.partition(":")
    if not path or not layout:
        raise ValueError("should be FILE:NAME: the path of a layout file and the name of a layout in it")
    return text


Address = Annotated[PciAddress, reads_by(PciAddress.parse)]
FileAndName = Annotated[
    str, Reads(_file_and_name, Annotated[str, Meta(extra_json_schema={"pattern": "^[^:]+:[\\s\\S]+$"})])
]
"""FILE:NAME, as of `--mig-layout`."""


class AddHostsSection(Section):
    """More hosts."""

    count: Annotated[int, Meta(ge=1, le=MOST_HOSTS)] = 1
    model: Text | None = None
    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)] | None = None
    like: Text | None = None
    mode: GpuServing | None = None

    def __post_init__(self) -> None:
        if (self.model is None) is not (self.gpus is None):
            raise ValueError("`model` and `gpus` belong together: which GPUs, and how many in each host")
        if self.model is None and self.like is None:
            raise ValueError("say `model` and `gpus`, or `like`: a host whose GPUs they have")

    def change(self) -> AddHosts:
        return AddHosts(self.count, self.model, self.gpus, self.like, self.mode)


class LoseGpuSection(Section):
    """A GPU that is gone."""

    host: Text
    gpu: Address

    def change(self) -> LoseGpu:
        return LoseGpu(self.host, self.gpu)


class _GpusSection(Section):
    """The GPUs that a change applies to: those that match each key that is given."""

    host: Text | None = None
    model: Text | None = None
    gpu: Annotated[tuple[Address, ...], Meta(max_length=1000)] = ()

    @property
    def addresses(self) -> tuple[PciAddress, ...]:
        return tuple(dict.fromkeys(self.gpu))


class ModeSection(_GpusSection, kw_only=True):
    """GPUs that change their vGPU mode: same-size, mixed-size or MIG."""

    mode: GpuServing

    def change(self) -> ChangeGpuMode:
        return ChangeGpuMode(self.mode, self.host, self.model, self.addresses)


class LayoutSection(_GpusSection, kw_only=True):
    """GPUs that have the GPU instances of a named layout."""

    layout: FileAndName

    def change(self, folder: Path) -> ApplyLayout:
        layout = parse_layout_option(self.layout, "mig_layout", folder)
        return ApplyLayout(layout, self.host, self.model, self.addresses)


class ProfileSection(Section):
    """VMs whose vGPUs are of another profile."""

    of: Text
    profile: Text

    def change(self) -> ChangeProfile:
        return ChangeProfile(self.of, self.profile)


class AddVmsSection(Section):
    """More VMs that run."""

    count: Annotated[int, Meta(ge=1, le=MOST_VMS)]
    of: Text

    def change(self) -> AddVms:
        return AddVms(self.count, self.of)


class ChangeSection(Section):
    """One change."""

    add_hosts: AddHostsSection | None = None
    lose_host: Text | None = None
    lose_gpu: LoseGpuSection | None = None
    gpu_mode: ModeSection | None = None
    mig_layout: LayoutSection | None = None
    change_profile: ProfileSection | None = None
    add_vms: AddVmsSection | None = None

    def __post_init__(self) -> None:
        keys = keys_of(ChangeSection)
        if sum(getattr(self, key) is not None for key in keys) != 1:
            raise ValueError(f"an entry says one of {', '.join(f'`{key}`' for key in keys)}")

    def change(self, folder: Path) -> FleetChange:
        """The change. Relative paths start at `folder`. Raises UsageError and PolicyError for a layout."""
        if self.lose_host is not None:
            return LoseHost(self.lose_host)
        if self.mig_layout is not None:
            return self.mig_layout.change(folder)
        sections = (self.add_hosts, self.lose_gpu, self.gpu_mode, self.change_profile, self.add_vms)
        return next(section.change() for section in sections if section is not None)


class ChangesFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    changes: Annotated[tuple[ChangeSection, ...], Meta(min_length=1, max_length=1000)]


def load_changes(path: Path) -> tuple[FleetChange, ...]:
    """The changes in this file, in its order. Raises PolicyError, one line: file, place, reason.

    Raises UsageError for a layout that its file does not have.
    """
    return parse_changes(read_text(path), str(path), path.parent)


def parse_changes(text: str, name: str, folder: Path | None = None) -> tuple[FleetChange, ...]:
    """The changes of a YAML text; `name` is what an error calls it. Raises PolicyError and UsageError.

    Relative paths of layout files start at `folder`, or at the current directory.
    """
    found = read_as(ChangesFile, parse_yaml(text, name), name, _HINT)
    return tuple(section.change(folder or Path()) for section in found.changes)


def added_hosts(texts: Sequence[str], like: str | None) -> Iterator[AddHosts]:
    """What --add-hosts says: `2xL40S:8`, `2xL40S:8:mixed-size`, or with --like `2`. Raises UsageError."""
    if like is not None and not texts:
        raise UsageError("--like is of --add-hosts", hint="say how many: --add-hosts 2 --like HOST")
    for text in texts:
        match = _HOSTS.fullmatch(text.strip()) or (_COPIES.fullmatch(text.strip()) if like is not None else None)
        if match is None:
            raise UsageError(
                f"--add-hosts {text!r} cannot be read", hint="COUNTxMODEL:GPUS, as 2xL40S:8; or COUNT with --like HOST"
            )
        told = match.groupdict()
        wanted = {
            "count": int(told["count"]),
            "model": told.get("model"),
            "gpus": int(told["gpus"]) if told.get("gpus") else None,
            "like": like,
            "mode": told.get("mode"),
        }
        yield _made(AddHostsSection, wanted, f"--add-hosts {text}").change()


def lost_gpus(texts: Sequence[str]) -> Iterator[LoseGpu]:
    """What --lose-gpu says: `esx-01/0000:3b:00.0`. Raises UsageError."""
    for text in texts:
        host, slash, address = text.partition("/")
        if not slash or not host:
            raise UsageError(f"--lose-gpu {text!r} cannot be read", hint="HOST/ADDRESS: esx-01/0000:3b:00.0")
        yield LoseGpu(host, PciAddress.parse(address))


def changed_profiles(texts: Sequence[str]) -> Iterator[ChangeProfile]:
    """What --change-profile says: `vdi-*=a40-4q`. Raises UsageError."""
    for text in texts:
        of, equals, profile = text.rpartition("=")
        if not equals or not of or not profile:
            raise UsageError(f"--change-profile {text!r} cannot be read", hint="POOL=PROFILE or 'PATTERN=PROFILE'")
        yield ChangeProfile(of, profile)


def added_vms(texts: Sequence[str]) -> Iterator[AddVms]:
    """What --add-vms says: `50xa40-8q`, `50xoffice`. Raises UsageError."""
    for text in texts:
        match = _VMS.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"--add-vms {text!r} cannot be read", hint="COUNTxPROFILE or COUNTxPOOL: 50xa40-8q")
        yield _made(AddVmsSection, {"count": int(match["count"]), "of": match["of"]}, f"--add-vms {text}").change()


def _made(section: type[Made], wanted: dict[str, object], option: str) -> Made:
    try:
        return decode(section, wanted)
    except WrongContent as error:
        place, reason, _ = error.mistakes[0]
        message = ": ".join(filter(None, (".".join(map(str, place)), reason.replace("`", ""))))
        raise UsageError(f"{option}: {message}", hint="gpuops what-if --help") from error

"""Reads the changes of a fleet that `gpuops what-if` tries out, from its options or from a YAML file.

`templates/what-if.yaml` is the commented example.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta

from gpuops.config.decoding import Section, WrongContent, decode, keys_of, read_as
from gpuops.config.layout_file import parse_layout_option
from gpuops.errors import UsageError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.devices.gpu import PciAddress
from gpuops.model.file_keys import Reads, Text
from gpuops.model.fleet_change import (
    AddHosts,
    AddVms,
    ApplyLayout,
    ChangeGpuMode,
    ChangeProfile,
    ChosenGpus,
    FleetChange,
    LoseGpu,
    LoseHost,
)

_HINT: Final = "templates/what-if.yaml shows every key, with comments"
_HOSTS: Final = re.compile(
    r"(?P<count>\d{1,6})x(?P<model>[^:]+):(?P<gpus>\d{1,6})(?::(?P<mode>[a-z-]+))?", re.IGNORECASE
)
_COPIES: Final = re.compile(r"(?P<count>\d{1,6})")
_VMS: Final = re.compile(r"(?P<count>\d{1,6})x(?P<of>.+)", re.IGNORECASE)

Change = TypeVar("Change", AddHosts, AddVms)


def _check_file_and_name(text: str) -> str:
    """Return the same text. Raises ValueError if it is not FILE:NAME."""
    path, _, layout = text.partition(":")
    if not path or not layout:
        raise ValueError("should be FILE:NAME: the path of a layout file and the name of a layout in it")
    return text


FileAndName = Annotated[
    str, Reads(_check_file_and_name, Annotated[str, Meta(extra_json_schema={"pattern": "^[^:]+:[\\s\\S]+$"})])
]
"""FILE:NAME, as in the option `--mig-layout`."""


class LayoutSection(Section, kw_only=True):
    """GPUs that have the GPU instances of a named layout."""

    host: Text | None = None
    model: Text | None = None
    gpu: ChosenGpus = ()
    layout: FileAndName

    def change(self, folder: Path) -> ApplyLayout:
        """Return the change, with the layout read from its file. Relative paths start at `folder`."""
        layout = parse_layout_option(self.layout, "mig_layout", folder)
        return ApplyLayout(layout, self.host, self.model, self.gpu)


class ChangeSection(Section):
    """One change."""

    add_hosts: AddHosts | None = None
    lose_host: Annotated[LoseHost, Reads(LoseHost, Text)] | None = None
    lose_gpu: LoseGpu | None = None
    gpu_mode: ChangeGpuMode | None = None
    mig_layout: LayoutSection | None = None
    change_profile: ChangeProfile | None = None
    add_vms: AddVms | None = None

    def __post_init__(self) -> None:
        if sum(section is not None for section in msgspec.structs.astuple(self)) != 1:
            keys = ", ".join(f"`{key}`" for key in keys_of(ChangeSection))
            raise ValueError(f"an entry must have exactly one of the keys {keys}")

    def change(self, folder: Path) -> FleetChange:
        """Return the change. Relative paths start at `folder`. Raises UsageError and PolicyError for a layout."""
        change = next(section for section in msgspec.structs.astuple(self) if section is not None)
        return change.change(folder) if isinstance(change, LayoutSection) else change


class ChangesFile(Section):
    """The whole YAML file."""

    version: Literal[1]
    changes: Annotated[tuple[ChangeSection, ...], Meta(min_length=1, max_length=1000)]


def load_changes(path: Path) -> tuple[FleetChange, ...]:
    """Return the changes in this file, in its order. Raises PolicyError, one line: file, place, reason.

    Raises UsageError for a layout that its file does not have.
    """
    return parse_changes(read_text(path), str(path), path.parent)


def parse_changes(text: str, name: str, folder: Path | None = None) -> tuple[FleetChange, ...]:
    """Return the changes of a YAML text; errors call it `name`. Raises PolicyError and UsageError.

    Relative paths of layout files start at `folder`, or at the current directory.
    """
    changes_file = read_as(ChangesFile, parse_yaml(text, name), name, _HINT)
    return tuple(section.change(folder or Path()) for section in changes_file.changes)


def added_hosts(texts: Sequence[str], like: str | None) -> Iterator[AddHosts]:
    """Yield the hosts of each --add-hosts: `2xL40S:8`, `2xL40S:8:mixed-size`, or, with --like HOST, `2` copies of it.

    Raises UsageError.
    """
    if like is not None and not texts:
        raise UsageError("--like needs --add-hosts", hint="add the number of hosts: --add-hosts 2 --like HOST")
    for text in texts:
        match = _HOSTS.fullmatch(text.strip())
        if match is None and like is not None:
            match = _COPIES.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"--add-hosts {text!r} cannot be read",
                hint="write COUNTxMODEL:GPUS such as 2xL40S:8, or COUNT with --like HOST",
            )
        parts = match.groupdict()
        keys = {
            "count": int(parts["count"]),
            "model": parts.get("model"),
            "gpus": int(parts["gpus"]) if parts.get("gpus") else None,
            "like": like,
            "mode": parts.get("mode"),
        }
        yield _decode_change(AddHosts, keys, f"--add-hosts {text}")


def lost_gpus(texts: Sequence[str]) -> Iterator[LoseGpu]:
    """Yield the GPUs of --lose-gpu: `esx-01/0000:3b:00.0`. Raises UsageError."""
    for text in texts:
        host, slash, address = text.partition("/")
        if not slash or not host:
            raise UsageError(
                f"--lose-gpu {text!r} cannot be read", hint="write HOST/ADDRESS, such as esx-01/0000:3b:00.0"
            )
        yield LoseGpu(host, PciAddress.parse(address))


def changed_profiles(texts: Sequence[str]) -> Iterator[ChangeProfile]:
    """Yield the changes of --change-profile: `vdi-*=a40-4q`. Raises UsageError."""
    for text in texts:
        pool_or_pattern, equals, profile = text.rpartition("=")
        if not equals or not pool_or_pattern or not profile:
            raise UsageError(
                f"--change-profile {text!r} cannot be read",
                hint="write POOL=PROFILE or 'PATTERN=PROFILE', such as 'vdi-*=a40-4q'",
            )
        yield ChangeProfile(pool_or_pattern, profile)


def added_vms(texts: Sequence[str]) -> Iterator[AddVms]:
    """Yield the VMs of --add-vms: `50xa40-8q`, `50xoffice`. Raises UsageError."""
    for text in texts:
        match = _VMS.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"--add-vms {text!r} cannot be read", hint="write COUNTxPROFILE or COUNTxPOOL, such as 50xa40-8q"
            )
        yield _decode_change(AddVms, {"count": int(match["count"]), "of": match["of"]}, f"--add-vms {text}")


def _decode_change(kind: type[Change], keys: dict[str, object], option: str) -> Change:
    """Return the change with these keys. Raises UsageError that names the option, the key and the first mistake."""
    try:
        return decode(kind, keys)
    except WrongContent as error:
        place, reason, _ = error.mistakes[0]
        message = ": ".join(filter(None, (".".join(map(str, place)), reason.replace("`", ""))))
        raise UsageError(f"{option}: {message}", hint="gpuops what-if --help shows examples") from error

"""Reads the files of the catalogue and makes values of the model from them; a key that no code reads is an error.

YAML is read with every scalar as text, and the getters of `Fields` convert it: PCI ids such as `1e30` and `2236` are
hexadecimal, and a YAML resolver would take them for numbers.

A board file becomes a `Board` with its profiles and the MIG geometry of its family. A board's profiles are regular. All
profiles of one size have the same counts and starts in every series, and all of one series have the same limits and
marks. The name of a profile is the board's name and a tail. So a file has each of these facts once, and under
`exceptions` the facts of single profiles.

`drivers.yaml` has the drivers that go together by NVIDIA's documents, each pair with its source. `assumptions.yaml` has
the rules of vSphere and NVIDIA that gpuops and its simulated vCenter both follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from gpuops.errors import UsageError
from gpuops.model.assumption import Assumption, Confidence, SessionStep
from gpuops.model.devices.catalog import Board, Generation, MixedSizeRule, MultiVgpu, PciId
from gpuops.model.devices.mig import InstanceProfile, MigGeometry, Variant
from gpuops.model.devices.vgpu import ProfileKind, Series, Verified, VgpuProfile
from gpuops.model.guests.guest import CudaMinimum, DriverTables, VgpuPairs, WindowsNumbers, version_of

E = TypeVar("E", bound=StrEnum)

_HINT: Final = "correct this file of gpuops/catalog, or install gpuops again"


class Fields:
    """One mapping of a file. Each getter removes its key; `check_all_read` raises UsageError for the remaining keys."""

    __slots__ = ("_unread", "_where")

    def __init__(self, raw: dict[str, Any], where: str) -> None:
        self._unread = dict(raw)
        self._where = where

    def check_all_read(self) -> None:
        """Raise UsageError unless every key was read."""
        if self._unread:
            raise UsageError(f"{self._where}: unknown key {', '.join(map(repr, self._unread))}", hint=_HINT)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._unread)

    def text(self, key: str) -> str:
        content = self._take(key)
        if not isinstance(content, str):
            raise self._wrong(key, content)
        return content

    def maybe_text(self, key: str) -> str | None:
        """Return the text; None for `null` or a missing key."""
        return None if self._is_null(key) else self.text(key)

    def number(self, key: str) -> int:
        digits = self.text(key)
        try:
            return int(digits)
        except ValueError:
            raise self._wrong(key, digits) from None

    def maybe_number(self, key: str) -> int | None:
        return None if self._is_null(key) else self.number(key)

    def flag(self, key: str) -> bool:
        word = self.text(key)
        if word not in ("true", "false"):
            raise self._wrong(key, word)
        return word == "true"

    def maybe_flag(self, key: str) -> bool | None:
        return None if self._is_null(key) else self.flag(key)

    def choice(self, key: str, vocabulary: type[E]) -> E:
        """Return the member of the enumeration that the text names."""
        word = self.text(key)
        try:
            return vocabulary(word)
        except ValueError:
            raise self._wrong(key, word) from None

    def maybe_choice(self, key: str, vocabulary: type[E]) -> E | None:
        return None if self._is_null(key) else self.choice(key, vocabulary)

    def hexadecimal(self, key: str) -> int:
        digits = self.text(key)
        try:
            return int(digits, 16)
        except ValueError:
            raise self._wrong(key, digits) from None

    def texts(self, key: str) -> tuple[str, ...]:
        content = self._take(key)
        if not isinstance(content, list):
            raise self._wrong(key, content)
        return tuple(content)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return the list of whole numbers; () if the key is missing."""
        return self._read_numbers(key, 10) if key in self._unread else ()

    def hexadecimals(self, key: str) -> tuple[int, ...]:
        """Return the list of hexadecimal numbers; the key must exist."""
        return self._read_numbers(key, 16)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return the mapping of that key; {} if it is missing."""
        content = self._unread.pop(key, {})
        if not isinstance(content, dict):
            raise self._wrong(key, content)
        return content

    def mappings(self, key: str) -> list[dict[str, Any]]:
        """Return the list of mappings of that key; [] if it is missing."""
        rows = self._unread.pop(key, [])
        if not isinstance(rows, list):
            raise self._wrong(key, rows)
        return rows

    def rows(self, key: str) -> Iterator[Fields]:
        """Yield each mapping of the list of that key, and check that it was read completely."""
        for index, row in enumerate(self.mappings(key)):
            fields = Fields(row, f"{self._where}: {key}[{index}]")
            yield fields
            fields.check_all_read()

    def section(self, key: str) -> Fields:
        """Return the mapping of that key; the caller reads it and calls `check_all_read`."""
        return Fields(self.mapping(key), f"{self._where}: {key}")

    def named_rows(self, key: str) -> Iterator[tuple[str, Fields]]:
        """Yield each named mapping below that key, and check that it was read completely."""
        for name, row in self.mapping(key).items():
            fields = Fields(row, f"{self._where}: {key}.{name}")
            yield name, fields
            fields.check_all_read()

    def _read_numbers(self, key: str, base: int) -> tuple[int, ...]:
        texts = self.texts(key)
        try:
            return tuple(int(text, base) for text in texts)
        except ValueError:
            raise self._wrong(key, texts) from None

    def _is_null(self, key: str) -> bool:
        if self._unread.get(key, "null") != "null":
            return False
        self._unread.pop(key, None)
        return True

    def _take(self, key: str) -> Any:
        try:
            return self._unread.pop(key)
        except KeyError:
            raise UsageError(f"{self._where}: {key!r} is missing", hint=_HINT) from None

    def _wrong(self, key: str, content: object) -> UsageError:
        return UsageError(f"{self._where}: {key!r} cannot be {content!r}", hint=_HINT)


def read(path: Path) -> Fields:
    """Return the mapping in a catalogue file. Raises UsageError for any other content."""
    # imported here, because `gpuops --help` reads no catalogue
    import yaml

    # libyaml's parser where PyYAML was built with it: five times faster.
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        raw = yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506  a BaseLoader makes only text, lists and mappings
    except yaml.YAMLError as fault:
        raise UsageError(f"{path.name} is not YAML: {fault}", hint=_HINT) from fault
    if not isinstance(raw, dict):
        raise UsageError(f"{path.name} has no keys at its top level", hint=_HINT)
    return Fields(raw, path.name)


BOARDS: Final = Path(__file__).parent / "gpus"
_FAMILIES: Final = Path(__file__).parent / "mig"
# longest first, in case the name of one variant ends with that of another
_SUFFIXES: Final = tuple(sorted((variant for variant in Variant if variant), key=len, reverse=True))


@dataclass(frozen=True, slots=True)
class _ProfileNames:
    """The parts of the names of the board's profiles."""

    key: str
    short: str
    full: str | None
    """The driver's name with its brand; None if no vSphere name can be derived from it."""
    documented_tails: tuple[str, ...]

    def esxi(self, tail: str) -> str:
        """Return the name in vCenter: the driver's full name in lower case, blanks as `_`; '' if that is unknown."""
        return f"{self.full}-{tail}".lower().replace(" ", "_") if self.full else ""

    def verification_of(self, tail: str) -> Verified | None:
        if self.full is None:
            return None
        return Verified.DOC if tail in self.documented_tails else Verified.DERIVED


def board(key: str) -> Board:
    """Return the board of the file `gpus/KEY.yaml`. Raises UsageError if the file cannot be understood."""
    fields = read(BOARDS / f"{key}.yaml")
    names = _ProfileNames(key, fields.text("short_name"), fields.maybe_text("full_name"), fields.texts("names_seen"))
    family = fields.maybe_text("mig")
    mig = _geometry(family) if family else None
    profiles = tuple(_profiles(fields, names, mig))
    loaded_board = Board(
        key=key,
        name=fields.text("name"),
        short_name=names.short,
        generation=fields.choice("generation", Generation),
        esxi_prefix=names.esxi("") or None,
        pci_ids=tuple(_pci_id(row) for row in fields.rows("pci")),
        framebuffer_mib=fields.number("framebuffer_mib"),
        gpus_per_board=fields.number("gpus_per_board"),
        sriov=fields.flag("sriov"),
        mixed_size_mode=fields.maybe_flag("mixed_size_mode"),
        mixed_size_rule=fields.maybe_choice("mixed_size_rule", MixedSizeRule),
        multi_vgpu=fields.choice("multi_vgpu", MultiVgpu),
        mig=mig,
        mmio_gib=fields.maybe_number("mmio_gib"),
        nvlink_profiles=tuple(map(names.esxi, fields.texts("nvlink"))),
        nvswitch_profiles=tuple(map(names.esxi, fields.texts("nvswitch"))),
        verified=fields.choice("verified", Verified),
        sources=tuple(fields.mapping("sources").items()),
        profiles=tuple(profile for profile in profiles if profile.attachable),
        nameless=tuple(profile for profile in profiles if not profile.attachable),
    )
    fields.check_all_read()
    return loaded_board


def _pci_id(row: Fields) -> PciId:
    return PciId(
        device_id=row.hexadecimal("device"),
        subsystem_ids=row.hexadecimals("subsystems"),
        shared=row.maybe_flag("shared") or False,
        marketed_as=row.maybe_text("marketed_as"),
    )


def _profiles(fields: Fields, names: _ProfileNames, mig: MigGeometry | None) -> Iterator[VgpuProfile]:
    """Yield the profiles. Facts of a size override those of its series, and exceptions override both."""
    exceptions = fields.mapping("exceptions")
    for kind, section in ((ProfileKind.TIME_SLICED, "time_sliced"), (ProfileKind.MIG_BACKED, "mig_backed")):
        by_series = fields.mapping(f"{section}_series")
        for row in fields.mappings(section):
            for tail, type_id in row.pop("type_ids", {}).items():
                # 2B4 is a second B type, 1-5CME a C type that owns the media engines.
                series = tail.removesuffix("4").removesuffix("ME")[-1]
                if series not in by_series:
                    message = f"{names.key}.yaml: {section}_series has no {series}, which is the series of {tail}"
                    raise UsageError(message, hint=_HINT)
                facts = {**by_series[series], **row, **exceptions.pop(tail, {}), "type_id": type_id}
                yield _profile(tail, Series(series), kind, facts, names, mig)
    if exceptions:
        tails = ", ".join(exceptions)
        message = f"{names.key}.yaml: `exceptions` names profiles that the board does not have: {tails}"
        raise UsageError(message, hint=_HINT)


def _profile(
    tail: str, series: Series, kind: ProfileKind, facts: dict[str, Any], names: _ProfileNames, mig: MigGeometry | None
) -> VgpuProfile:
    """Return the profile of that tail (`3-20C`) with these facts. Raises UsageError for a fact that is no field."""
    fields = Fields(facts, f"{names.key}.yaml: {tail}")
    mig_profile = fields.maybe_text("instance")
    instance = mig.profile(mig_profile) if mig and mig_profile else None
    mixed = fields.maybe_number("mixed")
    starts = fields.numbers("starts_gb")
    displays = fields.maybe_number("displays")
    guest_mib = fields.maybe_number("guest_mib")  # read in any case: `check_all_read` refuses keys that were not read
    verified_mixed = fields.maybe_choice("verified_mixed", Verified)
    verified_starts = fields.maybe_choice("verified_starts", Verified)
    vgpu_profile = VgpuProfile(
        name=names.esxi(tail),
        short_name=f"{names.short}-{tail}",
        full_name=f"{names.full}-{tail}" if names.full else None,
        board=names.key,
        series=series,
        kind=kind,
        framebuffer_mib=fields.number("framebuffer_mib"),
        max_per_gpu=fields.number("count"),
        max_per_gpu_mixed=mixed,
        placement_ids_mixed=starts,
        mig_profile=mig_profile,
        compute_slices=instance.compute_slices if instance else None,
        memory_slices=instance.memory_slices if instance else None,
        max_per_gpu_instance=fields.maybe_number("per_instance"),
        max_per_vm=fields.maybe_number("max_per_vm"),
        guest_framebuffer_mib=guest_mib if displays is not None else None,
        printed_framebuffer_mib=fields.maybe_number("printed_mib"),
        type_id=fields.maybe_number("type_id"),
        max_displays=displays,
        ecc=fields.maybe_flag("ecc"),
        verified=fields.choice("verified", Verified),
        # a mark is for the complete series: a size without such a fact has no mark
        verified_mixed=verified_mixed if mixed is not None else None,
        verified_placement=verified_starts if starts else None,
        verified_name=names.verification_of(tail),
    )
    fields.check_all_read()
    return vgpu_profile


@cache
def _geometry(family: str) -> MigGeometry:
    """Return the geometry of a family of GPUs, read once per process. Raises UsageError."""
    fields = read(_FAMILIES / f"{family}.yaml")
    mig_geometry = MigGeometry(
        family=family,
        max_instances=fields.number("max_instances"),
        compute_slices=fields.number("compute_slices"),
        memory_slices=fields.number("memory_slices"),
        min_driver=fields.maybe_text("min_driver"),
        verified=fields.choice("verified", Verified),
        profiles=tuple(_instance(name, row) for name, row in fields.named_rows("profiles")),
    )
    fields.check_all_read()
    return mig_geometry


def _instance(name: str, row: Fields) -> InstanceProfile:
    return InstanceProfile(
        name=name,
        id=row.maybe_number("id"),
        compute_slices=row.number("compute_slices"),
        memory_slices=row.number("memory_slices"),
        starts=row.numbers("starts"),
        max_count=row.number("count"),
        variant=next((variant for variant in _SUFFIXES if name.endswith(variant)), Variant.PLAIN),
        usable_for_vgpu=row.flag("vgpu"),
    )


_DRIVERS: Final = Path(__file__).parent / "drivers.yaml"


@cache
def load_drivers(path: Path = _DRIVERS) -> DriverTables:
    """Return the driver tables. Raises UsageError if the file cannot be understood."""
    fields = read(path)
    # the tables: pairs of host and guest drivers, version numbers on Windows, CUDA versions
    tables = DriverTables(
        tuple(
            VgpuPairs(row.number("host"), row.numbers("guests"), row.flag("no_others"), row.text("source"))
            for row in fields.rows("pairs")
        ),
        tuple(
            WindowsNumbers(row.number("branch"), row.number("first"), row.number("last"), row.text("source"))
            for row in fields.rows("windows")
        ),
        tuple(_cuda(row) for row in fields.rows("cuda")),
    )
    fields.check_all_read()
    return tables


def _cuda(row: Fields) -> CudaMinimum:
    major, minor = row.number("major"), row.maybe_number("minor")
    return CudaMinimum(major, minor, _version(row, "linux"), _version(row, "windows"), row.text("source"))


def _version(row: Fields, key: str) -> tuple[int, ...]:
    text = row.text(key)
    version = version_of(text)
    if version is None:
        raise UsageError(f"{_DRIVERS.name}: {key} {text!r} is not a version", hint=_HINT)
    return version


@cache
def assumptions() -> Mapping[str, Assumption]:
    """Return all assumptions by id, in the order of the file."""
    return {
        id: Assumption(id, **{**row, "confidence": Confidence(row["confidence"])})
        for id, row in _load("assumptions.yaml").items()
    }


@cache
def contact_session() -> tuple[SessionStep, ...]:
    """Return the steps of `gpuops bundle --first-contact`, in order: they show what a read of vCenter does not."""
    steps = _load("contact_session.yaml")["steps"]
    return tuple(
        SessionStep(**{**step, "settles": tuple(step["settles"]), "commands": tuple(step["commands"])})
        for step in steps
    )


@cache
def contact_setup() -> tuple[str, ...]:
    """Return the commands before these steps, which set the names of the hosts and VMs to use."""
    return tuple(_load("contact_session.yaml")["setup"])


def _load(name: str) -> Any:
    return yaml.safe_load(files("gpuops.catalog").joinpath(name).read_text(encoding="utf-8"))

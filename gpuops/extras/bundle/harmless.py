"""Pseudonyms for names, and the last check before a bundle is written: no text in it may identify a site.

A name has the same pseudonym in all bundles of one secret key. The check does not know where a text came from, so it
also finds texts that are in the bundle because of a mistake in the rest of this package. The key and the real names are
stored in the state directory, and not in the journal of a vCenter: names are looked up without connecting to one.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import yaml

from gpuops.advise.managed_vms import KNOWN_EXTENSIONS
from gpuops.catalog import load
from gpuops.catalog.catalog_files import assumptions
from gpuops.errors import StateDamaged, UsageError
from gpuops.execute.state.lock import BUNDLE_NAMES, waited_for
from gpuops.execute.state.state_dir import prepare_state_dir, private_file
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_new, write_private
from gpuops.model.assumption import Standing
from gpuops.model.devices.gpu import AssignmentPolicy, GraphicsType, VgpuMode
from gpuops.model.devices.other_device import DeviceKind
from gpuops.model.vcenter.host import RuleKind
from gpuops.model.vcenter.vm import Firmware, VmDrs

DIGITS: Final = 12
"""The hexadecimal digits of a pseudonym. With 100,000 names, two get the same one in one of 50,000 bundles."""
_MOID: Final = re.compile(r"(vm|host|domain-[cs]|datastore|resgroup-v?)-?[0-9]{1,10}")
"""Managed object ids in the form of vCenter. They identify nothing, and are the same in journal and world."""


class NameKind(StrEnum):
    """The kind of a name, with which its pseudonym begins."""

    VM = "vm"
    HOST = "host"
    CLUSTER = "cluster"
    DATACENTER = "datacenter"
    FOLDER = "folder"
    DATASTORE = "datastore"
    RULE = "rule"
    LABEL = "label"
    SNAPSHOT = "snapshot"
    ATTRIBUTE = "attribute"
    VALUE = "value"
    EXTENSION = "extension"
    REASON = "reason"
    ID = "id"
    TEXT = "text"


class Pseudonyms:
    """Makes pseudonyms, and remembers the names behind them."""

    def __init__(self, key: bytes) -> None:
        """Make pseudonyms by `key`, 32 random bytes. Anyone who has the key can find out names by trying them."""
        self._key = key
        self._real_names: dict[str, str] = {}

    def of(self, kind: NameKind, name: str) -> str:
        """Return `vm-3fa2c81d09be`: always the same for one kind, name and key."""
        text = f"{kind.value}\0{name}".encode("utf-8", "surrogatepass")
        pseudonym = f"{kind.value}-{hmac.digest(self._key, text, 'sha256').hex()[:DIGITS]}"
        self._real_names[pseudonym] = name
        return pseudonym

    def ref(self, moid: str) -> str:
        """Return the managed object id itself if it has the form that vCenter uses, or else a pseudonym."""
        return moid if _MOID.fullmatch(moid) else self.of(NameKind.ID, moid)

    @property
    def real_names(self) -> Mapping[str, str]:
        """Return the name behind each pseudonym."""
        return self._real_names


def table(name: str) -> Any:
    """Return the content of a table of this package."""
    return yaml.safe_load(resources.files("gpuops.extras.bundle").joinpath(name).read_text("utf-8"))


_WORDS: Final = table("words.yaml")
SETTINGS: Final[tuple[str, ...]] = tuple(_WORDS["settings"])
"""Keys of extraConfig that plans use."""
_ENUMERATIONS: Final = AssignmentPolicy, GraphicsType, VgpuMode, RuleKind, Firmware, VmDrs, DeviceKind, Standing
_TEXTS: Final = frozenset(
    (
        *_WORDS["values"], *_WORDS["sentences"], *SETTINGS, *KNOWN_EXTENSIONS,
        *(text for row in assumptions().values() for text in (row.id, row.evidence, row.against)),
        *(word.value for kind in _ENUMERATIONS for word in kind),
    )
)  # fmt: skip
_KEYS: Final = frozenset((*_WORDS["keys"], *SETTINGS))

PACKAGE_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}-[0-9]OEM\.[0-9]{3}(\.[0-9]{1,2}){2}\.[0-9]{1,9}")
"""The version of an NVIDIA package for ESXi: `550.90.05-1OEM.800.1.0.20613240`."""
RELEASE: Final = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}(\.[0-9]{1,3}){0,2}(\.?(dev|rc|a|b|post)[0-9]{1,4})?")
"""The version of a product: `8.0.3.0`, `0.5.0.dev1`. An IPv4 address looks the same, so only some keys allow it."""
_RELEASES: Final = frozenset({"api_version", "gpuops", "python", "pyvmomi", "esxi", "vcenter"})
_PCI_IDS: Final = frozenset({"vendor", "device", "class_code"})
"""Keys of ids in four hexadecimal digits, which could be a word elsewhere."""
_PCI_ID: Final = re.compile(r"[0-9a-f]{4}")
_PCI: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
"""vSphere stores some numbers as texts."""
_PATTERNS: Final = (
    _MOID, _PCI, _NUMBER, PACKAGE_VERSION,
    *map(
        re.compile,
        (
            rf"({'|'.join(NameKind)})-[0-9a-f]{{{DIGITS}}}(/({'|'.join(NameKind)})-[0-9a-f]{{{DIGITS}}})*",
            r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|\+00:00)?)?",  # moments in UTC, and dates
            r"[0-9]{1,6}([,-][0-9]{1,6}){1,64}",  # NUMA nodes and CPUs
            r"(server|nvlink|profile)-[0-9]{1,5}",  # names that a bundle gives
            r"gpu-[0-9]{1,3}|[0-9]{3}:[0-9]{3}:[0-9]{2}\.[0-7]",  # instances of counters
            rf"(({'|'.join(DeviceKind)}) )?[0-9a-f]{{4}}:[0-9a-f]{{4}}",  # vendor and device
            r"pciPassthru[0-9]{1,3}\.cfg\.[a-z_-]{1,16}",
        ),
    ),
)  # fmt: skip
_PROFILE: Final = re.compile("[a-z0-9_-]{1,40}")
_GROUP: Final = re.compile(r"Nvidia:[0-9]{1,2}@(?P<profile>[a-z0-9_-]+)%NVLink")


def is_about_gpus(text: str) -> bool:
    """Return whether a text is the name of a vGPU device group, or only names GPUs, such as `0000:3b:00.0 at 0, 4`.

    Allowed are numbers, PCI addresses, vGPU profiles and GPU models.
    """
    group = _GROUP.fullmatch(text)
    words = [group["profile"]] if group is not None else [word for word in re.split(r"[ ,]+", text) if word]
    return all(
        word == "at" or word in _board_words() or _NUMBER.fullmatch(word) or _PCI.fullmatch(word) or _is_profile(word)
        for word in words
    )


@cache
def _board_words() -> frozenset[str]:
    return frozenset(word for board in load(everything=True).boards for word in (board.key, *board.name.split()))


def _is_profile(name: str) -> bool:
    return bool(_PROFILE.fullmatch(name)) and load(profiles=[name]).profile(name) is not None


def strays(document: Any, at: str = "", api_words: Collection[str] = ()) -> Iterator[str]:
    """Yield the path of each text in the document that could identify a site, and never the text itself.

    `api_words` are names of types, fields and values of the vSphere API that the document may also contain.
    """
    match document:
        case str():
            # the last part of the path is the key: some texts are harmless only under certain keys
            if document not in api_words and not _is_harmless(document, at.rpartition(".")[2]):
                yield at
        case Mapping():
            for number, (key, part) in enumerate(document.items()):
                if isinstance(key, str) and (key in _KEYS or key in api_words or _is_harmless(key)):
                    yield from strays(part, f"{at}.{key}", api_words)
                else:
                    yield f"{at}.<key {number + 1}>"  # only its number, because the key itself could identify the site
        case list() | tuple():
            for number, part in enumerate(document):
                yield from strays(part, f"{at}.{number}", api_words)
        case None | bool() | int() | float():
            pass
        case _:
            yield at


def _is_harmless(text: str, key: str = "") -> bool:
    """Return whether a text cannot identify a site. `key`: the key that has it, under which more texts are allowed."""
    patterns = (*_PATTERNS, *([RELEASE] if key in _RELEASES else ()), *([_PCI_ID] if key in _PCI_IDS else ()))
    return text in _TEXTS or any(pattern.fullmatch(text) for pattern in patterns) or is_about_gpus(text)


_KEY_FILE: Final = "bundle.key"
_NAMES_FILE: Final = "bundle-names.json"
_LARGEST_FILE: Final = 64 * 1024 * 1024


def key_of_bundles(state_dir: Path) -> bytes:
    """Return the key of this machine, or a new one that is not saved. Raises StateDamaged if others may read it."""
    path = state_dir / _KEY_FILE
    if not path.is_symlink() and not path.exists():
        return secrets.token_bytes(32)
    private_file(path)
    text = read_bytes(path, error=StateDamaged).decode("ascii", "replace").strip()
    if not re.fullmatch("[0-9a-f]{64}", text):
        hint = f"rename {path}: the next bundle then has other pseudonyms"
        raise StateDamaged(f"{path} contains no key of 64 hexadecimal digits", hint=hint)
    return bytes.fromhex(text)


def save_names(state_dir: Path, key: bytes, names: Mapping[str, str]) -> None:
    """Save the key, and add these real names, by pseudonym, to those of earlier bundles.

    If two processes write bundles, the second waits until the first has saved its names. Raises StateDamaged, and
    UsageError if the first has saved another key.
    """
    prepare_state_dir(state_dir)
    write_new(state_dir / _KEY_FILE, key.hex() + "\n")
    if key_of_bundles(state_dir) != key:  # `write_new` does not replace a key
        raise UsageError("another gpuops bundle ran at the same time", hint="run the same command again")
    with waited_for(state_dir / BUNDLE_NAMES):
        write_private(
            state_dir / _NAMES_FILE, json.dumps({**_saved_names(state_dir), **names}, indent=0, sort_keys=True) + "\n"
        )


def name_behind(state_dir: Path, pseudonym: str) -> str:
    """Return the name that a pseudonym stands for. Raises UsageError if no bundle that was written here has it."""
    name = _saved_names(state_dir).get(pseudonym)
    if name is None:
        hint = "ask the user who wrote the bundle, on the same machine; an id such as vm-1234 is vCenter's own"
        raise UsageError(f"{pseudonym!r} is in no bundle that this user wrote on this machine", hint=hint)
    return name


def _saved_names(state_dir: Path) -> dict[str, str]:
    """Return the real names by pseudonym, of all bundles of this machine. Raises StateDamaged."""
    path = state_dir / _NAMES_FILE
    if not path.is_symlink() and not path.exists():
        return {}
    private_file(path)
    try:
        names = parse_json(read_bytes(path, largest=_LARGEST_FILE, error=StateDamaged))
        return {str(pseudonym): str(name) for pseudonym, name in names.items()}
    except (*NOT_PARSED, AttributeError) as error:
        raise StateDamaged(
            f"{path} is not a JSON object of names", hint=f"rename {path}: older names are then unknown"
        ) from error

"""Reads the archive of a bug report that `gpuops bundle` wrote. Other people send it, so nothing in it is trusted.

Nothing is unpacked onto a disk: one member is read into memory, within a limit that does not depend on the size that
the archive names.
"""

from __future__ import annotations

import io
import lzma
import stat
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

from gpuops.errors import PolicyError
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes

SUFFIX: Final = ".zip"
KIND: Final = "gpuops-bundle"
MANIFEST: Final = "manifest.json"
SCENARIO: Final = "scenario.json"
LARGEST_ARCHIVE: Final = 8 * 1024 * 1024
"""In bytes, packed."""
LARGEST_MEMBER: Final = 32 * 1024 * 1024
"""In bytes, unpacked; three times the scenario of 1,000 hosts and 10,000 VMs."""
MOST_LISTS: Final = 1_000_000
"""Lists and objects of one member: empty ones take twenty times the memory of their text. That scenario has 104,814."""
MOST_VALUES: Final = 4_000_000
"""Counted by their commas; that scenario has 368,487."""
MOST_MEMBERS: Final = 32
_DIRECTORY_ENTRY: Final = b"PK\x01\x02"
"""The first bytes of each entry in the archive's directory."""
_PACKED: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NOT_READ: Final = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError, NotImplementedError, OSError, *NOT_PARSED
)  # fmt: skip
"""What the standard library raises for archives that are damaged, locked with a password, or packed in other ways."""
_HINT: Final = "ask for a file that gpuops bundle wrote"


def read_member(path: Path, name: str) -> Any:
    """Return the values of one JSON file of a bundle. Raises PolicyError if the file is not a valid bundle."""
    raw = read_bytes(path, largest=LARGEST_ARCHIVE, error=PolicyError)
    file_count = raw.count(_DIRECTORY_ENTRY)  # counted first, because ZipFile makes an object for each file
    if file_count > MOST_MEMBERS:
        raise PolicyError(f"{path} has {file_count} files; a bundle has at most {MOST_MEMBERS}", hint=_HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            manifest = parse_json(_checked_content(archive, path, MANIFEST))
            if not isinstance(manifest, dict) or manifest.get("kind") != KIND:
                raise PolicyError(f"{path} is not a bundle: its {MANIFEST} has another `kind`", hint=_HINT)
            return parse_json(_checked_content(archive, path, name))
    except _NOT_READ as error:
        raise PolicyError(f"{path} is not a bundle that can be read: {error}", hint=_HINT) from error


def _checked_content(archive: zipfile.ZipFile, path: Path, name: str) -> bytes:
    """Return the content of one file of the archive. Raises PolicyError.

    The sizes in the archive are not trusted, and lists and values are counted first, because parsing them takes a
    multiple of their size in memory.
    """
    members = [member for member in archive.infolist() if member.filename == name]
    if len(members) != 1:
        raise PolicyError(f"{path} is not a bundle: it has {len(members) or 'no'} files named {name}", hint=_HINT)
    # the upper 16 bits of `external_attr` hold the Unix mode
    if stat.S_ISLNK(members[0].external_attr >> 16):
        raise PolicyError(f"{path} is not a bundle: its {name} is a link", hint=_HINT)
    if members[0].compress_type not in _PACKED:
        raise PolicyError(f"{path} is not a bundle: its {name} is compressed by another method", hint=_HINT)
    with archive.open(members[0]) as stream:
        content = stream.read(LARGEST_MEMBER + 1)
    if len(content) > LARGEST_MEMBER:
        raise PolicyError(f"{path}: its {name} is larger than {LARGEST_MEMBER >> 20} MiB unpacked", hint=_HINT)
    if content.count(b"[") + content.count(b"{") > MOST_LISTS:
        raise PolicyError(f"{path}: its {name} has more than {MOST_LISTS:,} lists and objects", hint=_HINT)
    if content.count(b",") > MOST_VALUES:
        raise PolicyError(f"{path}: its {name} has more than {MOST_VALUES:,} values", hint=_HINT)
    return content

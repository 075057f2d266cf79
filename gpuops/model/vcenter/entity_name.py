"""How vCenter writes the names of its objects: a slash as %2f, a backslash as %5c, a percent sign as %25.

Source: vSphere API reference, ManagedEntity.name. The letters of an escape may be capitals. `vsphere` decodes each name
that it reads, and encodes each name that it sends: everything else has the name as the vSphere Client shows it.
"""

from __future__ import annotations

import re
from typing import Final

_CHARACTERS: Final = {"%2f": "/", "%5c": "\\", "%25": "%"}
_ESCAPE: Final = re.compile("|".join(_CHARACTERS), re.IGNORECASE)


def decode_name(written: str) -> str:
    """Return the real name, `train/bert` for `train%2fbert`. Text without an escape is its own name."""
    if "%" not in written:  # nearly every name: a fleet has ten thousand
        return written
    return _ESCAPE.sub(lambda escape: _CHARACTERS[escape.group().lower()], written)


def encode_name(name: str) -> str:
    """Return the name as vCenter writes it, `train%2fbert` for `train/bert`."""
    # the percent sign first: the other two escapes begin with one
    return name.replace("%", "%25").replace("/", "%2f").replace("\\", "%5c")

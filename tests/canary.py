"""A password that must be seen nowhere, in every form in which it could be."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_plus

CANARY: Final = "Cn4ry&<é\"'>"
_BYTES: Final = CANARY.encode()
FORMS: Final = frozenset(
    {
        CANARY,
        escape(CANARY, quote=False),
        escape(CANARY),
        quote(CANARY),
        quote_plus(CANARY),
        json.dumps(CANARY)[1:-1],
        repr(CANARY)[1:-1],
        ascii(CANARY)[1:-1],
        base64.b64encode(_BYTES).decode(),
        base64.b64encode(b"administrator@vsphere.local:" + _BYTES).decode(),
        "Cn4ry",
    }
)


def require_hidden(where: str, text: str) -> None:
    """Fails with the form in which it is shown."""
    forms = sorted(form for form in FORMS if form in text)
    assert not forms, f"{where} shows the password, as {forms[0]!r}"


def require_no_file(folder: Path, *, but: Collection[Path] = ()) -> int:
    """None of the files below holds it: journal, audit, lock, cache, whatever was left. How many there were."""
    looked = 0
    for path in folder.rglob("*"):
        if path.is_file() and path not in but:
            content = path.read_bytes()
            require_hidden(str(path), content.decode("utf-8", "replace"))
            require_hidden(str(path), content.decode("latin-1"))
            looked += 1
    return looked

"""Names that tell nothing: of one name always the same, by a secret key, with its kind in front."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

DIGITS: Final = 12
"""Hexadecimal: of 100,000 names two are alike once in 50,000 bundles."""


_MOID: Final = re.compile(r"(vm|host|domain-[cs]|datastore|resgroup-v?)-?[0-9]{1,10}")
"""Managed object ids as vCenters number them: they tell nothing, and journal and world have the same ones."""


class NameKind(StrEnum):
    """What a pseudonym stands for; it begins with it."""

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
    PROFILE = "profile"
    OPTION = "option"
    REASON = "reason"
    ID = "id"
    TEXT = "text"


class Pseudonyms:
    """Gives names their pseudonyms, and remembers which it gave."""

    def __init__(self, key: bytes) -> None:
        """`key`: 32 random bytes; whoever has them can try names out."""
        self._key = key
        self._real_names: dict[str, str] = {}

    def of(self, kind: NameKind, name: str) -> str:
        """`vm-3fa2c81d09be`: the same for the same kind and name, under the same key."""
        text = f"{kind.value}\0{name}".encode("utf-8", "surrogatepass")
        pseudonym = f"{kind.value}-{hmac.digest(self._key, text, 'sha256').hex()[:DIGITS]}"
        self._real_names[pseudonym] = name
        return pseudonym

    def ref(self, moid: str) -> str:
        """The managed object id itself, where it is one that a vCenter gives."""
        return moid if _MOID.fullmatch(moid) else self.of(NameKind.ID, moid)

    @property
    def real_names(self) -> Mapping[str, str]:
        """The name behind each pseudonym that was given."""
        return self._real_names

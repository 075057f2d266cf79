"""Pseudonyms for names: always the same for one name and secret key, with the kind in front."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

DIGITS: Final = 12
"""The number of hexadecimal digits. With 100,000 names, two get the same pseudonym in one of 50,000 bundles."""


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
    PROFILE = "profile"
    OPTION = "option"
    REASON = "reason"
    ID = "id"
    TEXT = "text"


class Pseudonyms:
    """Makes pseudonyms, and remembers the names behind them."""

    def __init__(self, key: bytes) -> None:
        """Take the key: 32 random bytes. Anyone who has the key can find out names by trying them."""
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
        """The name behind each pseudonym."""
        return self._real_names

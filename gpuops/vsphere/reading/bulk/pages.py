"""What `reader` needs of a wire for bulk reads: the pages of RetrievePropertiesEx, and container views to read through.

`soap_pages` and `json_pages` implement it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpuops.model.vcenter.entity_name import decode_name
from gpuops.vsphere.reading.bulk.selection import ReadStart
from gpuops.vsphere.reading.bulk.values import text

PAGE_OBJECTS: Final = 250
"""Larger pages save round trips, and cost memory and time in the parser: its tree is ten times the page."""

PathsByType = Mapping[str, Sequence[str]]
"""Property paths by managed object type."""


@dataclass(frozen=True, slots=True)
class ReadObject:
    """One object of a reply: its properties by path, for `values`, and the paths that this login could not read."""

    type: str
    ref: str
    properties: Mapping[str, Any]
    unreadable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its real name, or its id where the name could not be read."""
        return decode_name(text(self.properties.get("name")) or self.ref)


Piece = tuple[str | None, Iterator[ReadObject]]
"""A part of a page: the token of the next page (None = it is the last), and the objects, each made when asked for."""


class Pages(Protocol):
    """Bulk reads over one wire, in one login."""

    @property
    def login(self) -> str:
        """What names the login: a view belongs to one."""
        ...

    def log_in_again(self) -> None:
        """Another login, after this one ended. Raises NotConnected in its kinds."""
        ...

    def new_view(self, types: Sequence[str]) -> str:
        """The id of a new container view of these types below the root. Raises SessionEnded, WireFault,
        NotConnected in its kinds."""
        ...

    def first(self, paths_by_type: PathsByType, starts: Sequence[ReadStart], deadline: float) -> Iterator[Piece]:
        """The first page, received; it is decoded as it is gone through, within `network.decoding`."""
        ...

    def next(self, token: str, deadline: float) -> Iterator[Piece]:
        """The page that the token names."""
        ...

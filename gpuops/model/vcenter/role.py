"""Roles of vCenter, named sets of privileges: as a file wants them and as vCenter has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from msgspec import Meta

from gpuops.model.file_keys import Reads, Text

_Privilege = Annotated[str, Meta(pattern=r"^[A-Za-z]+(\.[A-Za-z]+)+$", max_length=120)]

IMPLIED: Final = frozenset({"System.Anonymous", "System.Read", "System.View"})
"""What vCenter puts into every role by itself (vSphere API reference, AuthorizationManager.AddAuthorizationRole)."""

DEFINE_ATTRIBUTE: Final = "Global.ManageCustomFields"
"""To make a custom attribute, of vCenter as a whole (vSphere API reference, CustomFieldsManager.AddCustomFieldDef)."""

ASSIGN_TO_POOL: Final = frozenset({"Resource.AssignVMToPool"})
"""On the resource pool that a VM comes into (vSphere API reference, RelocateVM_Task)."""


@dataclass(frozen=True, slots=True)
class RoleWish:
    """A role as a file wants it; `where` tells people on what to give it."""

    name: Annotated[str, Meta(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f%/\\]+$")]
    where: Text
    privileges: Annotated[frozenset[str], Reads(frozenset, Annotated[tuple[_Privilege, ...], Meta(min_length=1)])]


@dataclass(frozen=True, slots=True)
class RoleState:
    """A wanted role beside vCenter's. `there` None = there is no role of that name."""

    wish: RoleWish
    there: frozenset[str] | None
    written: bool = False
    """Whether it was made, or brought to what is wanted, just now."""

    @property
    def missing(self) -> frozenset[str]:
        return self.wish.privileges - (self.there or frozenset())

    @property
    def surplus(self) -> frozenset[str]:
        return (self.there or frozenset()) - self.wish.privileges - IMPLIED

    @property
    def right(self) -> bool:
        """Whether vCenter's role is the wanted one, no more and no less."""
        return self.there is not None and not self.missing and not self.surplus

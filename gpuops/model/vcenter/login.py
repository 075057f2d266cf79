"""What `gpuops login test` reads from a vCenter, and vCenter roles as a role file and as vCenter have them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from gpuops.errors import LoginRefused
from gpuops.model.desktops.broker import BrokerIdentity
from gpuops.model.file_keys import Reads, Text


class WrongPassword(LoginRefused):
    """vCenter refused the user name or password themselves: any vCenter of its domain would refuse them too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that the two readers do not give alike; `path` is where it stands in the snapshot."""

    path: str
    soap: str
    json: str


class ObjectKind(StrEnum):
    """On what a privilege is given; a cluster's with those on its resource pool."""

    VM = "VM"
    TEMPLATE = "template"
    HOST = "host"
    CLUSTER = "cluster"
    DATASTORE = "datastore"
    FOLDER = "folder"
    PORT_GROUP = "port group"


@dataclass(frozen=True, slots=True)
class LackingPrivileges:
    """Privileges that a login lacks, and where: folders of VMs; hosts, clusters and datastores by name."""

    privileges: frozenset[str]
    places: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerbNeed:
    """What a verb needs on one kind of object, where the login has all of it, and what it lacks elsewhere."""

    kind: ObjectKind
    privileges: frozenset[str]
    allowed: tuple[str, ...] = ()
    lacking: tuple[LackingPrivileges, ...] = ()
    untold: int = 0
    """The number of objects for which vCenter does not report the privileges of the login."""


@dataclass(frozen=True, slots=True)
class VerbPrivileges:
    """A verb, and what the login lacks for it."""

    verb: str
    role: str
    """The template with the role for it; '' = none."""
    needs: tuple[VerbNeed, ...] = ()

    @property
    def allowed(self) -> bool:
        """Return whether the login has all privileges for it on all objects."""
        return not any(need.lacking or need.untold for need in self.needs)


@dataclass(frozen=True, slots=True)
class LoginTest:
    """The user and the vCenter of a login, and whether VI/JSON may be used there."""

    address: str
    user: str
    product: str
    """AboutInfo.fullName."""
    uuid: str
    api_version: str
    offers_vi_json: bool
    """Whether this version offers it; the fields below are about nothing where it does not."""
    hosts: int = 0
    vms: int = 0
    differences: tuple[Difference, ...] = ()
    failure: str = ""
    """Why nothing was read over VI/JSON."""
    verbs: tuple[VerbPrivileges, ...] = ()
    """The privileges that the login lacks, by verb; empty = vCenter does not report the privileges of this login."""
    asked_vms: int = 0
    """Of so many VMs was asked what it may do."""
    broker: BrokerIdentity | None = None
    """Of the connection broker, and who logged in there; None = none is configured."""

    @property
    def equal(self) -> bool:
        """Return whether both readers gave equal snapshots."""
        return self.offers_vi_json and not self.differences and not self.failure


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
        """Return whether vCenter's role has exactly the wanted privileges."""
        return self.there is not None and not self.missing and not self.surplus

"""UserDirectory: the users that may log in to the simulated vCenter; it knows no groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pyVmomi import vim

from gpuops.sim.core.managed_object import ManagedObject, Properties, method

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World


class UserDirectory(ManagedObject):
    """The users by name, with their domain."""

    wsdl_name = "UserDirectory"
    world: World

    property_table: ClassVar[Properties] = {
        "domainList": lambda self: ["VSPHERE.LOCAL"],
    }

    @method
    def RetrieveUserGroups(
        self,
        call: Call,
        searchStr: str,
        exactMatch: bool,
        findUsers: bool,
        findGroups: bool,
        domain: str | None = None,
        belongsToGroup: str | None = None,
        belongsToUser: str | None = None,
    ) -> Any:
        """The users whose name is `searchStr`, or has it in it in any case (vSphere API, RetrieveUserGroups)."""
        if not findUsers or belongsToGroup:
            return []
        return [
            vim.UserSearchResult(principal=name, group=False)
            for name in self.world.sessions.passwords
            if (searchStr in (name, name.partition("@")[0]) if exactMatch else searchStr.lower() in name.lower())
        ]

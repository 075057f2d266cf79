"""LicenseManager and LicenseAssignmentManager of a vCenter in its evaluation period, which covers all that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyVmomi import vim, vmodl

from gpuops.sim.core.managed_object import ManagedObject, Methods, Properties, method
from gpuops.sim.managers.plain import Answer, plain_kind

if TYPE_CHECKING:
    from gpuops.sim.core.call import Call
    from gpuops.sim.world import World

ASSIGNMENTS: Final = "LicenseAssignmentManager"
LICENCES: Final = {ASSIGNMENTS: "LicenseAssignmentManager"}
"""What is below LicenseManager: moid and type."""
HOURS: Final = 60 * 24
"""The evaluation period: 60 days (VMware, vCenter Server and Host Management, Licensing)."""


def _evaluation() -> Any:
    """The key that vCenter lists for its evaluation mode."""
    return vim.LicenseManager.LicenseInfo(
        licenseKey="-".join(("00000",) * 5),
        editionKey="eval",
        name="Evaluation Mode",
        total=0,
        used=0,
        costUnit="",
        properties=[],
    )


def _period() -> Any:
    left = vmodl.KeyAnyValue(key="expirationHours", value=HOURS)
    return vim.LicenseManager.EvaluationInfo(properties=[left])


SHOWN: Final[Mapping[str, Answer]] = {
    "source": lambda _: vim.LicenseManager.EvaluationLicense(remainingHours=HOURS),
    "sourceAvailable": lambda _: True,
    "licensedEdition": lambda _: "eval",
    "licenses": lambda _: [_evaluation()],
    "evaluation": lambda _: _period(),
}
"""The properties of LicenseManager, of a vCenter and of a host."""


class LicenseManager(plain_kind("LicenseManager", ManagedObject, SHOWN, {})):  # type: ignore[misc]
    """The licences of the vCenter: the evaluation alone."""

    world: World

    property_table: ClassVar[Properties] = {
        "licenseAssignmentManager": lambda self: self.world.get(ASSIGNMENTS),
    }

    method_table: ClassVar[Methods] = {
        "DecodeLicense": lambda self, call, licenseKey: (
            _evaluation() if licenseKey == _evaluation().licenseKey else _undiagnosed(licenseKey)
        ),
        "AddLicense": lambda self, call, licenseKey, **_: _undiagnosed(licenseKey),
    }


def _undiagnosed(key: str) -> Any:
    """A key that is none: vCenter answers with it and says in its diagnostics why it is not in force."""
    told = "The license key is not valid: this simulated vCenter is in evaluation mode."
    return vim.LicenseManager.LicenseInfo(
        licenseKey=key,
        editionKey="",
        name="",
        total=0,
        costUnit="",
        properties=[vmodl.KeyAnyValue(key="diagnostic", value=told)],
    )


class LicenseAssignmentManager(ManagedObject):
    """Which licence each host, cluster and the vCenter itself has."""

    wsdl_name = "LicenseAssignmentManager"
    world: World

    @method
    def QueryAssignedLicenses(self, call: Call, entityId: str | None = None) -> Any:
        named = {self.world.get("ServiceInstance").instance_uuid: "vcenter.test"}
        named |= {host.moid: host.name for host in self.world.by_type("HostSystem")}
        wanted = {entityId: named[entityId]} if entityId in named else {} if entityId else named
        return [
            vim.LicenseAssignmentManager.LicenseAssignment(
                entityId=entity, entityDisplayName=name, assignedLicense=_evaluation()
            )
            for entity, name in wanted.items()
        ]

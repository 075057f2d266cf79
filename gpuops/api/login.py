"""Test a login: the user and the vCenter, the privileges that it lacks, and whether VI/JSON may be used there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuops.api.broker import broker_identity
from gpuops.errors import Refused, TargetError
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.login import LoginTest, ObjectKind

if TYPE_CHECKING:
    from pathlib import Path

    from gpuops.execute.site import Site
    from gpuops.model.desktops.broker import BrokerIdentity
    from gpuops.vsphere.connection import Connection


def login_test(site: Site) -> LoginTest:
    """Return who is logged in to which vCenter, which privileges are missing, and whether both readers agree.

    Reads the inventory over SOAP and, if vCenter offers it, over VI/JSON, and stores in the state directory whether the
    snapshots are equal: if so, `--reader auto` uses VI/JSON. Checks the privileges on a limited number of VMs. Also
    logs in to the connection broker if one is configured. Raises NotConnected, StateDamaged.
    """
    from gpuops.execute.state.compared_readers import identity, remember
    from gpuops.plan.doctor.login_privileges import objects_to_ask, of_verbs, privileges_to_ask
    from gpuops.vsphere.connection import Connection
    from gpuops.vsphere.reading.comparison import compare

    vcenter = site.vcenter
    assert isinstance(vcenter, Connection), "a saved inventory has no login"
    target = vcenter.target
    offered = vcenter.offers_vi_json
    product, uuid = vcenter.about.get("fullName") or "", vcenter.uuid
    snapshot, differences, failure = compare(vcenter) if offered else (vcenter.inventory(), (), "")
    objects = objects_to_ask(snapshot)
    privileges = vcenter.held_on(objects, privileges_to_ask())
    test = LoginTest(
        target.address,
        target.username,
        product,
        uuid,
        vcenter.api_version,
        offered,
        len(snapshot.hosts),
        len(snapshot.vms),
        differences,
        failure,
        of_verbs(privileges, snapshot) if privileges else (),
        sum(ref in privileges for kind in (ObjectKind.VM, ObjectKind.TEMPLATE) for ref in objects[kind]),
        _broker(site, vcenter),
    )
    remember(site.state_dir, target.address, identity(vcenter.about, vcenter.api_version), equal=test.equal)
    return test


def _broker(site: Site, vcenter: Connection) -> BrokerIdentity | None:
    """Return the broker's identity; None if no broker is configured.

    If the extra for brokers is not installed: None and a warning for a simulated vCenter, TargetError for a configured
    broker. Raises NotConnected.
    """
    try:
        return broker_identity(site)
    except TargetError as error:
        if not (vcenter.is_simulated and isinstance(error.__cause__, ImportError)):
            raise
        vcenter.warn(f"the simulated broker is not asked: {error.message}; {error.hint}")
        return None


def choose_reader(vcenter: Connection, reader: BulkReader, state_dir: Path) -> None:
    """Switch a new connection to VI/JSON if `reader` selects it. Raises Refused if it is not offered.

    AUTO selects VI/JSON if `login test` found both readers to be equal on this version of vCenter.
    """
    from gpuops.execute.state.compared_readers import identity, known_equal

    if reader is BulkReader.SOAP or (reader is BulkReader.AUTO and not vcenter.offers_vi_json):
        return
    if not vcenter.offers_vi_json:
        raise Refused(
            f"{vcenter.target.address} offers no VI/JSON: its API is {vcenter.api_version}, and 8.0.1.0 brought it",
            hint="--reader auto reads over SOAP there",
        )
    address, vcenter_identity = vcenter.target.address, identity(vcenter.about, vcenter.api_version)
    if reader is BulkReader.JSON or known_equal(state_dir, address, vcenter_identity):
        vcenter.read_over_vi_json(alone=reader is BulkReader.JSON)

"""Test a login: the user and the vCenter, the privileges that it lacks, and whether VI/JSON may be used there.

`readers.json` in the state directory remembers for which vCenters VI/JSON and SOAP gave equal snapshots. An entry holds
for one vCenter (address and instance uuid) in one version and build; after an upgrade the readers must be compared
again. A file that is missing, damaged or writable by others is ignored. It is no record of the book: every command
reads it when it connects, most of them without opening a journal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuops.api.broker import broker_identity
from gpuops.errors import Refused, StateDamaged, TargetError
from gpuops.execute.state.state_dir import prepare_state_dir, refuse_writable
from gpuops.files.file import NOT_PARSED, parse_json, read_bytes
from gpuops.files.private_file import write_private
from gpuops.model.vcenter.bulk_reader import BulkReader
from gpuops.model.vcenter.login import LoginTest, ObjectKind

if TYPE_CHECKING:
    from gpuops.execute.site import Site
    from gpuops.model.desktops.broker import BrokerIdentity
    from gpuops.vsphere.connection import Connection

_NAME: Final = "readers.json"
_SCHEMA: Final = 1


def known_equal(state_dir: Path, address: str, vcenter: Mapping[str, str]) -> bool:
    """Return whether the readers gave equal snapshots of this vCenter. `vcenter`: its `identity`."""
    return bool(vcenter.get("uuid")) and _read_compared(state_dir / _NAME).get(address) == dict(vcenter)


def remember(state_dir: Path, address: str, vcenter: Mapping[str, str], *, equal: bool) -> None:
    """Save that both readers gave equal snapshots for this vCenter or, if they did not, remove its entry.

    Raises StateDamaged, and UsageError for a directory that cannot be used.
    """
    path = state_dir / _NAME
    stored_vcenters = _read_compared(path)
    new_vcenters = {name: stored_vcenter for name, stored_vcenter in stored_vcenters.items() if name != address}
    if equal:
        new_vcenters[address] = dict(vcenter)
    if new_vcenters == stored_vcenters:
        return
    prepare_state_dir(state_dir)
    write_private(path, json.dumps({"schema_version": _SCHEMA, "equal": new_vcenters}, indent=2) + "\n")


def identity(about: Mapping[str, str | None], api_version: str) -> dict[str, str]:
    """Return the identity of a vCenter and its version, from AboutInfo."""
    about_keys = {"uuid": "instanceUuid", "version": "version", "build": "build"}
    return {"api_version": api_version, **{name: about.get(key) or "" for name, key in about_keys.items()}}


def _read_compared(path: Path) -> dict[str, Any]:
    try:
        document = parse_json(read_bytes(path, error=StateDamaged, check=refuse_writable))
        if document["schema_version"] != _SCHEMA or not isinstance(document["equal"], dict):
            return {}
        return dict(document["equal"])
    except (*NOT_PARSED, AttributeError, StateDamaged):
        return {}


def login_test(site: Site) -> LoginTest:
    """Return who is logged in to which vCenter, which privileges are missing, and whether both readers agree.

    Reads the inventory over SOAP and, if vCenter offers it, over VI/JSON, and stores in the state directory whether the
    snapshots are equal: if so, `--reader auto` uses VI/JSON. Checks the privileges on a limited number of VMs. Also
    logs in to the connection broker if one is configured. Raises NotConnected, StateDamaged.
    """
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
        # the VMs and templates whose privileges vCenter reported
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

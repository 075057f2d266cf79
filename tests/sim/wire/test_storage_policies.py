"""Storage policies on /pbm, as unmodified pyVmomi asks for them; govmomi's requests are in `test_terraform.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyVim.connect import Disconnect
from pyVmomi import SoapStubAdapter, VmomiSupport, pbm, vmodl

from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from tests.sim.lab import connect

STORAGE = pbm.profile.ResourceType(resourceType="STORAGE")


@pytest.fixture
def server() -> Iterator[SimServer]:
    with SimServer(build("lab"), tls=False) as running:
        yield running
    assert running.world.bugs == []


@contextmanager
def manager(server: SimServer, token: str) -> Iterator[Any]:
    """The manager of policies; the session of vCenter is in the header of each request."""
    VmomiSupport.GetRequestContext()["vcSessionCookie"] = token
    stub = SoapStubAdapter(host=server.host, port=-server.port, path="/pbm/sdk", version="pbm.version.version2")
    yield pbm.ServiceInstance("ServiceInstance", stub).RetrieveContent().profileManager
    stub.DropConnections()
    VmomiSupport.GetRequestContext().clear()


@pytest.fixture
def profiles(server: SimServer) -> Iterator[Any]:
    si = connect(server)
    with manager(server, si._stub.cookie.split('"')[1]) as storage_profiles:
        yield storage_profiles
    Disconnect(si)


def test_nothing_has_a_policy(profiles: Any) -> None:
    vm = pbm.ServerObjectRef(objectType="virtualMachine", key="vm-1033")
    disk = pbm.ServerObjectRef(objectType="virtualDiskId", key="vm-1033:2000")
    assert [list(profiles.QueryAssociatedProfile(entity)) for entity in (vm, disk)] == [[], []]
    answers = profiles.QueryAssociatedProfiles([vm, disk])
    assert [(answer.object.key, list(answer.profileId)) for answer in answers] == [(vm.key, []), (disk.key, [])]


def test_the_policies_of_every_vcenter_are_listed_and_read(profiles: Any) -> None:
    profile_ids = profiles.QueryProfile(STORAGE, "REQUIREMENT")
    policies = profiles.RetrieveContent(profile_ids)
    assert {policy.profileId.uniqueId: policy.name for policy in policies} == {
        "aa6d5a82-1c88-45da-85d3-3d74b91a5bad": "vSAN Default Storage Policy",
        "4d5f673c-536f-11e6-beb8-9e71128cae77": "VM Encryption Policy",
    }
    assert list(profiles.QueryProfile(STORAGE, "RESOURCE")) == []
    with pytest.raises(vmodl.fault.InvalidArgument):
        profiles.RetrieveContent([pbm.profile.ProfileId(uniqueId="none")])


def test_what_is_not_simulated_is_refused_by_name(profiles: Any) -> None:
    with pytest.raises(vmodl.fault.NotSupported, match="PbmFetchResourceType is not simulated"):
        profiles.FetchResourceType()
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        pbm.profile.ProfileManager("none", profiles._stub).QueryProfile(STORAGE, None)


def test_all_but_the_content_takes_a_login(server: SimServer) -> None:
    with manager(server, token="") as profiles, pytest.raises(vmodl.fault.SecurityError):
        profiles.QueryProfile(STORAGE, None)

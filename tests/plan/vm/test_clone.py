"""A VM from a template, once: where it goes, how large it is, and every reason why not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.errors import HostNotFound, UsageError, VmAmbiguous, VmNotFound
from gpuops.model.vcenter.host import Datastore
from gpuops.model.vcenter.inventory import Inventory
from gpuops.plan.core.steps import CloneVm
from gpuops.plan.vm.clone import Clone
from tests.plan.snapshots import SNAPSHOTS


@pytest.fixture
def lab() -> Inventory:
    """The lab with a template, on a host that sees one datastore."""
    lab = SNAPSHOTS["lab"]()
    golden = replace(lab.find_vm("ml-07"), ref="golden", name="golden", path="/dc/vm/golden", template=True)
    host = replace(lab.find_host("esx-01"), datastores=("ds",))
    lab = lab.with_vm(replace(golden, instance_uuid=None)).with_hosts([host])
    return replace(lab, datastores={"ds": Datastore("ds", "fast")})


def test_what_is_not_said_is_the_templates(lab: Inventory) -> None:
    source = lab.find_vm("golden")
    assert source.vcpus
    assert source.memory_mib
    assert source.host
    expected = CloneVm("new:/dc/vm/new", "new", "golden", source.host, None, None, source.vcpus, source.memory_mib)
    assert Clone("new", "golden").planned(lab, None).new == expected
    host = lab.find_host("esx-05").ref
    clone = Clone("new", "golden", host="esx-05", folder="/dc/vm/ml", vcpus=2, memory_mib=2048).planned(lab, "group-v9")
    assert clone.new == CloneVm("new:/dc/vm/ml/new", "new", "golden", host, "group-v9", None, 2, 2048)
    stored = Clone("new", "golden", datastore="fast").planned(lab, None).new
    assert stored is not None
    assert stored.datastore == "ds"


def test_a_vm_of_that_name_is_the_one_that_is_meant(lab: Inventory) -> None:
    clone = Clone("ml-07", "nobody").planned(lab, None)
    assert (clone.existing_vm, clone.new, clone.rejections) == (lab.find_vm("ml-07"), None, ())
    clone = Clone("golden", "golden").planned(lab, None)
    assert [rejection.rule for rejection in clone.rejections] == ["is a template, not a VM"]
    twin = replace(lab.find_vm("ml-07"), ref="twin", path="/dc/vm/b/ml-07", instance_uuid=None)
    with pytest.raises(VmAmbiguous):
        Clone("ml-07", "golden").planned(lab.with_vm(twin), None)
    existing = Clone("ml-07", "golden", folder="/dc/vm/b/").planned(lab.with_vm(twin), "group-v9").existing_vm
    assert existing is not None
    assert existing.ref == "twin"


def test_every_reason_is_said(lab: Inventory) -> None:
    disconnected = lab.with_hosts([replace(lab.find_host("esx-01"), connected=False)])
    clone = Clone("new", "ml-07", datastore="slow").planned(disconnected, None)
    assert clone.new is None
    assert len(clone.rejections) == 3
    unread = lab.with_vm(replace(lab.find_vm("golden"), memory_mib=None))
    assert [rejection.subject for rejection in Clone("new", "golden").planned(unread, None).rejections] == ["golden"]
    assert Clone("new", "golden", memory_mib=1024).planned(unread, None).new is not None


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Clone("a/b", "golden"), UsageError),
        (Clone("moid:vm-1", "golden"), UsageError),
        (Clone("", "golden"), UsageError),
        (Clone("new", "golden", vcpus=0), UsageError),
        (Clone("new", "nobody"), VmNotFound),
        (Clone("new", "golden", host="esx-99"), HostNotFound),
    ],
)
def test_what_means_nothing_is_said(lab: Inventory, request_: Clone, error: type[UsageError]) -> None:
    with pytest.raises(error):
        request_.planned(lab, None)

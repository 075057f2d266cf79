"""Names that are taken or none, folders and containers of the wrong kind, references of the wrong type."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyVmomi import vim, vmodl

from tests.sim.lab import Lab, Q, serve_lab


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One for all of these tests: what they ask for is refused, and changes nothing."""
    with serve_lab() as lab:
        yield lab
        assert list(lab.world.ledger) == []


def clone(lab: Lab, name: str, folder: Any = None) -> Any:
    spec = vim.vm.CloneSpec(location=vim.vm.RelocateSpec(pool=lab.vm("ml-01").resourcePool), template=False)
    return lab.run(lab.vm("ml-07").CloneVM_Task(folder or lab.vm("ml-07").parent, name, spec))


def create(lab: Lab, name: str) -> Any:
    spec = vim.vm.ConfigSpec(name=name, files=vim.vm.FileInfo(vmPathName="[lab-ds-1]"), numCPUs=1, memoryMB=4)
    return lab.run(lab.vm("ml-07").parent.CreateVM_Task(spec, lab.cluster().resourcePool))


def snapshot(lab: Lab, name: str) -> Any:
    return lab.run(lab.vm("ml-07").CreateSnapshot_Task(name, "", memory=False, quiesce=False))


NAMED: dict[str, Callable[[Lab, str], Any]] = {
    "rename": lambda lab, name: lab.run(lab.vm("ml-07").Rename_Task(name)),
    "rename of a folder": lambda lab, name: lab.run(lab.vm("ml-07").parent.Rename_Task(name)),
    "rename of a cluster": lambda lab, name: lab.run(lab.cluster().Rename_Task(name)),
    "reconfigure": lambda lab, name: lab.run(lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(name=name))),
    "clone": clone,
    "create": create,
    "folder": lambda lab, name: lab.vm("ml-07").parent.CreateFolder(name),
}


@pytest.mark.parametrize("name", ["", " ", "x" * 81])
@pytest.mark.parametrize("method", NAMED)
def test_a_name_that_is_none_is_invalid(lab: Lab, method: str, name: str) -> None:
    with pytest.raises(vim.fault.InvalidName) as refused:
        NAMED[method](lab, name)
    assert refused.value.name == name


@pytest.mark.parametrize(
    ("method", "existing_name"),
    [(method, "vdi" if method == "rename of a folder" else "ml-08") for method in NAMED if "cluster" not in method],
)
def test_a_taken_name_is_a_duplicate(lab: Lab, method: str, existing_name: str) -> None:
    with pytest.raises(vim.fault.DuplicateName) as refused:
        NAMED[method](lab, existing_name)
    assert (refused.value.name, refused.value.object.name) == (existing_name, existing_name)


def test_a_snapshot_and_a_custom_field_need_names(lab: Lab) -> None:
    with pytest.raises(vim.fault.InvalidName):
        snapshot(lab, "")
    with pytest.raises(vmodl.fault.InvalidArgument):
        lab.si.content.customFieldsManager.AddCustomFieldDef("", vim.VirtualMachine)


def test_slashes_and_percent_signs_of_a_name_are_escaped() -> None:
    """VSphere API, ManagedEntity.name."""
    with serve_lab() as lab:
        home = lab.datacenter().vmFolder
        folder = home.CreateFolder("a/b\\c 5% %2f")
        assert folder.name == "a%2fb%5cc 5%25 %2f"
        with pytest.raises(vim.fault.DuplicateName):
            home.CreateFolder("a/b\\c 5% /")
        lab.run(folder.Rename_Task("plain"))
        lab.run(folder.Rename_Task("plain"))
        assert folder.name == "plain"


def test_a_clone_and_a_moved_vm_go_into_folders_of_vms(lab: Lab) -> None:
    hosts = lab.datacenter().hostFolder
    with pytest.raises(vmodl.fault.NotSupported):
        clone(lab, "copy", hosts)
    with pytest.raises(vmodl.fault.NotSupported):
        lab.run(lab.vm("ml-07").RelocateVM_Task(vim.vm.RelocateSpec(folder=hosts)))


@pytest.mark.parametrize("find_object", [lambda lab: lab.vm("ml-07"), lambda lab: lab.vm("ml-07").network[0]])
def test_a_view_needs_a_container(lab: Lab, find_object: Callable[[Lab], Any]) -> None:
    with pytest.raises(vmodl.fault.InvalidArgument) as refused:
        lab.si.content.viewManager.CreateContainerView(find_object(lab), [vim.VirtualMachine], True)
    assert refused.value.invalidProperty == "container"


def test_a_network_card_names_its_network(lab: Lab) -> None:
    (card,) = (
        device
        for device in lab.vm("ml-07").config.hardware.device
        if isinstance(device, vim.vm.device.VirtualEthernetCard)
    )
    assert isinstance(card.backing, vim.vm.device.VirtualEthernetCard.NetworkBackingInfo)
    assert card.backing.network is not None
    assert [card.backing.network] == list(lab.vm("ml-07").network)
    assert card.backing.deviceName == card.backing.network.name


def test_a_cluster_says_that_it_has_no_vsan(lab: Lab) -> None:
    vsan = lab.cluster().configurationEx.vsanConfigInfo
    assert (vsan.enabled, vsan.defaultConfig.autoClaimStorage) == (False, False)


def test_an_id_under_another_type_is_not_found(lab: Lab) -> None:
    wrong = vim.HostSystem(lab.vm("ml-07")._moId, lab.si._stub)
    for ask in (
        lambda: wrong.name,
        lambda: wrong.EnterMaintenanceMode_Task(0),
        lambda: lab.vm("ml-07").PowerOnVM_Task(wrong),
        lambda: lab.vm("ml-07").RelocateVM_Task(vim.vm.RelocateSpec(host=wrong)),
    ):
        with pytest.raises(vmodl.fault.ManagedObjectNotFound) as refused:
            ask()
        assert refused.value.obj._moId == wrong._moId
    session = lab.si.content.viewManager.CreateContainerView(lab.si.content.rootFolder, [], True)
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        vim.VirtualMachine(session._moId, lab.si._stub).PowerOffVM_Task()


def test_a_base_type_names_an_object_too(lab: Lab) -> None:
    assert vim.ManagedEntity(lab.vm("ml-07")._moId, lab.si._stub).name == "ml-07"


BODY = """<soapenv:Envelope xmlns:soapenv="http://schemas.xmlsoap.org/soap/envelope/"
 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><soapenv:Body><{0} xmlns="urn:vim25">{1}</{0}>
</soapenv:Body></soapenv:Envelope>"""


def post_request(lab: Lab, method: str, content: str) -> str:
    """The text of the fault that a request gets."""
    stub = lab.si._stub
    request = urllib.request.Request(
        f"http://{stub.host}/sdk", BODY.format(method, content).encode(), {"Cookie": stub.cookie}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as reply:
        return reply.read().decode()


@pytest.mark.parametrize(
    ("method", "content"),
    [
        ("PowerOnVM_Task", '<_this type="VirtualMachine">{vm}</_this><host type="VirtualMachine">{vm}</host>'),
        ("PowerOnVM_Task", '<_this type="VirtualMachine">{vm}</_this><host type="Nothing">{vm}</host>'),
        ("PowerOnVM_Task", '<_this type="Nothing">{vm}</_this>'),
        (
            "ReconfigVM_Task",
            '<_this type="VirtualMachine">{vm}</_this><spec xsi:type="VirtualMachineRelocateSpec"></spec>',
        ),
        ("ReconfigVM_Task", '<_this type="VirtualMachine">{vm}</_this><spec><numCPUs>many</numCPUs></spec>'),
        (
            "RelocateVM_Task",
            '<_this type="VirtualMachine">{vm}</_this><spec><host type="VirtualMachine">{vm}</host></spec>',
        ),
        (
            "RetrievePropertiesEx",
            '<_this type="PropertyCollector">propertyCollector</_this><specSet><objectSet/></specSet><options/>',
        ),
    ],
)
def test_a_value_of_another_type_is_an_invalid_request(lab: Lab, method: str, content: str) -> None:
    """InvalidType is an InvalidRequest (vSphere API)."""
    answer = post_request(lab, method, content.format(vm=lab.vm("ml-07")._moId))
    assert re.search(r'type="Invalid(Type|Request)"', answer)
    assert not re.search(r"[A-Z]\w+Error|Traceback|object has no", answer), "no text of an exception of ours"


def collector(lab: Lab) -> Any:
    return lab.si.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())


def pool_that_owes(lab: Lab) -> Any:
    spec = lab.cluster().resourcePool.config
    spec.cpuAllocation.reservation = -1
    return lab.cluster().resourcePool.CreateResourcePool("owing", spec)


def rule_twice(lab: Lab) -> Any:
    info = vim.cluster.AntiAffinityRuleSpec(name="apart", enabled=True, vm=[lab.vm("ml-07"), lab.vm("ml-08")])
    spec = vim.cluster.ConfigSpecEx(rulesSpec=[vim.cluster.RuleSpec(operation="add", info=info)] * 2)
    return lab.run(lab.cluster().ReconfigureComputeResource_Task(spec, True))


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda lab: collector(lab).ReadNextEvents(0), vmodl.fault.InvalidArgument),
        (lambda lab: collector(lab).ReadPreviousEvents(-1), vmodl.fault.InvalidArgument),
        (lambda lab: lab.si.content.perfManager.QueryPerfCounterByLevel(9), vmodl.fault.InvalidArgument),
        (lambda lab: lab.si.content.authorizationManager.AddAuthorizationRole("", []), vim.fault.InvalidName),
        (
            lambda lab: lab.si.content.viewManager.CreateContainerView(lab.si.content.rootFolder, [vim.Task], True),
            vmodl.fault.InvalidArgument,
        ),
        (pool_that_owes, vmodl.fault.InvalidArgument),
        (rule_twice, vmodl.fault.InvalidArgument),
        (
            lambda lab: lab.run(lab.vm("ml-07").ReconfigVM_Task(vim.vm.ConfigSpec(guestId="noSuchGuest"))),
            vmodl.fault.InvalidArgument,
        ),
    ],
)
def test_what_the_api_declares_is_refused(lab: Lab, call: Callable[[Lab], Any], fault: type[Exception]) -> None:
    with pytest.raises(fault):
        call(lab)


def mistyped_reference(lab: Lab, kind: Any = vim.VirtualApp) -> Any:
    """A reference to the cluster's root pool as an object of another type: how Terraform asks whether it is a vApp."""
    return kind(lab.cluster().resourcePool._moId, lab.si._stub)


def read_names(lab: Lab, obj: Any) -> Any:
    names = Q.PropertySpec(type=vim.ManagedEntity, pathSet=["name"])
    return lab.si.content.propertyCollector.RetrieveContents(
        [Q.FilterSpec(objectSet=[Q.ObjectSpec(obj=obj)], propSet=[names])]
    )


def permissions(lab: Lab) -> Any:
    return lab.si.content.authorizationManager


@pytest.mark.parametrize(
    "call",
    [
        lambda lab: read_names(lab, mistyped_reference(lab)),
        lambda lab: read_names(lab, vim.HostSystem("propertyCollector")),
        lambda lab: mistyped_reference(lab).name,
        lambda lab: vim.VirtualMachine("propertyCollector", lab.si._stub).name,
        lambda lab: permissions(lab).RetrieveEntityPermissions(mistyped_reference(lab), False),
        lambda lab: permissions(lab).SetEntityPermissions(vim.Folder("group-none"), []),
        lambda lab: permissions(lab).RemoveEntityPermission(mistyped_reference(lab), "nobody", False),
        lambda lab: lab.si.content.searchIndex.FindByUuid(mistyped_reference(lab, vim.Datacenter), "", True),
    ],
)
def test_a_reference_of_another_type_finds_nothing(lab: Lab, call: Callable[[Lab], Any]) -> None:
    with pytest.raises(vmodl.fault.ManagedObjectNotFound):
        call(lab)


def test_a_reference_of_a_base_type_finds_the_object(lab: Lab) -> None:
    (cluster,) = read_names(lab, vim.ComputeResource(lab.cluster()._moId))
    assert cluster.propSet[0].val == "lab-cluster"


def test_a_list_view_returns_references_of_another_type(lab: Lab) -> None:
    view = lab.si.content.viewManager.CreateListView([])
    assert view.ModifyListView([mistyped_reference(lab), lab.cluster()], []) == [mistyped_reference(lab)]
    assert list(view.view) == [lab.cluster()]


def test_a_role_does_not_take_the_name_of_another(lab: Lab) -> None:
    manager = lab.si.content.authorizationManager
    manager.AddAuthorizationRole("day", [])
    night = manager.AddAuthorizationRole("night", [])
    manager.UpdateAuthorizationRole(night, "night", [])
    with pytest.raises(vim.fault.AlreadyExists):
        manager.UpdateAuthorizationRole(night, "day", [])


def test_users_are_found_by_their_name(lab: Lab) -> None:
    def find_users(text: str, *, exact: bool, users: bool = True) -> list[str]:
        directory = lab.si.content.userDirectory
        return [
            account.principal for account in directory.RetrieveUserGroups(None, text, None, None, exact, users, True)
        ]

    (user,) = find_users("", exact=False)
    assert (
        find_users("ADMIN", exact=False)
        == find_users(user, exact=True)
        == find_users("administrator", exact=True)
        == [user]
    )
    assert (
        find_users("admin", exact=True)
        == find_users("nobody", exact=False)
        == find_users("", exact=False, users=False)
        == []
    )

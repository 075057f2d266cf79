"""Operations on folders, datacenters and clusters."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim

from tests.peers.vcsim_table.operation import Case, Cases, operations
from tests.peers.vcsim_table.site import Site

LONG: Final = "n" * 81


def name(site: Site) -> Any:
    return site.kept.name


def cluster(site: Site, called: str) -> Any:
    """A new cluster without hosts; it is kept."""
    return site.keep(site.datacenter.hostFolder.CreateClusterEx(called, vim.cluster.ConfigSpecEx()))


def reconfigure(site: Site, spec: Any, *, modify: bool = True) -> Any:
    return site.cluster.ReconfigureComputeResource_Task(spec, modify)


def rule(site: Site, operation: str, **fields: Any) -> Any:
    """A change of the DRS rules of the cluster."""
    vms = [*site.cluster.host[0].vm[:1], site.running]
    info = vim.cluster.AntiAffinityRuleSpec(**{"enabled": True, "vm": vms, **fields})
    return vim.cluster.ConfigSpecEx(rulesSpec=[vim.cluster.RuleSpec(operation=operation, info=info)])


def rules(site: Site) -> Any:
    return [rule.name for rule in site.cluster.configurationEx.rule]


def group(operation: str, called: str, **fields: Any) -> Any:
    change = vim.cluster.GroupSpec(operation=operation, **fields)
    if operation != "remove":
        change.info = vim.cluster.VmGroup(name=called)
    return vim.cluster.ConfigSpecEx(groupSpec=[change])


def groups(site: Site) -> Any:
    return [group.name for group in site.cluster.configurationEx.group]


def drs(site: Site) -> Any:
    return site.cluster.configurationEx.drsConfig.defaultVmBehavior


def connect_spec(**fields: Any) -> Any:
    defaults = {"hostName": "new-host", "userName": "root", "password": "secret", "force": True}
    return vim.host.ConnectSpec(**{**defaults, **fields})


def drs_config(**fields: Any) -> Any:
    return vim.cluster.ConfigSpecEx(drsConfig=vim.cluster.DrsConfigInfo(**fields))


FOLDERS: Final[Cases] = {
    "Folder.CreateFolder": {
        "a free name": (lambda s: s.made("folder"), name),
        "a name that is taken": lambda s: (s.made("twin"), s.made("twin"))[-1],
        "an empty name": Case(lambda s: s.made(""), last=True),
        "a name of 81 characters": lambda s: s.made(LONG),
        "with a slash": (lambda s: s.made("c/d"), name),
        "in the root folder": (
            lambda s: s.content.rootFolder.CreateFolder("tier"),
            lambda s: len(s.content.rootFolder.childEntity),
        ),
    },
    "Folder.Rename_Task": {
        "a free name": (lambda s: s.made("old").Rename_Task("young"), name),
        "of the folder of VMs": (lambda s: s.folder.Rename_Task("machines"), lambda s: s.folder.name),
    },
    "Folder.Destroy_Task": {
        "an empty one": (lambda s: s.made("empty").Destroy_Task(), name),
        "the folder of VMs": Case(lambda s: s.datacenter.datastoreFolder.Destroy_Task(), last=True),
        "with a running VM": Case(
            lambda s: (s.ended(s.made("full").MoveIntoFolder_Task([s.running])), s.kept.Destroy_Task())[-1],
            name,
            last=True,
        ),
    },
    "Folder.MoveIntoFolder_Task": {
        "a VM": (
            lambda s: s.made("home-of-one").MoveIntoFolder_Task([s.running]),
            lambda s: len(s.kept.childEntity),
        ),
        "into itself": lambda s: s.made("ring").MoveIntoFolder_Task([s.kept]),
        "a cluster into a folder of VMs": lambda s: s.made("wrong").MoveIntoFolder_Task([s.cluster]),
    },
    "Folder.CreateDatacenter": {
        "a free name": (lambda s: s.keep(s.content.rootFolder.CreateDatacenter("DC1")), name),
        "a name that is taken": lambda s: s.content.rootFolder.CreateDatacenter("DC0"),
        "an empty name": Case(lambda s: s.content.rootFolder.CreateDatacenter(""), last=True),
        "in a folder of VMs": lambda s: s.folder.CreateDatacenter("DC2"),
    },
    "Datacenter.Destroy_Task": {
        "an empty one": (lambda s: s.keep(s.content.rootFolder.CreateDatacenter("DC3")).Destroy_Task(), name),
        "one with hosts": (lambda s: s.datacenter.Destroy_Task(), lambda s: s.datacenter.name),
    },
    "Datacenter.Rename_Task": {
        "a free name": (lambda s: s.keep(s.content.rootFolder.CreateDatacenter("DC4")).Rename_Task("DC5"), name),
    },
    "Datacenter.QueryConnectionInfo": {
        "a host": lambda s: s.datacenter.QueryConnectionInfo(
            hostname="new-host", port=-1, username="root", password="secret"
        ),
    },
    "Folder.CreateStoragePod": {
        "a free name": lambda s: s.datacenter.datastoreFolder.CreateStoragePod("pod"),
    },
}

CLUSTERS: Final[Cases] = {
    "Folder.CreateClusterEx": {
        "a free name": (lambda s: cluster(s, "C1"), name),
        "a name that is taken": lambda s: cluster(s, "DC0_C0"),
        "an empty name": Case(lambda s: cluster(s, ""), last=True),
        "in a folder of VMs": lambda s: s.folder.CreateClusterEx("C2", vim.cluster.ConfigSpecEx()),
    },
    "ClusterComputeResource.Destroy_Task": {
        "an empty one": (lambda s: cluster(s, "C3").Destroy_Task(), name),
        "one with hosts": (lambda s: s.cluster.Destroy_Task(), lambda s: s.cluster.name),
    },
    "ClusterComputeResource.ReconfigureComputeResource_Task": {
        "DRS manual": (lambda s: reconfigure(s, drs_config(enabled=True, defaultVmBehavior="manual")), drs),
        "a DRS threshold of 9": lambda s: reconfigure(s, drs_config(vmotionRate=9)),
        "a rule added": (lambda s: reconfigure(s, rule(s, "add", name="apart")), rules),
        "a rule added that is there": lambda s: (
            s.ended(reconfigure(s, rule(s, "add", name="twin"))),
            reconfigure(s, rule(s, "add", name="twin")),
        )[-1],
        "a rule edited that is not there": lambda s: reconfigure(s, rule(s, "edit", name="none", key=4711)),
        "a rule removed that is not there": lambda s: reconfigure(
            s, vim.cluster.ConfigSpecEx(rulesSpec=[vim.cluster.RuleSpec(operation="remove", removeKey=4711)])
        ),
        "a group added": (lambda s: reconfigure(s, group("add", "those")), groups),
        "a group added that is there": lambda s: (
            s.ended(reconfigure(s, group("add", "twin"))),
            reconfigure(s, group("add", "twin")),
        )[-1],
        "a group removed that is not there": lambda s: reconfigure(s, group("remove", "none", removeKey="none")),
        "an override of a VM": (
            lambda s: reconfigure(
                s,
                vim.cluster.ConfigSpecEx(
                    drsVmConfigSpec=[
                        vim.cluster.DrsVmConfigSpec(
                            operation="add", info=vim.cluster.DrsVmConfigInfo(key=s.running, behavior="manual")
                        )
                    ]
                ),
            ),
            lambda s: [override.behavior for override in s.cluster.configurationEx.drsVmConfig],
        ),
    },
    "ClusterComputeResource.RecommendHostsForVm": {
        "a VM that is on": lambda s: s.cluster.RecommendHostsForVm(s.running, None),
    },
    "ClusterComputeResource.PlaceVm": {
        "a new VM": lambda s: s.cluster.PlaceVm(
            vim.cluster.PlacementSpec(placementType="create", configSpec=vim.vm.ConfigSpec(name="placed"))
        ),
    },
    "ClusterComputeResource.AddHost_Task": {
        "a new host": (lambda s: s.cluster.AddHost_Task(connect_spec(), True), lambda s: len(s.cluster.host)),
        "without a name": lambda s: s.cluster.AddHost_Task(connect_spec(hostName=""), True),
    },
    "Folder.AddStandaloneHost_Task": {
        "a new host": lambda s: s.datacenter.hostFolder.AddStandaloneHost_Task(
            connect_spec(hostName="alone"), addConnected=True
        ),
        "in a folder of VMs": lambda s: s.folder.AddStandaloneHost_Task(
            connect_spec(hostName="astray"), addConnected=True
        ),
    },
    "ClusterComputeResource.MoveInto_Task": {
        "a host that is in it": lambda s: s.cluster.MoveInto_Task([s.host]),
    },
    "ClusterComputeResource.RefreshRecommendation": {
        "": lambda s: s.cluster.RefreshRecommendation(),
    },
}

OPERATIONS: Final = operations(FOLDERS, CLUSTERS)

"""Operations that read: the property collector, views, the search index, events, tasks and performance counters."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim, vmodl

from tests.peers.vcsim_table.operation import Cases, operations
from tests.peers.vcsim_table.site import Site

Q = vmodl.query.PropertyCollector


def filter_spec(obj: Any, paths: list[str], kind: Any = None, *, skip: bool = False, **selection: Any) -> Any:
    """Of these properties of one object, or of what the traversal finds from it."""
    return Q.FilterSpec(
        objectSet=[Q.ObjectSpec(obj=obj, skip=skip, **selection)],
        propSet=[Q.PropertySpec(type=kind or type(obj), pathSet=paths)],
    )


def children(path: str = "childEntity", kind: Any = vim.Folder) -> list[Any]:
    return [Q.TraversalSpec(name="down", type=kind, path=path, skip=False)]


def retrieve(site: Site, *specs: Any, most: int | None = None) -> Any:
    return site.collector.RetrievePropertiesEx(list(specs), Q.RetrieveOptions(maxObjects=most))


def values(result: Any) -> Any:
    """The names of the properties that came, and those that are missing with the fault."""
    return [
        " ".join(
            [
                *sorted(prop.name for prop in obj.propSet),
                *(
                    f"-{missing.path}:{type(missing.fault.fault).__name__.rpartition('.')[2]}"
                    for missing in obj.missingSet
                ),
            ]
        )
        for obj in result.objects
    ]


def view(site: Site, *kinds: Any, container: Any = None, recursive: bool = True) -> Any:
    return site.keep(
        site.content.viewManager.CreateContainerView(container or site.content.rootFolder, list(kinds), recursive)
    )


def count(site: Site) -> Any:
    return len(site.kept.view)


def read(obj: Any, *paths: str) -> Any:
    """Reads these properties of an object by RetrievePropertiesEx."""
    return lambda s: values(retrieve(s, filter_spec(obj(s), list(paths))))


def events(site: Site, **fields: Any) -> Any:
    return site.content.eventManager.QueryEvents(vim.event.EventFilterSpec(**fields))


def perf(site: Site, counter: str, interval: int = 20, instance: str = "") -> Any:
    metric = vim.PerformanceManager.MetricId(counterId=site.counters().get(counter, 99999), instance=instance)
    spec = vim.PerformanceManager.QuerySpec(
        entity=site.host, metricId=[metric], intervalId=interval, maxSample=1, format="normal"
    )
    return site.content.perfManager.QueryPerf([spec])


COLLECTOR: Final[Cases] = {
    "PropertyCollector.RetrievePropertiesEx": {
        "one property": read(lambda s: s.host, "name"),
        "one property, what came": (lambda s: None, read(lambda s: s.host, "name")),
        "a path that is not there": lambda s: retrieve(s, filter_spec(s.host, ["no.such.path"])),
        "an unset property": (lambda s: None, read(lambda s: s.running, "name", "snapshot")),
        "a device by its key": (lambda s: None, read(lambda s: s.running, "config.hardware.device[4711]")),
        "of an object that is not there": lambda s: retrieve(
            s, filter_spec(vim.VirtualMachine("vm-4711", s.service._stub), ["name"])
        ),
        "a traversal by childEntity": (
            lambda s: None,
            lambda s: len(
                retrieve(
                    s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, skip=True, selectSet=children())
                ).objects
            ),
        ),
        "a traversal by a path that is not there": lambda s: retrieve(
            s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, selectSet=children("noSuchPath"))
        ),
        "a selection that nobody names": lambda s: retrieve(
            s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, selectSet=[Q.SelectionSpec(name="none")])
        ),
        "pages of one": (
            lambda s: None,
            lambda s: [
                len(
                    (
                        page := retrieve(
                            s,
                            filter_spec(
                                view(s, vim.VirtualMachine),
                                ["name"],
                                vim.VirtualMachine,
                                skip=True,
                                selectSet=children("view", vim.view.ContainerView),
                            ),
                            most=1,
                        )
                    ).objects
                ),
                page.token is not None,
            ],
        ),
        "pages of none": lambda s: retrieve(s, filter_spec(s.host, ["name"]), most=0),
    },
    "PropertyCollector.ContinueRetrievePropertiesEx": {
        "no token": lambda s: s.collector.ContinueRetrievePropertiesEx("none"),
    },
    "PropertyCollector.CancelRetrievePropertiesEx": {
        "no token": lambda s: s.collector.CancelRetrievePropertiesEx("none"),
    },
    "PropertyCollector.RetrieveProperties": {
        "one property": lambda s: s.collector.RetrieveProperties([filter_spec(s.host, ["name"])]),
    },
    "PropertyCollector.CreateFilter": {
        "one property": lambda s: s.keep(s.collector.CreateFilter(filter_spec(s.host, ["name"]), False)),
        "a path that is not there": lambda s: s.collector.CreateFilter(filter_spec(s.host, ["no.such.path"]), False),
    },
    "PropertyCollector.WaitForUpdatesEx": {
        "the first time": lambda s: s.collector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=0)),
        "a version of nobody": lambda s: s.collector.WaitForUpdatesEx("4711", Q.WaitOptions(maxWaitSeconds=0)),
        "a negative wait": lambda s: s.collector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=-1)),
    },
    "PropertyCollector.CheckForUpdates": {
        "the first time": lambda s: s.collector.CheckForUpdates(""),
    },
    "PropertyFilter.DestroyPropertyFilter": {
        "there": lambda s: s.collector.CreateFilter(filter_spec(s.host, ["name"]), False).Destroy(),
        "gone": lambda s: (
            s.keep(s.collector.CreateFilter(filter_spec(s.host, ["name"]), False)),
            s.kept.Destroy(),
            s.kept.Destroy(),
        )[-1],
    },
    "PropertyCollector.CreatePropertyCollector": {
        "": lambda s: s.keep(s.collector.CreatePropertyCollector()),
    },
    "PropertyCollector.DestroyPropertyCollector": {
        "a further one": lambda s: s.collector.CreatePropertyCollector().Destroy(),
    },
}

VIEWS: Final[Cases] = {
    "ViewManager.CreateContainerView": {
        "of hosts": (lambda s: view(s, vim.HostSystem), count),
        "of anything in a folder, not below": (
            lambda s: view(s, vim.ManagedEntity, container=s.content.rootFolder, recursive=False),
            count,
        ),
        "of a kind that is no entity": lambda s: view(s, vim.Task),
        "in a VM": lambda s: view(s, vim.VirtualMachine, container=s.running),
        "in a host": lambda s: view(s, vim.VirtualMachine, container=s.host, recursive=False),
    },
    "ViewManager.CreateListView": {
        "of two hosts": (lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:2])), count),
    },
    "ListView.ModifyListView": {
        "another host": (
            lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:1])).ModifyListView(
                add=[s.hosts[1]], remove=[]
            ),
            count,
        ),
    },
    "ListView.ResetListView": {
        "one host": (
            lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:2])).ResetListView([s.hosts[2]]),
            count,
        ),
    },
    "ViewManager.CreateInventoryView": {
        "": lambda s: s.content.viewManager.CreateInventoryView(),
    },
    "ContainerView.DestroyView": {
        "there": lambda s: view(s, vim.HostSystem).Destroy(),
        "gone": lambda s: (view(s, vim.HostSystem), s.kept.Destroy(), s.kept.Destroy())[-1],
    },
}

SEARCHES: Final[Cases] = {
    "SearchIndex.FindByInventoryPath": {
        "a VM": lambda s: s.content.searchIndex.FindByInventoryPath("DC0/vm/DC0_C0_RP0_VM1"),
        "not there": lambda s: s.content.searchIndex.FindByInventoryPath("DC0/vm/none"),
        "with slashes around": lambda s: s.content.searchIndex.FindByInventoryPath("/DC0/host/"),
        "the root": lambda s: s.content.searchIndex.FindByInventoryPath("/"),
    },
    "SearchIndex.FindChild": {
        "a folder": lambda s: s.content.searchIndex.FindChild(s.datacenter, "vm"),
        "not there": lambda s: s.content.searchIndex.FindChild(s.datacenter, "none"),
    },
    "SearchIndex.FindByUuid": {
        "a VM": lambda s: s.content.searchIndex.FindByUuid(None, s.running.config.uuid, True),
        "a VM by its instance": lambda s: s.content.searchIndex.FindByUuid(
            None, s.running.config.instanceUuid, True, True
        ),
        "of nobody": lambda s: s.content.searchIndex.FindByUuid(None, "00000000-0000-0000-0000-000000000000", True),
        "a host": lambda s: s.content.searchIndex.FindByUuid(None, s.host.hardware.systemInfo.uuid, False),
    },
    "SearchIndex.FindAllByUuid": {
        "a VM": lambda s: s.content.searchIndex.FindAllByUuid(None, s.running.config.uuid, True),
    },
    "SearchIndex.FindByDnsName": {
        "a host": lambda s: s.content.searchIndex.FindByDnsName(None, "DC0_C0_H1", False),
        "a VM of nobody": lambda s: s.content.searchIndex.FindByDnsName(None, "none", True),
    },
    "SearchIndex.FindByIp": {
        "a VM of nobody": lambda s: s.content.searchIndex.FindByIp(None, "192.0.2.1", True),
    },
    "SearchIndex.FindByDatastorePath": {
        "a VM": lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, s.running.config.files.vmPathName),
        "not there": lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, "[LocalDS_0] none/none.vmx"),
        "no path": lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, "none"),
    },
}

HISTORY: Final[Cases] = {
    "EventManager.QueryEvents": {
        "of a VM that was made": lambda s: events(
            s,
            entity=vim.event.EventFilterSpec.ByEntity(entity=s.vm(), recursion="self"),
            eventTypeId=["VmCreatedEvent"],
        ),
        "of a kind that is not there": lambda s: events(s, eventTypeId=["NoSuchEvent"]),
    },
    "EventManager.CreateCollectorForEvents": {
        "of anything": lambda s: s.keep(s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())),
    },
    "EventHistoryCollector.ReadNextEvents": {
        "one": lambda s: s.keep(
            s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec(eventTypeId=["VmCreatedEvent"]))
        ).ReadNextEvents(1),
        "none": lambda s: s.keep(
            s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())
        ).ReadNextEvents(0),
    },
    "EventHistoryCollector.SetCollectorPageSize": {
        "0": lambda s: s.keep(
            s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())
        ).SetCollectorPageSize(0),
    },
    "EventHistoryCollector.DestroyCollector": {
        "there": lambda s: s.content.eventManager.CreateCollectorForEvents(
            vim.event.EventFilterSpec()
        ).DestroyCollector(),
    },
    "EventManager.RetrieveArgumentDescription": {
        "": lambda s: s.content.eventManager.RetrieveArgumentDescription("VmCreatedEvent"),
    },
    "TaskManager.CreateCollectorForTasks": {
        "of anything": lambda s: s.keep(s.content.taskManager.CreateCollectorForTasks(vim.TaskFilterSpec())),
    },
    "TaskHistoryCollector.ReadNextTasks": {
        "one": lambda s: s.content.taskManager.CreateCollectorForTasks(vim.TaskFilterSpec()).ReadNextTasks(1),
    },
    "TaskManager.CreateTask": {
        "of an extension of nobody": lambda s: s.content.taskManager.CreateTask(
            s.running, "com.example.none", None, False, None, None
        ),
    },
    "Task.CancelTask": {
        "that has ended": lambda s: (
            s.vm(),
            s.keep(s.kept.PowerOnVM_Task(None)),
            s.ended(s.kept),
            s.kept.CancelTask(),
        )[-1],
    },
    "Task.SetTaskDescription": {
        "": lambda s: (
            s.vm(),
            s.keep(s.kept.PowerOnVM_Task(None)),
            s.ended(s.kept),
            s.kept.SetTaskDescription(vmodl.LocalizableMessage(key="k", message="m")),
        )[-1],
    },
    "Task.info": {
        "name and object": (
            lambda s: s.vm().PowerOnVM_Task(None),
            lambda s: [
                s.kept.recentTask[-1].info.descriptionId,
                s.kept.recentTask[-1].info.entityName == s.kept.name,
            ],
        ),
    },
}

COUNTERS: Final[Cases] = {
    "PerformanceManager.QueryPerfProviderSummary": {
        "a host": lambda s: s.content.perfManager.QueryPerfProviderSummary(s.host),
        "a folder": lambda s: s.content.perfManager.QueryPerfProviderSummary(s.folder),
    },
    "PerformanceManager.QueryAvailablePerfMetric": {
        "a host": lambda s: s.content.perfManager.QueryAvailablePerfMetric(s.host, None, None, 20),
    },
    "PerformanceManager.QueryPerfCounter": {
        "the first": lambda s: s.content.perfManager.QueryPerfCounter([s.counters()["cpu.usage.average"]]),
        "not there": lambda s: s.content.perfManager.QueryPerfCounter([99999]),
    },
    "PerformanceManager.QueryPerf": {
        "CPU usage of a host": lambda s: perf(s, "cpu.usage.average"),
        "GPU use of a host without GPUs": (
            lambda s: None,
            lambda s: [len(series.value) for series in perf(s, "gpu.utilization.average")],
        ),
        "a counter that is not there": lambda s: perf(s, "none.none.none"),
    },
    "PerformanceManager.QueryPerfCounterByLevel": {
        "9": lambda s: s.content.perfManager.QueryPerfCounterByLevel(9),
    },
}

OPERATIONS: Final = operations(COLLECTOR, VIEWS, SEARCHES, HISTORY, COUNTERS)

"""Operations that read: the property collector, views, the search index, events, tasks and performance counters."""

from __future__ import annotations

from typing import Any, Final

from pyVmomi import vim, vmodl

from tests.peers.vcsim_table.operation import Operation
from tests.peers.vcsim_table.site import Site

Op = Operation
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
                *sorted(each.name for each in obj.propSet),
                *(f"-{each.path}:{type(each.fault.fault).__name__.rpartition('.')[2]}" for each in obj.missingSet),
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


COLLECTOR: Final = (
    Op("PropertyCollector.RetrievePropertiesEx", "one property", read(lambda s: s.host, "name"), None),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "one property, what came",
        lambda s: None,
        read(lambda s: s.host, "name"),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "a path that is not there",
        lambda s: retrieve(s, filter_spec(s.host, ["no.such.path"])),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "an unset property",
        lambda s: None,
        read(lambda s: s.running, "name", "snapshot"),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "a device by its key",
        lambda s: None,
        read(lambda s: s.running, "config.hardware.device[4711]"),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "of an object that is not there",
        lambda s: retrieve(s, filter_spec(vim.VirtualMachine("vm-4711", s.service._stub), ["name"])),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "a traversal by childEntity",
        lambda s: None,
        lambda s: len(
            retrieve(
                s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, skip=True, selectSet=children())
            ).objects
        ),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "a traversal by a path that is not there",
        lambda s: retrieve(
            s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, selectSet=children("noSuchPath"))
        ),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "a selection that nobody names",
        lambda s: retrieve(
            s, filter_spec(s.content.rootFolder, ["name"], vim.Datacenter, selectSet=[Q.SelectionSpec(name="none")])
        ),
    ),
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "pages of one",
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
    Op(
        "PropertyCollector.RetrievePropertiesEx",
        "pages of none",
        lambda s: retrieve(s, filter_spec(s.host, ["name"]), most=0),
    ),
    Op(
        "PropertyCollector.ContinueRetrievePropertiesEx",
        "no token",
        lambda s: s.collector.ContinueRetrievePropertiesEx("none"),
    ),
    Op(
        "PropertyCollector.CancelRetrievePropertiesEx",
        "no token",
        lambda s: s.collector.CancelRetrievePropertiesEx("none"),
    ),
    Op(
        "PropertyCollector.RetrieveProperties",
        "one property",
        lambda s: s.collector.RetrieveProperties([filter_spec(s.host, ["name"])]),
    ),
    Op(
        "PropertyCollector.CreateFilter",
        "one property",
        lambda s: s.keep(s.collector.CreateFilter(filter_spec(s.host, ["name"]), False)),
    ),
    Op(
        "PropertyCollector.CreateFilter",
        "a path that is not there",
        lambda s: s.collector.CreateFilter(filter_spec(s.host, ["no.such.path"]), False),
    ),
    Op(
        "PropertyCollector.WaitForUpdatesEx",
        "the first time",
        lambda s: s.collector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=0)),
    ),
    Op(
        "PropertyCollector.WaitForUpdatesEx",
        "a version of nobody",
        lambda s: s.collector.WaitForUpdatesEx("4711", Q.WaitOptions(maxWaitSeconds=0)),
    ),
    Op(
        "PropertyCollector.WaitForUpdatesEx",
        "a negative wait",
        lambda s: s.collector.WaitForUpdatesEx("", Q.WaitOptions(maxWaitSeconds=-1)),
    ),
    Op("PropertyCollector.CheckForUpdates", "the first time", lambda s: s.collector.CheckForUpdates("")),
    Op(
        "PropertyFilter.DestroyPropertyFilter",
        "there",
        lambda s: s.collector.CreateFilter(filter_spec(s.host, ["name"]), False).Destroy(),
    ),
    Op(
        "PropertyFilter.DestroyPropertyFilter",
        "gone",
        lambda s: (
            s.keep(s.collector.CreateFilter(filter_spec(s.host, ["name"]), False)),
            s.kept.Destroy(),
            s.kept.Destroy(),
        )[-1],
    ),
    Op("PropertyCollector.CreatePropertyCollector", "", lambda s: s.keep(s.collector.CreatePropertyCollector())),
    Op(
        "PropertyCollector.DestroyPropertyCollector",
        "a further one",
        lambda s: s.collector.CreatePropertyCollector().Destroy(),
    ),
)

VIEWS: Final = (
    Op("ViewManager.CreateContainerView", "of hosts", lambda s: view(s, vim.HostSystem), count),
    Op(
        "ViewManager.CreateContainerView",
        "of anything in a folder, not below",
        lambda s: view(s, vim.ManagedEntity, container=s.content.rootFolder, recursive=False),
        count,
    ),
    Op("ViewManager.CreateContainerView", "of a kind that is no entity", lambda s: view(s, vim.Task)),
    Op("ViewManager.CreateContainerView", "in a VM", lambda s: view(s, vim.VirtualMachine, container=s.running)),
    Op(
        "ViewManager.CreateContainerView",
        "in a host",
        lambda s: view(s, vim.VirtualMachine, container=s.host, recursive=False),
    ),
    Op(
        "ViewManager.CreateListView",
        "of two hosts",
        lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:2])),
        count,
    ),
    Op(
        "ListView.ModifyListView",
        "another host",
        lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:1])).ModifyListView(add=[s.hosts[1]], remove=[]),
        count,
    ),
    Op(
        "ListView.ResetListView",
        "one host",
        lambda s: s.keep(s.content.viewManager.CreateListView(s.hosts[:2])).ResetListView([s.hosts[2]]),
        count,
    ),
    Op("ViewManager.CreateInventoryView", "", lambda s: s.content.viewManager.CreateInventoryView()),
    Op("ContainerView.DestroyView", "there", lambda s: view(s, vim.HostSystem).Destroy()),
    Op(
        "ContainerView.DestroyView", "gone", lambda s: (view(s, vim.HostSystem), s.kept.Destroy(), s.kept.Destroy())[-1]
    ),
)

SEARCHES: Final = (
    Op(
        "SearchIndex.FindByInventoryPath",
        "a VM",
        lambda s: s.content.searchIndex.FindByInventoryPath("DC0/vm/DC0_C0_RP0_VM1"),
    ),
    Op(
        "SearchIndex.FindByInventoryPath",
        "not there",
        lambda s: s.content.searchIndex.FindByInventoryPath("DC0/vm/none"),
    ),
    Op(
        "SearchIndex.FindByInventoryPath",
        "with slashes around",
        lambda s: s.content.searchIndex.FindByInventoryPath("/DC0/host/"),
    ),
    Op("SearchIndex.FindByInventoryPath", "the root", lambda s: s.content.searchIndex.FindByInventoryPath("/")),
    Op("SearchIndex.FindChild", "a folder", lambda s: s.content.searchIndex.FindChild(s.datacenter, "vm")),
    Op("SearchIndex.FindChild", "not there", lambda s: s.content.searchIndex.FindChild(s.datacenter, "none")),
    Op("SearchIndex.FindByUuid", "a VM", lambda s: s.content.searchIndex.FindByUuid(None, s.running.config.uuid, True)),
    Op(
        "SearchIndex.FindByUuid",
        "a VM by its instance",
        lambda s: s.content.searchIndex.FindByUuid(None, s.running.config.instanceUuid, True, True),
    ),
    Op(
        "SearchIndex.FindByUuid",
        "of nobody",
        lambda s: s.content.searchIndex.FindByUuid(None, "00000000-0000-0000-0000-000000000000", True),
    ),
    Op(
        "SearchIndex.FindByUuid",
        "a host",
        lambda s: s.content.searchIndex.FindByUuid(None, s.host.hardware.systemInfo.uuid, False),
    ),
    Op(
        "SearchIndex.FindAllByUuid",
        "a VM",
        lambda s: s.content.searchIndex.FindAllByUuid(None, s.running.config.uuid, True),
    ),
    Op("SearchIndex.FindByDnsName", "a host", lambda s: s.content.searchIndex.FindByDnsName(None, "DC0_C0_H1", False)),
    Op(
        "SearchIndex.FindByDnsName", "a VM of nobody", lambda s: s.content.searchIndex.FindByDnsName(None, "none", True)
    ),
    Op("SearchIndex.FindByIp", "a VM of nobody", lambda s: s.content.searchIndex.FindByIp(None, "192.0.2.1", True)),
    Op(
        "SearchIndex.FindByDatastorePath",
        "a VM",
        lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, s.running.config.files.vmPathName),
    ),
    Op(
        "SearchIndex.FindByDatastorePath",
        "not there",
        lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, "[LocalDS_0] none/none.vmx"),
    ),
    Op(
        "SearchIndex.FindByDatastorePath",
        "no path",
        lambda s: s.content.searchIndex.FindByDatastorePath(s.datacenter, "none"),
    ),
)

HISTORY: Final = (
    Op(
        "EventManager.QueryEvents",
        "of a VM that was made",
        lambda s: events(
            s,
            entity=vim.event.EventFilterSpec.ByEntity(entity=s.vm(), recursion="self"),
            eventTypeId=["VmCreatedEvent"],
        ),
    ),
    Op("EventManager.QueryEvents", "of a kind that is not there", lambda s: events(s, eventTypeId=["NoSuchEvent"])),
    Op(
        "EventManager.CreateCollectorForEvents",
        "of anything",
        lambda s: s.keep(s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())),
    ),
    Op(
        "EventHistoryCollector.ReadNextEvents",
        "one",
        lambda s: s.keep(
            s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec(eventTypeId=["VmCreatedEvent"]))
        ).ReadNextEvents(1),
    ),
    Op(
        "EventHistoryCollector.ReadNextEvents",
        "none",
        lambda s: s.keep(s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())).ReadNextEvents(
            0
        ),
    ),
    Op(
        "EventHistoryCollector.SetCollectorPageSize",
        "0",
        lambda s: s.keep(
            s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec())
        ).SetCollectorPageSize(0),
    ),
    Op(
        "EventHistoryCollector.DestroyCollector",
        "there",
        lambda s: s.content.eventManager.CreateCollectorForEvents(vim.event.EventFilterSpec()).DestroyCollector(),
    ),
    Op(
        "EventManager.RetrieveArgumentDescription",
        "",
        lambda s: s.content.eventManager.RetrieveArgumentDescription("VmCreatedEvent"),
    ),
    Op(
        "TaskManager.CreateCollectorForTasks",
        "of anything",
        lambda s: s.keep(s.content.taskManager.CreateCollectorForTasks(vim.TaskFilterSpec())),
    ),
    Op(
        "TaskHistoryCollector.ReadNextTasks",
        "one",
        lambda s: s.content.taskManager.CreateCollectorForTasks(vim.TaskFilterSpec()).ReadNextTasks(1),
    ),
    Op(
        "TaskManager.CreateTask",
        "of an extension of nobody",
        lambda s: s.content.taskManager.CreateTask(s.running, "com.example.none", None, False, None, None),
    ),
    Op(
        "Task.CancelTask",
        "that has ended",
        lambda s: (s.vm(), s.keep(s.kept.PowerOnVM_Task(None)), s.ended(s.kept), s.kept.CancelTask())[-1],
    ),
    Op(
        "Task.SetTaskDescription",
        "",
        lambda s: (
            s.vm(),
            s.keep(s.kept.PowerOnVM_Task(None)),
            s.ended(s.kept),
            s.kept.SetTaskDescription(vmodl.LocalizableMessage(key="k", message="m")),
        )[-1],
    ),
    Op(
        "Task.info",
        "name and object",
        lambda s: s.vm().PowerOnVM_Task(None),
        lambda s: [s.kept.recentTask[-1].info.descriptionId, s.kept.recentTask[-1].info.entityName == s.kept.name],
    ),
)

COUNTERS: Final = (
    Op(
        "PerformanceManager.QueryPerfProviderSummary",
        "a host",
        lambda s: s.content.perfManager.QueryPerfProviderSummary(s.host),
    ),
    Op(
        "PerformanceManager.QueryPerfProviderSummary",
        "a folder",
        lambda s: s.content.perfManager.QueryPerfProviderSummary(s.folder),
    ),
    Op(
        "PerformanceManager.QueryAvailablePerfMetric",
        "a host",
        lambda s: s.content.perfManager.QueryAvailablePerfMetric(s.host, None, None, 20),
    ),
    Op(
        "PerformanceManager.QueryPerfCounter",
        "the first",
        lambda s: s.content.perfManager.QueryPerfCounter([s.counters()["cpu.usage.average"]]),
    ),
    Op("PerformanceManager.QueryPerfCounter", "not there", lambda s: s.content.perfManager.QueryPerfCounter([99999])),
    Op("PerformanceManager.QueryPerf", "CPU usage of a host", lambda s: perf(s, "cpu.usage.average")),
    Op(
        "PerformanceManager.QueryPerf",
        "GPU use of a host without GPUs",
        lambda s: None,
        lambda s: [len(each.value) for each in perf(s, "gpu.utilization.average")],
    ),
    Op("PerformanceManager.QueryPerf", "a counter that is not there", lambda s: perf(s, "none.none.none")),
    Op("PerformanceManager.QueryPerfCounterByLevel", "9", lambda s: s.content.perfManager.QueryPerfCounterByLevel(9)),
)

OPERATIONS: Final = (*COLLECTOR, *VIEWS, *SEARCHES, *HISTORY, *COUNTERS)

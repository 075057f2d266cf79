"""The simulated vCenter: the other end of the wire, with GPUs that refuse what real ones refuse.

How it is built
---------------
* `world.py`: `World` owns everything: the registry of managed objects, one re-entrant lock, the clock, the ledger,
  the task table, the sessions, the random generator (one seed). Nothing in `sim` is a module global.
* `objects/<managed_object>.py`: one managed object type, one file, found by its name. A type derives from
  `ManagedObject`, declares its properties with `@prop("config.hardware.device")` and its methods with `@method`
  under their WSDL names. State is plain Python (slots, enums, ints); vmomi values are rendered from it on read.
* `vm_state.py`, `host_state.py`, `drs.py`: what is kept. `render/`: state to vmomi values, pure. `operations/`: what
  methods do to the state, with the faults they raise; every applied effect is recorded. Nothing else changes state.
* `managed_object.py`: `read(path)` resolves a property path by the longest declared prefix; `touch(*paths)` drops
  the cached XML of these paths (and of their parents and children) and tells the property filters.
* A request's way: `server.py` and `handler.py` (TLS, HTTP) > `endpoint.py` (which path) > `dispatch.py` (method name ->
  object method, unknown -> MethodNotFound naming itself) with `soap.py` (bytes <-> typed values, by pyVmomi's own type
  tables) > an object's method, which answers at once or with a task of `tasks.py`.
* A bulk read's way: `selection.py` (traversal specs -> objects) > `contents.py` (joins bytes) > `fragments.py` (XML per
  object, path and version) > `paths.py` (checks a path, reads it) > `encoder.py` (values -> XML, compiled per type).
  `objects/property_filter.py` keeps what each client was told, so that an update costs what changed.
* `tagging.py` behind `vapi.py` (JSON-RPC on /api for vmware-vcenter, /rest for govc); `events.py`, `counters.py`,
  `authority.py` are the values behind the service objects.
* `admin.py` (server) and `remote.py` (client) of /gpuops-sim: ledger, clock, state, fault rules.
* `trouble/`: what goes wrong on purpose: lost replies, stuck tasks, stolen GPUs, by address and from one seed.
* `gpu_admission.py`: pure rules of power-on: same-size lock, mixed-size placement ids, MIG placements, holders.
* `scenarios/*.yaml` + `scenario.py`: declared inventories (`lab`, `vdi`, `fleet`).
* `ledger.py`: every applied effect with virtual time, caller, before and after. Tests believe only the ledger.
* `clock.py`: virtual or real time, by choice. Virtual time moves when a client waits, never by itself.

Why state is not kept as vmomi objects: 10,000 VMs of them weigh over a gigabyte, and a derived property
(graphicsInfo.vm, sharedPassthruGpuTypes) would have to be kept in step by hand. Rendering on read, with the XML of each
property cached until it is touched, is both smaller and always true. What it costs: the first read of a property pays
for the serialiser once.

The simulator is written from the vSphere API, never from our client: it may import `gpuops.model` for plain values such
as PciAddress and `gpuops.catalog` for facts, and nothing above.
"""

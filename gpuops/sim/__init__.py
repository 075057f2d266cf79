"""A simulated vCenter, with GPUs that refuse what real ones refuse.

How it is built
---------------
Packages import downwards only; import-linter holds this order, from bottom to top:

* `state`: VMs, hosts, GPUs and clusters as plain values, and the pure rules of vGPU admission.
* `guests`: real processes and files of guests, for scenarios that ask for them.
* `core`: the base of managed objects. `managed_object.py`: a type declares its properties by path in
  `property_table` and its methods by WSDL name in `method_table`, with `@prop("config.hardware.device")` and `@method`
  where one expression is not enough; `read(path)` finds a property by the longest declared prefix; `touch(*paths)`
  drops the cached values of these paths and notifies the property filters. `object_store.py` holds all objects behind
  one re-entrant lock, with the clock, the ledger, the sessions and one seeded random generator. Nothing in `sim` is a
  module global.
* `fault_injection`: lost replies, stuck tasks, hidden properties, by rules and from one seed.
* `vcenter` and `world.py`: tasks, events, permissions, tags, counters; `World` is the object store with all of these.
* `inventory`: the objects of the inventory as operations see them: their state and their links.
* `render`: makes vmomi values from the state. Pure. The fields that are equal in all objects are in `defaults.yaml`.
* `operations`: the effects of methods on the state, and their faults; every applied effect is recorded in the ledger.
  Nothing else changes state.
* `objects`, `services`: the managed objects as clients see them, of the inventory and of every vCenter.
* `managers`: the managers of a vCenter and of its hosts that can only be read, as tables; they, and all managers of
  hosts, are made when a client first asks for them.
* `outside_events`: events that fault rules cause: by other users, by hosts and by vCenter itself.
* `scenario` with `scenarios/*.yaml`: builds a World from a declared inventory (`lab`, `vdi`, `fleet`), and saves it.
* `wire` and `server.py`: HTTP, SOAP, VI/JSON, the vSphere Automation API, storage policies, and the process that serves
  them.

The path of a request: `server.py` and `wire/handler.py` (TLS, HTTP) > `wire/endpoint.py` (path -> wire; method name ->
method of the object; NotSupported for one that is not simulated, MethodNotFound for one that the client's version of
the API does not have) with `wire/soap.py` or `wire/vijson.py` (bytes <-> typed values, by pyVmomi's own type tables) >
the object's method, which returns a result at once or a task of `vcenter/tasks.py`.

The path of a bulk read: `services/bulk_reply.py` (traversal specs -> objects; joins bytes) > `core/fragments.py`
(checks and reads a property path; caches the encoded value by object, path, version and wire) > `core/encoder.py` or
`core/json_encoder.py` (values -> XML or JSON, compiled per type). The filters in `services/property_collector.py`
remember what each client was sent, so that an update costs only as much as has changed.

Why state is not stored as vmomi objects: 10,000 VMs of them need over a gigabyte, and a derived property
(graphicsInfo.vm, sharedPassthruGpuTypes) would have to be updated with every change. Rendering on read, with a cache of
encoded values that a touch invalidates, needs less memory and is never out of date. Its cost: the first read of each
property runs the serialiser.

The simulator is written from the vSphere API, never from our client. It imports only five modules of gpuops: `errors`,
`clock`, `files` to read files, `catalog` for facts about GPUs, and `model.devices` for plain values such as PciAddress.
import-linter enforces that. `README.md` in this folder says how another project uses the simulator.
"""

"""A simulated vCenter, with GPUs that refuse what real ones refuse.

How it is built
---------------
Packages import downwards only; import-linter holds this order, from bottom to top:

* `state`: what is kept of VMs, hosts, GPUs and clusters, as plain values, and the pure rules of vGPU admission.
* `guests`: the processes and files of guests that really run, of scenarios that ask for it.
* `core`: managed objects and what all of them share. `managed_object.py`: a type declares its properties by path in
  `property_table` and its methods by WSDL name in `method_table`, with `@prop("config.hardware.device")` and `@method`
  where one expression is not enough; `read(path)` finds a property by the longest declared prefix; `touch(*paths)`
  drops what is kept of these paths and tells the property filters. `object_store.py` holds all objects behind one
  re-entrant lock, with the clock, the ledger, the sessions and one seeded random generator. Nothing in `sim` is a
  module global.
* `fault_injection`: lost replies, stuck tasks, hidden properties, by rules and from one seed.
* `vcenter` and `world.py`: tasks, events, permissions, tags, counters; `World` is the object store with all of these.
* `inventory`: the objects of the inventory as operations see them: what each holds and how they are linked.
* `render`: makes vmomi values of the state. Pure. What every host, VM and switch has alike stands in `defaults.yaml`.
* `operations`: what methods do to the state, with the faults they raise; every applied effect is recorded in the
  ledger. Nothing else changes state.
* `objects`, `services`: the managed objects as clients see them, of the inventory and of every vCenter.
* `managers`: the managers of a vCenter and of its hosts that answer reads alone, as tables; they, and all managers of
  hosts, are made when a client first asks for them.
* `outside_events`: what other people, hosts and vCenter itself do when a fault rule says so.
* `scenario` with `scenarios/*.yaml`: declared inventories (`lab`, `vdi`, `fleet`), made into a World, and saved.
* `wire` and `server.py`: HTTP, SOAP, VI/JSON, the vSphere Automation API, storage policies, and the process that serves
  them.

The way of a request: `server.py` and `wire/handler.py` (TLS, HTTP) > `wire/endpoint.py` (which path) >
`wire/dispatch.py` (method name -> method of the object; one that is not simulated is answered with NotSupported, one
that the client's version of the API does not have with MethodNotFound) with `wire/soap.py` or `wire/vijson.py` (bytes
<-> typed values, by pyVmomi's own type tables) > the object's method, which answers at once or with a task of
`vcenter/tasks.py`.

The way of a bulk read: `services/bulk_reply.py` (traversal specs -> objects; joins bytes) > `core/fragments.py` (checks
and reads a path; keeps what is written of each object, path, version and wire) > `core/encoder.py` or
`core/json_encoder.py` (values -> XML or JSON, compiled per type). `services/property_filter.py` keeps what each client
was sent, so that an update costs what changed.

Why state is not kept as vmomi objects: 10,000 VMs of them weigh over a gigabyte, and a derived property
(graphicsInfo.vm, sharedPassthruGpuTypes) would have to be updated with every change. Rendering on read, with what is
written of each property kept until it is touched, is both smaller and always true. What it costs: the first read of a
property pays for the serialiser once.

The simulator is written from the vSphere API, never from our client. Of gpuops it imports five modules: `errors`,
`clock`, `files` to read files, `catalog` for facts about GPUs, and `model.devices` for plain values such as PciAddress.
import-linter holds that. `README.md` in this folder says how another project uses the simulator.
"""

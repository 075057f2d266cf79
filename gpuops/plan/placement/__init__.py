"""Placement: on which host, NUMA node and GPUs a VM's devices go, and why not elsewhere.

Feasible, rank, select; each reads in a minute:

* `wanted.py`     what is looked for (`Wanted`) and what is found (`Placement`)
* `filters.py`    hosts that cannot take it, cheapest question first
* `gpus.py`       GPUs that cannot take a vGPU; `directpath.py` devices that cannot be given whole
* `seating.py`    which GPU each device gets on one host, as that host would choose
* `nodes.py`      NUMA nodes with the cores and memory beside the GPU
* `candidates.py` the feasible places on a host: its own choice, and each GPU that a VM could be bound to
* `scorers.py`    which of the places left is best: the first difference decides, in the order of the list
* `loss.py`       what a place takes from the VMs that the site knows or is asked for
* `select.py`     `place`: all of it in order
* `fleet/`         the engine that weighs losses, and the same choice over an index of thousands of GPUs
* `wide.py`       VMs wider than a NUMA node: GPUs on as many nodes as they need
* `groups.py`     device groups: given whole, and pinned to nothing
* `competition.py` which VMs that wait would find no slot once this one runs
* `remote.py`     what is short beside the GPUs where locality is only preferred
* `rooms.py`      the room on every GPU of a host, one line each, for who asks why

Why seats are mostly predicted and not given: the host chooses the GPU at power-on. gpuops chooses the host, foresees
the GPU by the host's documented policy, and pins one only where a promise depends on it: `--numa required`, a VM wider
than a node, and new VMs whose order of power-on would matter (`plan/steering.py`; what may go wrong even so is found by
playing the plan, `plan/rehearsal.py`). `place`, which knows who else is started, also pins where another GPU leaves
more to the others: hosts take the emptiest GPU, or the fullest, whatever it is worth. A VM that exists is not pinned
for that: it is started when nobody knows who else runs.
Why a powered-off VM holds nothing: slots are taken at power-on. Who would compete is said, not reserved;
`place` alone keeps what suspended VMs need for their return (`plan/claims.py`).
"""

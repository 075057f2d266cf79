"""`gpuops runner run`: nights and mornings of many vCenters, by several machines that share one PostgreSQL.

* `service.py`             the loop: turns that are due are offered, taken over, run and handed over
* `due.py`                 the policies that runners play, and which half of its rotation each is in: pure
* `configuration.py`       which targets and policies the configuration file lists now
* `children.py`            one process of gpuops for each vCenter
* `queue_port.py`          what a queue must be able to do
* `procrastinate_queue.py` Procrastinate: the only file that knows it
* `leaving.py`             targets that were removed from the file; their desktops are still returned
* `shared_targets.py`      the table of all targets, and which of its settings a runner trusts

A turn is one call of `gpuops rotate night` or `gpuops rotate day` for one policy of one vCenter, as cron would make it,
so a turn with nothing to do ends at once. Each vCenter has one turn at a time on all runners. Turns are divided by
vCenter, not by host: one process reads a vCenter once for all of its hosts, needs some milliseconds for a step, and
otherwise waits for vCenter. Several runners for the hosts of one vCenter would read it several times, and gain nothing.

The common journal keeps two runners from acting at once: a runner that takes over a run first ends it there, and the
runner that held it sees that before its next request. The queue only selects the runner of a turn.
"""

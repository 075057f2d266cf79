"""`gpuops runner run`: nights and mornings of many vCenters, by several machines that share one PostgreSQL.

* `due.py`                 which half of its rotation a policy is in, and since when: pure
* `job_queue.py`           what a queue must be able to do, whichever it is
* `procrastinate_queue.py` Procrastinate: the only file that knows it
* `configuration.py`       which targets and policies the configuration file has played, now
* `leaving.py`             targets that the file has no more, whose desktops are returned all the same
* `children.py`            one process of gpuops for each vCenter
* `service.py`             the loop: turns that are due are offered, taken over, run and handed over

A turn is one call of `gpuops rotate night` or `gpuops rotate day` for one policy of one vCenter, as cron would make it,
so that a turn with nothing to do ends at once. One vCenter has one turn at a time on all runners; it is the lane, not
the host: one process reads a vCenter once for all of its hosts and spends some milliseconds of its own on a step, and
what takes time is vCenter's. Hosts of one vCenter on several runners would read it as many times, and gain nothing.

The common journal keeps two runners from acting at once: a runner that takes a run over first ends it there, and the
runner that held it sees that before its next request. The queue only selects the runner of a turn.
"""

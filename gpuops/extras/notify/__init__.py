"""Notices of runs by mail, webhook or syslog: stored before they are sent, until each receiver has accepted them.

A run is entered in the outbox, in the state directory, when it begins. When it ends, one commit removes it and adds its
notice. If a run is killed in between, the next run or `gpuops notify flush` sends a notice about it.

Read in this order:

* `run_watch.py`     `run_watched` surrounds a run, and `flush` sends what waits
* `outbox.py`    the stored notices
* `sending.py`   sends what waits to all receivers, within a bounded time; for each, a separate process
* `cli.py`, `view.py`   the command, texts and documents

The core reaches `cli` by the table in `gpuops/extensions.py`, and `run_watch` by `gpuops.extensions.load`.
"""

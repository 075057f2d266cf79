"""How many VMs may share a GPU, and under which vGPU scheduler (`gpuops size`); and `gpuops what-if` (`what_if`).

README.md has problem, method and figures. Read in this order:

* `sharing.py`       how much longer VMs take that share a GPU, by the share of time that each keeps it busy alone. Pure
* `pairs.py`         corrects that where pairs of workloads were seen on one GPU. Pure
* `seen_pairs.py`    finds such pairs in the history. Pure
* `busy_shares.py`, `advice.py`   the question about a pool of VMs, and the answer. Pure
* `size_request.py`  the options of the command as a question. Pure
* `sizing.py`        reads workloads from a file, or from the history of `observe`
* `measure_plan.py`, `measuring.py`, `measured_schedulers.py`   `gpuops measure`: plan, one scheduler, several
* `cli.py`, `view.py`, `measured_view.py`, `tasks.py`   commands, texts, documents, Ansible task

The core reaches commands, documents and task by the table in `gpuops/extensions.py`.
"""

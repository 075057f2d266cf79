"""Stores the performance counters of VMs and hosts for weeks (`gpuops observe`), and what can be read from them.

Problem: vCenter keeps single samples for one hour only, and hardly any history of vGPUs. Whether a desktop is used,
how large an ML VM must be and why a VM was slow are questions about days.
Choice: every twenty minutes the samples of the last hour are read in bulk and combined into steps of five minutes:
average, highest, and how much of the step the samples cover. Steps are stored in packed blocks, one row for each VM
and some hours, and also as hours, which are kept longer. Readers get None for missing steps.
Cost: single samples are lost, and numbers are rounded, by at most 3.2 %.

Read in this order:

* `observing.py`    one look at a vCenter, and the service that repeats it
* `blocks.py`       samples become steps of five minutes, and these hours; zeros that mean "unknown" are removed;
  steps as bytes, and back. Pure
* `store_reads.py`, `store.py`   the tables of the store and its reads, its writes
* `replay.py`, `replaying.py`   which desktops past nights would have suspended (`gpuops idle --replay`): the decision,
  which is pure, and the reads around it
* `run_out.py`, `running_out.py`   when a vGPU profile runs out (`gpuops capacity --forecast`), in the same two parts
* `desktop_demand.py`  how many desktops were in use at a time: what this extra adds to nights
* `stored_gpu_use.py`   what GPUs and VMs did last, for `gpuops top` and nights
* `cli.py`, `view.py`   the command, texts and documents

The core reaches `cli`, the documents and `demand.MEASURED_USE` by the table in `gpuops/extensions.py`, and single
functions, such as `replaying.idle_replay`, by `gpuops.extensions.load`.
"""

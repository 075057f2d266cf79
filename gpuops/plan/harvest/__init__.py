"""Harvest: which GPUs desktops give up tonight, which ML jobs run on them, and when each desktop is back.

The problem: a GPU takes a whole-GPU job only when every desktop on it is suspended. Suspends and resumes take time, so
many at once per host and per datastore. All desktops are back when the night ends. Wanted, in this order: GPU-minutes
of jobs that run to their end, few desktops suspended.

The choice: when GPUs are free and when they are given back follows from two orders of GPUs alone, by list scheduling
on the lanes (`windows.py`). Jobs of several GPUs cut those windows into stretches, and what a stretch holds best of
the one-GPU jobs is a subset sum, exact in microseconds on the bits of an integer (`stretches.py`). So a search only has
to decide about orders and wide jobs, and to deal one-GPU jobs out anew (`search.py`); then it takes GPU after GPU away
as long as the same work still fits (`fewest.py`). No solver is needed: on made-up nights this ends within a few
GPU-minutes of a bound that no schedule can pass (`bound.py`).

Where no job ends by itself (`endless.py`: ML VMs that run until the morning) a GPU has one job or none, and a matching
says exactly which; the search then is for the places of jobs of several GPUs only.

Resumes are planned longer than they are expected to take, by `Problem.slowdown`: a morning that is slower by that
much is still in time (`replay.py` shows it).

* `problem.py`    what is given          * `schedule.py`  what is found, and the one way to ask for it
* `lanes.py`      operations at once     * `windows.py`   when GPUs are free
* `stretches.py`  one-GPU jobs           * `packing.py`   the jobs of a host
* `search.py`     more GPU-minutes       * `fewest.py`    the same with fewer desktops
* `endless.py`    jobs without an end    * `matching.py`  which of them run, and where
* `bound.py`      what none can pass     * `replay.py`    the schedule in a slower world
"""

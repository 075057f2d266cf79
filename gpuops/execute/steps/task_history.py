"""Asks vCenter's task history what others did between two looks, seldom: each question is four calls, and a thousand
tasks may come back.

Steps that ended together are judged on one look, so one question serves all of them. A run asks for ten of its steps at
the most: where hosts go by other rules than ours, every step may seem mispredicted, and desktops wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from gpuops.errors import GpuopsError
from gpuops.execute.site.ports import Vcenter
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.task import GpuTask

MOST_STEPS: Final = 10
"""Of so many steps of a run it is asked who else was there."""

ENOUGH: Final = f"{MOST_STEPS} steps of its run differed before it, and vCenter was not asked once more what others did"
TOO_MANY: Final = "vCenter has had more tasks meanwhile than it tells at once"


class TaskHistory:
    """What one run asked of it, and may ask still."""

    def __init__(self, vcenter: Vcenter) -> None:
        self._vcenter = vcenter
        self._steps = 0
        self._untold = ""
        """Why vCenter does not tell it in this run; empty = it does, or was not asked."""
        self._look: Inventory | None = None
        """The latest look that it was asked for."""
        self._since: datetime | None = None
        self._tasks: Sequence[GpuTask] | None = ()
        """Since `_since`, as `Vcenter.gpu_tasks_since`."""

    def since(self, since: datetime, look: Inventory, others: Iterable[datetime] = ()) -> Sequence[GpuTask] | str:
        """The tasks queued since then that may have changed what is on GPUs; or why that is not known.

        `look`: the one that the step is judged on. `others`: since when it may be asked of other steps on that look.
        """
        if self._untold:
            return self._untold
        self._steps += 1
        if self._steps > MOST_STEPS:
            return ENOUGH
        if self._look is not look or self._since is None or since < self._since:
            earliest = min((since, *others))
            try:
                self._tasks = self._vcenter.gpu_tasks_since(earliest)
            except GpuopsError as error:
                self._untold = f"vCenter does not tell its tasks: {error.message}"
                return self._untold
            self._look, self._since = look, earliest
        return TOO_MANY if self._tasks is None else [task for task in self._tasks if task.queued >= since]

"""The section of a policy that names the ML VMs which run at night, and how they are stopped in the morning."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from gpuops.config.date_text import checked_year
from gpuops.config.decoding import Section
from gpuops.config.sections.jobs import JobsSection
from gpuops.model.file_keys import Mistaken, Reads, Text
from gpuops.model.nights.ml_queue import LONGEST_GRACE_S, Checkpoint, MlStop, QueuedVm, is_pattern

_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def _deadline(value: Any) -> time | datetime:
    """A clock time, or a moment. One without an offset is read in the zone of the windows."""
    try:
        if not isinstance(value, str) or len(value) < len("06:00"):
            raise ValueError
        return time.fromisoformat(value) if _CLOCK.fullmatch(value) else checked_year(datetime.fromisoformat(value))
    except ValueError:
        raise Mistaken(
            f"{value!r} is neither a time of day nor a date with one", 'such as "06:00" or "2026-11-24 06:00"'
        ) from None


Deadline = Annotated[time | datetime, Reads(_deadline, Annotated[Any, Meta(extra_json_schema={"type": "string"})])]


class QueuedSection(Section):
    """One entry."""

    removed_keys: ClassVar = {"across_sites": "name each VM in the queue of one vCenter alone, and remove the key"}

    vm: Text | None = None
    vms: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)] | None = None
    count: Annotated[int, Meta(ge=1)] | None = None
    relocate: bool = False
    profile: Text | None = None
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    deadline: Deadline | None = None
    minimum_run_minutes: Annotated[int, Meta(ge=0, le=24 * 60)] = 0
    checkpoint: Checkpoint | None = None

    def __post_init__(self) -> None:
        if (self.vm is None) == (self.vms is None):
            raise Mistaken("say either `vm` or `vms`")
        for name in self.names:
            if is_pattern(name) and not name.strip("*?"):
                raise Mistaken(f"{name!r} would start every VM", "name what they have in common: `ml-*`")
        if self.count is not None and not is_pattern(self.names[0]) and self.count > len(self.names):
            raise Mistaken(f"`count: {self.count}`, and {len(self.names)} named", "name more VMs, or a pattern: `ml-*`")

    @property
    def names(self) -> tuple[str, ...]:
        return self.vms or () if self.vm is None else (self.vm,)

    def queued(self, otherwise: Checkpoint) -> QueuedVm:
        name, *others = self.names
        return QueuedVm(
            name,
            self.relocate,
            others=tuple(others),
            count=self.count,
            profile=self.profile,
            priority=self.priority,
            deadline=self.deadline,
            minimum_run=timedelta(minutes=self.minimum_run_minutes),
            checkpoint=self.checkpoint or otherwise,
        )


class StopSection(Section):
    """How the morning stops them."""

    grace_s: Annotated[int, Meta(ge=0, le=LONGEST_GRACE_S)] = 300
    then: Literal["power-off", "leave-running"] = "power-off"

    def stop(self) -> MlStop:
        return MlStop(self.grace_s, self.then == "power-off")


class MlSection(Section):
    """The queue whole."""

    queue: tuple[QueuedSection, ...] = ()
    stop: StopSection = StopSection()
    checkpoint: Checkpoint = Checkpoint()
    jobs: JobsSection | None = None

    def __post_init__(self) -> None:
        names = [name for queued in self.queue for name in queued.names]
        names += self.jobs.vms if self.jobs is not None else []
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise Mistaken(f"the VM of the queue {twice[0]!r} is there twice", "name each VM in one entry")

        if self.jobs is not None and self.stop.then == "leave-running":
            raise Mistaken("`jobs` and `then: leave-running`: a VM of a job is off in the morning", "say power-off")

    def queued(self) -> tuple[QueuedVm, ...]:
        named = tuple(section.queued(self.checkpoint) for section in self.queue)
        return named if self.jobs is None else (*named, self.jobs.queued())

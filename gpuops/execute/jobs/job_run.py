"""One pass over the jobs of a vCenter: starts those whose VM runs tonight, keeps what they write, ends what is over.

`gpuops job run` is one pass, to be called by a clock every few minutes; `rotate day` makes one that stops everything
before its own work. A pass may be killed anywhere, and two may run at once:

* `BEGUN` is on disk before the guest is asked to start a container. The guest starts each attempt name only once.
* `NOT_STARTED` is on disk only after the guest has promised never to start that attempt. Another pass that was about to
  start it, and comes late or is killed, leaves no container running.
* `STOPPING`, with the result of the checkpoint, is on disk before the container is stopped. The guest notes the stop
  request before the container gets it, so its exit code is not mistaken for the job's own end.
* What the records leave open is looked up in the guest before anything else is done.
* A record is added only directly after the last record that was read. Of two passes one fails to add its record, and
  leaves that job to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Protocol

from gpuops.errors import GpuopsError, NotConnected
from gpuops.execute.jobs.store import JobChanged, JobStore
from gpuops.guest_scripts.job import LOG_LIMIT
from gpuops.model.guests.container_state import CheckpointEnd, ContainerPhase, ContainerState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm
from gpuops.model.workloads.job import ContainerJob
from gpuops.model.workloads.job_record import JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.plan.jobs.job_answers import JobDeed
from gpuops.plan.jobs.job_turns import JobTurn, vm_of

STOP_GRACE: Final = timedelta(seconds=20)
"""What a container has between its request to end and its end."""
PIECE_BYTES: Final = 256 * 1024
"""Of output that is read at once; a pass reads four of them of a job that runs on, and of one that has ended all."""
_MOST_PIECES: Final = 4 + LOG_LIMIT // PIECE_BYTES
_MORNING: Final = "stopped in the morning"


class JobGuests(Protocol):
    """What runs the containers; `GuestContainers` is it."""

    def start(self, vm: Vm, job: ContainerJob, attempt: str, *, resume: bool) -> None: ...
    def look(self, vm: Vm, attempt: str) -> ContainerState: ...
    def revoke(self, vm: Vm, attempt: str) -> ContainerState: ...
    def output(self, vm: Vm, attempt: str, offset: int, limit: int) -> bytes: ...
    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd: ...
    def stop(self, vm: Vm, attempt: str, grace: timedelta) -> ContainerState: ...
    def clear(self, vm: Vm, attempt: str) -> None: ...


@dataclass(slots=True)
class JobPass:
    """One pass. `stops`: nothing is started, and whatever runs is stopped."""

    store: JobStore
    guests: JobGuests
    inventory: Inventory
    clock: Callable[[], datetime]
    checkpoint: timedelta
    stops: bool = False
    until: datetime | None = None
    """All is over by then, the end of what is stopped too; None = each checkpoint has its own limit alone."""
    deeds: list[JobDeed] = field(default_factory=list)

    def run(self, submitted: Sequence[SubmittedJob]) -> list[JobDeed]:
        """Look at the jobs that run, and stop them where this pass stops; return what became of each.

        Raises NotConnected alone: a guest that refuses keeps nobody else waiting.
        """
        for job in submitted:
            if job.state is JobState.RUNNING:
                if self.stops and self.until is not None and self.clock() >= self.until:
                    self._note(
                        job, "no time is left to stop it: it ends with its VM, and is looked at when that runs again"
                    )
                    continue
                self._guarded(job, self._followed)
        return self.deeds

    def begin(self, turns: Sequence[JobTurn]) -> list[JobDeed]:
        """Begin the jobs whose turn it is in the VMs that they get; return what this pass has done with all jobs.

        `turns` are of the jobs as `run` has left them, so that the VM of one that has just ended gets the next at once.
        Raises NotConnected alone.
        """
        for turn in turns:
            vm = turn.vm
            if vm is not None and turn.job.waits:
                self._guarded(turn.job, partial(self._begun, vm=vm))
        return self.deeds

    def _guarded(self, job: SubmittedJob, deed: Callable[[SubmittedJob], None]) -> None:
        try:
            deed(job)
        except NotConnected:
            raise
        except JobChanged:
            self._note(job, "another run changes it")
        except GpuopsError as error:
            self.deeds.append(JobDeed(job, error.line, failed=True))

    def _begun(self, job: SubmittedJob, vm: Vm) -> None:
        """A new attempt in this VM."""
        job = self._add(job, JobEvent.BEGUN, vm=vm.instance_uuid or vm.ref, vm_name=vm.name)
        self._started(job, vm)

    def _started(self, job: SubmittedJob, vm: Vm) -> None:
        """Its container on its way; asked again it starts nothing twice."""
        self.guests.start(vm, job.job, job.attempt_name, resume=job.resumes_from_checkpoint)
        try:
            job = self._add(job, JobEvent.STARTED)
        except JobChanged:
            self._ended_unless_followed(job, vm)
            raise
        self._note(job, f"started in {vm.name}")

    def _ended_unless_followed(self, job: SubmittedJob, vm: Vm) -> None:
        """Ends what was just started here where another pass has looked before that, and noted that it was not."""
        now = next(each for each in self.store.read() if each.number == job.number)
        if now.state is not JobState.RUNNING or now.attempt_name != job.attempt_name:
            self.guests.stop(vm, job.attempt_name, timedelta())
            self.guests.clear(vm, job.attempt_name)

    def _followed(self, job: SubmittedJob) -> None:
        """Look at an attempt that may be running, record its state, and stop it if this pass stops jobs."""
        attempt, vm = job.attempt, vm_of(job, self.inventory)
        assert attempt is not None, "what runs was begun"
        if vm is None:
            self._interrupted(job, "its VM is not in vCenter any more", None)
            return
        if vm.power is not PowerState.ON:
            self._note(job, f"{vm.name} is off: it is looked at when it runs again")
            return
        seen = self.guests.look(vm, job.attempt_name)
        if seen.state is ContainerPhase.ABSENT and not attempt.started and (self.stops or job.cancel_wanted):
            seen = self.guests.revoke(vm, job.attempt_name)  # another pass may be about to start it
        stops = seen.state is ContainerPhase.RUNNING and (self.stops or job.cancel_wanted)
        if not stops:  # else its state is saved first
            self._kept_output(job, vm, whole=seen.state is not ContainerPhase.RUNNING)
        if seen.state is ContainerPhase.ABSENT:
            self._absent(job, vm)
        elif seen.state is ContainerPhase.ENDED:
            self._ended(job, vm, seen)
        else:
            if not attempt.started:
                job = self._add(job, JobEvent.STARTED)
            if stops:
                self._stopped(job, vm)

    def _absent(self, job: SubmittedJob, vm: Vm) -> None:
        """The guest knows nothing of the attempt: it was not started yet, or its files are gone."""
        attempt = job.attempt
        assert attempt is not None
        if attempt.started:
            self._interrupted(job, f"{vm.name} knows nothing of it any more", None)
        elif job.cancel_wanted:
            self._add(job, JobEvent.CANCELLED)
            self._note(job, "cancelled before it was started")
        elif self.stops:
            self._add(job, JobEvent.NOT_STARTED, reason="the morning came before it was started")
            self._note(job, "not started: it waits as before")
        else:
            self._started(job, vm)

    def _stopped(self, job: SubmittedJob, vm: Vm) -> None:
        """Its state saved, as far as there is time, and its container ended."""
        attempt = job.attempt
        assert attempt is not None
        if not attempt.stopping:
            saved, why = self._saved(job, vm)
            job = self._add(job, JobEvent.STOPPING, saved=saved, reason=why)
        grace = STOP_GRACE
        if self.until is not None:  # half of what is left: the look at how it ended takes time too
            grace = min(grace, max(timedelta(), self.until - self.clock()) / 2)
        seen = self.guests.stop(vm, job.attempt_name, grace)
        self._kept_output(job, vm, whole=True)
        self._ended(job, vm, seen)

    def _saved(self, job: SubmittedJob, vm: Vm) -> tuple[bool, str]:
        if not job.job.checkpoint:
            return False, "it has no checkpoint command"
        limit = self.checkpoint
        if self.until is not None:
            limit = min(limit, self.until - self.clock() - STOP_GRACE)
        if limit < timedelta(seconds=1):
            return False, "no time was left for its checkpoint"
        try:
            end = self.guests.checkpoint(vm, job.job, job.attempt_name, limit)
        except NotConnected:
            raise
        except GpuopsError as error:  # it is stopped all the same
            return False, f"its checkpoint failed: {error.message}"
        return end.saved, "" if end.saved else f"its checkpoint failed: {end.reason}"

    def _ended(self, job: SubmittedJob, vm: Vm, seen: ContainerState) -> None:
        """Its container is over: by itself, by us, or with its guest. What ends well when it is asked to end has saved
        its state, maybe, and has not come to its end: its exit code says nothing."""
        ran = None
        if seen.ended is not None and seen.began is not None:
            ran = max(timedelta(), seen.ended - seen.began)  # the guest's clock may have been set back meanwhile
        if seen.asked_to_end:
            self._interrupted(job, "", ran)
        elif seen.exit_code is None:
            self._interrupted(job, f"{vm.name} went down while it ran", ran)
        else:
            self._add(job, JobEvent.ENDED, exit_code=seen.exit_code, ran=ran)
            self._note(job, f"ended with exit code {seen.exit_code}")
        self.guests.clear(vm, job.attempt_name)

    def _interrupted(self, job: SubmittedJob, why: str, ran: timedelta | None) -> None:
        attempt = job.attempt
        assert attempt is not None
        if job.cancel_wanted:
            self._add(job, JobEvent.CANCELLED, reason=why, ran=ran)
            self._note(job, "cancelled")
            return
        saved = "its checkpoint was made" if attempt.saved else job.reason if attempt.stopping else ""
        reason = why or "; ".join(filter(None, (_MORNING, saved)))
        job = self._add(job, JobEvent.INTERRUPTED, reason=reason, ran=ran)
        again = "it goes on in a later night" if job.state is JobState.INTERRUPTED else "it may not go on once more"
        self._note(job, f"{reason}: {again}")

    def _kept_output(self, job: SubmittedJob, vm: Vm, *, whole: bool) -> None:
        """What it wrote since the last look: of what has ended all that its guest keeps, which is then removed there,
        and whose last lines tell why it ended."""
        begins = self.store.output_end(job)
        for _ in range(_MOST_PIECES if whole else 4):
            piece = self.guests.output(vm, job.attempt_name, begins, PIECE_BYTES)
            if not piece:
                return
            self.store.add_output(job, begins, piece)
            begins += len(piece)

    def _add(self, job: SubmittedJob, event: JobEvent, **told: object) -> SubmittedJob:
        return self.store.add(job, JobRecord(event, self.clock(), **told))  # type: ignore[arg-type]

    def _note(self, job: SubmittedJob, what: str) -> None:
        self.deeds.append(JobDeed(job, what))

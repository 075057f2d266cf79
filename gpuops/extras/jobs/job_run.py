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
from gpuops.extras.jobs.guest_container import LOG_LIMIT, read_secrets
from gpuops.extras.jobs.job import ContainerJob, JobEvent, JobRecord, JobState, SubmittedJob
from gpuops.extras.jobs.job_store import JobChanged, JobStore
from gpuops.extras.jobs.job_turns import JobDeed, JobTurn, vm_of
from gpuops.model.guests.guest import CheckpointEnd, ContainerPhase, ContainerState
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import PowerState, Vm

STOP_GRACE: Final = timedelta(seconds=20)
"""The time that a container has to end after the request to end."""
PIECE_BYTES: Final = 256 * 1024
"""Bytes of output that are read at once. A pass reads four pieces of a running job, and all of an ended one."""
_MOST_PIECES: Final = 4 + LOG_LIMIT // PIECE_BYTES
_MORNING: Final = "stopped in the morning"


class JobGuests(Protocol):
    """Runs the containers; implemented by `GuestContainers`."""

    def start(self, vm: Vm, job: ContainerJob, attempt: str, *, resume: bool) -> None: ...
    def look(self, vm: Vm, attempt: str) -> ContainerState: ...
    def revoke(self, vm: Vm, attempt: str) -> ContainerState: ...
    def output(self, vm: Vm, attempt: str, offset: int, limit: int) -> bytes: ...
    def checkpoint(self, vm: Vm, job: ContainerJob, attempt: str, limit: timedelta) -> CheckpointEnd: ...
    def stop(self, vm: Vm, attempt: str, grace: timedelta) -> ContainerState: ...
    def clear(self, vm: Vm, attempt: str) -> None: ...


@dataclass(slots=True)
class JobPass:
    """One pass over the jobs. `stops`: start nothing and stop all running jobs."""

    store: JobStore
    guests: JobGuests
    inventory: Inventory
    clock: Callable[[], datetime]
    checkpoint: timedelta
    stops: bool = False
    until: datetime | None = None
    """The time by which the pass must end, including stops; None: only the limit of each checkpoint applies."""
    deeds: list[JobDeed] = field(default_factory=list)

    def run(self, submitted: Sequence[SubmittedJob]) -> list[JobDeed]:
        """Read the state of each running job from its guest, and stop it if this pass stops jobs or it was cancelled.

        Returns what happened to each. Raises only NotConnected: an error in one guest does not affect the other jobs.
        """
        for job in submitted:
            if job.state is JobState.RUNNING:
                if self.stops and self.until is not None and self.clock() >= self.until:
                    self._note(
                        job,
                        "no time is left to stop it: it ends with its VM; its state is read when the VM runs again",
                    )
                    continue
                self._run_guarded(job, self._follow)
        return self.deeds

    def begin(self, turns: Sequence[JobTurn]) -> list[JobDeed]:
        """Begin the jobs that have a VM now; return what this pass has done with all jobs.

        `turns` must be computed after `run`, so that the VM of a job that has just ended gets its next job at once.
        Raises only NotConnected.
        """
        for turn in turns:
            vm = turn.vm
            if vm is not None and turn.job.waits:
                self._run_guarded(turn.job, partial(self._begin, vm=vm))
        return self.deeds

    def _run_guarded(self, job: SubmittedJob, deed: Callable[[SubmittedJob], None]) -> None:
        try:
            deed(job)
        except NotConnected:
            raise
        except JobChanged:
            self._note(job, "another gpuops job run is changing it")
        except GpuopsError as error:
            self.deeds.append(JobDeed(job, error.line, failed=True))

    def _begin(self, job: SubmittedJob, vm: Vm) -> None:
        """Begin a new attempt in this VM. Raises TargetError, before anything is recorded, for an unusable secret."""
        read_secrets(job.job)
        job = self._add(job, JobEvent.BEGUN, vm=vm.instance_uuid or vm.ref, vm_name=vm.name)
        self._start(job, vm)

    def _start(self, job: SubmittedJob, vm: Vm) -> None:
        """Start the container of the attempt. A second call does not start it again."""
        self.guests.start(vm, job.job, job.attempt_name, resume=job.resumes_from_checkpoint)
        try:
            job = self._add(job, JobEvent.STARTED)
        except JobChanged:
            self._end_unless_followed(job, vm)
            raise
        self._note(job, f"started in {vm.name}")

    def _end_unless_followed(self, job: SubmittedJob, vm: Vm) -> None:
        """Stop the container that was just started, if another pass has recorded meanwhile that it was not started."""
        current_job = next(submitted for submitted in self.store.read() if submitted.number == job.number)
        if current_job.state is not JobState.RUNNING or current_job.attempt_name != job.attempt_name:
            self.guests.stop(vm, job.attempt_name, timedelta())
            self.guests.clear(vm, job.attempt_name)

    def _follow(self, job: SubmittedJob) -> None:
        """Read the state of an attempt from its guest, record it, and stop the attempt if necessary.

        It is stopped if this pass stops jobs, or if the job was cancelled.
        """
        attempt, vm = job.attempt, vm_of(job, self.inventory)
        assert attempt is not None, "what runs was begun"
        if vm is None:
            self._record_interruption(job, "its VM is not in vCenter any more", None)
            return
        if vm.power is not PowerState.ON:
            self._note(job, f"{vm.name} is off: the state of the job is read when it runs again")
            return
        state = self.guests.look(vm, job.attempt_name)
        if state.state is ContainerPhase.ABSENT and not attempt.started and (self.stops or job.cancel_wanted):
            state = self.guests.revoke(vm, job.attempt_name)  # otherwise another pass could still start it
        stops = state.state is ContainerPhase.RUNNING and (self.stops or job.cancel_wanted)
        if not stops:  # `_stop` reads the output after the checkpoint, which may print too
            self._store_output(job, vm, whole=state.state is not ContainerPhase.RUNNING)
        if state.state is ContainerPhase.ABSENT:
            self._handle_absent(job, vm)
        elif state.state is ContainerPhase.ENDED:
            self._record_end(job, vm, state)
        else:
            if not attempt.started:  # the pass that started it ended before it could record this
                job = self._add(job, JobEvent.STARTED)
            if stops:
                self._stop(job, vm)

    def _handle_absent(self, job: SubmittedJob, vm: Vm) -> None:
        """Record why the guest does not know the attempt, or start it now.

        It was not started yet (the pass that recorded BEGUN was cut off), or its files in the guest were removed.
        """
        attempt = job.attempt
        assert attempt is not None
        if attempt.started:
            self._record_interruption(job, f"{vm.name} has no record of it any more", None)
        elif job.cancel_wanted:
            self._add(job, JobEvent.CANCELLED)
            self._note(job, "cancelled before it was started")
        elif self.stops:
            self._add(job, JobEvent.NOT_STARTED, reason="the night ended before it was started")
            self._note(job, "not started: it still waits")
        else:
            self._start(job, vm)

    def _stop(self, job: SubmittedJob, vm: Vm) -> None:
        """Save the state of the job if there is time, stop its container, and record the end."""
        attempt = job.attempt
        assert attempt is not None
        if not attempt.stopping:  # else an earlier pass has run the checkpoint and was cut off before the stop
            saved, why = self._save_state(job, vm)
            job = self._add(job, JobEvent.STOPPING, saved=saved, reason=why)
        grace = STOP_GRACE
        if self.until is not None:  # half of the remaining time: reading how it ended takes time too
            grace = min(grace, max(timedelta(), self.until - self.clock()) / 2)
        state = self.guests.stop(vm, job.attempt_name, grace)
        self._store_output(job, vm, whole=True)
        self._record_end(job, vm, state)

    def _save_state(self, job: SubmittedJob, vm: Vm) -> tuple[bool, str]:
        """Run the checkpoint of the job. Return whether it saved the state, and the reason if not."""
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
        except GpuopsError as error:  # the job is stopped without a checkpoint
            return False, f"its checkpoint failed: {error.message}"
        return end.saved, "" if end.saved else f"its checkpoint failed: {end.reason}"

    def _record_end(self, job: SubmittedJob, vm: Vm, state: ContainerState) -> None:
        """Record the end of a container that ended by itself, was stopped by gpuops, or went down with its guest.

        If gpuops stopped it, the exit code is ignored: it may be 0 although the job is not finished. Then the files of
        the attempt are removed from the guest.
        """
        run_time = None
        if state.ended is not None and state.began is not None:
            run_time = max(timedelta(), state.ended - state.began)  # the guest's clock may have been set back meanwhile
        if state.asked_to_end:
            self._record_interruption(job, "", run_time)
        elif state.exit_code is None:  # nothing in the guest could record the exit code
            self._record_interruption(job, f"{vm.name} went down while it ran", run_time)
        else:
            self._add(job, JobEvent.ENDED, exit_code=state.exit_code, ran=run_time)
            self._note(job, f"ended with exit code {state.exit_code}")
        self.guests.clear(vm, job.attempt_name)

    def _record_interruption(self, job: SubmittedJob, why: str, run_time: timedelta | None) -> None:
        """Record that the attempt ended early, or CANCELLED if the user has asked to cancel the job.

        `why`: "" = gpuops stopped it.
        """
        attempt = job.attempt
        assert attempt is not None
        if job.cancel_wanted:
            self._add(job, JobEvent.CANCELLED, reason=why, ran=run_time)
            self._note(job, "cancelled")
            return
        # the reason of the STOPPING record says why no state was saved
        saved = "its checkpoint was made" if attempt.saved else job.reason if attempt.stopping else ""
        reason = why or "; ".join(filter(None, (_MORNING, saved)))
        job = self._add(job, JobEvent.INTERRUPTED, reason=reason, ran=run_time)
        outlook = (
            "it continues in a later night" if job.state is JobState.INTERRUPTED else "it may not be resumed again"
        )
        self._note(job, f"{reason}: {outlook}")

    def _store_output(self, job: SubmittedJob, vm: Vm, *, whole: bool) -> None:
        """Store the new output; with `whole`, for a job that has ended, all output that its guest still holds."""
        begins = self.store.output_end(job)
        for _ in range(_MOST_PIECES if whole else 4):
            piece = self.guests.output(vm, job.attempt_name, begins, PIECE_BYTES)
            if not piece:
                return
            self.store.add_output(job, begins, piece)
            begins += len(piece)

    def _add(self, job: SubmittedJob, event: JobEvent, **fields: object) -> SubmittedJob:
        return self.store.add(job, JobRecord(event, self.clock(), **fields))  # type: ignore[arg-type]

    def _note(self, job: SubmittedJob, text: str) -> None:
        self.deeds.append(JobDeed(job, text))

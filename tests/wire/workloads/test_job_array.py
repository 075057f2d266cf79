"""An array of eight with a dependency, shared memory, variables and a secret, in Podman containers over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpuops import clock
from gpuops.execute.site import catalog_of
from gpuops.execute.site.guest_work import guest_work
from gpuops.extras.jobs.guest_container import GuestContainers
from gpuops.extras.jobs.job import ArrayTask, ContainerJob, JobEvent, JobState, SubmittedJob
from gpuops.extras.jobs.job_run import JobPass
from gpuops.extras.jobs.job_store import JobStore
from gpuops.extras.jobs.job_turns import JobTurn, job_turns
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.target import GuestLogin, Secret
from gpuops.model.vcenter.vm import VgpuDevice
from gpuops.model.workloads.job_rules import JobRules
from gpuops.vsphere.connection import Connection
from gpuops.vsphere.guests import guest_commands
from tests.podman_guest import IMAGE, PASSWORD, USER, VM, PodmanGuest, needs_podman, podman_guest
from tests.waiting import wait_until
from tests.wire.conftest import target_of

pytestmark = needs_podman

TOKEN = "swordfish-of-the-array"
WORK = (
    "while read -r line; do case $line in *' /dev/shm '*) mounted=$line ;; esac; done < /proc/mounts; "
    "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $GPUOPS_ARRAY_INDEX of $GPUOPS_ARRAY_SIZE; "
    'echo $LR $PWD $mounted; [ "$(cat /run/secrets/TOKEN)" = "$A$B" ] && ls /run/secrets'
)


def job_of(name: str, *command: str, **options: object) -> ContainerJob:
    spec = ContainerJob(name, IMAGE, command, "a40-8q", 4, 8192, timedelta(hours=1))
    return replace(spec, **options)  # type: ignore[arg-type]


@dataclass
class Lab:
    """One guest for all jobs, and passes over them."""

    guest: PodmanGuest
    store: JobStore
    containers: GuestContainers
    inventory: Inventory

    def turns(self) -> tuple[JobTurn, ...]:
        rules = JobRules((VM,), secrets=(str(self.store.state_dir),))
        return job_turns(self.store.read(), rules, self.inventory, catalog_of(self.inventory), clock.wall_clock())

    def run(self) -> None:
        job_pass = JobPass(self.store, self.containers, self.inventory, clock.wall_clock, timedelta(seconds=30))
        job_pass.run(self.store.read())
        assert [deed.what for deed in job_pass.begin(self.turns()) if deed.failed] == []

    def until(self, name: str) -> SubmittedJob:
        def has_ended() -> bool:
            self.run()
            return self.job(name).ended

        wait_until(has_ended, 90, every_s=0.1)
        return self.job(name)

    def job(self, name: str) -> SubmittedJob:
        return next(job for job in self.store.read() if job.job.name == name)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(guest_commands, "POLLS_S", (0.05,))
    with podman_guest() as guest:
        login = GuestLogin(USER, Secret(PASSWORD))
        with Connection(replace(target_of(guest.server), guest=login)) as connection:
            inventory = connection.inventory()
            vm = replace(inventory.find_vm(VM), devices=(VgpuDevice(1, "nvidia_a40-8q"),), vcpus=4, memory_mib=8192)
            with_vgpu = replace(inventory, vms={**inventory.vms, vm.ref: vm})
            yield Lab(guest, JobStore("vc", tmp_path), GuestContainers(guest_work(connection)), with_vgpu)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_array_of_eight_runs_after_its_dependency_each_task_with_its_index(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN + "\n", encoding="utf-8")
    secret.chmod(0o600)
    shared = {
        "after": ("prep",), "shm_mib": 2048, "workdir": "/data", "secrets": {"TOKEN": str(secret)},
        "env": {"LR": "a=b,c d", "A": TOKEN[:9], "B": TOKEN[9:]},  # in two parts: the whole is in no file
    }  # fmt: skip
    sweep = [job_of(f"sweep-{at}", "sh", "-c", WORK, task=ArrayTask("sweep", at, 8), **shared) for at in range(8)]
    lab.store.submit([*sweep, job_of("prep", "sh", "-c", "echo ready")], "a@b", clock.wall_clock())
    assert {turn.reason for turn in lab.turns() if turn.job.job.task} == {"starts after prep finished"}
    assert lab.until("prep").state is JobState.FINISHED
    for at in range(8):
        job = lab.until(f"sweep-{at}")
        assert job.state is JobState.FINISHED, lab.store.output(job)
        lines = lab.store.output(job)[0].decode().splitlines()
        assert lines[0] == f"{at} of 8, {at} of 8"
        assert lines[1].startswith("a=b,c d /data ") and "size=2097152k" in lines[1]
        assert lines[2:] == ["TOKEN"]
    ended = [record.at for record in lab.job("prep").records if record.event is JobEvent.ENDED]
    begun = [
        record.at for at in range(8) for record in lab.job(f"sweep-{at}").records if record.event is JobEvent.BEGUN
    ]
    assert len(begun) == 8 and min(begun) >= ended[0]
    written = [path for path in (*tmp_path.iterdir(), *lab.guest.home.rglob("*")) if path.is_file() and path != secret]
    assert not [path for path in written if "storage" not in path.parts and TOKEN.encode() in path.read_bytes()]


def test_while_a_task_runs_its_secret_is_a_file_of_the_guest_s_user_and_in_no_process(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN, encoding="utf-8")
    secret.chmod(0o600)
    spec = job_of(
        "fit", "sh", "-c", "cat /run/secrets/TOKEN > /tmp/x; echo up; sleep 600", secrets={"TOKEN": str(secret)}
    )
    lab.store.submit([spec], "a@b", clock.wall_clock())
    lab.run()

    def has_printed() -> bool:
        lab.run()
        return lab.store.output(lab.job("fit"))[0] == b"up\n"

    wait_until(has_printed, 60, every_s=0.1)
    attempt = lab.guest.home / ".gpuops-jobs" / "fit-1-1"
    assert (attempt / "secrets/TOKEN").read_text(encoding="utf-8") == TOKEN
    assert [path.stat().st_mode & 0o777 for path in (attempt, attempt / "secrets")] == [0o700, 0o700]
    processes = [
        Path(f"/proc/{pid}/{name}").read_bytes() for pid in lab.guest.guest.marked() for name in ("environ", "cmdline")
    ]
    assert len(processes) > 4 and not [text for text in processes if TOKEN.encode() in text]
    lab.containers.stop(lab.inventory.find_vm(VM), "fit-1-1", timedelta(0))
    assert not (attempt / "secrets").exists()


def test_a_secret_that_others_can_read_keeps_the_job_waiting(lab: Lab, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(TOKEN, encoding="utf-8")
    secret.chmod(0o644)
    lab.store.submit([job_of("fit", "true", secrets={"TOKEN": str(secret)})], "a@b", clock.wall_clock())
    job_pass = JobPass(lab.store, lab.containers, lab.inventory, clock.wall_clock, timedelta(seconds=30))
    [deed] = job_pass.begin(lab.turns())
    assert deed.failed and "can be read or written by others" in deed.what and TOKEN not in deed.what
    assert lab.job("fit").records == ()

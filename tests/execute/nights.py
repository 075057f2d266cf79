"""A night on the small vCenter: run halves of a rotation, be killed at a given point, and check the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpuops.config.policy import parse_policy
from gpuops.execute.journal import Journal
from gpuops.execute.journal.record import Record
from gpuops.execute.journal.stores import SqlStore
from gpuops.execute.rotation.rotation import resume, rotate
from gpuops.execute.runs import ROTATION_RUNS, RunKind
from gpuops.execute.site import Site, agreed
from gpuops.model.nights.rotation_policy import Policy
from gpuops.model.vcenter.vm import PowerState
from gpuops.plan.core.plan import Report
from gpuops.plan.core.steps import PowerOffVm, PowerOnVm, ResumeVm, SuspendVm
from tests.execute.journals import op_ids
from tests.execute.small_vcenter import Effect, Killed, SmallVcenter, World, small_world

POLICY_TEXT = """
version: 1
name: small
pools:
  - name: all
    parked: true
    select: {folder: desktops, name: "desktop-*"}
    idle: {cpu_below_mhz: 500}
    owner: none
ml:
  queue: [{vm: ml-01}, {vm: ml-02}]
  stop: {grace_s: 60, then: power-off}
window: {opens: "20:00", closes: "06:00", zone: UTC}
limits: {in_flight: 2, per_host: 2}
"""
POLICY: Policy = parse_policy(POLICY_TEXT, "small")


@dataclass
class Night:
    """One world and one state directory; every run is a new process's view of both."""

    state_dir: Path
    world: World = field(default_factory=small_world)
    points: int = 0
    """Points passed in the last run: before and after each journal commit and each effect."""

    def run(self, kind: RunKind, *, kill_at: int | None = None, apply: bool = True) -> Report:
        with self._site(kill_at) as site:
            return rotate(kind, POLICY, site, apply=apply, consent=agreed)

    def resume(self, *, kill_at: int | None = None, apply: bool = True) -> Report:
        with self._site(kill_at) as site:
            return resume(site, apply=apply, consent=agreed)

    def killed(self, kind: RunKind | None, kill_at: int) -> bool:
        """Whether a run of that kind (None = resume) was killed at that point; False = it ended before reaching it."""
        try:
            self.resume(kill_at=kill_at) if kind is None else self.run(kind, kill_at=kill_at)
        except Killed:
            return True
        return False

    @contextmanager
    def _site(self, kill_at: int | None) -> Iterator[Site]:
        self.points = 0

        def point(name: str) -> None:
            self.points += 1
            if self.points == kill_at:
                raise Killed(name)

        original = SqlStore.append

        def append(self: SqlStore, records: Sequence[Record]) -> None:
            point("before a commit")
            original(self, records)
            point("after a commit")

        SqlStore.append = append  # type: ignore[method-assign]
        try:
            yield Site(SmallVcenter(self.world, point), self.state_dir, self.world.tick)
        finally:
            SqlStore.append = original  # type: ignore[method-assign]

    # what must hold

    def powers(self) -> dict[str, PowerState | None]:
        return {vm.name: vm.power for vm in self.world.vms.values()}

    def markers(self) -> set[str]:
        return {vm.name for vm in self.world.vms.values() if vm.attributes}

    def check(self) -> None:
        """Nothing was discarded, nothing done twice, and every effect was intended first."""
        self._nothing_discarded()
        self._nothing_twice()
        self._intended_first()

    def _nothing_discarded(self) -> None:
        lost = [effect for effect in self.world.ledger if isinstance(effect.step, PowerOffVm)
                and effect.was is PowerState.SUSPENDED]  # fmt: skip
        assert lost == [], "a suspended state was discarded"
        cold = [effect for effect in self.world.ledger if isinstance(effect.step, ResumeVm)
                and effect.was is not PowerState.SUSPENDED]  # fmt: skip
        assert cold == [], "a desktop was booted"

    def _nothing_twice(self) -> None:
        kinds = (SuspendVm, ResumeVm, PowerOnVm, PowerOffVm)
        effects = Counter((type(effect.step).__name__, effect.step.vm) for effect in self.world.ledger
                          if isinstance(effect.step, kinds))  # fmt: skip
        assert all(count == 1 for count in effects.values()), f"an effect happened twice: {effects}"

    def _intended_first(self) -> None:
        known_ids = op_ids(self.state_dir, "vc-uuid")
        unknown = [effect for effect in self.world.ledger if effect.op_id not in known_ids]
        assert unknown == [], "an effect without an intent"

    def open_runs(self) -> int:
        journal = Journal.open(self.state_dir, "vc-uuid", self.world.tick)
        try:
            return len(journal.open_runs(ROTATION_RUNS))
        finally:
            journal.close()


def effects(world: World, *kinds: type) -> list[Effect]:
    return [effect for effect in world.ledger if isinstance(effect.step, kinds)]


def morning_is_good(night: Night) -> None:
    """Every desktop runs, no ML VM does, nothing is marked, nothing is left open."""
    night.check()
    assert night.powers() == {
        **{f"desktop-{number:02d}": PowerState.ON for number in range(1, 6)},
        "ml-01": PowerState.OFF,
        "ml-02": PowerState.OFF,
    }
    assert night.markers() == set()
    assert night.open_runs() == 0

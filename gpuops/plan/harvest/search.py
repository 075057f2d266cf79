"""Search: more worth for the same GPUs, step by step and never less.

Every step is cheap, and chance picks among four kinds:

* deal the one-GPU jobs of a few stretches anew, a stretch that idles among them;
* pack a host anew, some of its wide jobs staying where they are;
* pack two hosts anew;
* give two GPUs back in each other's place.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from gpuops.plan.harvest.dice import Dice
from gpuops.plan.harvest.packing import HostPacking, Run, dealt, packed
from gpuops.plan.harvest.problem import Problem
from gpuops.plan.harvest.state import Effort, State
from gpuops.plan.harvest.stretches import Stretch
from gpuops.plan.harvest.windows import Window, Windows, alone_windows, freeable, windows
from gpuops.plan.harvest.work import work_of

_DEAL: Final = 0.75
_ONE_HOST: Final = 0.90
_TWO_HOSTS: Final = 0.95
"""Up to which roll of the dice a step is of which kind; the rest changes the order of giving back."""
_STAY: Final = (0.0, 0.5, 0.8, 0.9)
_LEFT_OUT: Final = (0.0, 0.3, 0.6, 0.9)
"""Shares of the wide jobs that stay where they are, and that are passed over when a host is packed."""
_PASSED_OVER: Final = (0.0, 0.0, 0.2, 0.4)
"""Shares of the one-GPU jobs that are passed over when stretches are dealt anew: what is exact is always the same."""
_PER_MOVE: Final = 30
"""Units that a suspend and its resume take on the lanes."""


class Search:
    """A problem made ready, and the dice that drive the steps."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.alone = alone_windows(problem, freeable(problem))
        self.work = work_of(problem, self.alone)
        self._dice = Dice(seed)
        self._shortest = min((job.at_least for job in problem.jobs), default=1)

    def start(self, effort: Effort) -> State:
        """A first packing of all GPUs that can be freed."""
        found = self.windows(list(self.alone), effort)
        return self._packed_anew(State(found, {}, 0), found, _by_host(self.problem, found), effort)

    def windows(self, order: Sequence[int], effort: Effort) -> Windows:
        """The windows of these GPUs that a job could use."""
        effort.spend(_PER_MOVE * sum(len(self.problem.gpus[number].desktops) for number in order))
        return windows(self.problem, order, self._shortest)

    def improve(self, state: State, enough: int, effort: Effort) -> State:
        """The state after steps: worth `enough`, or all that there is, or the effort is spent."""
        limit = min(enough, self.work.most(state.windows.minutes))
        while state.worth < limit and effort.left:
            effort.spend(20)
            state = self._step(state, effort)
            limit = min(enough, self.work.most(state.windows.minutes))
        return state

    def moved(self, state: State, found: Windows, effort: Effort) -> State:
        """The state in other windows: hosts whose windows changed are packed anew."""
        before, after = _by_host(self.problem, state.windows), _by_host(self.problem, found)
        changed = [name for name in after if before.get(name) != after[name]]
        return self._packed_anew(state, found, changed, effort)

    def counts(self, state: State) -> list[int]:
        """How many jobs run, the highest priority first."""
        running = Counter(self.work.weights[number] for number in state.placed())
        return [running[weight] for weight in sorted(set(self.work.weights), reverse=True)]

    def _step(self, state: State, effort: Effort) -> State:
        roll = self._dice.roll()
        if roll < _DEAL:
            return self._dealt_anew(state, effort)
        if roll < _TWO_HOSTS:
            names = [self._dice.one_of(list(state.hosts)) for _ in range(1 if roll < _ONE_HOST else 2)]
            stay = {name: self._staying(state.hosts[name]) for name in names}
            other = self._packed_anew(state, state.windows, stay, effort, stay)
        else:
            order = list(state.windows.order)
            one, two = self._dice.below(len(order)), self._dice.below(len(order))
            order[one], order[two] = order[two], order[one]
            other = self.moved(state, self.windows(order, effort), effort)
        return other if other.worth >= state.worth else state

    def _dealt_anew(self, state: State, effort: Effort) -> State:
        places = self._some_places(state)
        if not places:
            return state
        before = [state.hosts[name].stretches[at] for name, at in places]
        on_them = {piece.job for stretch in before for piece in stretch.pieces}
        pool = self.work.pool(self._waiting(state.hosts) | on_them, wide=False)
        share = self._dice.one_of(_PASSED_OVER)
        if share:
            pool = [number for number in pool if self._dice.roll() >= share]
        effort.spend(len(pool) * len(before))
        after = dealt(before, self.work, pool, self._dice)
        gain = self._worth(after) - self._worth(before)
        if gain < 0:
            return state
        hosts = dict(state.hosts)
        for (name, at), stretch in zip(places, after, strict=True):
            stretches = hosts[name].stretches
            hosts[name] = replace(hosts[name], stretches=(*stretches[:at], stretch, *stretches[at + 1 :]))
        return State(state.windows, hosts, state.worth + gain)

    def _some_places(self, state: State) -> list[tuple[str, int]]:
        """A few stretches, each by host and number: one that idles and others by chance."""
        every = [(name, at) for name, packing in state.hosts.items() for at in range(len(packing.stretches))]
        if not every:
            return []
        idle = [(name, at) for name, at in every if state.hosts[name].stretches[at].idle]
        chosen = {self._dice.one_of(idle or every)}
        chosen.update(self._dice.one_of(every) for _ in range(1 + self._dice.below(3)))
        return sorted(chosen)

    def _packed_anew(
        self,
        state: State,
        found: Windows,
        names: Collection[str],
        effort: Effort,
        stay: dict[str, list[Run]] | None = None,
    ) -> State:
        """The state with these hosts packed anew; their wide runs in `stay` remain."""
        by_host = _by_host(self.problem, found)
        hosts = {name: packing for name, packing in state.hosts.items() if name in by_host and name not in names}
        stay = stay or {}
        waiting = self._waiting(hosts) - {run.job for runs in stay.values() for run in runs}
        for name in self._dice.shuffled([name for name in by_host if name in names]):
            effort.spend(3 * len(waiting) * (1 + len(by_host[name])))
            left_out = self._dice.one_of(_LEFT_OUT)
            hosts[name] = packed(by_host[name], self.work, waiting, self._dice, left_out, stay.get(name, ()))
            waiting -= set(hosts[name].jobs())
        in_order = {name: hosts[name] for name in by_host}
        return State(found, in_order, sum(packing.worth(self.work) for packing in hosts.values()))

    def _waiting(self, hosts: dict[str, HostPacking]) -> set[int]:
        """The jobs that could run and do not."""
        return set(self.work.longest) - {job for packing in hosts.values() for job in packing.jobs()}

    def _staying(self, packing: HostPacking) -> list[Run]:
        share = self._dice.one_of(_STAY)
        return [run for run in packing.wide if self._dice.roll() < share]

    def _worth(self, stretches: Iterable[Stretch]) -> int:
        weights = self.work.weights
        return sum(piece.minutes * weights[piece.job] for stretch in stretches for piece in stretch.pieces)


def _by_host(problem: Problem, found: Windows) -> dict[str, dict[int, Window]]:
    by_host: dict[str, dict[int, Window]] = defaultdict(dict)
    for number, window in sorted(found.of.items()):
        by_host[problem.gpus[number].host][number] = window
    return dict(by_host)

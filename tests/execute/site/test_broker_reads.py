"""What a broker that does not answer means: unknown, asked again later, and never a lockout."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from gpuops.advise.desktop_sessions import NOT_IN_LIST, match_machines, read_sessions
from gpuops.errors import BrokerUnreachable, GpuopsError, LoginRefused
from gpuops.execute.site.policy_reads import ASK_AGAIN, BrokerRest, BrokerSessions
from gpuops.model.desktops.broker import BrokerVcenter, DesktopMachine, DesktopSession
from gpuops.model.vcenter.inventory import Inventory
from gpuops.model.vcenter.vm import Vm

NOW = datetime(2026, 11, 2, 22, 0, tzinfo=UTC)
VMS = (Vm("vm-1", "a", "/dc/vm/a"), Vm("vm-2", "b", "/dc/vm/b"), Vm("vm-3", "c", "/dc/vm/c"))
AWAY = BrokerUnreachable("cs.example.com does not answer")
REFUSED = LoginRefused("cs.example.com refuses the login")


class Broker:
    """Answers with the given sessions, or with the given error."""

    def __init__(self, *answers: Sequence[DesktopSession] | GpuopsError) -> None:
        self.answers = list(answers)
        self.asked = 0

    def vcenters(self) -> tuple[BrokerVcenter, ...]:
        return ()

    def machines(self) -> tuple[DesktopMachine, ...]:
        if self.asked:  # somebody had it made anew since
            return (
                DesktopMachine("m1-anew", "a", "pool", path="/dc/vm/a"),
                DesktopMachine("m2", "b", "pool", path="/dc/vm/b"),
            )
        return (
            DesktopMachine("m1", "a", "pool", path="/dc/vm/a"),
            DesktopMachine("m2", "b", "pool", path="/dc/vm/b"),
            DesktopMachine("m3", "c", "pool"),
        )

    def sessions(self) -> tuple[DesktopSession, ...]:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, GpuopsError):
            raise answer
        return tuple(answer)


def seen_at(moment: datetime) -> Inventory:
    return Inventory("vc", "8.0.3.0", moment, vms={vm.ref: vm for vm in VMS})


def use_by_vm(source: BrokerSessions, at: datetime) -> dict[str, bool | None]:
    return {ref: count.used for ref, count in source.sessions(VMS, seen_at(at)).items()}


def test_a_session_on_a_machine_that_was_made_anew_counts() -> None:
    broker = Broker((), [DesktopSession("1", "m1-anew")])
    source = BrokerSessions(lambda: broker)  # type: ignore[arg-type,return-value]  # its reads are enough
    assert use_by_vm(source, NOW)["vm-1"] is False
    assert use_by_vm(source, NOW)["vm-1"] is True


def test_each_look_asks_anew_and_a_machine_without_a_path_is_found_by_its_name() -> None:
    broker = Broker((), [DesktopSession("1", "m2")])
    source = BrokerSessions(lambda: broker)  # type: ignore[arg-type,return-value]  # its reads are enough
    assert use_by_vm(source, NOW) == {"vm-1": False, "vm-2": False, "vm-3": False}
    assert use_by_vm(source, NOW) == {"vm-1": False, "vm-2": True}


@pytest.mark.parametrize(("error", "asks_again"), [(AWAY, True), (REFUSED, False)])
def test_one_that_fails_leaves_all_unknown_and_is_let_rest(error: GpuopsError, asks_again: bool) -> None:
    broker, messages, passed_s = Broker(error, error, ()), list[str](), [0.0]
    broker_rest = BrokerRest(lambda: passed_s[0])
    # its reads are enough
    source = BrokerSessions(lambda: broker, messages.append, broker_rest)  # type: ignore[arg-type,return-value]
    unknown = dict.fromkeys(("vm-1", "vm-2", "vm-3"))
    assert use_by_vm(source, NOW) == use_by_vm(source, NOW + timedelta(seconds=1)) == unknown
    assert broker.asked == 1
    passed_s[0] += ASK_AGAIN.total_seconds()
    assert use_by_vm(source, NOW) == unknown
    assert broker.asked == (2 if asks_again else 1), "a login that is refused counts towards a lockout"
    passed_s[0] += ASK_AGAIN.total_seconds()
    assert use_by_vm(source, NOW) == ({"vm-1": False, "vm-2": False} if asks_again else unknown)
    assert broker_rest.rests is not asks_again
    assert messages == [f"broker: {error.message} (gpuops help broker)"]


def test_the_rest_of_a_broker_is_told_by_no_clock_that_somebody_sets() -> None:
    """vCenter's clock was set back by a day in the rest: the broker is asked again all the same."""
    broker, passed_s = Broker(AWAY, ()), [0.0]
    # its reads are enough
    source = BrokerSessions(lambda: broker, broker_rest=BrokerRest(lambda: passed_s[0]))  # type: ignore[arg-type,return-value]
    assert use_by_vm(source, NOW)["vm-1"] is None
    passed_s[0] += ASK_AGAIN.total_seconds()
    assert use_by_vm(source, NOW - timedelta(days=1))["vm-1"] is False


def test_a_list_of_sessions_that_lacks_the_one_of_a_machine_is_not_believed() -> None:
    machine = DesktopMachine("m1", "a", "pool", path="/dc/vm/a", session="7")
    match = match_machines(VMS, "vc", [machine], ())
    session = read_sessions(match, [DesktopSession("7", "m1")], NOW).of("vm-1")
    missing = read_sessions(match, [DesktopSession("8", "m2")], NOW).of("vm-1")
    assert session is not None and missing is not None
    assert (session.used, missing.used, missing.because) == (True, None, NOT_IN_LIST)

"""The notice of leases that end before their time: by whom, when, and whether they go on elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from shlex import quote
from typing import Final

from gpuops.model.notice import Notice, NoticeKind
from gpuops.model.workloads.lease_book import GpuLease, LeaseState
from gpuops.plan.pool.answers import PoolAnswer
from gpuops.report.text import count

_WHEN: Final = "%Y-%m-%d %H:%M UTC"


def notice_of_pool(answer: PoolAnswer, vcenter: str, at: datetime) -> Notice | None:
    """What is told of clients that lose what they were lent before its end, and did not give it back; None = nobody.

    A lease is told of once for each end that it is given, whoever asks again.
    """
    lost = [] if not answer.applied or answer.verb == "return" else list(_lost(answer))
    if not lost:
        return None
    pool = answer.after.pool.name
    about = ("pool", pool, *sorted(f"{each.id} {each.ends_at}" for each in lost))
    headline = f"pool {pool}: {count(len(lost), 'lease')} taken back before the end"
    show = f"gpuops pool show --pool {quote(pool)} --vcenter {quote(vcenter)}"
    return Notice(NoticeKind.LEASES, vcenter, about, at, headline, tuple(_line(each, answer) for each in lost), show)


def _lost(answer: PoolAnswer) -> Iterator[GpuLease]:
    before = {each.id: each for each in (answer.before.leases if answer.before is not None else ())}
    for lease in answer.after.leases:
        known = before.get(lease.id)
        if known is None or known.state is not LeaseState.LENT or lease.ends_at is None or known.ends_at is None:
            continue
        if lease.ends_at < known.ends_at:
            yield lease


def _line(lease: GpuLease, answer: PoolAnswer) -> str:
    ended = "ended" if lease.state in (LeaseState.ENDED, LeaseState.BROKEN) else "ends"
    ends_at = lease.ends_at.astimezone(UTC) if lease.ends_at is not None else None
    follows = next((each for each in answer.after.leases if each.follows == lease.id), None)
    on = ""
    if follows is not None:
        waits = follows.state in (LeaseState.ASKED, LeaseState.WAITING)
        on = f"; it goes on as lease {follows.id}" + (", which waits for room" if waits else "")
    return f"{lease.client}: lease {lease.id} {ended} at {ends_at:{_WHEN}} ({lease.because}){on}"

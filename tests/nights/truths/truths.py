"""Truths: what a night says, and how it asks, held against what happened. None of it is asked of the engine."""

from __future__ import annotations

from typing import Final

from tests.nights.truths.journals import (
    closed_at_the_end,
    closed_once,
    left_over_come_back,
    noted_once,
    over_has_begun,
    what_is_over_is_left,
)
from tests.nights.truths.leases import asked_at_most, no_return_is_kept_away, numbers_grow
from tests.nights.truths.reports import (
    a_reason_is_told,
    another_state_is_named,
    clocks_are_told,
    each_return_advises,
    every_report_is_shown,
    foretold,
    gone_is_gone,
    gone_is_let_go,
    nothing_to_do_is_so,
    only_another_state_is_named,
    only_who_is_away_is_named,
    whoever_is_away_is_named,
)
from tests.nights.truths.requests import (
    hooks_end_as_told,
    moved_meanwhile,
    never_sent_is_not_lost,
    no_directpath_is_suspended,
    refusals_are_so,
    refused_stops,
)

TRUTHS: Final = (
    every_report_is_shown, gone_is_gone, gone_is_let_go, refusals_are_so, refused_stops, over_has_begun, noted_once,
    numbers_grow, asked_at_most, no_return_is_kept_away, never_sent_is_not_lost, moved_meanwhile, hooks_end_as_told,
    left_over_come_back, no_directpath_is_suspended, clocks_are_told, foretold, closed_once, closed_at_the_end,
    only_who_is_away_is_named, a_reason_is_told, whoever_is_away_is_named, what_is_over_is_left, each_return_advises,
    nothing_to_do_is_so, another_state_is_named, only_another_state_is_named,
)  # fmt: skip

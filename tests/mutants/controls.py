"""Mistakes in rules and definitions that the ledger keeps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STORE = "tests/integration/test_controls.py::"
_UNIT = "tests/unit/test_agreeing.py"

MUTANTS = [
    Mutant(
        "controls: a tie", "delaybridge/ledger/rows.py",
        "return (self.is_paused, self.value) > (other.is_paused, other.value)", "return False",
        "of two changes at one time that which is no pause may count",
        _UNIT,
    ),
    Mutant(
        "controls: any change counts", "delaybridge/ledger/controls.py",
        "each.wins(Control(", "each.wins(None and Control(",
        "an older change is recorded over a later one",
        f"{_STORE}test_a_change_that_is_recorded_late_does_not_undo_a_later_one",
    ),
    Mutant(
        "controls: removed and forgotten", "lua/set_rule.lua",
        "redis.call('ZADD', KEYS[3], text, name)",
        "if ARGV[3] ~= '' then redis.call('ZADD', KEYS[3], text, name) end",
        "that a rule was removed is not recorded if the database was down",
        f"{_STORE}test_a_change_that_was_recorded_is_forgotten_and_no_other",
    ),
    Mutant(
        "controls: the machine's clock", "lua/set_rule.lua",
        "(tonumber(clock) or 0) + 1)", "0)",
        "after the clock was set back, changes are older than those before",
        f"{_STORE}test_a_change_is_later_than_all_before_it_whatever_the_clock_says",
    ),
    Mutant(
        "controls: a comparison that was overtaken", "lua/reinstate.lua",
        "if at[1] ~= ARGV[1] or (at[2] or '') ~= ARGV[2] then", "if false then",
        "what was changed during a comparison is undone by it",
        f"{_STORE}test_a_comparison_is_in_vain_if_something_came_between",
    ),
    Mutant(
        "controls: a change during a comparison", "lua/reinstate.lua",
        " or (at[2] or '') ~= ARGV[2] then", " then",
        "a rule that was set during a comparison is undone by it",
        f"{_STORE}test_a_comparison_is_in_vain_if_something_came_between",
    ),
    Mutant(
        "controls: an end that nobody sees", "lua/set_rule.lua",
        "local unseen = now == '' and ARGV[6] == '1' and not told", "local unseen = false",
        "a pause that was ended before it came back comes back",
        f"{_STORE}test_a_pause_that_is_ended_before_it_has_come_back_does_not_come_back",
    ),
    Mutant(
        "controls: progress is lost", "delaybridge/store/reinstating.py",
        "if not entry.birth or control.birth != entry.birth or ", "if True or ",
        "runs that were made before a wipe are made again",
        f"{_STORE}test_runs_that_were_made_are_not_made_again",
    ),
    Mutant(
        "controls: sources are lost", "delaybridge/store/reinstating.py",
        "return max(after_ms, control.made_ms) if control.birth == entry.birth else after_ms",
        "return after_ms",
        "a worker that acts late makes runs again that were made before a wipe",
        f"{_STORE}test_runs_that_were_made_are_not_made_again",
    ),
    Mutant(
        "controls: the name is read once", "delaybridge/store/reinstating.py",
        "before.healed == after.healed and after.healed", "after.healed",
        "rules that are read while Redis is rebuilt are obeyed",
        _UNIT,
    ),
    Mutant(
        "controls: deleted rules", "delaybridge/worker/destinations.py",
        "found is not None and len(stored) >= found.rules", "found is not None",
        "a destination that was paused fires when the key of the rules is deleted",
        _UNIT,
    ),
    Mutant(
        "controls: what is read is obeyed", "delaybridge/worker/destinations.py",
        "        if not self.agree:\n", "        if False:\n",
        "a destination that was paused fires when Redis was wiped",
        _UNIT,
    ),
    Mutant(
        "controls: a pause waits for the database", "delaybridge/worker/destinations.py",
        "            self._obey_pauses(stored)\n", "",
        "a pause is not obeyed while the database is down and Redis was wiped",
        _UNIT,
    ),
    Mutant(
        "controls: claimed before they agree", "delaybridge/worker/agreeing.py",
        "                if await self._agree():\n", "                if True:\n",
        "a worker that starts on an older Redis publishes what is paused",
        "tests/integration/test_ledger_controls.py::test_a_pause_that_an_older_redis_does_not_have_"
        "is_obeyed_before_anything_goes_out",
    ),
    Mutant(
        "controls: what a worker knows", "delaybridge/worker/agreeing.py",
        "        await self._record_known()\n        steps", "        steps",
        "a pause that was set while the database was down is lost with Redis",
        "tests/integration/test_ledger_controls.py::test_a_worker_that_knows_of_a_pause_records_it_"
        "though_redis_and_the_database_failed",
    ),
    Mutant(
        "controls: buckets that wait for them", "delaybridge/worker/agreeing.py",
        "                self._reconciling.waits(session, exc)\n", "",
        "nobody says that all buckets wait, while Redis and the database have failed together",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
]  # fmt: skip

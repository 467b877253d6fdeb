"""Mistakes in rules and definitions that the ledger keeps."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_STORE = "tests/integration/test_controls.py::"
_FIELDS = "tests/integration/test_rule_fields.py::"
_UNIT = "tests/unit/test_agreeing.py"

MUTANTS = [
    Mutant(
        "controls: a tie", "delaybridge/ledger/sql/rows.py",
        "return (self.is_paused, self.value) > (other.is_paused, other.value)", "return False",
        "of two changes at one time that which is no pause may count",
        _UNIT,
    ),
    Mutant(
        "controls: any change counts", "delaybridge/ledger/sql/controls.py",
        "            if each.wins(known):\n", "            if True:\n",
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
        "if ARGV[1] ~= '' and at[1] ~= ARGV[1] or (at[2] or '') ~= ARGV[2] then", "if false then",
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
        "controls: what is so already", "lua/set_rule.lua",
        "if now == ARGV[3] and ARGV[9] ~= '1' then", "if now == ARGV[3] then",
        "a pause that succeeded ends, since Redis, which was older, had one already",
        f"{_FIELDS}test_a_pause_of_what_is_paused_already_counts_more_than_an_end_that_redis_lost",
    ),
    Mutant(
        "controls: an end that nobody sees", "lua/set_rule.lua",
        "{ARGV[6], ARGV[7]}", "{ARGV[6]}",
        "a pause that was ended before it came back comes back",
        f"{_FIELDS}test_a_change_of_a_rule_that_redis_lost_is_one_of_that_field_alone",
    ),
    Mutant(
        "controls: the rest of a rule", "delaybridge/ledger/comparing/reinstating.py",
        "joined(rules.get(place, b\"\"), values)", "joined(b\"\", values)",
        "a rate that is set after a wipe takes the place of the pause that comes back",
        f"{_FIELDS}test_a_change_of_a_rule_that_redis_lost_is_one_of_that_field_alone",
    ),
    Mutant(
        "controls: a removal that nobody sees", "lua/define.lua",
        "if after == before and ARGV[8] ~= '1' or not", "if after == before or not",
        "a definition that was removed while Redis lacked it comes back with its runs",
        f"{_FIELDS}test_a_definition_that_redis_lost_is_removed_all_the_same",
    ),
    Mutant(
        "controls: the progress of another plan", "delaybridge/ledger/sql/controls.py",
        "if birth.encode() in (stored or b\"\"):", "if True:",
        "a worker that acts late has the ledger forget how far the present plan is",
        f"{_FIELDS}test_only_how_far_the_present_plan_is_goes_into_the_ledger",
    ),
    Mutant(
        "controls: a pause without a time", "delaybridge/ledger/comparing/reinstating.py",
        "return is_rule and here.is_paused and", "return False and",
        "a pause of a client without a ledger is undone",
        f"{_FIELDS}test_a_pause_of_a_client_without_a_ledger_is_not_undone",
    ),
    Mutant(
        "controls: a worker reminds of the past", "lua/reinstate.lua",
        "  redis.call('HSET', KEYS[5], 'clock', ARGV[4])\n", "",
        "a comparison that has not seen what a worker brought back ends well",
        f"{_FIELDS}test_what_only_a_worker_knows_is_in_redis_before_anybody_compares_it",
    ),
    Mutant(
        "controls: a pause that another did not know", "delaybridge/worker/destinations.py",
        "        self._keep_known()\n", "",
        "a pause that only this worker knows is eased once others agree without it",
        _UNIT,
    ),
    Mutant(
        "controls: the first ones only", "delaybridge/ledger/reconciling/agreeing.py",
        "        self._seen_ms = max([self._seen_ms, *times.values()])\n", "",
        "of many changes during an outage the later ones are not remembered",
        f"{_FIELDS}test_all_that_is_changed_during_an_outage_is_remembered_not_just_the_first",
    ),
    Mutant(
        "controls: a long comparison", "delaybridge/ledger/comparing/reinstating.py",
        "last_ms = went_ms if name == healed", "last_ms = began_ms if name == healed",
        "two workers compare many definitions, and neither comes to an end",
        f"{_FIELDS}test_many_are_recorded_by_few_statements_in_transactions_of_their_own",
    ),
    Mutant(
        "controls: progress is lost", "delaybridge/ledger/comparing/resuming.py",
        "if not entry.birth or control.birth != entry.birth or ", "if True or ",
        "runs that were made before a wipe are made again",
        f"{_STORE}test_runs_that_were_made_are_not_made_again",
    ),
    Mutant(
        "controls: sources are lost", "delaybridge/ledger/comparing/resuming.py",
        "return max(after_ms, control.made_ms) if control.birth == entry.birth else after_ms",
        "return after_ms",
        "a worker that acts late makes runs again that were made before a wipe",
        f"{_STORE}test_runs_that_were_made_are_not_made_again",
    ),
    Mutant(
        "controls: the name is read once", "delaybridge/store/namespace/ledger_agreement.py",
        "before.healed == after.healed and after.healed", "after.healed",
        "rules that are read while Redis is rebuilt are obeyed",
        _UNIT,
    ),
    Mutant(
        "controls: deleted rules", "delaybridge/ledger/reconciling/agreed_rules.py",
        "found is not None and len(stored) >= found.rules", "found is not None",
        "a destination that was paused fires when the key of the rules is deleted",
        _UNIT,
    ),
    Mutant(
        "controls: what is read is obeyed", "delaybridge/ledger/reconciling/agreed_rules.py",
        "            if self.agree:\n", "            if True:\n",
        "a destination that was paused fires when Redis was wiped",
        _UNIT,
    ),
    Mutant(
        "controls: a pause waits for the database",
        "delaybridge/ledger/reconciling/agreed_rules.py",
        "                self._obey_pauses(stored)\n", "                pass\n",
        "a pause is not obeyed while the database is down and Redis was wiped",
        _UNIT,
    ),
    Mutant(
        "controls: claimed before they agree", "delaybridge/ledger/reconciling/agreeing.py",
        "                if await self._agree():\n", "                if True:\n",
        "a worker that starts on an older Redis publishes what is paused",
        "tests/integration/test_ledger_controls.py::test_a_pause_that_an_older_redis_does_not_have_"
        "is_obeyed_before_anything_goes_out",
    ),
    Mutant(
        "controls: buckets that wait for them", "delaybridge/ledger/reconciling/agreeing.py",
        "        self._reconciling.waiting.begins(session)\n", "",
        "nobody says that all buckets wait, while Redis and the database have failed together",
        "tests/integration/test_ledger_outage.py::test_workers_wait_for_both_and_go_on",
    ),
]  # fmt: skip

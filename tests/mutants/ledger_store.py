"""Mutants of what a store does with a ledger: recording, both tiers, comparing, restoring."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_RECORD = "tests/unit/test_record.py"
_RECORDING = "tests/unit/test_recording.py"
_ABSENT = "tests/unit/test_absent.py"
_COLD = "tests/unit/test_cold_reads.py"
_RESTORING = "tests/unit/test_restoring.py"
_AGREEMENT = "tests/unit/test_agreement.py"
MUTANTS = [
    Mutant(
        "record: a backdated payload", "delaybridge/store/protocol/record.py",
        "return score, record[HEAD_SIZE:-8]", "return score, record[HEAD_SIZE:]",
        "the time of acceptance is a part of the payload", f"{_RECORD} -k backdated",
    ),
    Mutant(
        "record: accepted, whatever it says", "delaybridge/store/protocol/record.py",
        "if score < accepted_ms < MAX_SCORE else", "if accepted_ms < MAX_SCORE else",
        "a message counts as late before it is due", f"{_RECORD} -k backdated",
    ),
    Mutant(
        "record: the first orphan", "delaybridge/store/protocol/record.py",
        "score - ORPHAN_SCORE if score >= ORPHAN_SCORE",
        "score - ORPHAN_SCORE if score > ORPHAN_SCORE",
        "an orphan due at once counts as due in a hundred thousand years", f"{_RECORD} -k orphan",
    ),
    Mutant(
        "record: unreadable attempts", "delaybridge/store/protocol/record.py",
        "return Tried(0, True, None)", "return UNTRIED",
        "a cancel answers `cancelled` though a copy may have arrived",
        f"{_RECORD} -k note_of_failures",
    ),
    Mutant(
        "recorder: any SET NX makes the namespace", "delaybridge/ledger/recording/recorder.py",
        'and args[0] == self._birth and args[-1] == "NX"', 'and args[-1] == "NX"',
        "another key's value becomes the namespace's record", f"{_RECORDING} -k only_what_makes",
    ),
    Mutant(
        "recorder: reschedule of a source", "delaybridge/ledger/recording/recorder.py",
        '_BY_ID = ("cancel", "reschedule")', '_BY_ID = ("cancel",)',
        "a cold message that ingest moves is unknown", f"{_ABSENT} -k goes_into_redis_before",
    ),
    Mutant(
        "recorder: an answer before the error", "delaybridge/ledger/recording/recorder.py",
        "            if isinstance(answer, Exception):\n                raise answer\n",
        "            pass\n",
        "a call that failed looks as if it had not", f"{_RECORDING} -k first_error",
    ),
    Mutant(
        "recorder: seconds", "delaybridge/ledger/recording/recorder.py",
        "round(hot_window_s * 1000)", "round(hot_window_s)",
        "everything is cold", f"{_RECORDING} -k hot_window_is",
    ),
    Mutant(
        "recording: withdrawn after an error", "delaybridge/ledger/recording/recording.py",
        "elif not isinstance(answer, Exception) or isinstance(answer, StoreFull | StoreDenied):",
        "elif True:",
        "a message that Redis has is not in the ledger", f"{_RECORDING} -k surely_not_stored",
    ),
    Mutant(
        "recording: a clock that does not answer", "delaybridge/ledger/recording/recording.py",
        "                self.answers[i] = times[node]\n",
        "                self._set_clock(i, 0)\n",
        "rows are written with the time 0", f"{_RECORDING} -k without_a_clock",
    ),
    Mutant(
        "recording: the clock of any server", "delaybridge/ledger/recording/recording.py",
        "nodes = {i: node_of(self.asked[i].keys[0]) for i in places}",
        "nodes = dict.fromkeys(places, '')",
        "a row has the time of another server", f"{_RECORDING} -k clocks_of",
    ),
    Mutant(
        "recording: a sure error after the rows", "delaybridge/ledger/recording/recording.py",
        "            self._refuse(in_doubt(exc))\n", "            self._refuse(exc)\n",
        "a message comes though its call had failed for sure",
        f"{_RECORDING} -k leaves_it_in_doubt",
    ),
    Mutant(
        "recording: sent though its row is not there", "delaybridge/ledger/recording/recording.py",
        "        except StoreError as exc:\n            self._refuse(exc)\n\n    def _commit_row",
        "        except StoreError:\n            pass\n\n    def _commit_row",
        "a message that Redis alone has is lost with it", f"{_RECORDING} -k does_not_take",
    ),
    Mutant(
        "recording: rows of what was refused", "delaybridge/ledger/recording/recording.py",
        "            self.answers[i] = error\n        self._rows = {}",
        "            self.answers[i] = error",
        "a sure refusal is in doubt", f"{_RECORDING} -k does_not_take",
    ),
    Mutant(
        "recording: rows of the first call", "delaybridge/ledger/recording/recording.py",
        "rows = [row for own in self._rows.values() for row in own]",
        "rows = [row for own in [*self._rows.values()][:1] for row in own]",
        "of a pipeline only the first messages survive a wipe", f"{_RECORDING} -k all_rows",
    ),
    Mutant(
        "recording: a comparison is not noticed", "delaybridge/ledger/recording/recording.py",
        "and self._standing[marks][1:] == before[1:]", "and True",
        "what was cancelled comes back after an older past", f"{_RECORDING} -k made_again",
    ),
    Mutant(
        "recording: marks that do not answer", "delaybridge/ledger/recording/recording.py",
        "return (may_have_ended or not is_lost) and", "return is_lost or",
        "the same, where Redis does not answer a moment", f"{_RECORDING} -k marks",
    ),
    Mutant(
        "recording: a reschedule is known already", "delaybridge/ledger/recording/recording.py",
        "args[_STAMP] = new_stamp()", "args[_STAMP] = args[_STAMP]",
        "a message comes at its old time after `rescheduled`",
        f"{_RECORDING} -k answered_otherwise",
    ),
    Mutant(
        "recording: once more, other answers", "delaybridge/ledger/recording/recording.py",
        "            places = [i for i in places if i not in same]\n", "            places = []\n",
        "a message is said to be cancelled which another call moved",
        f"{_RECORDING} -k answered_otherwise",
    ),
    Mutant(
        "recording: warm rows are sent nowhere", "delaybridge/ledger/recording/recording.py",
        "self._heat((yield from separate(self.cold, rows)))",
        "yield from separate(self.cold, rows)",
        "a call is `created` whose message does not come in time",
        f"{_RECORDING} -k cold_call_for_a_live",
    ),
    Mutant(
        "recording: what left is cancelled", "delaybridge/ledger/recording/recording.py",
        "for i in effects.late:", "for i in ():",
        "two are told that a message was delivered, and cancelled",
        f"{_ABSENT} -k before_the_commit",
    ),
    Mutant(
        "recording: the ledger fails, and the namespace is made",
        "delaybridge/ledger/recording/recording.py",
        "                self.answers[i] = exc\n                continue\n            if is_new",
        "                known = layout, birth\n            if is_new",
        "a wiped namespace has another birth id", f"{_RECORDING} -k without_the_ledger",
    ),
    Mutant(
        "absent: a bucket that knew speaks for all", "delaybridge/ledger/recording/absent.py",
        "return self._answers[i] is Answer.UNKNOWN and (",
        "return {*self._answers} == {Answer.UNKNOWN} and (",
        "one of two messages with the id is delivered after `cancelled`",
        f"{_ABSENT} -k by_itself",
    ),
    Mutant(
        "absent: what a consumer ends", "delaybridge/ledger/recording/absent.py",
        "not is_of_redis(command)", "not is_of_source(command)",
        "a late consumer ends a message that it has not received", f"{_ABSENT} -k consumer",
    ),
    Mutant(
        "absent: cancelled though the ledger is silent",
        "delaybridge/ledger/recording/recording.py",
        "self.answers[i] = of_ledger(exc)", "pass",
        "`unknown` is said of a message that comes", f"{_ABSENT} -k silent",
    ),
    Mutant(
        "absent: the last try decides", "delaybridge/ledger/recording/absent.py",
        "            self._keep_known(before)\n", "            pass\n",
        "`unknown` is said of a message that was cancelled", f"{_ABSENT} -k several",
    ),
    Mutant(
        "absent: one row each", "delaybridge/ledger/recording/absent.py",
        "if not left[i] or is_done or isinstance(self._answers[i], Exception):", "if True:",
        "of several calls for a lost id one is delivered after `cancelled`",
        f"{_ABSENT} -k several",
    ),
    Mutant(
        "absent: an error that the next answer hides", "delaybridge/ledger/recording/absent.py",
        "is_done or isinstance(self._answers[i], Exception):", "is_done:",
        "of several calls for a lost id one is delivered after `cancelled`",
        f"{_ABSENT} -k after_an_error",
    ),
    Mutant(
        "absent: the same stamp", "delaybridge/ledger/recording/absent.py",
        "args[_STAMP], args[_ROW] = new_stamp(), row",
        "args[_STAMP], args[_ROW] = args[_STAMP], row",
        "Redis gives its first answer again, and the message comes", f"{_ABSENT} -k by_its_row",
    ),
    Mutant(
        "absent: expired", "delaybridge/ledger/recording/absent.py",
        "row.state in (DEAD, EXPIRED)", "row.state == DEAD",
        "an expired message that Redis lost cannot be kicked", f"{_ABSENT} -k only_a_dead_one",
    ),
    Mutant(
        "absent: unknown after three tries", "delaybridge/ledger/recording/absent.py",
        "            self._answers[i] = LedgerUnavailable(WENT_BACK)\n", "            pass\n",
        "`unknown` is said of a message that comes", f"{_ABSENT} -k vanishes",
    ),
    Mutant(
        "absent: only what is cold goes first", "delaybridge/ledger/recording/absent.py",
        "for i in asked if not self._recording.is_compared(i)]", "for i in ()]",
        "ingest acknowledges a cancel, and the message that Redis lost comes later",
        f"{_ABSENT} -k may_have_lost",
    ),
    Mutant(
        "absent: one refusal is of all", "delaybridge/ledger/recording/absent.py",
        "                for i in own:\n", "                for i in places:\n",
        "a bucket that cannot be restored refuses what others have",
        f"{_ABSENT} -k concerns_its_own",
    ),
    Mutant(
        "recording: compared in any past", "delaybridge/ledger/recording/recording.py",
        "is_healed_under(run)", "healed.startswith(('r', 'o'))",
        "what Redis forgot is not replaced, and comes, too", f"{_RECORDING} -k to_be_replaced",
    ),
    Mutant(
        "tiers: warm of others", "delaybridge/ledger/recording/tiering.py",
        "if own.get(name[:2]) != [(name[2], COLD)]}", "if False}",
        "two calls for one id are `created`, and both come",
        f"{_RECORDING} -k cold_call_for_a_live",
    ),
    Mutant(
        "tiers: others stay cold", "delaybridge/ledger/recording/tiering.py",
        "promote_named(cold, {*others, *(name[:2] for name in warm)})",
        "promote_named(cold, {*(name[:2] for name in warm)})",
        "the same, if the cold one was first", f"{_RECORDING} -k before_a_hot_call",
    ),
    Mutant(
        "tiers: warm is not written", "delaybridge/ledger/recording/tiering.py",
        "        yield Work(lambda on: cold.warm(on, [*warm]))\n", "        pass\n",
        "a call that Redis refuses is brought into it before",
        f"{_RECORDING} -k cold_call_for_a_live",
    ),
    Mutant(
        "tiers: one bucket", "delaybridge/ledger/recording/tiering.py",
        "    for number, own in by_bucket.items():",
        "    for number, own in [*by_bucket.items()][:1]:",
        "cold messages of other buckets are unknown", f"{_RECORDING} -k several_buckets",
    ),
    Mutant(
        "tiers: an error is an answer", "delaybridge/ledger/recording/tiering.py",
        "                for error in (each for each in result if "
        "isinstance(each, Exception)):\n                    raise error\n",
        "                pass\n",
        "a call goes on without the message that it is about",
        f"{_RECORDING} -k cannot_be_promoted",
    ),
    Mutant(
        "tiers: delivered long ago", "delaybridge/ledger/recording/tiering.py",
        'yield row.name, now_ms, plain("ZSCORE", key["delivered"], row.id)',
        'yield row.name, 0, plain("ZSCORE", key["delivered"], row.id)',
        "an id is a duplicate for ever", f"{_RECORDING} -k within_its_window",
    ),
    Mutant(
        "cold reads: the id in another bucket", "delaybridge/ledger/recording/cold_reads.py",
        "if names[i] in asked_as(row)", "",
        "a message is found that is not the one asked for", f"{_COLD} -k no_bucket_knows",
    ),
    Mutant(
        "cold reads: old counts of few", "delaybridge/ledger/recording/cold_reads.py",
        "if each >= _MANY}", "if each >= 0}",
        "counts are wrong by one message for seconds", f"{_COLD} -k slow_count",
    ),
    Mutant(
        "cold reads: old counts for ever", "delaybridge/ledger/recording/cold_reads.py",
        "if seen[1] > now_s}", "if seen[1] > 0}",
        "counts stay as they were", f"{_COLD} -k slow_count",
    ),
    Mutant(
        "cold reads: twice on a page", "delaybridge/ledger/recording/cold_reads.py",
        "if each[0] not in known)", ")",
        "a message that is promoted meanwhile is listed twice", f"{_COLD} -k page_of_both",
    ),
    Mutant(
        "cold reads: beyond the end of a page", "delaybridge/ledger/recording/cold_reads.py",
        "_place(each) <= min(ends)", "_place(each) <= max(ends)",
        "messages between two pages are listed nowhere", f"{_COLD} -k page_of_both",
    ),
    Mutant(
        "cold reads: the last page", "delaybridge/ledger/recording/cold_reads.py",
        "is_part = len(page) < len(merged) or bool(ends)", "is_part = bool(ends)",
        "lists end too early", f"{_COLD} -k page_of_both",
    ),
    Mutant(
        "cold reads: the later of two", "delaybridge/ledger/recording/cold_reads.py",
        "float(reply[1]) <= first_ms)", "float(reply[1]) >= first_ms)",
        "the next due time is too late", f"{_COLD} -k first_of_both",
    ),
    Mutant(
        "cold reads: a tally by the larger part", "delaybridge/ledger/recording/cold_reads.py",
        "share = min(read / size if size else 1.0, len(cold) / listed)",
        "share = max(read / size if size else 1.0, len(cold) / listed)",
        "a destination counts for more than it has", f"{_COLD} -k tally",
    ),
    Mutant(
        "cold reads: no message while the ledger is silent",
        "delaybridge/ledger/recording/cold_reads.py",
        "                answers[i] = exc\n", "                pass\n",
        "a message counts as unknown that comes", f"{_COLD} -k neither_there",
    ),
    Mutant(
        "agreement: a call of this moment", "delaybridge/ledger/comparing/agreement.py",
        "row.created_ms < self.before_call_ms", "row.created_ms <= self.before_call_ms",
        "what is just being stored is restored twice", f"{_RESTORING} -k under_way",
    ),
    Mutant(
        "agreement: the last due time", "delaybridge/ledger/comparing/agreement.py",
        "row.due_ms <= self.to_ms", "row.due_ms < self.to_ms",
        "`restore --until` leaves out what is due then", f"{_RESTORING} -k last_time",
    ),
    Mutant(
        "agreement: one page is restored", "delaybridge/ledger/comparing/agreement.py",
        "if len(page) < PAGE_MESSAGES or page", "if True or page",
        "all but a thousand messages of a bucket are lost", f"{_RESTORING} -k every_page",
    ),
    Mutant(
        "agreement: stands later", "delaybridge/ledger/comparing/agreement.py",
        "        (as_of,) = yield [standing(bucket)]\n"
        "        page = yield Work(partial(read, after=after))\n",
        "        page = yield Work(partial(read, after=after))\n"
        "        (as_of,) = yield [standing(bucket)]\n",
        "what left between the two readings comes back", f"{_RESTORING} -k every_page",
    ),
    Mutant(
        "agreement: not read again", "delaybridge/ledger/comparing/agreement.py",
        "            continue  # too much has left since: read it again\n",
        "            absent = 0\n",
        "a page that came too late is lost", f"{_RESTORING} -k too_old",
    ),
    Mutant(
        "agreement: every call of an id", "delaybridge/ledger/comparing/agreement.py",
        "if first.get(row.name[:2]) == row.stamp]", "if row.name[:2] in first]",
        "two calls for one id are both delivered", f"{_RESTORING} -k first_call",
    ),
    Mutant(
        "agreement: dry restores", "delaybridge/ledger/comparing/agreement.py",
        "if not absent or dry:", "if not absent:",
        "`restore --dry-run` restores", f"{_RESTORING} -k dry",
    ),
    Mutant(
        "agreement: expired live again", "delaybridge/ledger/comparing/agreement.py",
        'if row.state in (DEAD, EXPIRED) else ""', 'if row.state == DEAD else ""',
        "what expired is delivered after a rebuild", f"{_RESTORING} -k expired",
    ),
    Mutant(
        "agreement: a part of the rows", "delaybridge/ledger/comparing/along.py",
        "            yield rows[start:end]\n            start, size = end, len(row.payload)",
        "            yield rows[start:end]\n            start, size = end + 1, len(row.payload)",
        "a message of each part is lost", f"{_RESTORING} -k too_large",
    ),
    Mutant(
        "agreement: what is parked", "delaybridge/ledger/comparing/agreement.py",
        "_LISTED = (State.DELAYED, State.PARKED, State.DEAD)",
        "_LISTED = (State.DELAYED, State.DEAD)",
        "what ended while it was parked is delivered", f"{_AGREEMENT} -k what_waits",
    ),
    Mutant(
        "agreement: the lease is lost", "delaybridge/ledger/comparing/agreement.py",
        "        if dropped is None:\n            return None\n",
        "        dropped = dropped or 0\n",
        "a bucket counts as compared that another one holds", f"{_AGREEMENT} -k without_the_lease",
    ),
    Mutant(
        "agreement: mended at once", "delaybridge/ledger/comparing/agreement.py",
        "mended = differing & how.differed", "mended = differing",
        "a call that is under way is undone in the ledger", f"{_AGREEMENT} -k what_has_ended",
    ),
    Mutant(
        "agreement: the due time after an attempt", "delaybridge/ledger/comparing/agreement.py",
        "due_ms = None if call.tried else int(call.score)", "due_ms = int(call.score)",
        "a message is due by the ledger when it is tried again", f"{_AGREEMENT} -k is_mended",
    ),
    Mutant(
        "restoring: cold ones, too", "delaybridge/ledger/comparing/restoring.py",
        "if r.tier == HOT and r.due_ms", "if r.due_ms",
        "`restore --id` of a cold message fills Redis", f"{_RESTORING} -k cold",
    ),
    Mutant(
        "restoring: the first due time", "delaybridge/ledger/comparing/restoring.py",
        "from_ms=min(dues)", "from_ms=max(dues)",
        "`restore --id` finds the last of its messages alone", f"{_RESTORING} -k named_messages",
    ),
]  # fmt: skip

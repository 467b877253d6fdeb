"""Mutants of what people meet: web, cli, doctor."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "probes: only reads", "delaybridge/operate/metrics/health.py",
        "yield from map(str, found.gauges.refused)", "pass",
        "a bridge whose Redis takes no writes is called ready",
        "tests/integration/test_refused_writes.py",
    ),
    Mutant(
        "web: an eleventh wrong token", "delaybridge/serve/access/throttle.py",
        "if record.failures <= _FAILURES:", "if record.failures < _FAILURES:",
        "the tenth wrong token is refused",
        "tests/unit/test_throttle.py",
    ),
    Mutant(
        "web: trailers", "delaybridge/serve/http/transport.py",
        "        if not self._is_in_head:\n            self._fail(_TRAILERS)\n", "",
        "a client without a token fills the memory, and a token in a trailer counts",
        "tests/integration/test_http_transport.py -k trailer",
    ),
    Mutant(
        "web: one trailer without an end", "delaybridge/serve/http/transport.py",
        "        self._head_bytes += len(data)\n",
        "        self._head_bytes += len(data) * self._is_in_head\n",
        "a client without a token fills the memory",
        "tests/integration/test_http_transport.py -k endless",
    ),
    Mutant(
        "web: who has sent half a request", "delaybridge/serve/http/transport.py",
        "        self._head_bytes += len(data)\n",
        "        self._head_bytes += len(data)\n        self._idle.pop(self, None)\n",
        "half requests keep everybody out",
        "tests/integration/test_http_transport.py -k half_a_request",
    ),
    Mutant(
        "web: a tenant's tokens wait each for itself", "delaybridge/serve/shared/seats.py",
        "who = tenant or digest", "who = digest",
        "a tenant with many tokens takes the streams of all others",
        "tests/integration/test_http_waiting.py -k tenant",
    ),
    Mutant(
        "web: any number of requests wait", "delaybridge/serve/http/transport.py",
        "if len(self.pipeline) >= _WAITING:", "if False:",
        "a client that sends without waiting fills the memory",
        "tests/integration/test_http_transport.py -k too_many_requests",
    ),
    Mutant(
        "web: no file is kept back", "delaybridge/serve/server/capacity.py",
        "files - min(4 * _OWN_FILES, files // 2))", "files)",
        "at the limit of open files nobody is accepted, and no one makes room",
        "tests/unit/test_capacity.py",
    ),
    Mutant(
        "urls: the square", "delaybridge/settings/urls.py",
        "(?<![A-Za-z0-9+.-])([0-9+.-]*)(", "()(",
        "64 KB of letters hold the process for 21 s",
        "tests/unit/test_linear_patterns.py tests/unit/test_linear_parsers.py",
    ),
    Mutant(
        "web: the rest of an open string again and again", "delaybridge/serve/http/json_text.py",
        r'(?:"|\\?\Z)|', r'"|',
        "64 KB of an open string hold the process for 42 s",
        "tests/unit/test_linear_patterns.py tests/unit/test_linear_parsers.py",
    ),
    Mutant(
        "web: a session without an end", "delaybridge/serve/access/sessions.py",
        "if token is None or not time.time() < int(found[3]):", "if token is None:",
        "a cookie is good for ever",
        "tests/unit/test_web_sessions.py",
    ),
    Mutant(
        "web: a session ended elsewhere", "delaybridge/serve/access/sessions.py",
        "        if has_ended:\n", "        if has_ended and not session:\n",
        "a cookie that was copied is good after its user has logged out",
        "tests/integration/test_console_log_out.py::test_a_log_out_ends_this_session_at_every_"
        "server_and_no_other",
    ),
    Mutant(
        "web: one audit for all", "delaybridge/operate/views/audit.py",
        "keys.audit(namespace) if of_admin else keys.audit_others(namespace)",
        "keys.audit(namespace)",
        "requests with a write token push an administrator's act out",
        "tests/integration/test_http_audit.py::test_whoever_writes_or_reads_pushes_no_act_of_an_"
        "administrator_out",
    ),
    Mutant(
        "web: a record of the same moment", "delaybridge/operate/views/audit.py",
        "(of_admin, before.of_admin) == (False, True)", "False",
        "a page of the audit lacks what somebody else did at the same time",
        "tests/integration/test_http_audit.py::test_both_streams_are_one_list_whose_pages_lack_"
        "nothing",
    ),
    Mutant(
        "web: forwarded from the left", "delaybridge/serve/http/proxies.py",
        'for text in reversed(",".join(lines)', 'for text in iter(",".join(lines)',
        "a client chooses the address that it has in the audit",
        "tests/unit/test_web_proxies.py",
    ),
    Mutant(
        "web: anybody is a proxy", "delaybridge/serve/http/proxies.py",
        "if not sender or not self._trusts(sender):", "if not sender:",
        "whoever guesses tokens has another address each time",
        "tests/unit/test_web_proxies.py",
    ),
    Mutant(
        "web: repetitions count", "delaybridge/serve/access/guessing.py",
        "_run(text, at), _repetition(text, at))", "_run(text, at))",
        "half a token, twice, is taken",
        "tests/unit/test_web_tokens.py",
    ),
    Mutant(
        "tail: the first ids of a second", "delaybridge/worker/eventlog.py",
        "self.ids, self.step = self.ids[::2], 2 * self.step",
        "self.ids, self.step = self.ids[:25], 2 * self.step",
        "the messages named are those of the first moment",
        "tests/unit/test_tail.py",
    ),
    Mutant(
        "tail: ids for the log", "delaybridge/worker/eventlog.py",
        "most_ids: int = 0", "most_ids: int = 50",
        "each batch costs what only a listener needs, and logs grow",
        "tests/unit/test_tail.py",
    ),
    Mutant(
        "console: a filter of nothing", "delaybridge/serve/api/messages/bulk.py",
        "not any(getattr(wanted, each) for each in _CHOOSING)", "False",
        "a page discards every message when no filter is set",
        "tests/integration/test_console_messages.py",
    ),
    Mutant(
        "console: each refresh is a reading", "delaybridge/serve/shared/audit.py",
        "        seen[who] = now_s\n", "",
        "a page that is left open pushes all other readers out of the audit",
        "tests/integration/test_console_messages.py",
    ),
    Mutant(
        "web: bare cells", "delaybridge/serve/api/messages/paging.py",
        "csv.writer(text, quoting=csv.QUOTE_ALL)", "csv.writer(text)",
        "a spreadsheet that splits at semicolons runs a formula",
        "tests/integration/test_http_filters.py::test_a_page_is_csv_that_a_spreadsheet_does_not_"
        "run",
    ),
    Mutant(
        "web: a token file that is gone", "delaybridge/serve/access/tokens.py",
        "_tokens_of(self._file, self._tenants, _UnknownTenant) if self._seen else []",
        "_tokens_of(self._file, self._tenants, _UnknownTenant)",
        "tokens count although their file was removed",
        "tests/integration/test_http_security.py::test_s1_a_token_counts_as_long_as_it_is_in_the_"
        "file",
    ),
    Mutant(
        "web: read only but for admins", "delaybridge/serve/access/access.py",
        "needed in (Scope.WRITE, Scope.ADMIN)", "needed in (Scope.WRITE,)",
        "a server that is to change nothing discards messages",
        "tests/integration/test_http_security.py::test_read_only_changes_nothing",
    ),
    Mutant(
        "web: a cursor of another filter", "delaybridge/serve/api/messages/paging.py",
        "self.header, self.attempts, self.reason)", "self.header, self.reason)",
        "a page begins in the middle of another list",
        "tests/integration/test_http_filters.py::test_a_cursor_of_a_list_with_other_filters_is_"
        "refused",
    ),
    Mutant(
        "web: a job's batch", "delaybridge/serve/shared/jobs.py",
        "some = page[at : at + BATCH_MESSAGES]", "some = page[at : at + BATCH_MESSAGES - 1]",
        "a bulk verb leaves out one message of each batch",
        "tests/integration/test_http_bulk.py::test_ids_beyond_one_batch_of_a_job_are_each_"
        "cancelled_once",
    ),
    Mutant(
        "web: a number is cut in two", "delaybridge/serve/http/json_text.py",
        "end <= len(part) - _WORD or is_rest", "end <= len(part) or is_rest",
        "a large batch is refused because a piece ends within a number",
        "tests/unit/test_json_text.py",
    ),
    Mutant(
        "web: no turn in a large body", "delaybridge/serve/http/json_text.py",
        '        for _ in _pieces(raw.decode("latin-1"), dense=dense):\n'
        "            await asyncio.sleep(0)\n",
        "        check_depth(raw)\n",
        "one large body holds up every other request",
        "tests/unit/test_json_text.py",
    ),
    Mutant(
        "web: any number of values", "delaybridge/serve/http/json_text.py",
        "            if left < 0:", "            if False:",
        "1.6 MB of brackets or keys hold the process for 300 ms, as one step",
        "tests/unit/test_json_text.py",
    ),
    Mutant(
        "web: a large batch at once", "delaybridge/serve/api/messages/batch.py",
        "most = len(call.body)", "pass",
        "while Redis is away, each MiB of a batch waits for it anew",
        "tests/integration/test_http_large.py",
    ),
    Mutant(
        "web: everybody asks whether it is ready", "delaybridge/serve/shared/site.py",
        "(self._making.done() and now_s >= self._fresh_until_s)", "self._making.done()",
        "anybody makes a server send as many commands to Redis as they like",
        "tests/unit/test_shared.py",
    ),
    Mutant(
        "web: who asked first is gone", "delaybridge/serve/shared/site.py",
        "await asyncio.shield(self._making)", "await self._making",
        "all who wait for the same answer get none",
        "tests/unit/test_shared.py",
    ),
    Mutant(
        "mykit: a job that Redis lost", "delaybridge/serve/dialects/mykit.py",
        "if answer is Answer.UNKNOWN and (records", "if False and (records",
        "reStoreJob knows the dead set alone",
        "tests/integration/test_http_compat_ledger.py::test_one_that_redis_lost_comes_back",
    ),
    Mutant(
        "mykit: expire is not heard", "delaybridge/serve/dialects/mykit.py",
        "from_ms=first_ms(expired=call.query.expire)", "from_ms=0",
        "reStore?expire=false restores what is due already",
        "tests/integration/test_http_compat_ledger.py::test_all_that_redis_lost_comes_back_or_only_"
        "what_is_not_due",
    ),
    Mutant(
        "cli: a line in two pieces", "delaybridge/operate/cli/messages/lines.py",
        "yield from _line(number, kept + part, limit)", "yield from _line(number, part, limit)",
        "the beginning of a line is lost",
        "tests/unit/test_cli_lines.py",
    ),
    Mutant(
        "cli: a bucket without a worker", "delaybridge/operate/cli/watching/health.py",
        "alone &= set(unowned(found.buckets))", "alone = set(unowned(found.buckets))",
        "a bucket fails the check that lacked its worker for a moment only",
        "tests/unit/test_cli_checks.py",
    ),
    Mutant(
        "cli: a dry run of ids is none", "delaybridge/operate/cli/messages/bulk.py",
        "return partial(verb, dry_run=True)", "return verb",
        "--dry-run with ids changes them",
        "tests/integration/test_cli_many.py -k dry_run",
    ),
    Mutant(
        "foreseen: a fired message", "delaybridge/store/messages/foreseen.py",
        "if row.fired:", "if row.fired and row.state is State.DEAD:",
        "a dry run says cancelled of a message that is with the broker",
        "tests/integration/test_dry_runs.py",
    ),
    Mutant(
        "cli: a wrong word for not durable", "delaybridge/operate/terminal/failure.py",
        '    errors.NotDurable: ("not_durable", Exit.UNREACHABLE),\n', "",
        "a caller is told to try again what may be stored",
        "tests/unit/test_cli_endings.py",
    ),
    Mutant(
        "doctor: durable by half", "delaybridge/operate/doctor/durability.py",
        "if all(each.is_mild for each in found):", "if any(each.is_mild for each in found):",
        "doctor says ok below what is lacking",
        "tests/unit/test_durability_gate.py",
    ),
    Mutant(
        "doctor: buckets that differ", "delaybridge/operate/doctor/namespace.py",
        "if asked not in layout.counts:", "if asked != layout.here.size:",
        "doctor is red for good after a resize",
        "tests/integration/test_resize_asked.py",
    ),
    Mutant(
        "gone: a process keeps its expiry", "lua/announce.lua",
        "'-' .. over[i + 1]", "over[i + 1]",
        "a clock that is set back revives workers that are gone",
        "tests/integration/test_gone.py",
    ),
    Mutant(
        "troubles: a remedy without its server", "delaybridge/operate/troubles/addressed.py",
        "    return found._replace(remedy=remedy)", "    return found",
        "a pasted redis-cli changes the Redis of this host",
        "tests/integration/test_remedies.py -k address",
    ),
    Mutant(
        "link: who speaks another protocol is not asked", "delaybridge/stranger.py",
        "    if found := speaker(await _answer(host, port, _PING)):\n        return found\n", "",
        "Redis' port as RabbitMQ's is told as a time-out",
        "tests/unit/test_stranger.py",
    ),
    Mutant(
        "hints: the typed name", "delaybridge/errors.py",
        "for each in known if each != text}", "for each in known}",
        "a hint may name what was typed",
        "tests/unit/test_hints.py -k never_given",
    ),
    Mutant(
        "description: defaults", "delaybridge/serve/api/description/openapi.py",
        'if word != "default"}', "}",
        "types of openapi-typescript have every request give each field with a default",
        "tests/integration/test_http_description.py -k words",
    ),
    Mutant(
        "scaling: parked", "delaybridge/serve/api/operations/numbers.py",
        "due_now = ahead.overdue + ahead.in_flight",
        "due_now = ahead.overdue + ahead.in_flight + ahead.parked",
        "an autoscaler keeps its most workers for what none of them would deliver",
        "tests/integration/test_http_fleet.py -k further_worker",
    ),
    Mutant(
        "scaling: a longer minute", "delaybridge/operate/views/horizon.py",
        "_COMING_MS = (60_000,", "_COMING_MS = (62_000,",
        "what is due within the next minute has more",
        "tests/integration/test_http_fleet.py -k numbers",
    ),
]  # fmt: skip

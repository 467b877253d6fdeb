"""Every row of the tables of bad input has a test, or a reason why it has none yet.

The rows are counted, not repeated: T times, I ids, B bodies, H headers, D destinations, A AMQP and
K Kafka ingest have their number in the tests (`"T24"` in a table of cases, `# K-19`), and those of
HTTP, too (`"H-38"`, or a test named `test_h38_...`). The rows of the command line (C) and of the
settings (S) are named here, each with its test.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
COUNTS = {"T": 34, "I": 24, "B": 12, "H": 22, "D": 15, "A": 42}
ROWS = [f"{letter}{n}" for letter, count in COUNTS.items() for n in range(1, count + 1)]
ROWS += [f"K-{n}" for n in range(1, 33) if n not in (27, 28)]
ROWS += [f"H-{n}" for n in range(1, 63) if n != 57]

LATER = {
    "D9": "there are no tenants yet",
    "K-17": "librdkafka answers as in K-16, and no broker of today stores such a batch",
    "K-24": "ten thousand partitions are no test of a few seconds",
    "S-23": "OpenSSL refuses an expired certificate where it refuses that of a wrong CA, S-21",
    "S-51": "a destination names a path below one host of the settings: there is no list",
    **{f"S-{n}": "HTTP has no sessions, no CORS and no TLS of its own" for n in range(54, 58)},
}

ELSEWHERE = {
    "I21": "integration/test_client.py::"
    "test_the_same_content_under_an_id_is_a_duplicate_and_keeps_the_first_due_time",
    "I22": "integration/test_client.py::"
    "test_other_content_under_an_id_is_a_conflict_whose_error_names_the_remedy",
    "I23": "integration/test_ingest_rabbitmq_ids.py::"
    "test_a_message_sent_again_after_its_cancel_is_a_new_one",
    "B2": "unit/test_accept.py::test_null_is_kept_for_kafka_and_refused_elsewhere",
    "B4": "unit/test_accept.py::"
    "test_one_byte_too_many_is_refused_with_the_limit_and_the_broker_named",
    "B5": "unit/test_cli_lines.py::test_stdin_endless_is_read_to_the_limit",
    "B11": "unit/test_amqp_frames.py::"
    "test_headers_that_fill_the_frame_pass_and_one_byte_more_is_refused",
    "B12": "unit/test_quota.py::test_a_full_namespace_refuses_messages_and_names_the_limit",
    "D14": "unit/test_amqp.py::test_a_foreign_user_id_is_left_out",
    "D8": "integration/test_destinations.py::test_what_an_operator_holds_back_is_not_late",
    "H-55": "integration/test_http_idempotency.py::test_the_key_stands_for_one_request",
    "A28": "integration/test_ingest_rabbitmq_ids.py::"
    "test_the_message_id_decides_duplicates_cancels_and_conflicts",
    "A31": "unit/test_ingest_routes.py::test_a_bad_route_is_refused",
    "A39": "integration/test_ingest_rabbitmq_faults.py::test_a_deleted_queue_is_declared_again",
    "A40": "integration/test_ingest_rabbitmq_faults.py::"
    "test_nothing_is_lost_or_doubled_while_connections_are_cut",
    "A41": "integration/test_ingest_rabbitmq_store_fails.py::"
    "test_memory_is_bounded_while_the_store_does_not_answer",
    "A42": "integration/test_ingest_rabbitmq_faults.py::"
    "test_a_channel_closed_by_the_broker_is_opened_again",
}

# What is refused stands on the golden pages of the commands.
REFUSED_PAGE = "unit/test_golden.py::test_commands_print_what_their_page_says"
REAL_PAGE = "integration/test_golden.py::test_commands_print_what_their_page_says"
LINES = "unit/test_cli_lines.py::"
CHECKS = "unit/test_cli_checks.py::"
REFUSALS = "unit/test_cli_refusals.py::"
MANY = "integration/test_cli_many.py::"
FLEET = "integration/test_cli_fleet.py::"
MESSAGES = "integration/test_cli_messages.py::"
OTHER_REDIS = "integration/test_cli_refusing_redis.py::"
COMMAND_LINE = {
    "C-1": ("unknown command or option", REFUSED_PAGE),
    "C-2": ("missing argument", REFUSED_PAGE),
    "C-3": ("option twice", REFUSED_PAGE),
    "C-4": ("--in and --at together", REFUSED_PAGE),
    "C-5": ("--in= empty", REFUSALS + "test_times_refused"),
    "C-6": ("a BODY and --lines", REFUSED_PAGE),
    "C-7": ("- with stdin closed, or a terminal with nothing", LINES + "test_stdin_closed"),
    "C-8": ("stdin without end", LINES + "test_stdin_endless_is_read_to_the_limit"),
    "C-9": ("--lines: 1 GB, BOM, CRLF, blank lines", LINES + "test_lines"),
    "C-10": ("--lines: a line that is refused", MANY + "test_a_line_that_is_too_long_is_refused"),
    "C-11": ("--lines: empty input", LINES + "test_lines_exit_codes"),
    "C-12": ("--processes 0, -1, 1.5, abc, 10^9", REFUSED_PAGE),
    "C-13": ("--limit -1, 10^9", REAL_PAGE),
    "C-14": ("--redis, --broker: scheme, host, port, password", REFUSED_PAGE),
    "C-15": ("--broker without NAME=", REFUSED_PAGE),
    "C-16": (
        "Redis unreachable",
        REFUSALS + "test_an_unreachable_redis_is_named_without_its_password",
    ),
    "C-17": ("wrong password", OTHER_REDIS + "test_wrong_password"),
    "C-18": (
        "not a Redis",
        "integration/test_client_redis_fails.py::"
        "test_a_server_that_is_not_redis_is_an_error_and_not_a_hang",
    ),
    "C-19": ("Redis too old, wrong policy", CHECKS + "test_doctor_looks_at_the_server"),
    "C-20": ("the URL of a cluster", "unit/test_settings_urls.py::test_redis_urls_refused"),
    "C-21": ("--config missing, a directory", REFUSED_PAGE),
    "C-22": ("cancel of an unknown id", MESSAGES + "test_schedule_show_reschedule_cancel"),
    "C-23": ("cancel in flight", MESSAGES + "test_a_message_in_flight_is_too_late_to_change"),
    "C-24": ("kick of a message that is not dead", REAL_PAGE),
    "C-25": ("many without --yes", REFUSED_PAGE),
    "C-26": ("a terminal of 20 columns", FLEET + "test_every_list_fits_the_terminal"),
    "C-27": ("NO_COLOR, a dumb terminal", "unit/test_cli_output.py::test_colour"),
    "C-28": (
        "stdout closed",
        "unit/test_cli_endings.py::test_a_reader_that_closes_stdout_is_not_an_error",
    ),
    "C-29": ("Ctrl-C in --lines", MANY + "test_lines_interrupted"),
    "C-30": (
        "an argument that is not UTF-8",
        REFUSALS + "test_names_that_are_no_text_are_refused_before_anything_starts",
    ),
    "C-31": ("locale C", "unit/test_cli_endings.py::test_c_locale"),
    "C-32": ("two workers of one name", FLEET + "test_two_workers_of_one_name"),
    "C-33": ("scan --burst with nothing due", FLEET + "test_scan_burst_with_nothing_due"),
    "C-34": ("this host's clock is off", CHECKS + "test_doctor_looks_at_the_clock"),
    "C-35": (
        "a hostile id is printed",
        "unit/test_cli_output.py::test_hostile_bytes_are_escaped_in_text_and_json",
    ),
    "C-36": ("--json with an error", REFUSED_PAGE),
}

FILE, URLS = "unit/test_settings.py::", "unit/test_settings_urls.py::"
REFUSING = "unit/test_settings_refused.py::"
REFUSED = REFUSING + "test_a_bad_value_in_the_file_is_refused_with_its_bounds"
URL = (
    "unit/test_cli_config.py::"
    "test_a_broker_url_that_a_worker_could_not_use_is_refused_at_the_start_as_by_the_check"
)
HTTP = "integration/test_http_security.py::"
OPTIONS = "unit/test_publish_kafka.py::test_other_options_are_refused_by_name"
SETTINGS = {
    "S-1": ("missing", FILE + "test_a_missing_file_and_a_directory_are_refused"),
    "S-2": ("unreadable", FILE + "test_a_file_without_read_permission_is_refused"),
    "S-3": ("secrets that the world may read", URLS + "test_risky_settings_give_warnings"),
    "S-4": ("a directory", FILE + "test_a_missing_file_and_a_directory_are_refused"),
    "S-5": ("empty", FILE + "test_an_empty_file_and_a_byte_order_mark_are_accepted"),
    "S-6": ("BOM", FILE + "test_an_empty_file_and_a_byte_order_mark_are_accepted"),
    "S-7": ("not UTF-8", FILE + "test_a_file_that_cannot_be_read_is_refused_in_one_line"),
    "S-8": ("bad TOML", FILE + "test_a_file_that_cannot_be_read_is_refused_in_one_line"),
    "S-9": ("a key twice", FILE + "test_a_file_that_cannot_be_read_is_refused_in_one_line"),
    "S-10": ("unknown key", REFUSED),
    "S-11": ("wrong section", REFUSED),
    "S-12": ("50 MB", FILE + "test_a_file_that_cannot_be_read_is_refused_in_one_line"),
    "S-13": ("variable empty or unset", FILE + "test_an_empty_variable_counts_as_unset"),
    "S-14": ("unknown variable", REFUSING + "test_a_bad_variable_is_refused_by_its_name"),
    "S-15": (
        "variable and file disagree",
        "unit/test_cli_config.py::test_config_show_names_the_source_of_each_value_and_no_password",
    ),
    "S-16": ("file of a secret", URLS + "test_a_password_file_is_utf_8_and_loses_one_line_end"),
    "S-17": ("bad Redis URL", URLS + "test_redis_urls_refused"),
    "S-18": ("db 99", "fuzz/test_cli.py::test_a_redis_database_that_does_not_exist_is_reported"),
    "S-19": ("a database on a Cluster", URLS + "test_redis_urls_refused"),
    "S-20": ("Sentinels without a service", URLS + "test_redis_urls_refused"),
    "S-21": ("wrong CA", "integration/test_publish_rabbitmq.py::test_tls_verifies_the_broker"),
    "S-22": ("client certificate without key", URLS + "test_redis_urls_refused"),
    "S-24": ("ssl_cert_reqs=none", URLS + "test_every_option_that_weakens_tls_gives_a_warning"),
    "S-25": ("password in URL and file", URLS + "test_a_second_password_is_refused"),
    "S-26": ("namespace", REFUSED),
    "S-27": ("two bucket counts", REAL_PAGE),
    "S-28": ("buckets", REFUSED),
    "S-29": (
        "relations",
        REFUSING + "test_settings_that_contradict_each_other_are_refused_with_both_numbers",
    ),
    "S-30": ("renew 0", REFUSED),
    "S-31": ("batch 0, 10^6", REFUSED),
    "S-32": ("max_attempts", REFUSED),
    "S-33": ("back-off, factor, jitter", REFUSED),
    "S-34": ("the longest delay", REFUSED),
    "S-35": ("heartbeat 1 s", URLS + "test_risky_settings_give_warnings"),
    "S-36": ("prefetch 0", REFUSED),
    "S-37": ("window", REFUSED),
    "S-38": ("port", URLS + "test_broker_urls_refused"),
    "S-40": ("durations", REFUSED),
    "S-41": (
        "no broker",
        "acceptance/test_pull.py::test_what_a_killed_consumer_held_comes_again_and_all_is_finished",
    ),
    "S-42": ("one name twice", REFUSED_PAGE),
    "S-43": ("a URL of another kind than its name", REFUSED),
    "S-44": ("unknown option of Kafka", URL),
    "S-45": ("acks=1 and its like", URL),
    "S-46": ("transactional.id", OPTIONS),
    "S-47": (
        "exchange missing",
        "integration/test_publish_rabbitmq.py::test_a_deleted_exchange_is_noticed",
    ),
    "S-48": ("TLS on port 5672", URLS + "test_risky_settings_give_warnings"),
    "S-49": ("vhost not escaped", URLS + "test_broker_urls_refused"),
    "S-50": ("a password without TLS", URLS + "test_risky_settings_give_warnings"),
    "S-39": (
        "bind 0.0.0.0 without tokens",
        HTTP + "test_s1_without_tokens_it_listens_on_loopback_only",
    ),
    "S-52": ("a short token", HTTP + "test_s1_tokens_that_are_refused"),
    "S-53": ("token changeme", HTTP + "test_s1_tokens_that_are_refused"),
}


@cache
def named() -> frozenset[str]:
    """The rows whose number stands where they are tested."""
    found = set[str]()
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        text = path.read_text()
        found.update(re.findall(r"(?<![\w-])(?:[KH]-|[TIBHDA])[0-9]+\b", text))
        for name in re.findall(r"def test_((?:h[0-9]+_)+)", text):
            found.update(f"H-{number}" for number in re.findall("[0-9]+", name))
    return frozenset(found)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_a_test_or_a_reason_why_not(row: str) -> None:
    assert (row in named()) + (row in ELSEWHERE) + (row in LATER) >= 1


@pytest.mark.parametrize(("letter", "count"), [("C", 36), ("S", 57)])
def test_every_row_of_the_command_line_and_the_settings_is_listed(letter: str, count: int) -> None:
    listed = {**COMMAND_LINE, **SETTINGS, **LATER}
    assert [n for n in range(1, count + 1) if f"{letter}-{n}" not in listed] == []


@pytest.mark.parametrize(
    "test", sorted({*ELSEWHERE.values(), *(test for _, test in (COMMAND_LINE | SETTINGS).values())})
)
def test_the_test_of_a_row_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert re.search(rf"def {re.escape(name)}\(", (TESTS / path).read_text())

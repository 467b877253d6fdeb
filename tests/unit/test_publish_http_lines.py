"""Which message of which path is posted next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from delaybridge.message import Delivery, Destination, Record
from delaybridge.publishers.http import lines as lines_module
from delaybridge.publishers.http.lines import SLOW_S, Lines, PathLine, path_of

CONNECTIONS, QUARTER, RESERVE = 64, 16, 8
Post = tuple[PathLine, Delivery]


def message(
    path: str = "a", key: str | None = None, id: str = "m", *, once: bool = False
) -> Delivery:
    to = Destination("hook", "http", path)
    of_key = None if key is None else key.encode()
    return Delivery(id, Record(str(to), b"", key=of_key, at_most_once=once), to, 0, 1)


class Host:
    """A host whose answers the test gives. posts: those under way. now_s: the time."""

    def __init__(self, connections: int = CONNECTIONS) -> None:
        self.lines, self.now_s = Lines(connections), 100.0
        self.posts: list[Post] = []

    def add(self, *messages: Delivery) -> None:
        self.lines.add(messages)
        self.go_on()

    def many(self, count: int, *paths: str) -> None:
        self.add(*(message(path) for path in paths for _ in range(count)))

    def go_on(self) -> None:
        while (post := self.lines.next(self.now_s)) is not None:
            self.posts.append(post)

    def of(self, path: str) -> list[Post]:
        return [post for post in self.posts if path_of(post[1]) == path]

    def answer(self, posts: Sequence[Post], took_s: float = 0.01) -> None:
        for line, delivery in posts:
            self.lines.answered(line, self.now_s - took_s, self.now_s)
            self._end(line, delivery)

    def time_out(self, posts: Sequence[Post], since_s: float = 100.0) -> list[bool]:
        found = [self.lines.unanswered(line, since_s) for line, _ in posts]
        for post in posts:
            self._end(*post)
        return found

    def _end(self, line: PathLine, delivery: Delivery) -> None:
        self.posts.remove((line, delivery))
        self.lines.ended(line, delivery)
        self.go_on()

    def prove(self, *paths: str) -> None:
        """Paths that have answered."""
        for path in paths:
            self.many(1, path)
            self.answer(self.of(path))

    def count(self) -> Counter[str]:
        return Counter(path_of(delivery) for _, delivery in self.posts)


@pytest.fixture
def host() -> Host:
    return Host()


# shares


def test_no_path_has_more_than_a_quarter_while_another_one_waits(host: Host) -> None:
    host.prove("a", "b")
    host.lines.add([message(path) for path in "ab" for _ in range(100)])
    host.go_on()
    assert host.count() == {"a": QUARTER, "b": QUARTER}
    host.answer(host.of("b"))
    assert host.count() == {"a": QUARTER, "b": QUARTER}


def test_once_the_other_one_waits_no_more_a_path_has_its_connections(host: Host) -> None:
    host.prove("a", "b")
    host.lines.add([*(message("b") for _ in range(QUARTER + 1)), *(message() for _ in range(99))])
    host.go_on()
    assert host.count() == {"a": QUARTER, "b": QUARTER}
    host.answer(host.of("b")[:1])
    assert host.count() == {"b": QUARTER, "a": CONNECTIONS - RESERVE - QUARTER}


def test_a_path_that_was_idle_has_a_quarter_until_it_answers_again(host: Host) -> None:
    host.prove("a", "b")
    host.now_s += SLOW_S + 0.1
    host.many(100, "a")
    assert host.count() == {"a": QUARTER}
    host.answer(host.of("a")[:1])
    assert host.count() == {"a": CONNECTIONS - RESERVE}


def test_the_only_path_has_a_quarter_before_its_first_answer_then_all(host: Host) -> None:
    host.many(100, "a")
    assert host.count() == {"a": QUARTER}
    host.answer(host.of("a")[:1])
    assert host.count() == {"a": CONNECTIONS}


@pytest.mark.parametrize("hanging", [1, 12, 40])
def test_beside_paths_that_hang_a_new_one_is_posted_to_at_once(host: Host, hanging: int) -> None:
    host.many(100, *(f"hangs-{number}" for number in range(hanging)))
    host.many(100, "good")
    assert host.count()["good"] >= 1
    for _ in range(100):
        host.answer(host.of("good")[:1])
        assert host.count()["good"] >= min(7, host.lines.under_way), "it keeps its share"
        host.many(1, "good")


@pytest.mark.parametrize("idle_s", [0.0, 60.0])
@pytest.mark.parametrize("hanging", [1, 4, 8])
def test_beside_quick_paths_that_hang_now_others_are_posted_to_at_once(
    host: Host, hanging: int, idle_s: float
) -> None:
    paths = [f"hangs-{number}" for number in range(hanging)]
    host.prove("good", *paths)
    host.now_s += idle_s
    for path in paths:
        host.many(30, path)  # while no other one waits
    host.now_s += SLOW_S + 0.1
    host.many(1, "good", "new")
    assert host.count()["good"] == host.count()["new"] == 1


def test_quick_paths_that_hang_get_no_more_than_slow_ones(host: Host) -> None:
    host.prove("good", *"abcd")
    for _ in range(30):
        host.now_s += SLOW_S / 2
        host.many(1, *"abcd")
    assert host.lines.under_way == CONNECTIONS * 3 // 4
    host.many(30, "good")
    assert host.count()["good"] == RESERVE


def test_paths_that_hang_leave_what_is_kept_to_those_that_may_answer(host: Host) -> None:
    silent = [f"silent-{number}" for number in range(RESERVE)]
    host.many(1, *silent)
    host.now_s += 10
    host.time_out(list(host.posts), host.now_s)
    host.prove("good", *"abcd")
    host.many(30, *"abcd")
    host.now_s += SLOW_S + 0.1
    host.many(1, *silent, "good")
    assert host.count()["good"] == 1


@pytest.mark.parametrize("slow", [1, 12, 40])
def test_beside_slow_paths_a_quick_or_a_new_one_is_posted_to_at_once(host: Host, slow: int) -> None:
    host.prove("quick")
    paths = [f"slow-{number}" for number in range(slow)]
    host.many(100, *paths)
    for _ in range(20):
        host.now_s += 9
        host.answer(list(host.posts), took_s=9.0)
    assert host.lines.under_way <= CONNECTIONS * 3 // 4
    host.many(1, "quick", "new")
    assert host.count()["quick"] == host.count()["new"] == 1


def test_a_slow_path_that_is_the_only_one_has_every_connection(host: Host) -> None:
    host.many(1000, "a")
    for _ in range(3):
        host.now_s += 9
        host.answer(list(host.posts), took_s=9.0)
    assert host.count() == {"a": CONNECTIONS}


def test_a_free_connection_goes_to_the_path_that_has_the_fewest(host: Host) -> None:
    host.prove(*"abcdefgh")
    host.many(100, *"abcdefgh")
    assert host.lines.under_way == CONNECTIONS - RESERVE
    host.prove("i")
    host.many(100, "i")
    host.answer(host.of("a")[:3])
    assert host.count()["i"] == 3
    host.answer(host.of("b")[:4])
    assert max(host.count().values()) - min(host.count().values()) <= QUARTER - 4


def test_a_silent_path_has_one_connection_until_it_answers(host: Host) -> None:
    host.many(100, "a")
    host.now_s += 10
    assert host.time_out(host.of("a")) == [True] * QUARTER
    assert host.count() == {"a": 1}
    assert host.time_out(host.of("a"), host.now_s) == [True]
    assert host.count() == {"a": 1}
    host.answer(host.of("a"))
    assert host.count() == {"a": CONNECTIONS}


def test_all_silent_paths_together_have_a_quarter(host: Host) -> None:
    paths = [f"hangs-{number}" for number in range(40)]
    host.many(100, *paths)
    for _ in range(4):
        host.now_s += 10
        host.time_out(list(host.posts), host.now_s)
    assert host.lines.under_way == QUARTER
    assert set(host.count().values()) == {1}
    host.prove("good")
    host.many(100, "good")
    assert host.count()["good"] == CONNECTIONS - RESERVE - QUARTER


def test_every_silent_path_has_its_turn(host: Host) -> None:
    paths = {f"hangs-{number}" for number in range(40)}
    host.many(100, *paths)
    tried: set[str] = set()
    for _ in range(10):
        host.now_s += 10
        host.time_out(list(host.posts), host.now_s)
        tried |= host.count().keys()
    assert tried == paths


def test_a_message_that_times_out_while_others_are_answered_makes_no_path_silent(
    host: Host,
) -> None:
    host.many(2, "a")
    stuck, other = host.posts
    host.now_s += 5
    host.answer([other])
    assert host.time_out([stuck]) == [False]
    host.many(100, "a")
    assert host.count() == {"a": CONNECTIONS}


@pytest.mark.parametrize("connections", [1, 2, 3, 4, 5])
def test_with_few_connections_all_is_posted(connections: int) -> None:
    host = Host(connections)
    host.many(3, *"abcdef")
    answered = 0
    while host.posts:
        assert host.lines.under_way <= connections
        host.answer(host.posts[:1])
        answered += 1
    assert answered == 18
    assert host.lines.is_idle


# keys


def test_messages_of_one_key_and_path_are_under_way_one_at_a_time_in_order(host: Host) -> None:
    host.add(*(message("a", "k", f"{n}") for n in range(3)), message("a", "l", "other"))
    host.add(message("b", "k", "other path"), message("a?x=1", "k", "3"))
    seen = []
    while found := [d.id for _, d in host.posts]:
        seen.append(found)
        host.answer(host.posts[:1])
    assert seen[0] == ["0", "other", "other path"]
    order = [id for (id, *_) in seen if id.isdigit()]
    assert sorted(set(order)) == ["0", "1", "2", "3"]
    assert all(len([id for id in found if id.isdigit()]) <= 1 for found in seen)


def test_what_is_taken_back_is_in_order_and_frees_its_keys(host: Host) -> None:
    host.add(*(message("a", "k", f"k{n}") for n in range(3)))
    sent = host.posts[0]
    many = [message("a", f"l{n}", f"l{n}") for n in range(CONNECTIONS)]
    host.add(*many, message("a", "l60", "second"))
    taken = host.lines.take_waiting(sent[0], "a")
    assert [d.id for d in taken] == [*(f"l{n}" for n in range(15, 64)), "k1", "k2", "second"]
    host.add(message("a", "k", "k3"))
    assert [d.id for _, d in host.posts].count("k3") == 0, "one of its key is still under way"
    host.answer(host.posts[:1])
    assert "k3" in [d.id for _, d in host.posts]
    host.add(message("a", "l60", "third"))
    assert "third" in [d.id for _, d in host.posts], "none of its key is under way any more"


def test_what_may_be_delivered_once_at_most_is_not_taken_back(host: Host) -> None:
    host.many(QUARTER, "a")
    line = host.posts[0][0]
    kinds = [False, True, False, True]
    host.add(*(message("a", "k", f"{n}", once=once) for n, once in enumerate(kinds)))
    assert [d.id for d in host.lines.take_waiting(line, "a")] == ["0", "2"]
    order = []
    while host.posts:
        order += [d.id for _, d in host.posts[:1] if d.id != "m"]
        host.answer(host.posts[:1])
    assert order == ["1", "3"]
    assert host.lines.is_idle


# a bound


@pytest.fixture
def few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MOST_LINES", 2)


def test_paths_beyond_the_bound_share_a_line_and_its_quarter(few_lines: None, host: Host) -> None:
    host.prove("a", "b")
    host.lines.add(message(path) for path in "abcdefg" for _ in range(100))
    host.go_on()
    count = host.count()
    assert count["a"] == count["b"] == QUARTER
    assert sum(count[path] for path in "cdefg") == QUARTER


def test_a_path_that_waits_in_the_shared_line_stays_there(few_lines: None, host: Host) -> None:
    held = [message("a", "k"), message("b", "k")]
    host.add(*held, *(message("c", "k", f"{n}") for n in range(2)))
    host.answer(host.of("a"))  # its line is free for another path
    host.add(message("c", "k", "2"))
    order = []
    while of_c := host.of("c"):
        assert len(of_c) == 1
        order.append(of_c[0][1].id)
        host.answer(of_c)
    assert order == ["0", "1", "2"]
    host.many(1, "c")
    host.many(1, "d")
    assert host.of("c")[0][0] is not host.of("d")[0][0], "then it has the free line"


def test_of_the_shared_line_only_the_messages_of_one_path_are_taken_back(
    few_lines: None, host: Host
) -> None:
    host.many(1, "a", "b")
    host.many(100, "c")
    host.many(3, "d")
    (line, _), *_ = host.of("c")
    assert host.time_out(host.of("c")[:1], since_s=0.0) == [True], "whatever others answered"
    assert {path_of(one) for one in host.lines.take_waiting(line, "c")} == {"c"}
    host.time_out(host.of("c"), since_s=0.0)
    host.answer(host.of("a"))
    assert host.count()["d"] >= 1


# everything together


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_each_message_goes_once_and_keys_keep_their_order(
    few_lines: None, seed: int
) -> None:
    draw = random.Random(seed)
    host = Host(draw.choice([1, 5, 8, 64]))
    ended: list[Delivery] = []
    sent: list[Delivery] = []

    def check() -> None:
        sent.extend(d for _, d in host.posts if d not in sent)
        keys = [(path_of(d), d.record.key) for _, d in host.posts if d.record.key]
        assert len(keys) == len(set(keys))
        assert host.lines.under_way == len(host.posts) <= host.lines._connections

    made = [
        message(path, draw.choice([None, "k", "l"]), f"{n}", once=draw.random() < 0.1)
        for n, path in enumerate(draw.choices(["a", "b", "c", "d", "c?x=1"], k=200))
    ]
    left = list(made)
    while left or host.posts or not host.lines.is_idle:
        if left and draw.random() < 0.4:
            count = draw.randint(1, 10)
            host.add(*left[:count])
            del left[:count]
        elif host.posts:
            post = draw.choice(host.posts)
            if draw.random() < 0.8:
                host.answer([post])
            else:
                host.time_out([post], host.now_s)
                if draw.random() < 0.5:
                    ended += host.lines.take_waiting(post[0], path_of(post[1]))
                    host.go_on()
        host.now_s += draw.random()
        check()
    assert Counter(map(id, [*sent, *ended])) == Counter(map(id, made)), "each once"
    assert in_order(sent)


def in_order(sent: Iterable[Delivery]) -> bool:
    last: dict[tuple[str, bytes], int] = {}
    for one in sent:
        if one.record.key is not None:
            of_key = path_of(one), one.record.key
            if int(one.id) < last.get(of_key, -1):
                return False
            last[of_key] = int(one.id)
    return True

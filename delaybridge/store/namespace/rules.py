"""Rules of destinations: pause, rate, spread, retry plan and dead letter, kept in Redis.

A rule belongs to a place: a broker (`rabbitmq`), an exchange or topic (`rabbitmq:orders`, a lane's
label), or one whole destination (`rabbitmq:orders/close`). Other versions write rules, and so do
people by hand, so they are read leniently: what makes no sense is ignored and reported.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec import Meta, Struct

from delaybridge.accept.destination import parse_destination
from delaybridge.backoff import RetryPlan
from delaybridge.errors import MessageError, StoreError, printable, quoted
from delaybridge.message import PULL
from delaybridge.store.namespace import registry
from delaybridge.store.namespace.damage import Damage
from delaybridge.store.namespace.rule_fields import FIELDS, parts, touched
from delaybridge.store.protocol import keys, replies
from delaybridge.store.protocol.verbs import RedisCommand, Steps, plain

RULES_LIMIT = 1000
RULE_BYTES = 4096
PLACE_BYTES = 1100  # no destination is longer
RATE_LIMIT = 1_000_000.0
SPREAD_LIMIT_MS = 24 * 3600 * 1000
_TRIES = 50  # of a change, while others change the same rule
_NAMED = 3  # odd rules that are reported one by one
_NAMED_CHARS = 80  # of a place that is too long
_KEPT = "workers keep the rules that they know"

Change = Mapping[str, Any]


class Rule(Struct, frozen=True, omit_defaults=True):
    """What operators have set for one place. None: not set here.

    paused: its messages wait; paused_ms: since when, in epoch milliseconds. rate: the most messages
    a second, of all workers together. spread_ms: messages due in one instant leave over this time.
    retry: the fields set here of its retry plan. dead_letter: where messages go that are given up;
    empty: to the dead set, whatever the settings.
    """

    paused: bool = False
    rate: Annotated[float, Meta(gt=0, le=RATE_LIMIT)] | None = None
    spread_ms: Annotated[int, Meta(ge=0, le=SPREAD_LIMIT_MS)] | None = None
    retry: RetryPlan | None = None
    dead_letter: Annotated[str, Meta(max_length=PLACE_BYTES)] | None = None
    paused_ms: Annotated[int, Meta(ge=0, lt=2**53)] | None = None


class Rules(NamedTuple):
    """All rules of a namespace, by place. odd: place -> what of its rule is ignored, and why."""

    by_place: Mapping[str, Rule] = {}
    odd: Mapping[str, str] = {}

    def levels(self, *places: str) -> list[tuple[str, Rule]]:
        """Those of these places that have a rule, in the same order, each once.

        A topic's label is its destination: it has one level less.
        """
        if not self.by_place:
            return []
        return [
            (each, self.by_place[each]) for each in dict.fromkeys(places) if each in self.by_place
        ]


NO_RULES = Rules()
_FIELDS = get_type_hints(Rule, include_extras=True)
_PLAN_FIELDS = get_type_hints(RetryPlan, include_extras=True)


def read(namespace: str) -> RedisCommand[Mapping[bytes, bytes]]:
    """Every rule as it is stored; for `understood`."""
    return plain("HGETALL", keys.destinations(namespace), parse=replies.read_mapping)


def understood(stored: Mapping[bytes, bytes], known: Rules = NO_RULES) -> Rules:
    """The rules in the reply to `read`.

    known: the rules before. A rule or field that cannot be read is taken from them, so that nothing
    that is paused goes on because of it; without it there, it is ignored.
    """
    by_place: dict[str, Rule] = {}
    odd: dict[str, str] = {}
    for name, value in list(stored.items())[:RULES_LIMIT]:
        place = name.decode(errors="backslashreplace")
        if not 0 < len(name) <= PLACE_BYTES:
            odd[place[:_NAMED_CHARS]] = f"its name has {len(name)} bytes; at most {PLACE_BYTES}"
            continue
        rule, what = _read(value, known.by_place.get(place, Rule()))
        if what:
            odd[place] = what
        if rule != Rule():
            by_place[place] = rule
    if len(stored) > RULES_LIMIT:
        odd["*"] = f"{len(stored)} rules; only {RULES_LIMIT} of them are read"
    return Rules(by_place, odd)


def _read(value: bytes, known: Rule) -> tuple[Rule, str]:
    """A rule, and what of it is not understood."""
    if len(value) > RULE_BYTES:
        return known, f"it has {len(value)} bytes; at most {RULE_BYTES}"
    fields, what = _object(value)
    if fields is None:
        return known, what
    read, odd = _fields(fields, _FIELDS, known)
    plan = fields.get("retry")
    if isinstance(plan, dict):  # field by field, so that one odd field does not drop the others
        plan_known = known.retry or RetryPlan()
        read_plan, odd_plan = _fields(plan, _PLAN_FIELDS, plan_known)
        read["retry"] = RetryPlan(**read_plan)
        odd = [each for each in odd if not each.startswith("retry: ")]
        odd += [f"retry.{each}" for each in odd_plan]
    return Rule(**read), "; ".join(odd)


def _object(value: bytes) -> tuple[dict[str, Any] | None, str]:
    """A JSON object, or None and what is wrong."""
    try:
        found = msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        return None, f"it is not JSON: {exc}"
    return (found, "") if isinstance(found, dict) else (None, "it is not a JSON object")


def _fields(
    found: Mapping[str, Any], types: Mapping[str, Any], known: Struct
) -> tuple[dict[str, Any], list[str]]:
    """The fields that are of their types, the known value of those that are not, and which."""
    read: dict[str, Any] = {}
    odd: list[str] = []
    for field, kind in types.items():
        if found.get(field) is None:
            continue
        try:
            read[field] = msgspec.convert(found[field], kind)
        except msgspec.ValidationError as exc:
            read[field] = getattr(known, field)
            odd.append(f"{field}: {exc}")
    return read, odd


def damage(namespace: str, reply: Mapping[bytes, bytes] | StoreError) -> list[Damage]:
    """What is wrong with the stored rules, by the reply to `read`."""
    name = keys.destinations(namespace)
    if isinstance(reply, StoreError):
        remedy = f"redis-cli RENAME '{name}' '{name}.damaged'; then no rule holds: set them again"
        return [Damage(name, "is not a hash", remedy, _KEPT)]
    odd = understood(reply).odd
    whats = [f"rule of {place}: {what}"[:300] for place, what in list(odd.items())[:_NAMED]]
    mend = f"redis-cli HDEL '{name}' PLACE"
    shown = [Damage(name, printable(what), mend, _KEPT) for what in whats]
    if (more := len(odd) - _NAMED) > 0:
        shown.append(Damage(name, f"has {more} more odd rules", "see the worker's log", _KEPT))
    return shown


def place_of(text: object, kinds: Mapping[str, str]) -> str:
    """A place as rules name it, for what a caller wrote: `rabbitmq`, `rabbitmq:orders` or whole.

    `rabbitmq:orders/*` is `rabbitmq:orders`. kinds: broker -> its kind. The rule of a broker that
    this caller does not know can be changed, too. MessageError says what may have been meant.
    """
    if not isinstance(text, str):
        detail = "give text: BROKER, BROKER:EXCHANGE, BROKER:TOPIC or a whole destination"
        raise MessageError("bad_destination", "destination", detail)
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise MessageError("bad_destination", "destination", "not valid UTF-8") from None
    broker, colon, address = text.partition(":")
    name, slash, rest = broker.partition("/")
    if not broker or (colon and not address) or slash or size > PLACE_BYTES:
        meant = f"{name}:{rest}" if rest else name
        meant = f"; did you mean {quoted(meant)}?" if name in kinds else ""
        detail = f"{printable(text)[:80]!r}; write BROKER, BROKER:EXCHANGE or BROKER:ADDRESS{meant}"
        raise MessageError("bad_destination", "destination", detail)
    if not colon:
        return text
    if broker not in kinds and broker != PULL:
        return text if address.startswith("/") else text.removesuffix("/*")
    return _place_within(text, kinds)


def _place_within(text: str, kinds: Mapping[str, str]) -> str:
    """An exchange, or a whole destination, of a broker that is known. Raises MessageError."""
    broker, _, address = text.partition(":")
    exchange, slash, key = address.partition("/")
    if kinds.get(broker) == "rabbitmq" and exchange and (not slash or key == "*"):
        if "*" in exchange:
            detail = f"{quoted(text)}; write `*` in an exchange's name as %2A; did you mean"
            raise MessageError("bad_destination", "destination", f"{detail} {quoted(broker)}?")
        return parse_destination(f"{broker}:{exchange}/", kinds).label
    try:
        return str(parse_destination(text, kinds))
    except MessageError as exc:
        if not slash or kinds.get(broker) != "kafka":
            raise
        detail = f"{exc.detail}; did you mean {quoted(f'{broker}:{exchange}')}?"
        raise MessageError(exc.code, exc.field, detail) from None


def covers(place: str, destination: str, kinds: Mapping[str, str]) -> bool:
    """Whether a place covers a destination: it is the same, its exchange or topic, or broker."""
    if place == destination:
        return True
    return destination.startswith(place) and place in places_of(destination, kinds)


def places_of(place: str, kinds: Mapping[str, str]) -> tuple[str, ...]:
    """The places that cover this one, from its broker to itself."""
    broker, colon, address = place.partition(":")
    if not colon:
        return (place,)
    label = place
    is_exchange = broker != PULL and kinds.get(broker, "rabbitmq") == "rabbitmq"
    if is_exchange and address.partition("/")[0]:
        label = place.partition("/")[0]
    return tuple(dict.fromkeys((broker, label, place)))


def label_of(covering: Sequence[str]) -> str:
    """The exchange or topic among the places that cover a message: what it is counted under."""
    return covering[min(1, len(covering) - 1)]


def change(namespace: str, place: str, change: Change) -> Steps[Rule]:
    """Change some fields of a place's rule; None removes a field. Returns the rule as it is now.

    Fields that another call changes at the same time keep that change. Of `retry`, too, only the
    fields given are changed. A rule without fields is removed. Raises MessageError, naming the
    field, if a value is wrong or the rules are too many.
    """
    check(change)
    for _ in range(_TRIES):
        (before,) = yield [plain("HGET", keys.destinations(namespace), place)]
        fields = _merged(_object(before or b"{}")[0] or {}, change)
        after = msgspec.json.encode(fields) if fields else b""
        rule, _ = _read(after or b"{}", Rule())
        _check_waits(rule.retry or RetryPlan())
        if len(after) > RULE_BYTES:
            raise MessageError("too_large", "rule", f"{len(after)} bytes; at most {RULE_BYTES}")
        (answer,) = yield [
            registry.set_rule(
                namespace, place, before or b"", after, fields=touched(change), limit=RULES_LIMIT
            )
        ]
        if answer < 0:
            detail = f"there are {RULES_LIMIT} rules; remove one"
            raise MessageError("too_many", "destination", detail)
        if answer:
            return rule
    raise StoreError(f"redis: the rule of {printable(place)} changes all the time; try again")


def remove(namespace: str, place: str) -> Steps[None]:
    """Remove a place's rule, whatever it says."""
    for _ in range(_TRIES):
        (before,) = yield [plain("HGET", keys.destinations(namespace), place)]
        fields = {*FIELDS, *parts(before or b"")}
        command = registry.set_rule(
            namespace, place, before or b"", b"", fields=fields, limit=RULES_LIMIT
        )
        if (yield [command])[0]:
            return


def check(change: Change) -> None:
    """Raise MessageError, naming the field, if a value cannot be set."""
    _check(change, _FIELDS)
    plan = change.get("retry")
    if isinstance(plan, Mapping):
        _check(plan, _PLAN_FIELDS, "retry.")


def _check(change: Change, types: Mapping[str, Any], within: str = "") -> None:
    for field, value in change.items():
        if field not in types:
            raise MessageError("unknown_field", within + field, f"use {', '.join(types)}")
        try:
            if value is not None and not (field == "retry" and isinstance(value, Mapping)):
                msgspec.convert(value, types[field])
        except msgspec.ValidationError as exc:
            raise MessageError("bad_value", within + field, str(exc)) from None


def _check_waits(plan: RetryPlan) -> None:
    if plan.base_ms and plan.max_ms and plan.base_ms > plan.max_ms:
        detail = f"{plan.base_ms} is above max_ms, {plan.max_ms}"
        raise MessageError("bad_value", "retry.base_ms", detail)


def _merged(old: dict[str, Any], change: Change) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396): None removes, an object is merged, anything else replaces."""
    merged = dict(old)
    for field, value in change.items():
        if isinstance(value, Mapping):
            before = merged.get(field)
            value = _merged(before if isinstance(before, dict) else {}, value) or None
        if value is None or (field == "paused" and value is False):
            merged.pop(field, None)
        else:
            merged[field] = value
    return merged

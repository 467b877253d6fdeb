"""Throttles: how many wrong tokens an address may send, and how many requests a token."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from math import ceil
from time import monotonic

_FAILURES, _SPAN_S = 10, 60.0
_FIRST_S, _LONGEST_S = 60.0, 3600.0
_ADDRESSES = 10_000
_ROUNDING_S = 1e-6
_OWN_NETWORK = 64  # bits of an IPv6 address; who has one address has all below


@dataclass(slots=True)
class _Record:
    """failures since began_s. Refused until until_s, the last time for refused_s."""

    began_s: float
    failures: int = 0
    until_s: float = 0.0
    refused_s: float = 0.0


class Failures:
    """Wrong tokens by address: ten within a minute, then none is looked at for a minute, then two.

    Bounded: of 10,000 addresses, those that failed last.
    """

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self.records: OrderedDict[str, _Record] = OrderedDict()

    def failed(self, address: str) -> int:
        """Note a wrong token. How many seconds the address has to wait; 0: it may go on."""
        name, now_s = _network(address), self._clock_s()
        record = self.records.setdefault(name, _Record(now_s))
        self.records.move_to_end(name)
        if len(self.records) > _ADDRESSES:
            self.records.popitem(last=False)
        if now_s < record.until_s:
            return ceil(record.until_s - now_s)
        if now_s - record.began_s > _SPAN_S:
            if now_s - record.until_s > _LONGEST_S:
                record.refused_s = 0.0
            record.began_s, record.failures = now_s, 0
        record.failures += 1
        if record.failures <= _FAILURES:
            return 0
        record.refused_s = min(max(_FIRST_S, 2 * record.refused_s), _LONGEST_S)
        record.until_s = now_s + record.refused_s
        record.began_s, record.failures = record.until_s, 0
        return ceil(record.refused_s)


class Pace:
    """A limit of requests a second by name; what was saved up for a second may come at once.

    rate: 0: no limit.
    """

    def __init__(self, rate: float, clock_s: Callable[[], float] = monotonic) -> None:
        self._rate, self._clock_s = rate, clock_s
        self._saved_s = max(1.0, 1 / rate) if rate else 0.0
        self._spent_until_s: dict[str, float] = {}

    def wait_s(self, name: str) -> int:
        """Count a request. 0: it may go on; else in how many seconds the next may."""
        if not self._rate:
            return 0
        now_s = self._clock_s()
        oldest_s = now_s - self._saved_s
        spent_s = max(self._spent_until_s.get(name, oldest_s), oldest_s) + 1 / self._rate
        if spent_s > now_s + _ROUNDING_S:
            return ceil(spent_s - now_s)
        self._spent_until_s[name] = spent_s
        return 0


def _network(address: str) -> str:
    """The address, or the network that one subscriber has."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped:
        return str(found.ipv4_mapped)
    return str(IPv6Address(int(found) >> _OWN_NETWORK << _OWN_NETWORK))

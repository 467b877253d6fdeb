"""Publishes messages as POSTs to one host, many at once."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import parse_qsl, unquote, urlsplit

from delaybridge import __version__
from delaybridge.accept.destination import check_path
from delaybridge.errors import ConfigError, MessageError
from delaybridge.message import OWN_HEADERS, Delivery, Destination
from delaybridge.publish import (
    Fault,
    Outcome,
    PublishOptions,
    Verdict,
    check_options,
    read_password,
)
from delaybridge.publish.link import CLOSED, UNCONFIRMED, LinkedPublisher, broker_refusal
from delaybridge.settings import password_file
from delaybridge.settings.urls import redact

try:
    import aiohttp
    from yarl import URL

    from delaybridge.publishers.http.addresses import AddressRefused, PublicResolver, check_host
    from delaybridge.publishers.http.outcomes import outcome_of, outcome_of_error, reason_of
except ImportError:
    raise ConfigError('a broker of kind http needs: pip install "delaybridge[http]"') from None
from delaybridge.publishers.http.lines import SLOW_S, Lines, PathLine, path_of
from delaybridge.publishers.http.signature import secrets_of, signatures

_ANSWER_BYTES = 64 * 1024  # that are read; the connection of a longer one is closed
_PROBE_S = 5.0
_LARGE_BYTES = 512 * 1024
_IDLE_S = 2.0  # servers close idle connections after 5 s or so: a POST must not meet that
_KNOWN = frozenset({"ssl_ca_certs"})


class HttpPublisher(LinkedPublisher):
    """A `Publisher` for http[s]://HOST/BASE. A message for `NAME:PATH` is posted to BASE/PATH.

    Up to `http.connections` POSTs are under way at once; `lines.py` says how paths share them.
    Messages with the same key and path go one after the other; others keep no order. No redirect is
    followed.
    """

    def _configure(self, url: str, options: PublishOptions) -> None:
        bare, self._file = password_file.split(url)
        parts = urlsplit(bare)
        asked = dict(parse_qsl(parts.query))
        check_options(self.name, asked, _KNOWN, "http")
        self._user, self._password = unquote(parts.username or ""), unquote(parts.password or "")
        host = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._base = f"{host}{parts.path.rstrip('/')}/"
        self._options = options.http
        self._secrets = secrets_of(self._options.secret_file)
        self._limit_s = min(self._options.timeout_s, options.confirm_timeout_s)
        if not self._options.allow_private:
            self._check_public(parts.scheme, parts.hostname or "")
        self._authority = asked.get("ssl_ca_certs")
        self._session: aiohttp.ClientSession | None = None
        self._lines = Lines(self._options.connections)
        self._posts: set[asyncio.Task[None]] = set()
        self._answered_s = 0.0  # when a POST was last answered
        self._is_doubted = asyncio.Event()

    def _check_public(self, scheme: str, host: str) -> None:
        remedy = "set http.allow_private = true if it is meant"
        if scheme != "https":
            raise ConfigError(f"brokers.{self.name}: not encrypted; use https, or {remedy}")
        try:
            check_host(host)
        except AddressRefused as exc:
            raise ConfigError(f"brokers.{self.name}: {exc}; {remedy}") from None

    # the link

    async def _connect_until_lost(self) -> None:
        self._is_doubted.clear()
        reason = await self._probe()
        if reason is None:
            self._opened()
        while reason is None:
            await self._is_doubted.wait()
            self._is_doubted.clear()
            reason = await self._probe()
        self._change(reason)
        self._reports.add(self._lines.take_all(), broker_refusal(reason))

    async def _probe(self) -> str | None:
        """Why the host does not answer; None if it does, with whatever status."""
        try:
            async with asyncio.timeout(_PROBE_S):
                if self._session is None:
                    self._session = self._new_session()
                url, headers = URL(self._base, encoded=True), self._authorization()
                async with self._session.head(url, headers=headers, allow_redirects=False):
                    return None
        except ConfigError as exc:
            return f"unreachable: {exc}"
        except TimeoutError:
            return f"unreachable: no answer within {_PROBE_S:g} s"
        except Exception as exc:  # whatever it is: who waits for a connection hears of it
            return reason_of("unreachable", exc)

    def _new_session(self) -> aiohttp.ClientSession:
        options = self._options
        verified: ssl.SSLContext | bool = (
            True if self._authority is None else _trusting(self.name, self._authority)
        )
        open = options.allow_private or options.proxy  # a proxy decides where it connects
        connector = aiohttp.TCPConnector(
            limit=options.connections + 1,  # one for a probe
            keepalive_timeout=_IDLE_S,
            resolver=None if open else PublicResolver(),
            ssl=verified,
        )
        return aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._limit_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"delaybridge/{__version__}"},
            skip_auto_headers=("Accept-Encoding", "Content-Type"),
            proxy=options.proxy or None,
        )

    def _authorization(self) -> list[tuple[str, str]]:
        """As the password file has it now; ConfigError."""
        if not self._user:
            return []
        password = read_password(self.name, self._file) if self._file else self._password
        login = b64encode(f"{self._user}:{password}".encode()).decode()
        return [("Authorization", f"Basic {login}")]

    async def _disconnect(self) -> None:
        self._change(CLOSED)
        self._reports.add(self._lines.take_all(), broker_refusal(CLOSED))
        for task in self._posts:
            task.cancel()
        await asyncio.gather(*self._posts, return_exceptions=True)
        self._reports.flush()
        if self._session is not None:
            await self._session.close()

    def _abandon(self, reason: str) -> None:
        self._reports.add(self._lines.take_all(), broker_refusal(reason))
        for task in self._posts:
            task.cancel()
        self._lines = Lines(self._options.connections)

    def _is_idle(self) -> bool:
        return self._lines.is_idle

    def _describe(self) -> str:
        signed = "signed" if self._secrets else "not signed"
        return f"http {redact(self._base)}, {signed}, {self._options.connections} at once"

    # messages

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        self._lines.add(deliveries)
        self._go_on()

    def _go_on(self) -> None:
        """Post what may go now."""
        now_s = asyncio.get_running_loop().time()
        while (taken := self._lines.next(now_s)) is not None:
            task = self._spawn(self._post(self._lines, *taken))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def _post(self, lines: Lines, line: PathLine, delivery: Delivery) -> None:
        outcome = Outcome(Verdict.UNKNOWN, UNCONFIRMED)  # if it is cancelled
        try:
            outcome = await self._outcome(line, delivery)
        except Exception as exc:
            outcome = Outcome(Verdict.UNKNOWN, f"failed: {type(exc).__name__}")
        finally:
            self._reports.add([delivery], outcome)
            lines.ended(line, delivery)
        if outcome.fault is Fault.DESTINATION:  # the others of the path were certainly not sent
            left = lines.take_waiting(line, path_of(delivery))
            self._reports.add(left, Outcome(Verdict.REFUSED, outcome.reason, outcome.fault))
        self._go_on()

    async def _outcome(self, line: PathLine, delivery: Delivery) -> Outcome:
        session = self._session
        if session is None or self.unavailable is not None:
            return broker_refusal(self.unavailable or CLOSED)
        body = delivery.record.body or b""
        try:
            headers = self._headers(delivery, body)
            url = self._url(delivery.destination)
        except ConfigError as exc:
            self._is_doubted.set()
            return broker_refusal(f"unreachable: {exc}")
        except MessageError as exc:  # stored by whoever did not check it
            return Outcome(Verdict.REFUSED, f"bad_destination: {exc.detail}")
        except (ValueError, TypeError) as exc:
            return Outcome(Verdict.REFUSED, f"unencodable: {type(exc).__name__}")
        began_s = asyncio.get_running_loop().time()
        status, retry_after = 0, None
        try:
            # A stream is written part by part: a large body does not hold up the loop.
            data = body if len(body) < _LARGE_BYTES else io.BytesIO(body)
            async with session.post(
                url, data=data, headers=headers, allow_redirects=False
            ) as answer:
                status, retry_after = answer.status, answer.headers.get("Retry-After")
                if not await _ended(answer):
                    answer.close()
        except Exception as exc:
            if not status:
                return self._unanswered(line, outcome_of_error(exc, self._limit_s), began_s)
        self._answered(line, began_s)  # once its connection is free: a long body is slow, too
        return outcome_of(status, retry_after)

    def _answered(self, line: PathLine, began_s: float) -> None:
        self._answered_s = asyncio.get_running_loop().time()
        self._lines.answered(line, began_s, self._answered_s)

    def _unanswered(self, line: PathLine, outcome: Outcome, began_s: float) -> Outcome:
        """The outcome of a POST without an answer, in the light of the answers to others."""
        is_silent = self._lines.unanswered(line, began_s)
        is_late = outcome.fault is Fault.DESTINATION
        if not is_late or self._answered_s < began_s:
            self._is_doubted.set()
        return replace(outcome, fault=Fault.MESSAGE) if is_late and not is_silent else outcome

    def _url(self, destination: Destination) -> URL:
        """Where its messages are posted; MessageError if that is not below the base."""
        check_path(destination.address)
        return URL(f"{self._base}{destination.address}", encoded=True)

    def _headers(self, delivery: Delivery, body: bytes) -> list[tuple[str, str]]:
        ours = (delivery.given_id, str(delivery.due_ms), str(delivery.attempt))
        found = [*zip(OWN_HEADERS, ours, strict=True), *self._authorization()]
        found += [(name, (value or b"").decode()) for name, value in delivery.record.headers]  # type: ignore[misc]
        if not any(name.lower() == "content-type" for name, _ in found):
            found.append(("Content-Type", "application/octet-stream"))
        if self._secrets:
            at_s = int(time.time())
            signed = signatures(self._secrets, delivery.given_id, at_s, body)
            found += [("webhook-id", delivery.given_id), ("webhook-timestamp", str(at_s))]
            found.append(("webhook-signature", signed))
        return found

    async def _check(self, destination: Destination) -> str | None:
        if self._session is None:
            return CLOSED
        try:
            url, headers = self._url(destination), self._authorization()
            async with self._session.head(url, headers=headers, allow_redirects=False) as answer:
                status = answer.status
        except MessageError as exc:
            return f"bad_destination: {exc.detail}"
        except ConfigError as exc:
            return f"unreachable: {exc}"
        except (aiohttp.ClientError, OSError) as exc:
            return reason_of("unreachable", exc)
        return outcome_of(status, None).reason if status in (404, 410) else None


async def _ended(answer: aiohttp.ClientResponse) -> bool:
    """Whether the answer ended soon, within the bytes that are read; its content is dropped."""
    left = _ANSWER_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SLOW_S):
            while not answer.content.at_eof():
                part = await answer.content.readany()
                left -= len(part)
                if left < 0:
                    return False
                if not part:
                    break
            return True
    return False


def _trusting(name: str, authority: str) -> ssl.SSLContext:
    """TLS that trusts this authority alone; ConfigError if its file cannot be read."""
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as exc:
        raise ConfigError(f"brokers.{name}: ssl_ca_certs: {authority}: {exc}") from None

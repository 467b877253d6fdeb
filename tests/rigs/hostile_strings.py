"""Strings that have broken consoles elsewhere, and a namespace in which all text is of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import httpx

from delaybridge.store.namespace import registry
from delaybridge.store.redis.store import Store

# fmt: off
_SCRIPTED = (
    '<script>RUN</script>',
    '</script><script>RUN</script>',
    '<img src=x onerror=RUN>',
    '<svg onload=RUN>',
    '<svg/onload=RUN>',
    '<body onload=RUN>',
    "<iframe srcdoc='<script>RUN</script>'>",
    '<a href="javascript:RUN">x</a>',
    'javascript:RUN',
    'JaVaScRiPt:RUN',
    'java\tscript:RUN',
    'data:text/html,<script>RUN</script>',
    '" onmouseover="RUN',
    "' onfocus='RUN' autofocus='",
    '"><script>RUN</script>',
    "'><script>RUN</script>",
    '--><script>RUN</script>',
    ']]><script>RUN</script>',
    '</textarea><script>RUN</script>',
    '</title><script>RUN</script>',
    '</style><script>RUN</script>',
    '</pre><script>RUN</script>',
    '</template><img src=x onerror=RUN>',
    '<details open ontoggle=RUN>',
    '<video><source onerror=RUN>',
    '<input autofocus onfocus=RUN>',
    '<select autofocus onfocus=RUN>',
    '<marquee onstart=RUN>',
    '<math><mi xlink:href="javascript:RUN">',
    '<object data="javascript:RUN">',
    '<embed src="javascript:RUN">',
    '<form action="javascript:RUN"><button>x',
    '<button formaction="javascript:RUN">x',
    '<meta http-equiv=refresh content="0;url=javascript:RUN">',
    '<base href="javascript:RUN//">',
    '<link rel=import href="data:text/html,<script>RUN</script>">',
    '<div hx-get="/v1/stats" hx-trigger="load" hx-on::after-request="RUN">',
    "<div hx-on:load='RUN'>",
    "<div data-hx-on:click='RUN'>",
    '<button data-act=DELETE data-path=/v1/alarm>x</button><script>RUN</script>',
    '<x onclick=RUN>y</x>',
    '<noscript><p title="</noscript><img src=x onerror=RUN>">',
    '<svg><style><img src=x onerror=RUN></style>',
    '<math><mtext><table><mglyph><style><img src=x onerror=RUN>',
    '<scr<script>ipt>RUN</scr</script>ipt>',
    '<<script>RUN//<</script>',
    '<script/x>RUN</script>',
    '<script\n>RUN</script\n>',
    '%3Cscript%3ERUN%3C/script%3E',
    '&lt;script&gt;RUN&lt;/script&gt;',
    '&#60;script&#62;RUN&#60;/script&#62;',
    '\\u003cscript\\u003eRUN\\u003c/script\\u003e',
    '\\x3cscript\\x3eRUN\\x3c/script\\x3e',
    '${RUN}',
    '`${RUN}`',
    "{{constructor.constructor('RUN')()}}",
    "';RUN;//",
    '";RUN;//',
    "\\';RUN;//",
    '</script><svg onload=RUN>//',
)
_OTHERS = (
    '{{7*7}}',
    "{% include '/etc/passwd' %}",
    '{{config}}',
    "{{''.__class__.__mro__}}",
    '${7*7}',
    '#{7*7}',
    '<%= 7*7 %>',
    '{0}',
    '{name}',
    '%s%s%n',
    '%(x)s',
    '../../etc/passwd',
    '..%2f..%2fetc%2fpasswd',
    '/..//',
    '//evil.example/',
    '\\\\evil\\share',
    '=1+1',
    '+1+1',
    '-1+1',
    '@SUM(A1)',
    "=cmd|' /C calc'!A0",
    '\t=1+1',
    "'; DROP TABLE message;--",
    "' OR '1'='1",
    '1;--',
    '$(id)',
    '`id`',
    '|id',
    '; id',
    '&& id',
    '\u202eevil',
    '\u200b\u200b',
    '\u2066x\u2069',
    '\ufeffbom',
    '\xe9\u0301\u0301\u0301\u0301\u0301',
    '\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984'
    '\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984\U0001f984',
    '\U0001d54f\U0001d54f\U0001d54f\U0001d54f\U0001d54f'
    '\U0001d54f\U0001d54f\U0001d54f\U0001d54f\U0001d54f',
    'a' * 250,
    '<' * 100,
    '&' * 100,
    '"\'`<>&',
    'null',
    'undefined',
    'NaN',
    'true',
    '[object Object]',
    '__proto__',
    'constructor',
    'hasOwnProperty',
    '%',
    '%%',
    '%zz',
    '%00',
    '&amp;',
    '&nbsp;',
    '?a=b&c=d',
    '#fragment',
    'a b',
    'a+b',
    'a%20b',
    'a;b',
    'a,b',
    'a|b',
    '~tilde~',
    '*',
    '[a-z]*',
    'a\\b',
    '\\',
    '/',
    '//',
    '.',
    '..',
    '...',
    ':',
    '::publish',
    ':cancel',
    'x:publish',
    '-',
    '--help',
    '-rf',
    '\u4e2d\u6587',
    '\u0627\u0644\u0639\u0631\u0628\u064a\u0629',
    '\u05e2\u05d1\u05e8\u05d9\u05ea',
    '\u65e5\u672c\u8a9e',
    '\u0e44\u0e17\u0e22',
    '\u03a9\u2248\xe7\u221a',
    '\u0301',
    '\u1e9e\xdf',
    '\u0130\u0131',
    '\ufb00',
    '\xbd',
    '0',
    '-1',
    '1e309',
    '999999999999999999999',
    '0x10',
    'NaN;',
    'on',
    'hidden',
    'style=x',
    'class=dead',
    'id=main',
    '<!--',
    '-->',
    '<![CDATA[',
    '<?php echo 1 ?>',
    '<!DOCTYPE html>',
    '<plaintext>',
    '<xmp>',
    '<textarea>',
    '<title>',
    '<select><option>',
    '<table><tr><td>',
    '</main></body></html>',
    '</dialog>',
    '<dialog open>x',
    '<style>*{display:none}</style>',
    '<link rel=stylesheet href=//evil.example/x.css>',
    '@import url(//evil.example)',
    'expression(1)',
    'url(javascript:1)',
    '\r\nSet-Cookie: x=1',
    '\r\n\r\n<script>',
    '\nx',
    '\x00',
    '\x1b[31mred',
    '\x7f',
    '\x85',
    '\u2028',
    '\u2029',
)
# fmt: on
_RUN = ("window.__pwned=1", "alert(1)")
HOSTILE_STRINGS = (*(text.replace("RUN", run) for run in _RUN for text in _SCRIPTED), *_OTHERS)


async def filled(
    http: httpx.AsyncClient, store: Store, namespace: str, texts: Sequence[str]
) -> list[str]:
    """Make each text an id, a header and a body; a tenth are also what recurring definitions `r0`,
    `r1`, ..., workers and fronts say. The texts that are ids."""
    some = [
        {"destination": f"pull:t{n % 3}", "body": text, "delay": "1h", "headers": {"x": text},
         "id": text} for n, text in enumerate(texts)
    ]  # fmt: skip
    answers = await _scheduled(http, some)
    again = [each for each, answer in zip(some, answers, strict=True) if answer != 201]
    for number, each in enumerate(again):
        each["id"] = f"hostile-{number}"
    await _scheduled(http, again)
    for number, text in enumerate(texts[::10]):
        definition = {"name": f"r{number}", "destination": "pull:t", "every": "1h", "body": text,
                      "headers": {"x": text}, "properties": {"type": text}}  # fmt: skip
        answer = await http.post("/v1/recurring", json=definition)
        assert answer.status_code in (201, 422), answer.text
        said = {text: text, "kafka": text}
        pace = {"confirm_ms": {text: 1}, "unconfirmed": {text: 2}, "late_ms": {text: 3}}
        about = {"host": text, "pid": 7, "version": text, "started_ms": 5, "brokers": said,
                 "parked": said, "paused": [text], "damaged": said, "failing": said,
                 "pace": pace}  # fmt: skip
        info = json.dumps(about).encode()
        client = dict.fromkeys(("client", "user", "vhost", "product", "name", "held_for"), text)
        clients = [client, {**client, "held_ms": 20_000}]
        front = {**about, "listen": text, "nodes": said, "refused": said, "exchanges": [text],
                 "clients": clients}  # fmt: skip
        for kind, told in ((registry.WORKER, info), (registry.FRONT, json.dumps(front).encode())):
            store.run([registry.announce(namespace, text, "0" * 16, 300_000, told, kind=kind)])
    return [text for text, answer in zip(texts, answers, strict=True) if answer == 201]


async def _scheduled(http: httpx.AsyncClient, messages: Sequence[object]) -> list[int]:
    """The status of each; one that is no message is refused, which is no failure."""
    answer = await http.post("/v1/messages:batch", json={"messages": messages})
    assert answer.status_code in (200, 201, 207), answer.text
    found = [each["status"] for each in answer.json()["items"]]
    assert set(found) <= {201, 422}, answer.text
    return found

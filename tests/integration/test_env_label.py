"""`serve.env_label`: a word at the top of every page of the console."""

from __future__ import annotations

import pytest

from delaybridge.errors import ConfigError
from delaybridge.settings.settings import Settings
from tests.rigs.api import api


async def test_it_is_on_every_page_as_text(redis_url: str, namespace: str) -> None:
    async with api(redis_url, namespace, env_label="PROD <b>&") as client:
        for path in ("/", "/messages"):
            page = await client.get(path)
            assert '<strong class="env">PROD &lt;b&gt;&amp;</strong>' in page.text
    async with api(redis_url, namespace) as client:
        assert 'class="env"' not in (await client.get("/")).text


@pytest.mark.parametrize("label", ["x" * 21, "two\nlines", "\u202eDORP"])
def test_only_some_printable_characters_are_a_label(redis_url: str, label: str) -> None:
    given = {"redis": {"url": redis_url}, "serve": {"env_label": label}}
    with pytest.raises(ConfigError, match="at most 20 printable"):
        Settings.load(overrides=given)

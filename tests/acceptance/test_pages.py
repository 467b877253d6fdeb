"""Does what the blocks of each page say, as a reader who has real servers and a worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.page_reader import PageReader
from tests.rigs.pages import NOT_RUN, PAGES, RUN_BY, Block, every_block

RUN = {"console", "python", "sh"}


def own_blocks(page: str) -> list[Block]:
    """Those that no other test runs."""
    return [
        block
        for block in every_block(page)
        if block.language in RUN
        and (page, block.language) not in RUN_BY
        and (page, block.language) not in NOT_RUN
    ]


@pytest.fixture
def reader(
    tmp_path: Path, redis_url: str, rabbitmq_url: str, real_kafka_url: str
) -> Iterator[PageReader]:
    reader = PageReader(tmp_path, redis_url, rabbitmq_url, real_kafka_url)
    try:
        reader.begin()
        yield reader
    finally:
        reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if own_blocks(page)])
def test_what_a_page_says_can_be_done_from_its_top_to_its_end(
    page: str, reader: PageReader
) -> None:
    for block in own_blocks(page):
        reader.follow(block)
    reader.check()

"""The images that Dockerfile, docker-compose.yml and CI name, by digest: `python -m tools.images`.

Asks the registry, by `docker buildx imagetools`, which digest each tag has now, and
writes it there. With `--check` nothing is written: the exit code is 1 if one is out of date.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = tuple(
    ROOT / name for name in ("Dockerfile", "docker-compose.yml", ".github/workflows/ci.yml")
)
# Where an image is used, its name with its tag, and its digest if it has one. Ours is built.
NAMED = re.compile(
    r"^((?:FROM|\s+image:)\s+)(?!delaybridge:)([\w./-]+:[\w.-]+)(?:@(sha256:[0-9a-f]{64}))?(?=\s|$)",
    re.MULTILINE,
)


@cache
def asked(image: str) -> str:
    """The digest that the registry has for this tag now, of all its platforms."""
    command = ["docker", "buildx", "imagetools", "inspect", image]
    printed = subprocess.run(
        [*command, "--format", "{{.Manifest.Digest}}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", printed):
        raise ValueError(f"{image}: {printed[:100]!r} is no digest")
    return printed


def pinned(text: str, digest_of: Callable[[str], str]) -> str:
    """The text with the digest of each image."""
    return NAMED.sub(lambda found: f"{found[1]}{found[2]}@{digest_of(found[2])}", text)


def main(arguments: Iterable[str]) -> int:
    """Write the digests; or, with `--check`, only tell which files differ."""
    texts = {file: file.read_text() for file in FILES}
    changed = {file: new for file, text in texts.items() if (new := pinned(text, asked)) != text}
    for file, new in changed.items():
        sys.stdout.write(f"{file.name}: out of date\n")
        if "--check" not in arguments:
            file.write_text(new)
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

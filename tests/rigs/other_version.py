"""An earlier version of the package, for tests of rolling upgrades."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.rigs.fleet import ROOT

FIRST = "2489fe3"  # a version whose announcements, attempts and answers looked otherwise
OTHER_TEXT = """
from delaybridge.store.protocol import scripts, verbs
from hashlib import sha1

def other(source):
    text = source + "-- another version\\n"
    return text, sha1(text.encode()).hexdigest()

known = {verb: other(source) for verb, (source, _) in scripts.scripts().items()}
scripts.scripts = verbs.scripts = lambda: known
"""


def put_other_version(folder: Path) -> None:
    """Put an earlier version there, from git's history; else today's scripts with another text."""
    folder.mkdir()
    packed = folder / "first.tar"
    asked = ["git", "-C", str(ROOT), "archive", "-o", str(packed), FIRST, "delaybridge", "lua"]
    if subprocess.run(asked, capture_output=True).returncode == 0:
        subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)
    else:
        (folder / "sitecustomize.py").write_text(OTHER_TEXT)

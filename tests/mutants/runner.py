"""Makes mutants in a copy of the tree, one after the other, and lets tests meet them."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from tests.mutants.mutant import ROOT, Mutant

_CALM = (
    *("-x", "-q", "--no-header", "--tb=no", "-rfE", "--assert=plain"),
    *("-p", "no:cacheprovider", "-p", "no:schemathesis"),  # the latter takes a second to import
)
_FAST = ("-m", "not slow", "-p", "schemathesis.pytest.plugin", "tests")
_RED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_STILL_RED = (1, 2)  # exit codes of pytest: a test failed; a module cannot be imported
_OWN = ("delaybridge", "tests")
_SPENT = itertools.count(1)
# Imported once, and not for each mutant: half of the time of a short run.
_NEEDED = (
    *("hypothesis.strategies", "pytest_asyncio.plugin", "pytest_timeout", "redis.asyncio"),
    *("httpx", "msgspec", "pydantic", "click", "confluent_kafka", "pika", "kombu"),
    *("sqlalchemy", "starlette.applications", "aiohttp", "jinja2", "rich.console"),
)


class Met(NamedTuple):
    """killed_by: the first test that is red; empty: the mutant lives. why: no test was run."""

    killed_by: str
    seconds: float
    why: str = ""


class Copy:
    """A copy of the tree, whose package the tests and their processes import."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._environment = {**os.environ, "PYTHONPATH": str(root)}

    def meet(self, mutant: Mutant, arguments: Sequence[str]) -> Met:
        """Run these tests with the mistake made."""
        path = self._root / mutant.file
        original = path.read_text()
        self._write(path, mutant.mutated(self._root))
        try:
            return self.run(arguments)
        finally:
            self._write(path, original)

    def run(self, arguments: Sequence[str]) -> Met:
        """Run tests in a fork of this process."""
        began_s = time.monotonic()
        said = self._root.parent / "said"
        if not (child := os.fork()):
            self._be_pytest(said, [*_CALM, *arguments])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        seconds = time.monotonic() - began_s
        if code == 0:
            return Met("", seconds)
        red = _RED.search(text := said.read_text(errors="replace"))
        if red is None or code not in _STILL_RED:
            why = f"pytest ended with {code}: {text[-2000:]}"
            return Met("", seconds, why)
        return Met(red[1], seconds)

    def _be_pytest(self, said: Path, arguments: Sequence[str]) -> NoReturn:
        """Become a pytest that knows nothing of this package, nor of the tree it is from."""
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 3
        try:
            os.chdir(self._root)
            os.environ |= self._environment
            for name in [name for name in sys.modules if name.partition(".")[0] in _OWN]:
                del sys.modules[name]
            elsewhere = [place for place in sys.path if Path(place).resolve() != ROOT]
            sys.path[:] = [str(self._root), *elsewhere]
            code = int(importlib.import_module("pytest").main([*arguments]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def check(self) -> None:
        """Other processes import the copy, too, whatever is installed."""
        said = subprocess.run(
            [sys.executable, "-c", "import delaybridge; print(delaybridge.__file__)"],
            cwd="/", env=self._environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        if Path(said.stdout.strip()).parents[1] != self._root:
            raise RuntimeError(f"the package is imported from {said.stdout.strip()}")

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        # Bytecode is known by the time and size of its source: no two texts have the same time.
        os.utime(path, (next(_SPENT),) * 2)


@contextlib.contextmanager
def copied() -> Iterator[Copy]:
    """A copy of the tree as it is, with its history: some tests need an earlier version."""
    with tempfile.TemporaryDirectory(prefix="delaybridge-mutants-") as folder:
        root = Path(folder).resolve() / "tree"
        _git("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(root))
        known = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in filter(None, known.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        copy = Copy(root)
        copy.check()
        yield copy


def _git(*words: str) -> str:
    ran = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return ran.stdout


def meet_all(mutants: Sequence[Mutant], *, all_fast: bool) -> Iterator[tuple[Mutant, Met]]:
    """Each mutant meets its room's tests; with `all_fast` a survivor the whole fast tier."""
    for name in _NEEDED:
        importlib.import_module(name)
    with copied() as copy:
        for mutant in mutants:
            met = copy.meet(mutant, mutant.tests.split())
            if not (met.killed_by or met.why) and all_fast:
                later = copy.meet(mutant, _FAST)
                met = later._replace(seconds=met.seconds + later.seconds)
            yield mutant, met

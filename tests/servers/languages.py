"""Client programs of `tests/clients` in Go, Java, PHP and Ruby, ready to run.

What must be fetched or compiled is kept in a folder of the cache, one for each state of its source.
PHP and Ruby and their libraries are Debian's.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

from tests.servers import debian
from tests.servers.clients import PROGRAMS
from tests.servers.folders import cache_folder, locked
from tests.servers.sources import External, NoServer, Source

GO, JAVA = PROGRAMS / "go", PROGRAMS / "java"
JAVA_FILES = ("pom.xml", "Delayed.java", "DelayedJms.java")
LIBRARIES = {
    "php": "/usr/share/php/PhpAmqpLib/autoload.php",
    "ruby": "/usr/share/rubygems-integration/all/specifications/bunny-*.gemspec",
}
DEBIAN = {
    "go": ["golang-go"],
    "javac": ["default-jdk-headless"],
    "mvn": ["maven"],
    "php": ["php-cli", "php-amqplib", "php-mbstring"],
    "ruby": ["ruby", "ruby-bunny"],
}
QUIET_JVM = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]


def go_folder() -> Path:
    """The folder of the program in Go, which may not exist yet."""
    return _folder("go", [GO / name for name in ("go.mod", "go.sum", "delayed.go")])


def java_folder() -> Path:
    """The folder of the jars and of the programs in Java, which may not exist yet."""
    return _folder("java", [JAVA / name for name in JAVA_FILES])


def command(language: str) -> list[str]:
    """How the program of this language is run, without its arguments; raises NoServer.

    java: the class is the next argument.
    """
    if language not in _ready():
        raise NoServer("languages")
    jars = java_folder()
    return {
        "go": [str(go_folder() / "delayed")],
        "java": ["java", *QUIET_JVM, "-cp", f"{jars}/classes:{jars}/libs/*"],
        "php": ["php", str(PROGRAMS / "delayed_php.php")],
        "ruby": ["ruby", str(PROGRAMS / "delayed_bunny.rb")],
    }[language]


def install() -> None:
    """Fetch and build, once; each folder appears only when it is complete."""
    with locked(cache_folder() / "languages.lock"):
        if debian.is_debian_root():
            for program, packages in DEBIAN.items():
                if not shutil.which(program) or not _has_library(program):
                    debian.install(*packages)
        for folder, needed, build in (
            (go_folder(), ("go",), _build_go),
            (java_folder(), ("javac", "mvn"), _build_java),
        ):
            if all(map(shutil.which, needed)):
                _make(folder, build)


def _ready() -> set[str]:
    ready = {name for name in LIBRARIES if shutil.which(name) and _has_library(name)}
    if go_folder().exists():
        ready.add("go")
    if java_folder().exists() and shutil.which("java"):
        ready.add("java")
    return ready


def _has_library(language: str) -> bool:
    return language not in LIBRARIES or bool(glob.glob(LIBRARIES[language]))


def _folder(name: str, sources: list[Path]) -> Path:
    content = b"\0".join(source.read_bytes() for source in sources)
    return cache_folder() / f"clients-{name}-{hashlib.sha256(content).hexdigest()[:12]}"


def _make(folder: Path, build: Callable[[Path], None]) -> None:
    if folder.exists():
        return
    with tempfile.TemporaryDirectory(prefix="clients-", dir=cache_folder()) as unfinished:
        built = Path(unfinished) / "built"
        built.mkdir()
        build(built)
        built.rename(folder)


def _build_go(folder: Path) -> None:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    _run(["go", "build", "-mod=readonly", "-o", str(folder / "delayed"), "."], GO, environment)


def _build_java(folder: Path) -> None:
    libs = folder / "libs"
    what = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
    _run(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(JAVA / "pom.xml"), *what], folder)
    sources = [str(JAVA / name) for name in JAVA_FILES if name.endswith(".java")]
    _run(["javac", "-d", str(folder / "classes"), "-cp", f"{libs}/*", *sources], folder)


def _run(arguments: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    subprocess.run(arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=True)


def sources() -> Iterator[Source]:
    ready = _ready()
    if missing := {"go", "java", "php", "ruby"} - ready:
        what = f"{', '.join(sorted(ready)) or 'none'}; missing: {', '.join(sorted(missing))}"
    else:
        what = "go, java, php, ruby"
    if ready:
        nothing = External("")
        yield Source(what=what, open=lambda: nullcontext(nothing), stand_in=bool(missing))

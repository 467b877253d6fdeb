"""Peers' servers in Java, from their jars, each with a folder and ports of its own on 127.0.0.1."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from tests.servers.process import ServerProcess, accepts

OPTIONS = ("-Xmx1500m", "-Djava.net.preferIPv4Stack=true")
# What the servers want of the JDK's inside.
OPENED = (
    *("java.base/java.lang", "java.base/java.io", "java.base/java.util", "java.base/java.net"),
    *("java.base/java.nio", "java.base/sun.net", "java.base/sun.nio.ch"),
    *("java.base/jdk.internal.misc", "java.management/sun.management"),
    "jdk.management/com.sun.management.internal",
)


def java(path: str, *arguments: str) -> list[str]:
    """The command line that runs a class of this class path."""
    opened = [f"--add-opens={package}=ALL-UNNAMED" for package in OPENED]
    return ["java", *OPTIONS, *opened, "-cp", path, *arguments]


class JavaServer(ServerProcess):
    """One server. path: its class path. main: class and arguments, after which its file comes."""

    def __init__(self, name: str, path: str, *main: str) -> None:
        self.name = name
        super().__init__()
        self._path, self._main = path, main
        self._file = self.folder / "conf"

    def configure(self, settings: Mapping[str, object]) -> None:
        """Write its file of properties; call it before the start."""
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        self._file.write_text(lines)

    def command(self) -> Sequence[str]:
        home = (f"-Drocketmq.home.dir={self.folder}", f"-Duser.home={self.folder}")
        return java(self._path, *home, *self._main, str(self._file))

    def is_ready(self) -> bool:
        return accepts(self.port)

    def heap_bytes(self) -> int:
        """Bytes of the live objects on its heap."""
        self._jcmd("GC.run")
        told = self._jcmd("GC.heap_info")
        if (found := re.search(r"used (\d+)K", told)) is None:
            raise RuntimeError(f"jcmd: {told}")
        return int(found[1]) * 1024

    def _jcmd(self, command: str) -> str:
        asked = ["jcmd", str(self.pid), command]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout

"""An export: messages become lines, page by page, each as it is at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from delaybridge.accept.accept import DestinationCache
from delaybridge.carry.line import BadLine, Line, encode_line, exported
from delaybridge.message import State
from delaybridge.store.calls import Calls
from delaybridge.store.messages.selection import Selected
from delaybridge.store.protocol.verbs import Steps

AT_ONCE = 100  # messages that are read in one pipeline, each with its body
ALL_STATES = (State.IN_FLIGHT, State.PARKED, State.DELAYED, State.DEAD)


def portions(page: Sequence[Selected]) -> Iterator[Sequence[Selected]]:
    """A page in portions that are read at once."""
    return (page[at : at + AT_ONCE] for at in range(0, len(page), AT_ONCE))


class MessageExport:
    """One export. counts: lines by state, those fired as `fired`; `gone`: left while it ran."""

    def __init__(self, states: Sequence[State], tell: Callable[[BadLine], None]) -> None:
        """states: a message that is found in another one meanwhile has gone. tell: of unreadable
        ones, which are left out."""
        self._states, self._tell, self._cache = states, tell, DestinationCache()
        self.counts = Counter[str]()
        self._layouts: set[object] = set()

    @property
    def is_resized(self) -> bool:
        """Whether a resize began meanwhile: some may be written twice, or not at all."""
        return len(self._layouts) > 1

    @property
    def is_partly(self) -> bool:
        """Whether some messages may be missing."""
        return self.is_resized or self.counts["bad"] > 0

    def read(self, calls: Calls, some: Sequence[Selected]) -> Steps[bytes]:
        """The lines of some messages, as one text."""
        yield from calls.open()
        rows = yield [calls.bucket(one.bucket).get(one.id) for one in some]
        layout = calls.following.layout
        self._layouts.add(layout and layout.epochs)
        lines: list[bytes] = []
        for one, row in zip(some, rows, strict=True):
            if row is None or row.state not in self._states:
                self.counts["gone"] += 1
                continue
            line = exported(row, one.bucket, calls.kinds, self._cache)
            if isinstance(line, Line):
                self.counts[line.state.value] += 1
                self.counts["fired"] += line.fired
                lines.append(encode_line(line) + b"\n")
            else:
                self.counts["bad"] += 1
                self._tell(line)
        return b"".join(lines)

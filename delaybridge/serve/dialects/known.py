"""The endpoints of the dialect that serve.compat names."""

from __future__ import annotations

from collections.abc import Mapping

from delaybridge.serve.dialects import delay_queue, mykit, youzan
from delaybridge.serve.http.endpoint import Endpoint

DIALECTS: Mapping[str, tuple[Endpoint, ...]] = {
    "": (),
    "mykit": mykit.ENDPOINTS,
    "youzan": youzan.ENDPOINTS,
    "delay-queue": delay_queue.ENDPOINTS,
}

"""`delaybridge` whose `serve` waits for Redis as long as `redis.timeout_s` says.

Usually it gives up sooner, before the clients of a site do. Each of its processes runs this.
"""

import math
import sys

from delaybridge.operate import cli
from delaybridge.serve.server import serving

serving.answer_on.__kwdefaults__["redis_s"] = serving._PAGE_S = math.inf

if __name__ == "__main__":
    sys.exit(cli.main())

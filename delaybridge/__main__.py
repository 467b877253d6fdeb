"""`python -m delaybridge`."""

import sys

from delaybridge.operate.cli import main

sys.exit(main())

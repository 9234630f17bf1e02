"""`python -m windlass` is the command line."""

import sys

from windlass.cli import main

sys.exit(main())

"""`python -m tracelens`."""

import sys

from tracelens.cli.main import main

sys.exit(main())

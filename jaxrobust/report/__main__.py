"""``python -m jaxrobust.report``: the command line without its script."""

import sys

from jaxrobust.report.cli import main

sys.exit(main())

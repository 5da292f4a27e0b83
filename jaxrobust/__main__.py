"""``python -m jaxrobust``: the command line without its script."""

import sys

from jaxrobust.report.cli import main

if __name__ == "__main__":
    sys.exit(main())

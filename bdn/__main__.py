"""`python -m bdn`, for where the console script is not on the path."""

import sys

from bdn.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m evenflow` is the `evenflow` command."""

import sys

from evenflow.cli.main import main

sys.exit(main())

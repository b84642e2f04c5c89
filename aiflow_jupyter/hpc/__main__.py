"""`python -m aiflow_jupyter.hpc`: the worker's own program."""

import sys

from aiflow_jupyter.hpc.program import main

sys.exit(main())

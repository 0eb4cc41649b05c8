"""Whether this machine could take part in a run: ``python -m pccl.doctor 203.0.113.7:48148`` prints what works, and for
each failure which rule to open where. It is ``pccl-master doctor``; ``--help`` explains its arguments."""

import sys

from .master import main

if __name__ == "__main__":
    sys.exit(main("doctor"))

"""The program ``pccl-master``: ``python -m pccl.master --listen 0.0.0.0:48148``. It is the one that cargo builds, which
the package brings along; ``--help`` explains its arguments."""

import os
import sys

from . import pccl_dir


def main(*command: str) -> int:
    """Puts the program in the place of this process, with this command."""
    program = os.path.join(pccl_dir(), "bin", "pccl-master")
    if not os.path.exists(program):
        print(f"{program} is missing: install the package, which builds it", file=sys.stderr)
        return 1
    os.execv(program, ["pccl-master", *command, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())

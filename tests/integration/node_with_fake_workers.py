"""The node daemon as `python -m python_backend.node` runs it, but over the fake fork server beside this file."""

from __future__ import annotations

import sys
from pathlib import Path

from python_backend.node.__main__ import main
from python_backend.node.daemon import DaemonOptions

FAKE = Path(__file__).with_name("fake_forkserver.py")

if __name__ == "__main__":
    options = DaemonOptions(forkserver_command=(sys.executable, str(FAKE)), stop_timeout_s=1.0)
    sys.exit(main(sys.argv[1:], options))

"""Settings of the test process, made before torch is imported."""

import os

# The reference models compute in this process beside real stacks: their idle threads must sleep, not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

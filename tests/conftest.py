"""Settings of the test process, made before torch is imported."""

import os

# The reference models compute in this process beside real stacks: their idle threads must sleep, not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import HealthCheck, settings  # after what torch is told

# An example may take any time: with two files at a time on two busy cores the usual 200 ms are no sign of anything.
settings.register_profile("tidegate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tidegate")

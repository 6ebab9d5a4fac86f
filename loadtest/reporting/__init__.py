"""What a run leaves for people and machines: `report.html`, `verdict.json`, `junit.xml`.

Computes nothing that is judged; what it draws it takes from the same rows. Never sends or samples anything.
"""

from loadtest.reporting.files import write_report
from loadtest.reporting.result import Result, ScalingChange

__all__ = ["Result", "ScalingChange", "write_report"]

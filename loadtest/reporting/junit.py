"""`junit.xml`: each judged row is a test case; FAIL is a failure and INVALID an error to Jenkins and GitLab."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime

from loadtest.reporting.result import Result
from loadtest.reporting.wording import figure
from loadtest.verdict import Row, Verdict

NOTHING_JUDGED = "nothing was judged: the plan has no slo and no check ran; add one line to slo"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, even escaped."""


def junit_xml(result: Result) -> str:
    rows = result.judgement.rows
    invalid = sum(row.verdict is Verdict.INVALID for row in rows) + (not rows)
    counts = {
        "tests": str(max(1, len(rows))),
        "failures": str(sum(row.verdict is Verdict.FAIL for row in rows)),
        "errors": str(invalid),
    }
    time = f"{result.ended_s:.3f}"
    root = ET.Element("testsuites", {"name": "tidegate loadtest", "time": time} | counts)
    timestamp = datetime.fromtimestamp(result.started_unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    about = {"name": _clean(result.name), "time": time, "skipped": "0", "timestamp": timestamp}
    suite = ET.SubElement(root, "testsuite", about | counts)
    for row in rows:
        _case(suite, row, _clean(result.name))
    if not rows:
        case = ET.SubElement(suite, "testcase", name="judgement", classname=_clean(result.name), time="0")
        ET.SubElement(case, "error", type="INVALID", message=NOTHING_JUDGED).text = NOTHING_JUDGED
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, row: Row, name: str) -> None:
    case = ET.SubElement(suite, "testcase", name=_clean(row.expression), classname=name, time="0")
    facts = (
        f"value {figure(row.value, row.unit)}, limit {figure(row.limit, row.unit)}, interval "
        f"{figure(row.low, row.unit)} to {figure(row.high, row.unit)}, n {row.n}"
    )
    if row.n_needed is not None:
        facts += f" of {row.n_needed} needed"
    if row.verdict is Verdict.PASS:
        ET.SubElement(case, "system-out").text = _clean(f"{row.why}\n{facts}")
        return
    kind = "failure" if row.verdict is Verdict.FAIL else "error"
    ET.SubElement(case, kind, type=row.verdict.value, message=_clean(row.why)).text = _clean(
        f"{row.why}\n{facts}"
    )


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)

"""Writes the three files of a report into the run's folder, each whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from loadtest.reporting.json_report import verdict_json
from loadtest.reporting.junit import junit_xml
from loadtest.reporting.page import report_html
from loadtest.reporting.result import Result

PLAN_NAME = "plan.yaml"
REPORT_NAME, VERDICT_NAME, JUNIT_NAME = "report.html", "verdict.json", "junit.xml"


def write_report(folder: Path, result: Result) -> Path:
    """Returns the page. The plan is shown as `plan.yaml` in the folder has it. Raises OSError."""
    plan = folder / PLAN_NAME
    plan_text = plan.read_text(encoding="utf-8") if plan.exists() else ""
    _write(folder / VERDICT_NAME, verdict_json(result))
    _write(folder / JUNIT_NAME, junit_xml(result))
    _write(folder / REPORT_NAME, report_html(result, plan_text))
    return folder / REPORT_NAME


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)

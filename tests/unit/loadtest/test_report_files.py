"""verdict.json, junit.xml and the page as text."""

import dataclasses
import json
import math
import xml.etree.ElementTree as ET

import pytest

from loadtest.reporting import write_report
from loadtest.reporting.json_report import verdict_json
from loadtest.reporting.junit import junit_xml
from loadtest.reporting.page import verdict_words
from loadtest.reporting.testing import made_result, made_rows
from loadtest.verdict import Row, Verdict

HOSTILE = "http 500: </script><script>alert(1)</script> <img src=x onerror=alert(2)> \x1b[31m\x00 {{7*7}}"


def test_an_invalid_row_decides_and_the_json_says_so():
    """One INVALID, one FAIL, three PASS: INVALID."""
    found = json.loads(verdict_json(made_result(duration_s=10)))
    assert found["schema"] == 1
    assert found["verdict"] == "INVALID"
    assert [row["verdict"] for row in found["rows"]] == ["PASS", "INVALID", "FAIL", "PASS", "PASS"]
    assert (
        sum(found["requests"][name] for name in ("ok", "errors", "unfinished", "not_sent"))
        == found["requests"]["total"]
    )


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null_in_the_json(odd):
    """A parser that takes only JSON must read it."""
    row = dataclasses.replace(made_rows()[0], value=odd, low=odd, high=odd, limit=odd)
    text = verdict_json(made_result(duration_s=5, rows=[row]))
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert [found["rows"][0][key] for key in ("value", "low", "high", "limit")] == [None] * 4


def test_a_fail_is_a_failure_and_an_invalid_row_an_error_in_junit():
    """Jenkins and GitLab colour them differently."""
    suite = _parsed(junit_xml(made_result(duration_s=5))).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "1")
    cases = {case.get("name"): [child.tag for child in case] for case in suite}
    assert cases["errors rate < 0.1%"] == ["failure"]
    assert cases["latency.scheduled p99.9 < 4s @99%"] == ["error"]
    assert cases["kv.used_ratio max < 0.90"] == ["system-out"]


def test_a_run_without_rows_is_an_error_in_junit():
    """An empty suite would be green."""
    suite = _parsed(junit_xml(made_result(duration_s=5, rows=[]))).find("testsuite")
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


def test_control_characters_do_not_break_junit():
    """XML 1.0 has no U+0000, escaped or not."""
    row = Row("errors rate < 1%", None, None, "", None, None, 0, None, Verdict.INVALID, HOSTILE)
    suite = _parsed(junit_xml(made_result(duration_s=5, rows=[row]))).find("testsuite")
    assert "</script>" in suite.find("testcase/error").get("message")


def test_hostile_text_stays_text_in_the_page(tmp_path):
    """An error's text, a row's reason and the plan carry tags and template signs."""
    row = Row(HOSTILE, None, None, "", None, None, 0, None, Verdict.INVALID, HOSTILE)
    (tmp_path / "plan.yaml").write_text("name: </pre><script>alert(3)</script>")
    page = write_report(tmp_path, made_result(duration_s=10, rows=[row], error=HOSTILE)).read_text()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "{{7*7}}" in page
    assert page.count("<script") == 2


def test_all_three_files_are_written_and_no_part_is_left(tmp_path):
    """The folder holds what the docs name."""
    write_report(tmp_path, made_result(duration_s=5))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "report.html", "verdict.json"]


def test_a_run_without_a_single_request_has_a_page(tmp_path):
    """Nothing was sent: INVALID, and the page opens."""
    page = write_report(tmp_path, made_result(duration_s=5, rate=0, rows=[])).read_text()
    assert "Nothing was judged" in page
    assert "? INVALID" in page


def test_the_verdict_is_told_by_the_rows_that_decided_it():
    """With an INVALID row the FAIL is not the reason."""
    assert verdict_words(tuple(made_rows())) == [f"{made_rows()[1].expression}: {made_rows()[1].why}"]


def _parsed(text):
    return ET.fromstring(text)  # noqa: S314 - our own file

"""Row "alerts": the rules that would wake somebody are loaded in Prometheus, and work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.verdict import Verdict
from tidegate.launch_check.row import CheckRow

NAME = "alerts"


def check_alerts(url: str | None, answer: Any, trouble: str, wanted: Sequence[str]) -> CheckRow:
    """`answer`: of /api/v1/rules, decoded; `trouble`: why there is none."""
    if url is None:
        return CheckRow(
            NAME,
            Verdict.INVALID,
            "nobody was named who has them; write launch: {prometheus: http://HOST:9090}",
        )
    if trouble:
        return CheckRow(NAME, Verdict.INVALID, trouble)
    try:
        rules = alert_rules(answer)
    except (KeyError, TypeError, AttributeError) as exc:
        return CheckRow(
            NAME, Verdict.INVALID, f"{url}/api/v1/rules did not answer as Prometheus does: {exc!r}"
        )
    if missing := [name for name in wanted if name not in rules]:
        loaded = ", ".join(sorted(rules)) or "none"
        return CheckRow(
            NAME,
            Verdict.FAIL,
            f"not loaded: {', '.join(missing)} (there are {loaded}); add them to rule_files",
        )
    if not rules:
        return CheckRow(NAME, Verdict.FAIL, f"{url} has no alert rule; add some to its rule_files")
    names = wanted or sorted(rules)
    if broken := [f"{name} ({rules[name]})" for name in names if rules[name]]:
        return CheckRow(NAME, Verdict.FAIL, f"loaded, and failing: {', '.join(broken)}; see {url}/rules")
    return CheckRow(
        NAME, Verdict.PASS, f"{len(names)} loaded and evaluated without an error: {', '.join(names)}"
    )


def alert_rules(answer: Mapping[str, Any]) -> dict[str, str]:
    """Alert -> what is wrong with it, "" when it works. Raises KeyError, TypeError on a foreign answer."""
    found: dict[str, str] = {}
    for group in answer["data"]["groups"]:
        for rule in group["rules"]:
            if rule["type"] == "alerting":
                trouble = (
                    "" if rule["health"] == "ok" else rule.get("lastError") or f"health {rule['health']}"
                )
                found[rule["name"]] = found.get(rule["name"], "") or trouble
    return found

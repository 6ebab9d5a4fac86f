"""Start-up times that were measured before a restart."""

from __future__ import annotations

from pathlib import Path

from scaler.deciding.policy import ModelPolicy
from scaler.deciding.start_times import UNKNOWN_LEAD_S
from scaler.serving.kept_start_times import FILE_NAME, KeptStartTimes


def lead_s(times: KeptStartTimes, model: str = "chat") -> float:
    return times.lead_s(model, ModelPolicy())


def test_the_lead_time_is_known_after_a_restart(tmp_path: Path) -> None:
    """120 s and 90 s were measured: 120 s it is, and for another model the default."""
    times = KeptStartTimes(tmp_path, print)
    times.started("chat", 120.0)
    times.started("chat", 90.0)
    again = KeptStartTimes(tmp_path, print)
    assert (lead_s(again), lead_s(again, "embed")) == (120.0, UNKNOWN_LEAD_S)


def test_a_damaged_file_costs_the_measurements_and_no_more(tmp_path: Path) -> None:
    """It is said once, and written anew by the next start."""
    said: list[str] = []
    (tmp_path / FILE_NAME).write_text('{"chat": "soon"}')
    times = KeptStartTimes(tmp_path, said.append)
    assert "measured start times are lost" in said[0]
    assert lead_s(times) == UNKNOWN_LEAD_S
    times.started("chat", 3.0)
    assert lead_s(KeptStartTimes(tmp_path, said.append)) == 3.0
    assert len(said) == 1


def test_a_folder_that_can_not_be_written_is_said_once(tmp_path: Path) -> None:
    """And the times still count in this process."""
    said: list[str] = []
    times = KeptStartTimes(tmp_path / "none", said.append)
    times.started("chat", 3.0)
    times.started("chat", 4.0)
    assert (lead_s(times), len(said)) == (4.0, 1)

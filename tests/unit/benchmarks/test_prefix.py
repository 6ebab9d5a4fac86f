"""The arithmetic of the prefix bench."""

import pytest

from benchmarks.prefix import leased_over_other, overhead, system_prompt


class WordTokenizer:
    def encode(self, text):
        class Encoded:
            ids = text.split()

        return Encoded


def test_overhead_is_what_both_processes_spent_on_prefixes_over_all() -> None:
    """(1 + 2) / (28 + 2)."""
    assert overhead({"caching_cpu_s": 1, "desk_cpu_s": 2, "cpu_s": 28}) == pytest.approx(0.1)


def test_steps_before_the_first_lease_do_not_count() -> None:
    """They are shorter for their shorter history."""
    steps = [[0.1, False], [0.1, False], [0.6, True], [0.5, False], [0.5, False]]
    assert leased_over_other([{"steps": steps}], 50) == pytest.approx(1.2)
    assert leased_over_other([{"steps": [[0.1, False]]}], 50) is None


def test_system_prompts_are_long_enough_and_differ_from_the_start() -> None:
    """Another round's prompt finds nothing of it."""
    prompts = [system_prompt(WordTokenizer(), seed) for seed in range(30)]
    assert all(len(prompt.split()) >= 512 for prompt in prompts)
    assert len({prompt[:40] for prompt in prompts}) == len(prompts)

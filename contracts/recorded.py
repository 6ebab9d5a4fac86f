"""Where recorded load lies: the public traces that the scaler's simulation and the load test read.

The files are not part of tidegate. A short name is looked for in $TIDEGATE_TRACES, else in `../shared/traces`
beside the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = "TIDEGATE_TRACES"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1].parent / "shared" / "traces"

FILES = {
    "conv24": "azure2024/invocations_ten_second_Conversation.csv",
    "code24": "azure2024/invocations_ten_second_Coding.csv",
    "conv23": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "code23": "azure2023/AzureLLMInferenceTrace_code.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
    "mooncake-synthetic": "mooncake/synthetic_trace.jsonl",
    "m-large": "servegen/language_m-large_10min_aggregate.csv",
    "m-mid": "servegen/language_m-mid_10min_aggregate.csv",
    "m-small": "servegen/language_m-small_10min_aggregate.csv",
    "deepseek-r1": "servegen/reason_deepseek-r1_10min_aggregate.csv",
    "mm-image": "servegen/multimodal_mm-image_10min_aggregate.csv",
}
"""Short name -> file under the traces' folder."""


class TraceNotFound(ValueError):
    """There is no such file here."""


def traces_folder() -> Path:
    given = os.environ.get(ENVIRONMENT)
    return Path(given) if given else DEFAULT_FOLDER


def find_trace(name: str, beside: Path) -> Path:
    """A short name's file, or a path: absolute, in `beside`, or in the traces' folder. Raises TraceNotFound."""
    if name in FILES:
        places = [traces_folder() / FILES[name]]
        hint = f"set ${ENVIRONMENT} to the folder that holds {FILES[name]}"
    else:
        places = list(dict.fromkeys((beside / name, traces_folder() / name)))
        hint = f"and it is none of {', '.join(FILES)}"
    for place in places:
        if place.is_file():
            return place.resolve()
    raise TraceNotFound(f"no such file: {' or '.join(map(str, places))}; {hint}")

"""Processes that send calls on time and keep a row of each.

`generator.py` is the way in. The parent (`fleet.py`, `children.py`, `collecting.py`) starts children by exec, tells
all of them one t0 and merges their raw rows. A child (`process.py`) makes its own calls of the plan (`planned.py`),
begins them at absolute times (`dispatcher.py`, `calling.py`, `precise_loop.py`), sends each by its protocol
(`openai_http.py`, `kserve_grpc.py`) and reports in frames (`reporter.py`, `messages.py`). What a child loses by
dying is a row all the same, and a problem of the run.
"""

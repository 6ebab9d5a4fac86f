"""The page for people on call, at /console: what the stack does now and did in the last hour.

Only reads, but for one button (`rollback`). A source that is silent is shown as such; nothing here slows a call
down or fails it. `calls`, `tally`, `history`, `arena`, `traces` and `document` say what is shown; `following` and
`sources` ask; `access`, `rollback` and `pages` answer browsers.
"""

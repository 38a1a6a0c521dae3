"""The judge: the tests and the candidate are two programs, and only plain data crosses between them.

The modules `plain`, `asserts`, `test_side`, `candidate_side` and `pair` are never run in our process: their
*source* is sent into the sandbox. A sandbox that can connect two isolated programs runs `programs` and asks
`verdict`; one that runs single programs far away runs `remote_program` and asks `remote_verdict`.

A source of tests that does not parse or has no `assert` gives a verdict with total 0, whose one failure says
why: that is never the candidate's doing. Whoever owns the tests decides what it is: an error in a data set,
or the floor where a model wrote them.
"""

from coterie.backends.sandboxes.judging.host import (
    REPORT_BYTES,
    Pair,
    programs,
    remote_program,
    remote_verdict,
    verdict,
)

__all__ = ["REPORT_BYTES", "Pair", "programs", "remote_program", "remote_verdict", "verdict"]

"""A plugin file: studies of one row each, for tests."""

from coterie import hookimpl
from coterie.studies import Method, Study

ONE = Study(
    summary="One trained row.",
    rows=lambda column: (Method(id="shared", title="Shared", form="shared", trained=True),),
)
TWO = Study(
    summary="One trained row, one untrained.",
    rows=lambda column: (
        Method(id="shared", title="Shared", form="shared", trained=True),
        Method(id="team", title="Team", form="shared"),
    ),
)


@hookimpl
def register_studies(register):
    register("one", ONE)
    register("two", TWO)

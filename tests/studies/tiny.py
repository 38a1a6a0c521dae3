"""A plugin file with two small studies."""

from coterie import hookimpl
from coterie.studies import Method, Study

ONE = Study(
    summary="One trained method.",
    methods=lambda column: (Method(id="shared", title="Shared", variant="shared", trained=True),),
)
TWO = Study(
    summary="One trained method, one untrained.",
    methods=lambda column: (
        Method(id="shared", title="Shared", variant="shared", trained=True),
        Method(id="team", title="Team", variant="shared"),
    ),
)


@hookimpl
def register_studies(register):
    register("one", ONE)
    register("two", TWO)

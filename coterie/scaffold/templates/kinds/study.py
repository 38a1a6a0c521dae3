"""A study: methods that are compared on columns over seeds, at equal training tokens.

One training against the same team untrained: does it learn at all? `coterie reproduce example_name` runs it.
"""

from collections.abc import Sequence

from coterie import Method, Register, Study, above, hookimpl


def methods(column: object) -> Sequence[Method]:
    """The rows of the table. A variant is a key of `forms` in the column's file."""
    return (
        Method(id="untrained", title="Untrained team", variant="shared"),
        Method(id="trained", title="Trained team", variant="shared", trained=True),
    )


# A claim is checked on each seed by itself, and the table says where it holds.
STUDY = Study(
    summary="A trained team against the same team untrained.",
    methods=methods,
    claims=(above("trained", "untrained", "Training raises success."),),
    gain_over="untrained",
)


@hookimpl
def register_studies(register: Register) -> None:
    register("example_name", STUDY)

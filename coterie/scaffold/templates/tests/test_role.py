"""The role: what every role promises, what it shows and what it reads."""

import pytest

from coterie import PolicyFault, RoleInput
from coterie.testing import build


def test_it_keeps_the_promises_of_a_role(coterie_check):
    coterie_check("example_name", kind="role")


def test_the_prompt_shows_instruction_observation_and_feedback():
    role = build("role", {"type": "example_name", "instruction": "Count down."}, name="solver")
    (message,) = role.render(RoleInput(role="solver", turn=1, observation="5", feedback=("Wrong.",)))
    assert message == {"role": "user", "content": "Count down.\n5\nWrong."}


def test_an_empty_answer_is_the_models_fault():
    with pytest.raises(PolicyFault, match="0 words"):
        build("role", "example_name", name="solver").parse(" ", "5")

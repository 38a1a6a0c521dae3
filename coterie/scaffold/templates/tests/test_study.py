"""The study: its methods and its claim."""

from example_module.study import STUDY, methods


def test_it_compares_a_training_with_the_untrained_team():
    by_id = {method.id: method for method in methods(None)}
    assert by_id["trained"].trained and not by_id["untrained"].trained
    assert STUDY.gain_over == "untrained"
    (claim,) = STUDY.claims
    assert set(claim.methods) == by_id.keys()

"""The study: its methods and its claim."""

from example_module.study import EXAMPLE_STUDY, example_methods


def test_it_compares_a_training_with_the_untrained_team():
    methods = {method.id: method for method in example_methods(None)}
    assert methods["trained"].trained and not methods["untrained"].trained
    assert EXAMPLE_STUDY.gain_over == "untrained"
    (claim,) = EXAMPLE_STUDY.claims
    assert set(claim.methods) == methods.keys()

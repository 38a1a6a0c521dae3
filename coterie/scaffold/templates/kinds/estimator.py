"""An estimator: the algorithm, from the rewards of a step to an advantage for each action.

Squashed differences: each action is compared with its siblings, the actions drawn for the same prompt.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import tanh
from statistics import fmean

from pydantic import Field

from coterie import Register, RowConfig, RowEstimator, Rows, hookimpl


class ExampleNameEstimator(RowEstimator):
    """tanh((reward - mean of the siblings) / scale): no outlier outweighs the rest of a step."""

    class Config(RowConfig):
        scale: float = Field(1.0, gt=0, description="The difference that counts as large.")

    config: Config
    returns = "immediate"  # a row is an action and its reward; `to_go`, `tree`, `episode` are other returns
    needs: tuple[str, ...] = ()  # annotations that it reads, e.g. "ref_logprobs"

    # Rows whose reward is missing never come here. The result has a number for each row, or an array of one
    # number a token, or None: not trained. What is kept from step to step is plain JSON in `rows.state`.
    def advantages(self, rows: Rows) -> Sequence[float]:
        siblings = defaultdict(list)
        for row in rows:
            siblings[row.branches[0].decision].append(row.value)
        means = {decision: fmean(values) for decision, values in siblings.items()}
        return [tanh((row.value - means[row.branches[0].decision]) / self.config.scale) for row in rows]


@hookimpl
def register_estimators(register: Register) -> None:
    register("example_name", ExampleNameEstimator)

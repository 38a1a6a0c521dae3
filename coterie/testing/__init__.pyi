# Made by docs/generate.py from __init__.py: change it there.

from coterie.testing.checking.component import check as check
from coterie.testing.checking.results import Checked as Checked, NotChecked as NotChecked
from coterie.testing.checks.chat_format import check_chat_format as check_chat_format
from coterie.testing.checks.chat_model import check_chat_model as check_chat_model
from coterie.testing.checks.data_source import check_data_source as check_data_source
from coterie.testing.checks.engine import check_engine as check_engine
from coterie.testing.checks.environment import check_environment as check_environment
from coterie.testing.checks.estimator import check_estimator as check_estimator
from coterie.testing.checks.executor import check_executor as check_executor
from coterie.testing.checks.loss import check_loss as check_loss
from coterie.testing.checks.plugin import check_plugin as check_plugin
from coterie.testing.checks.reward import check_reward as check_reward
from coterie.testing.checks.role import check_role as check_role
from coterie.testing.checks.sampler import check_sampler as check_sampler
from coterie.testing.checks.sandbox import check_sandbox as check_sandbox
from coterie.testing.checks.tool import check_tool as check_tool
from coterie.testing.checks.tracker import check_tracker as check_tracker
from coterie.testing.checks.trainer import check_trainer as check_trainer
from coterie.testing.checks.transition import check_transition as check_transition
from coterie.testing.checks.unconfigured import (
    check_column as check_column,
    check_command as check_command,
    check_study as check_study,
)
from coterie.testing.example import Example as Example
from coterie.testing.support.building import build as build
from coterie.testing.support.failure import (
    ConformanceError as ConformanceError,
    ConformanceWarning as ConformanceWarning,
)
from coterie.testing.support.runs import (
    coterie_run as coterie_run,
    play_episode as play_episode,
    scripted_engine as scripted_engine,
)
from coterie.testing.support.trees import Forest as Forest, J as J, tree_literals as tree_literals

__all__: list[str]

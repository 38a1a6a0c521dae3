"""Programs with pandas and scikit-learn: a team that does its work on any task of a synthetic pack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.plugins.envs.data_science.teams import program

ENGINEER = """\
import pandas as pd

train, test = pd.read_csv("data/train.csv"), pd.read_csv("data/test.csv")
columns = [name for name in test.columns if name != "id" and name != "final_reading"]
both = pd.get_dummies(pd.concat([train[columns], test[columns]]), dtype=float)
both = both.fillna(both.iloc[: len(train)].mean())
both.iloc[: len(train)].to_pickle("X_train.pkl")
both.iloc[len(train) :].to_pickle("X_test.pkl")
train["target"].to_pickle("y_train.pkl")
print(both.shape, train["target"].dtype)
"""

MODELER = """\
import pickle

import pandas as pd
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

X, y = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
labels = y.dtype == object or isinstance(y.iloc[0], str)
model = LogisticRegression(max_iter=200) if labels else Ridge()
model = make_pipeline(StandardScaler(), model).fit(X, y)
with open("model.pkl", "wb") as file:
    pickle.dump(model, file)
print("train score", model.score(X, y))
"""

ANALYST = """\
import pickle

import numpy as np
import pandas as pd

X, ids = pd.read_pickle("X_test.pkl"), pd.read_csv("data/test.csv")["id"]
with open("model.pkl", "rb") as file:
    model = pickle.load(file)
predictions = model.predict(X)
if {ranked}:
    order = np.argsort(-model.predict_proba(X), axis=1)[:, :3]
    predictions = [" ".join(row) for row in model.classes_[order]]
elif {graded}:
    predictions = np.clip(np.round(predictions), 1, 5).astype(int)
elif {positive}:
    predictions = np.maximum(predictions, 0)
pd.DataFrame({{"id": ids, "target": predictions}}).to_csv("submission.csv", index=False)
print(len(ids), "rows")
"""


def team(metadata: Mapping[str, Any]) -> dict[str, list[str]]:
    """The messages of a team that does its work on a task."""
    metric = metadata["metric"]
    analyst = ANALYST.format(ranked=metric == "map@3", graded=metric == "qwk", positive=metric == "rmsle")
    codes = {"data_engineer": ENGINEER, "modeler": MODELER, "analyst": analyst}
    return {role: [program(code)] for role, code in codes.items()}


def by_hand(folder: str, metadata: Mapping[str, Any]) -> Any:
    """The submission that the team writes, made here: the same programs, in this process and a folder."""
    import contextlib
    import io
    import re
    import shutil
    from pathlib import Path

    (Path(folder) / "data").mkdir(parents=True)
    for name in ("train", "test"):
        shutil.copy(metadata[f"{name}_file"], Path(folder) / "data" / f"{name}.csv")
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for [message] in team(metadata).values():
            exec(re.split(r"```(?:python\n)?", message)[1], {})  # ours
    return Path(folder) / "submission.csv"

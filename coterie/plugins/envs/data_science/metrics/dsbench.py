"""The 72 tasks of DSBench (arXiv 2409.07703) that MAPPA trains and evaluates on (arXiv 2601.23228).

Their records name the metric in the prompt's words only. Each entry is what its prompt says of evaluation;
columns are those of the prompt's example. DSBench's own scripts differ from the prompts in places;
docs/data_science.md names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.plugins.envs.data_science.metrics.competition import Competition

_BINARY = ("0", "1")
_COVID = Competition(metric="rmsle", id="ForecastId", targets=("ConfirmedCases", "Fatalities"))
_TARGET = Competition(metric="auc", id="id", targets=("target",))
_QUEST = (
    "question_asker_intent_understanding",
    "question_body_critical",
    "question_conversational",
    "question_expect_short_answer",
    "question_fact_seeking",
    "question_has_commonly_accepted_answer",
    "question_interestingness_others",
    "question_interestingness_self",
    "question_multi_intent",
    "question_not_really_a_question",
    "question_opinion_seeking",
    "question_type_choice",
    "question_type_compare",
    "question_type_consequence",
    "question_type_definition",
    "question_type_entity",
    "question_type_instructions",
    "question_type_procedure",
    "question_type_reason_explanation",
    "question_type_spelling",
    "question_well_written",
    "answer_helpful",
    "answer_level_of_information",
    "answer_plausible",
    "answer_relevance",
    "answer_satisfaction",
    "answer_type_instructions",
    "answer_type_procedure",
    "answer_type_reason_explanation",
    "answer_well_written",
)
"""The prompt gives the first and the last of them; the competition's sample submission has all."""


def _on(metric: str, *targets: str, by: str = "id", labels: tuple[str, ...] = ()) -> Competition:
    return Competition(metric=metric, id=by, targets=targets, labels=labels)


DSBENCH: Mapping[str, Competition] = {
    # dsbench_modeling_train.json
    "tabular-playground-series-mar-2021": _TARGET,
    "playground-series-s3e23": _on("auc", "defects"),
    "porto-seguro-safe-driver-prediction": _on("normalised_gini", "target"),
    "titanic": _on("accuracy", "Survived", by="PassengerId", labels=_BINARY),
    "spaceship-titanic": _on("accuracy", "Transported", by="PassengerId", labels=("True", "False")),
    "playground-series-s3e14": _on("mae", "yield"),
    "santander-value-prediction-challenge": _on("rmsle", "target", by="ID"),
    "bike-sharing-demand": _on("rmsle", "count", by="datetime"),
    "playground-series-s3e6": _on("rmse", "price"),
    "playground-series-s3e18": _on("auc", "EC1", "EC2"),
    "playground-series-s3e5": _on("qwk", "quality", by="Id"),
    "feedback-prize-english-language-learning": _on(
        "rmse",
        *("cohesion", "syntax", "vocabulary", "phraseology", "grammar", "conventions"),
        by="text_id",
    ),
    "playground-series-s4e4": _on("rmsle", "Rings"),
    "playground-series-s3e12": _TARGET,
    "tabular-playground-series-may-2022": _TARGET,
    "playground-series-s3e1": _on("rmse", "MedHouseVal"),
    "playground-series-s3e24": _on("auc", "smoking"),
    "tabular-playground-series-oct-2021": _TARGET,
    "tabular-playground-series-apr-2021": _on("accuracy", "Survived", by="PassengerId", labels=_BINARY),
    "tabular-playground-series-mar-2022": _on("mae", "congestion", by="row_id"),
    "tabular-playground-series-jan-2022": _on("smape", "num_sold", by="row_id"),
    "covid19-global-forecasting-week-2": _COVID,
    "microsoft-malware-prediction": _on("auc", "HasDetections", by="MachineIdentifier"),
    "us-patent-phrase-to-phrase-matching": _on("pearson", "score"),
    "tabular-playground-series-aug-2021": _on("rmse", "loss"),
    "tabular-playground-series-aug-2022": _on("auc", "failure"),
    # The target is Age; the prompt's example has the column `yield`.
    "playground-series-s3e16": Competition(metric="mae", id="id", targets=("Age",), also={"yield": "Age"}),
    # "The expiratory phase is not scored": there the valve that lets air out is open.
    "ventilator-pressure-prediction": Competition(
        metric="mae", id="id", targets=("pressure",), rows=("u_out", "0")
    ),
    "cat-in-the-dat-ii": _TARGET,
    "dont-overfit-ii": _TARGET,
    "playground-series-s3e13": _on("map@3", "prognosis"),
    "demand-forecasting-kernels-only": _on("smape", "sales"),
    "tabular-playground-series-feb-2022": _on("accuracy", "target", by="row_id"),
    "playground-series-s3e11": _on("rmsle", "cost"),
    "tabular-playground-series-nov-2021": _TARGET,
    "playground-series-s3e8": _on("rmse", "price"),
    "playground-series-s3e3": _on("auc", "Attrition", by="EmployeeNumber"),
    "covid19-global-forecasting-week-4": _COVID,
    "playground-series-s3e17": _on("auc", "Machine failure"),
    "tabular-playground-series-dec-2021": _on("accuracy", "Cover_Type", by="Id"),
    "cat-in-the-dat": _TARGET,
    "tmdb-box-office-prediction": _on("rmsle", "revenue"),
    "google-quest-challenge": _on("spearman", *_QUEST, by="qa_id"),
    "playground-series-s4e5": _on("r2", "FloodProbability"),
    "learning-agency-lab-automated-essay-scoring-2": _on(
        "qwk", "score", by="essay_id", labels=("1", "2", "3", "4", "5", "6")
    ),
    "nlp-getting-started": _on("f1", "target", labels=_BINARY),
    "commonlitreadabilityprize": _on("rmse", "target"),
    "tabular-playground-series-sep-2021": _on("auc", "claim"),
    "playground-series-s3e22": _on("f1_micro", "outcome"),
    "covid19-global-forecasting-week-3": _COVID,
    "liverpool-ion-switching": _on("f1_macro", "open_channels", by="time"),
    "playground-series-s3e20": _on("rmse", "emission", by="ID_LAT_LON_YEAR_WEEK"),
    "playground-series-s3e19": _on("smape", "num_sold"),
    "playground-series-s3e4": _on("auc", "Class"),
    "tabular-playground-series-feb-2021": _on("rmse", "target"),
    "tabular-playground-series-sep-2022": _on("smape", "num_sold", by="row_id"),
    "covid19-global-forecasting-week-1": _COVID,
    "playground-series-s3e7": _on("auc", "booking_status"),
    "tweet-sentiment-extraction": _on("jaccard", "selected_text", by="textID"),
    "santander-customer-satisfaction": _on("auc", "TARGET", by="ID"),
    "instant-gratification": _TARGET,
    "santander-customer-transaction-prediction": _on("auc", "target", by="ID_code"),
    # DSBench's script takes this other name, which is left of an earlier competition.
    "playground-series-s3e10": Competition(
        metric="log_loss", id="id", targets=("Class",), also={"Strength": "Class"}
    ),
    "tabular-playground-series-jan-2021": _on("rmse", "target"),
    # dsbench_modeling_eval.json
    "playground-series-s4e6": _on("accuracy", "Target"),
    "playground-series-s4e2": _on("accuracy", "NObeyesdad"),
    "playground-series-s4e1": _on("auc", "Exited"),
    "lmsys-chatbot-arena": _on("multi_log_loss", "winner_model_a", "winner_model_b", "winner_tie"),
    "playground-series-s3e2": _on("auc", "stroke"),
    "playground-series-s3e25": _on("median_ae", "Hardness"),
    "tabular-playground-series-jul-2021": _on(
        "rmsle",
        *("target_carbon_monoxide", "target_benzene", "target_nitrogen_oxides"),
        by="date_time",
    ),
    "playground-series-s4e3": _on(
        "auc", "Pastry", "Z_Scratch", "K_Scatch", "Stains", "Dirtiness", "Bumps", "Other_Faults"
    ),
}
"""Task id -> what it is scored by, in the order of MAPPA's files: 64 to train on, 8 to evaluate."""

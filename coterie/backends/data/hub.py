"""The data source `hub`: a dataset of the Hugging Face Hub, or a folder that `datasets` reads."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from pydantic import Field, model_validator

from coterie.backends.data.records import LocatedRecords, Shares
from coterie.backends.models.hub import hub, unfetched
from coterie.core.errors import ConfigError, MissingExtra
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split


class HubData(Plugin):
    """Records of `datasets.load_dataset(name, subset, revision=...)`; each row counts as a line."""

    class Config(Shares):
        name: str = Field(
            description="Id on the Hub, or a folder.",
            examples=["openai/gsm8k"],
            json_schema_extra={"format": "dataset-path"},
        )
        subset: str | None = None
        revision: str | None = Field(
            None, description="Branch, tag or commit; a commit makes the run repeatable."
        )
        splits: dict[Split, str] = Field(
            default_factory=dict,
            description="Coterie's split -> the dataset's split, e.g. {train: train, val: validation, "
            "test: test}. Empty: the dataset's `train`, split by content.",
        )

        exclusive = (("splits", "val_share test_share split_ignore"),)

        @model_validator(mode="after")
        def _shares_need_one_dataset_split(self) -> HubData.Config:
            if self.splits and self.model_fields_set & {"val_share", "test_share", "split_ignore"}:
                raise ValueError("val_share, test_share and split_ignore are for a dataset without `splits`")
            return self

    config: Config

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split.

        Raises:
            MissingExtra: datasets is not installed.
            ConfigError: `splits` lacks the split, or the dataset can't be loaded.
        """
        try:
            import datasets
        except ImportError:
            raise MissingExtra("datasets", "data", needed_by="data source 'hub'") from None
        settings, path = self.config, self.build.path
        if settings.splits and split not in settings.splits:
            raise ConfigError(
                f"`splits` doesn't name the dataset's split for '{split}'",
                path=f"{path}.splits",
                fix=f"set {path}.splits.{split}",
            )
        source_split = settings.splits.get(split, "train")
        reach = nullcontext("") if Path(settings.name).is_dir() else hub("dataset", settings.name)
        unreachable = ""
        try:
            with reach as unreachable:
                rows = datasets.load_dataset(
                    settings.name, settings.subset, split=source_split, revision=settings.revision
                )
        except (OSError, ValueError, RuntimeError) as error:
            if unreachable:
                raise unfetched("dataset", settings.name, unreachable, f"{path}.name", error) from error
            raise ConfigError(
                f"the dataset '{settings.name}' ({source_split}) can't be loaded",
                path=path,
                why=f"{type(error).__name__}: {error}",
            ) from error
        records = LocatedRecords(
            (dict(row), f"{settings.name}/{source_split}", line) for line, row in enumerate(rows, 1)
        )
        if settings.splits:
            return records
        return records.in_split(split, settings.val_share, settings.test_share, settings.split_ignore)

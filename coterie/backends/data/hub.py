"""The data source `hub`: a dataset of the Hugging Face Hub, or a folder that `datasets` reads."""

from __future__ import annotations

from pydantic import Field, model_validator

from coterie.backends.data.records import Records, Shares
from coterie.core.errors import ConfigError, MissingExtra
from coterie.core.plugins import Plugin
from coterie.core.types.splits import Split


class HubData(Plugin):
    """Records of `datasets.load_dataset(name, subset, revision=...)`; a row counts as a line."""

    class Config(Shares):
        name: str = Field(description="Id on the Hub, or a folder.")
        subset: str | None = None
        revision: str | None = Field(
            None, description="Branch, tag or commit; a commit makes the run repeatable."
        )
        splits: dict[Split, str] = Field(
            default_factory=dict,
            description="Our split -> the dataset's, e.g. {train: train, val: validation, "
            "test: test}. Empty: the dataset's `train`, split by content.",
        )

        @model_validator(mode="after")
        def _shares_need_one_body(self) -> HubData.Config:
            if self.splits and self.model_fields_set & {"val_share", "test_share", "split_ignore"}:
                raise ValueError("val_share, test_share and split_ignore are for a dataset without `splits`")
            return self

    config: Config

    def records(self, split: Split) -> Records:
        """The records of a split.

        Raises:
            MissingExtra: datasets is not installed.
            ConfigError: the split is not named, or the dataset can't be loaded.
        """
        try:
            import datasets
        except ImportError:
            raise MissingExtra("datasets", "data", needed_by="data source 'hub'") from None
        settings, path = self.config, self.build.path
        if settings.splits and split not in settings.splits:
            raise ConfigError(
                f"the dataset's name of split '{split}' is not given",
                path=f"{path}.splits",
                fix=f"set {path}.splits.{split}",
            )
        wanted = settings.splits.get(split, "train")
        try:
            rows = datasets.load_dataset(
                settings.name, settings.subset, split=wanted, revision=settings.revision
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"the dataset '{settings.name}' ({wanted}) can't be loaded",
                path=path,
                why=f"{type(error).__name__}: {error}",
            ) from error
        records = Records((dict(row), f"{settings.name}/{wanted}", line) for line, row in enumerate(rows, 1))
        if settings.splits:
            return records
        return records.part(split, settings.val_share, settings.test_share, settings.split_ignore)

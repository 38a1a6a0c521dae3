"""`dtype: auto`: float32 on a CPU, bfloat16 on a GPU."""

import logging

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.precision import SMALL, auto_dtype, warn_of_float32, with_dtype  # noqa: E402
from tests.backends.trainers.tiny import MODEL, opened, policy  # noqa: E402

pytestmark = pytest.mark.torch


def test_auto_is_resolved_by_the_device_and_a_named_dtype_stays():
    configs = {name: policy(dtype=name) for name in ("auto", "float32", "bfloat16")}
    assert TorchPolicy.model_validate({"model": MODEL, "train": "full"}).dtype == "auto"
    for device, chosen in (("cpu", "float32"), ("cuda", "bfloat16"), ("mps", "float32")):
        assert auto_dtype(device) == chosen
        resolved = {name: config.dtype for name, config in with_dtype(configs, device).items()}
        assert resolved == {"auto": chosen, "float32": "float32", "bfloat16": "bfloat16"}


def test_on_a_cpu_auto_trains_the_weights_of_float32():
    auto, named = opened({"p": policy()}), opened({"p": policy(dtype="float32")})
    assert auto.digest() == named.digest()
    assert auto._policies["p"].model.dtype == torch.float32


def test_auto_and_its_dtype_share_initial_weights():
    trainer = opened({"a": policy("lora"), "b": policy("lora", dtype="float32")})
    assert trainer.bases() == {"a": ("a", "b")}


def test_float32_on_a_gpu_is_warned_about_where_it_matters(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        warn_of_float32("p", "float32", "cpu", 10 * SMALL)
        warn_of_float32("p", "bfloat16", "cuda", 10 * SMALL)
        warn_of_float32("p", "float32", "cuda", SMALL // 10)
        assert not caplog.records
        warn_of_float32("p", "float32", "cuda", SMALL)
    assert "policies.p.dtype is float32 on a GPU" in caplog.text and "fp32 masters" in caplog.text

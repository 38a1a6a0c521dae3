"""`dtype: auto`: bfloat16 on a GPU, on a CPU float32 or what is faster; measurements are faked, but one."""

import logging
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.models import precision  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.precision import (  # noqa: E402
    CLEARLY,
    SMALL,
    Rates,
    auto_choice,
    choices,
    has_instructions,
    measured,
    warn_of_float32,
    with_dtype,
)
from coterie.backends.models.sizes import least_size  # noqa: E402
from tests.backends.trainers.tiny import MODEL, opened, policy  # noqa: E402

pytestmark = pytest.mark.torch

LARGE = {
    "init": "qwen3", "hidden_size": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128,
    "mlp_size": 3072, "tie_embeddings": True,
}  # fmt: skip


def large(**settings):
    return TorchPolicy.model_validate({"model": LARGE, "train": "full", **settings})


@pytest.fixture
def measurement(monkeypatch):
    """Sets the speeds that a measurement gives, and notes the widths that are asked for."""

    def fake(float32, bfloat16, instructions=True):
        def rates(*widths):
            fake.asked.append(widths)
            return Rates(float32, bfloat16)

        monkeypatch.setattr(precision, "measured", rates)
        monkeypatch.setattr(precision, "has_instructions", lambda: instructions)

    fake.asked = []
    return fake


def test_auto_is_resolved_by_the_device_and_a_named_dtype_stays(measurement):
    measurement(1, 9)  # faster than any CPU's: small models aren't measured
    configs = {name: policy(dtype=name) for name in ("auto", "float32", "bfloat16")}
    assert TorchPolicy.model_validate({"model": MODEL, "train": "full"}).dtype == "auto"
    for device, chosen in (("cpu", "float32"), ("cuda", "bfloat16"), ("mps", "float32")):
        assert auto_choice(configs["auto"], device).dtype == chosen
        resolved = {name: config.dtype for name, config in with_dtype(configs, device).items()}
        assert resolved == {"auto": chosen, "float32": "float32", "bfloat16": "bfloat16"}
    assert choices(configs, "cpu") == [] and not measurement.asked


@pytest.mark.parametrize(
    ("bfloat16", "chosen", "why"),
    [
        (205, "bfloat16", "its products take 0.44 of float32's time here (205 and 90 GFLOP/s a core)"),
        (117, "bfloat16", "its products take 0.77 of float32's time here (117 and 90 GFLOP/s a core)"),
        (116, "float32", "bfloat16 products take 0.78 of float32's time here (116 and 90 GFLOP/s a core)"),
    ],
)
def test_a_cpu_takes_bfloat16_for_large_models_where_it_is_clearly_faster(measurement, bfloat16, chosen, why):
    measurement(90, bfloat16)
    configs = {"a": large(), "b": large(train="lora"), "c": large(dtype="float32"), "small": policy()}
    assert [config.dtype for config in with_dtype(configs, "cpu").values()] == [
        chosen, chosen, "float32", "float32",
    ]  # fmt: skip
    assert choices(configs, "cpu") == [f"policies.a.dtype, policies.b.dtype: auto is {chosen}: {why}"]
    assert set(measurement.asked) == {(1024, 3072)}


def test_a_cpu_without_the_instructions_is_not_measured(measurement):
    measurement(90, 205, instructions=False)
    assert with_dtype({"a": large()}, "cpu")["a"].dtype == "float32"
    said = "policies.a.dtype: auto is float32: this CPU has no instructions for products in bfloat16"
    assert choices({"a": large()}, "cpu") == [said]
    assert not measurement.asked


def test_models_just_below_the_bound_keep_float32(measurement):
    measurement(90, 205)
    below, above = (large(model={**LARGE, "layers": layers}) for layers in (6, 7))
    sizes = [least_size(config, ()).parameters for config in (below, above)]
    assert sizes[0] < SMALL <= sizes[1]
    assert [auto_choice(config, "cpu").dtype for config in (below, above)] == ["float32", "bfloat16"]


def test_a_model_that_cannot_be_read_is_not_measured(measurement, tmp_path):
    measurement(90, 205)
    assert auto_choice(large(model=str(tmp_path)), "cpu").dtype == "float32"


@pytest.mark.parametrize("widths", [(576, 1536), (96, 100), (2**15, 2**16)])
def test_products_are_measured_in_a_moment_without_a_trace(widths):
    measured.cache_clear()
    before, began = torch.random.get_rng_state(), time.process_time()
    rates = measured(*widths)
    assert time.process_time() - began < 5
    assert 0.1 < rates.float32 < 1e5 and 0.1 < rates.bfloat16 < 1e5
    assert torch.equal(torch.random.get_rng_state(), before)
    assert measured(*widths) is rates  # once per process
    if not has_instructions():
        assert rates.bfloat16 < CLEARLY * rates.float32


def test_the_instructions_are_those_that_the_system_names():
    file = Path("/proc/cpuinfo")
    if not file.is_file() or "avx512f" not in file.read_text():
        pytest.skip("no Linux, or no x86 with AVX-512")
    flags = file.read_text().split()
    assert has_instructions() == bool({"avx512_bf16", "amx_bf16", "amx_tile"} & set(flags))


def test_on_a_cpu_auto_trains_the_weights_of_float32():
    auto, named = opened({"p": policy()}), opened({"p": policy(dtype="float32")})
    assert auto.digest() == named.digest()
    assert auto.policies["p"].model.dtype == torch.float32


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

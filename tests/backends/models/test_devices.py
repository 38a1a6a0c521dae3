"""What `deterministic` does on a CPU and, with PyTorch's switches replaced, on a GPU."""

import logging
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.models.devices import CUBLAS, device_of, fix_cublas, is_deterministic, repeatable  # noqa: E402
from coterie.core.errors import ConfigError, UserError  # noqa: E402

pytestmark = pytest.mark.torch

CPU, GPU = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")


@pytest.fixture
def cuda(monkeypatch):
    """A machine that seems to have a GPU; `started` says whether CUDA runs."""
    state = SimpleNamespace(started=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: state.started)
    monkeypatch.delenv(CUBLAS, raising=False)
    return state


@pytest.mark.parametrize(
    ("wanted", "device", "expected"),
    [("auto", CPU, True), ("auto", GPU, False), (True, GPU, True), (False, CPU, False), (False, GPU, False)],
)
def test_auto_is_true_on_a_cpu_and_false_on_a_gpu(wanted, device, expected):
    assert is_deterministic(wanted, device) is expected


def test_the_planners_device_counts_as_a_cpu():
    assert is_deterministic("auto", torch.device("meta"))


def test_cublas_is_set_before_cuda_starts(cuda, monkeypatch, caplog):
    import os

    for wanted in ("auto", False):
        fix_cublas(wanted=wanted)
        assert CUBLAS not in os.environ
    fix_cublas(wanted=True)
    assert os.environ[CUBLAS] == ":4096:8" and not caplog.records
    cuda.started = True
    fix_cublas(wanted=True)
    assert not caplog.records, "it was set in time"


@pytest.mark.parametrize(("started", "value"), [(True, None), (False, ":0:0")])
def test_what_comes_too_late_for_cublas_is_said(cuda, monkeypatch, caplog, started, value):
    cuda.started = started
    if value is not None:
        monkeypatch.setenv(CUBLAS, value)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        fix_cublas(wanted=True)
    (record,) = caplog.records
    assert f"set {CUBLAS}=:4096:8" in record.getMessage()


def test_without_a_gpu_the_environment_stays_as_it_is(monkeypatch):
    import os

    monkeypatch.delenv(CUBLAS, raising=False)
    fix_cublas(wanted=True)
    assert (CUBLAS in os.environ) is torch.cuda.is_available()


def test_the_strict_mode_is_on_for_a_gpu_alone_and_ends():
    def modes():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    before = modes()
    for wanted, device in ((True, CPU), ("auto", GPU), (False, GPU)):
        with repeatable(wanted, device):
            assert modes() == before
    with repeatable(True, GPU):
        # With warn_only, the backward passes of fused attention would keep their order of sums open.
        assert modes() == (True, False)
    assert modes() == before
    with pytest.raises(ValueError, match="x"), repeatable(True, GPU):
        raise ValueError("x")
    assert modes() == before


def test_an_operation_without_a_deterministic_kernel_is_named():
    with pytest.raises(UserError, match="can't be repeated bit for bit") as caught, repeatable(True, GPU):
        raise RuntimeError("put_ does not have a deterministic implementation, but you set ...")
    assert "put_" in caught.value.why and "deterministic=auto" in caught.value.fix
    with pytest.raises(RuntimeError, match="shapes"), repeatable(True, GPU):
        raise RuntimeError("shapes differ")


def test_an_unknown_device_is_refused_with_its_key():
    with pytest.raises(ConfigError, match="no device 'cuda:99'") as caught:
        device_of("cuda:99", "engine.device")
    assert caught.value.path == "engine.device"

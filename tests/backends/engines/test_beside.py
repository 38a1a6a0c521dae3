"""Where generation and updates compute on the same hardware at once, a warning says what to expect."""

from __future__ import annotations

import logging

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.engines import requests  # noqa: E402
from coterie.backends.engines.vllm import own_process  # noqa: E402
from coterie.backends.engines.vllm.server import ServerSpec  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(("threads", "cores", "warned"), [(1, 2, False), (2, 4, False), (2, 2, True)])
def test_on_a_cpu_it_counts_threads_and_cores(monkeypatch, threads, cores, warned):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    text = requests.on_device(torch.device("cpu"))
    assert ("OMP_NUM_THREADS=1" in text) == warned == bool(text)


def test_on_a_gpu_it_names_the_gpu():
    text = requests.on_device(torch.device("cuda", 3))
    assert "GPU 3" in text and "engine.devices" in text
    assert "GPUs 2, 3" in requests.on_gpus((2, 3))


@pytest.mark.parametrize(("gpus", "ahead", "warned"), [(1, True, True), (2, True, False), (1, False, False)])
def test_a_vllm_on_the_trainers_gpu_says_so_once(monkeypatch, caplog, gpus, ahead, warned):
    """vLLM itself is not started: the places are known before."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(own_process, "trainer_gpus", lambda: (0,))
    settings = own_process_settings()
    server = own_process.OwnProcessServer(
        ServerSpec(name="solver", model="m", beside_updates=ahead, settings=settings)
    )

    def launch(*_):
        raise LookupError("no vLLM here")

    monkeypatch.setattr(own_process, "launch", launch)
    import asyncio

    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # a restart opens it again
            with pytest.raises(LookupError):
                asyncio.run(server.open())
    assert caplog.text.count("share GPU 0") == warned


def own_process_settings():
    from coterie.backends.engines.vllm.settings import VLLMConfig

    return VLLMConfig(process="own")

"""Chat models for tests of the coach: scripted answers, recorded requests."""

from __future__ import annotations

import asyncio

from coterie import ChatAnswer, Plugin, PluginConfig, SystemFault


class Scripted(Plugin):
    """Answers with the texts in turn, from the start again after the last; `FAULT` is a SystemFault."""

    class Config(PluginConfig):
        texts: tuple[str, ...] = ("PROCESS_SCORE: 8\nREASONING: sound",)
        versions: tuple[str, ...] = ("scripted-1",)
        structured: bool = False
        delay: float = 0.0
        finish: str = "stop"
        fault: str = "the server is gone"

    def __init__(self, config, build):
        super().__init__(config, build)
        self.structured = config.structured
        self.asked = []

    async def answer(self, request):
        number = len(self.asked)
        self.asked.append(request)
        if self.config.delay:
            await asyncio.sleep(self.config.delay)
        text = self.config.texts[number % len(self.config.texts)]
        if text == "FAULT":
            raise SystemFault(self.config.fault)
        version = self.config.versions[min(number, len(self.config.versions) - 1)]
        return ChatAnswer(text=text, version=version, finish=self.config.finish)

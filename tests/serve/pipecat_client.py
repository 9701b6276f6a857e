"""Two turns through pipecat's own Gradium service; prints the words and the number of ends. Its argument is the URL."""

from __future__ import annotations

import asyncio
import sys

from pipecat.frames.frames import EndFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame, TTSStoppedFrame, TTSTextFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.gradium.tts import GradiumTTSService


class Sink(FrameProcessor):
    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.ends = asyncio.Semaphore(0)
        self.ended = self.audio = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
        elif isinstance(frame, TTSTextFrame):
            self.words.append(frame.text)
        elif isinstance(frame, TTSStoppedFrame):
            self.ended += 1
            self.ends.release()
        await self.push_frame(frame, direction)


async def main() -> None:
    tts, sink = GradiumTTSService(api_key="k", url=sys.argv[1]), Sink()
    task = PipelineTask(Pipeline([tts, sink]))

    async def drive() -> None:
        for text in ("hello big world", "second one"):
            await task.queue_frame(TTSSpeakFrame(text))
            await sink.ends.acquire()
        await task.queue_frame(EndFrame())

    await asyncio.wait_for(asyncio.gather(PipelineRunner(handle_sigint=False).run(task), drive()), 40)
    assert sink.audio
    print(" ".join(sink.words), "|", sink.ended)


asyncio.run(main())

"""Callbacks that report how training is going."""

import os
import pathlib
import sys
import time

import keras
import numpy as np

from keras_tfm.common import extras, files
from keras_tfm.common.progress import duration, redraws


class TokensPerSecond(keras.callbacks.Callback):
    """Adds `tokens/s` to the progress bar and the logs.

    Args:
        tokens_per_step: mean number of labels in a batch, without padding.
    """

    async_safe = True  # Keras may call `on_train_batch_end` in another thread, while the next steps run

    def __init__(self, tokens_per_step: float):
        super().__init__()
        self.tokens_per_step = tokens_per_step

    def on_epoch_begin(self, epoch, logs=None):
        self.first = None

    def on_train_batch_end(self, batch, logs=None):
        self.last = batch, time.perf_counter()  # here, since validation comes before `on_epoch_end`
        self.first = self.first or self.last  # not counted, since the first step compiles
        self.on_epoch_end(None, logs)

    def on_epoch_end(self, epoch, logs=None):
        (first, began), (last, ended) = self.first, self.last
        if logs is not None and last > first:
            logs["tokens/s"] = round((last - first) * self.tokens_per_step / (ended - began))


class TensorBoardScalars(keras.callbacks.Callback):
    """Writes the metrics of each epoch for TensorBoard. Unlike Keras' own callback, it does not need TensorFlow.

    Args:
        folder: where to write event files; `tensorboard --logdir folder` shows them.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        super().__init__()
        self.folder, self.module = pathlib.Path(folder), extras.load("tensorboard.summary.writer.event_file_writer")

    def on_train_begin(self, logs=None):
        with files.writing(self.folder):
            self.writer = self.module.EventFileWriter(str(self.folder))

    def on_epoch_end(self, epoch, logs=None):
        if not self.folder.exists():  # someone deleted it
            self.on_train_begin()
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in (logs or {}).items()]
        with files.writing(self.folder):
            self.writer.add_event(Event(wall_time=time.time(), step=epoch + 1, summary=Summary(value=values)))
            self.writer.flush()

    def on_train_end(self, logs=None):
        with files.writing(self.folder):
            self.writer.close()


class TimeEstimate(keras.callbacks.Callback):
    """Prints once, after a few steps of a `TrainingRun`, how long training will take; and a hint if that is long."""

    AFTER, LONG = 12, 1800  # steps to measure, since the first ones compile; seconds
    async_safe = True

    def __init__(self, run, steps, hint=""):
        super().__init__()
        self.run, self.steps, self.hint, self.times = run, steps, hint, []

    def on_train_batch_end(self, batch, logs=None):
        if len(self.times) > self.AFTER:
            return
        self.times.append(time.monotonic())
        if len(self.times) > self.AFTER:
            step, left = float(np.median(np.diff(self.times))), self.steps - self.run.first_step - batch - 1
            hint = f"\n{self.hint}" if self.hint and left * step > self.LONG else ""
            newline = "\n" * redraws()  # after Keras' bar
            later = "" if keras.backend.backend() == "torch" else ", and to compile other shapes"
            what = f"about {duration(left * step)} for {left:,} steps of {step:.2g} s{later}{hint}"
            print(f"{newline}{what}", file=sys.stderr)

"""Batches of real servers, and the bounds of the queue."""

import asyncio

import pytest
from conftest import once
from http_server import PAIRS, PREDICT, needs_extra, served

from keras_tfm import serving
from keras_tfm.serving.queue import Queue, Text
from keras_tfm.serving.responses import Unavailable

pytestmark = [once, pytest.mark.xdist_group("serving")]


@needs_extra
def test_texts_of_several_clients_share_a_batch_and_a_full_queue_is_reported(tmp_path, clients):
    with served(tmp_path / "log", "--max_wait=2000", "--max_queue=16", "--max_texts=16", "--max_batch=16") as server:
        answers = [clients.submit(server.post, [text]) for text, _ in PAIRS[:15]]
        server.wait(lambda: server.metric("queue_texts") == 15)
        status, _, headers = server.ask(PREDICT, b'{"instances": ["a", "b"]}')
        assert (status, headers["Retry-After"]) == (503, "1")
        assert server.post([PAIRS[15][0]]) == (200, [PAIRS[15][1]])  # which fills the batch
        assert [answer.result() for answer in answers] == [(200, [date]) for _, date in PAIRS[:15]]
        assert (server.metric("batch_texts_count"), server.metric("batch_texts_sum")) == (1, 16)


@needs_extra
def test_a_request_is_divided_into_batches_and_the_log_can_be_switched_off(tmp_path):
    with served(tmp_path / "log", "--max_batch=24", "--no-log", "--workers=2") as server:
        assert server.post([text for text, _ in PAIRS]) == (200, [date for _, date in PAIRS])
        assert server.metric("batch_texts_count") == 3
    assert server.events()[-1] == "stopped" and not server.events("status")


def test_a_text_of_many_lines_counts_as_many_texts():
    """A batch has at most `max_batch` of them, unless one text alone has more."""

    async def batches():
        queue = Queue(serving.Settings(max_batch=4, max_queue=16, max_texts=16))
        future = asyncio.get_running_loop().create_future
        queue.texts.extend(Text("", sentences, future()) for sentences in (1, 2, 2, 9, 1))
        with pytest.raises(
            Unavailable, match="at most 16 texts may wait for a translation: try again later. Received: 2 more"
        ):
            queue.check_capacity(2)
        queue.check_capacity(1)
        return [[text.sentences for text in queue._take()] for _ in range(4)]

    assert asyncio.run(batches()) == [[1, 2], [2], [9], [1]]

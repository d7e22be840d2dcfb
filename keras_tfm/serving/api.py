"""What the server answers to each path."""

import http
import time

from keras_tfm.serving import bodies
from keras_tfm.serving.answers import Answer, Refused
from keras_tfm.serving.predict import Reader, largest_body

MODEL = "/v1/models/translator"


class Api:
    """Answers requests. For one thread, that of the event loop.

    Args:
        workers, queue, settings, log, metrics: the parts of the server.
        stopping: a function that tells whether the server is stopping.
    """

    def __init__(self, workers, queue, settings, log, metrics, stopping):
        self.workers, self.queue, self.settings, self.log, self.metrics = workers, queue, settings, log, metrics
        self.stopping = stopping
        self._reader = Reader(settings.max_texts, settings.max_characters)
        self._largest_body = largest_body(settings.max_texts, settings.max_characters)
        self._budget = bodies.Budget(3 * self._largest_body // 2)
        self._routes = {
            "/healthz": ("GET", self.health),
            "/readyz": ("GET", self.ready),
            "/metrics": ("GET", self.figures),
            MODEL: ("GET", self.status),
            f"{MODEL}:predict": ("POST", self.predict),
        }

    async def answer(self, request):
        """The `Answer` to a `Request`."""
        if request.path not in self._routes:
            return self._refused(request, 404)
        method, handler = self._routes[request.path]
        if request.method != method and (request.method, method) != ("HEAD", "GET"):
            return self._refused(request, 405, Allow=method)
        return await handler(request)

    def _refused(self, request, status, **headers):
        """The answer to a request for what is not there, which is counted and logged: a client may be mistaken."""
        self.metrics.requests.labels(status).inc()
        if self.settings.log:
            self.log.say_seldom(status, status=status, method=request.method[:20], path=request.path[:100])
        return Answer.json({"error": http.HTTPStatus(status).phrase}, status, headers)

    async def predict(self, request):
        """Translates the texts of a request."""
        start, texts, waited = time.monotonic(), [], 0.0
        try:
            self.workers.check()
            self.queue.check_room()  # before a large body is read in vain
            with self._budget.account() as account:
                body = await bodies.read(request, self._largest_body, account)
                texts, pieces, key = await self._reader.read(body, self.workers.max_length)
                del body  # which is large, and may wait for long
                answers, waited = await self.queue.translate(texts, pieces)
            answer = Answer.json({key: answers})
        except Refused as refusal:
            answer = refusal.answer
        seconds = time.monotonic() - start
        self.metrics.requests.labels(answer.status).inc()
        self.metrics.request_seconds.observe(seconds)
        if self.settings.log:
            times = {"milliseconds": round(1000 * seconds, 1), "waited": round(1000 * waited, 1)}
            line = {"status": answer.status, "texts": len(texts), "characters": sum(map(len, texts)), **times}
            if answer.status == 200:
                self.log.say(**line)
            else:  # it costs a client nothing to be refused
                self.log.say_seldom(answer.status, **line)
        return answer

    async def status(self, _):
        """As TensorFlow Serving answers."""
        state = "UNLOADING" if self.stopping() else "AVAILABLE" if self.workers.ready else "LOADING"
        version = {"version": str(self.workers.version), "state": state}
        version["status"] = {"error_code": "OK", "error_message": ""}
        return Answer.json({"model_version_status": [version]})

    async def health(self, _):
        return Answer.text("alive")

    async def ready(self, _):
        state = "stopping" if self.stopping() else "ready" if self.workers.ready else "loading"
        return Answer.text(state, 200 if state == "ready" else 503)

    async def figures(self, _):
        return Answer(200, self.metrics.written(), self.metrics.media_type)

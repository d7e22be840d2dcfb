"""What the server answers to each path."""

import asyncio
import http
import time

from keras_tfm.serving.bodies import BodyReader
from keras_tfm.serving.predict import largest_body, read_prediction
from keras_tfm.serving.responses import RequestError, Response

MODEL = "/v1/models/translator"


class Api:
    """Answers requests; `stopping` tells whether the server is stopping. For one thread, that of the event loop."""

    def __init__(self, workers, queue, settings, log, metrics, stopping):
        self.workers, self.queue, self.settings, self.log, self.metrics = workers, queue, settings, log, metrics
        self.stopping = stopping
        self._limits = settings.max_texts, settings.max_characters
        self._bodies, self._parsing = BodyReader(largest_body(*self._limits)), asyncio.Lock()
        self._pages = {
            "/healthz": lambda: Response.text("alive"),
            "/readyz": self.ready,
            "/metrics": metrics.response,
            MODEL: self.status,
        }

    async def respond(self, request):
        """The `Response` to a `Request`."""
        predict = request.path == f"{MODEL}:predict"
        if not predict and request.path not in self._pages:
            return self._refuse(request, 404)
        methods = ["POST"] if predict else ["GET", "HEAD"]
        if request.method not in methods:
            return self._refuse(request, 405, Allow=methods[0])
        return await self.predict(request) if predict else self._pages[request.path]()

    def _refuse(self, request, status, **headers):
        self.metrics.requests.labels(status).inc()
        if self.settings.log:
            self.log.write_rate_limited(status, status=status, method=request.method[:20], path=request.path[:100])
        return Response.json({"error": http.HTTPStatus(status).phrase}, status, headers)

    async def predict(self, request):
        """Translates the texts of a request."""
        start, texts, waited = time.monotonic(), [], 0.0
        try:
            self.workers.check()
            self.queue.check_capacity()  # before a large body is read in vain
            body = await self._bodies.read(request)
            prediction = read_prediction(body, self._parsing, *self._limits, self.workers.max_length)
            texts, sentences, key = await prediction
            del body  # which is large, and may wait for long
            translations, waited = await self.queue.translate(texts, sentences)
            response = Response.json({key: translations})
        except RequestError as error:
            response = error.response
        finally:
            self._bodies.release(request)
        seconds = time.monotonic() - start
        self.metrics.requests.labels(response.status).inc()
        self.metrics.request_seconds.observe(seconds)
        if self.settings.log:
            times = {"milliseconds": round(1000 * seconds, 1), "waited": round(1000 * waited, 1)}
            line = {"status": response.status, "texts": len(texts), "characters": sum(map(len, texts)), **times}
            if response.status == 200:
                self.log.write(**line)
            else:  # a client can be refused as often as it likes
                self.log.write_rate_limited(response.status, **line)
        return response

    def status(self):
        """The state of the model, as TensorFlow Serving reports it."""
        state = "UNLOADING" if self.stopping() else "AVAILABLE" if self.workers.ready else "LOADING"
        version = {"version": str(self.workers.version), "state": state}
        version["status"] = {"error_code": "OK", "error_message": ""}
        return Response.json({"model_version_status": [version]})

    def ready(self):
        state = "stopping" if self.stopping() else "ready" if self.workers.ready else "loading"
        return Response.text(state, 200 if state == "ready" else 503)

"""The server's response to each path."""

import asyncio
import http
import time

from keras_tfm.serving.bodies import BodyReader
from keras_tfm.serving.predict import Prediction, largest_body, read_prediction
from keras_tfm.serving.queue import Results
from keras_tfm.serving.responses import RequestError, Response

MODEL = "/v1/models/translator"
UNTRANSLATED = "Untranslated"  # header with the places of texts, counted from 0
MAX_PLACES = 1000  # in that header, since clients bound the size of a head


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
        start, prediction, results = time.monotonic(), Prediction([], [], 0, ""), Results([], [], 0.0)
        try:
            self.workers.check()
            self.queue.check_capacity()  # before a large body is read in vain
            body = await self._bodies.read(request)
            prediction = await read_prediction(body, self._parsing, *self._limits, self.workers.model)
            del body  # which is large, and may wait for long
            results = await self.queue.translate(prediction.texts, prediction.sentences)
            response = Response.json({prediction.key: results.translations}, headers=_headers(results))
        except RequestError as error:
            response = error.response
        finally:
            self._bodies.release(request)
        seconds = time.monotonic() - start
        self.metrics.requests.labels(response.status).inc()
        self.metrics.request_seconds.observe(seconds)
        if self.settings.log:
            times = {"milliseconds": round(1000 * seconds, 1), "waited": round(1000 * results.waited, 1)}
            line = {"status": response.status, "texts": len(prediction.texts), "characters": prediction.characters}
            line |= times | ({"untranslated": len(results.untranslated)} if results.untranslated else {})
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
        model = self.workers.model
        languages = {"languages": model.languages, "target_language": model.target_language}
        return Response.json({"model_version_status": [version]} | (languages if model.languages else {}))

    def ready(self):
        state = "stopping" if self.stopping() else "ready" if self.workers.ready else "loading"
        return Response.text(state, 200 if state == "ready" else 503)


def _headers(results):
    """Says which texts came back as they were; the body has no place for it in TensorFlow Serving's format."""
    places = results.untranslated[:MAX_PLACES]
    return {UNTRANSLATED: ", ".join(map(str, places))} if places else {}

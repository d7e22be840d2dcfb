"""Serves an exported SavedModel over HTTP, with the requests and responses of TensorFlow Serving's REST API.

    pip install '.[serve,tensorflow,text]'
    SAVED_MODEL=saved_models/dates/saved_model python examples/serve.py --address 127.0.0.1 --port 8501
    curl -d '{"instances": ["3. Mai 2023"]}' localhost:8501/v1/models/translator:predict

A request may name a signature of the SavedModel: {"instances": […], "signature_name": "translate"}.
"""

import os

from mosec import Server, ValidationError, Worker


class Signatures(Worker):
    def __init__(self):
        import tensorflow as tf  # only in the worker's process
        import tensorflow_text  # noqa: F401, operators of the tokenizers

        self.tf, self.signatures = tf, tf.saved_model.load(os.environ["SAVED_MODEL"]).signatures
        self.forward({"instances": ["a"]})  # warms up, so that the first request does not wait

    def forward(self, request):
        try:
            signature = self.signatures[request.get("signature_name", "serving_default")]
            ((name, spec),) = signature.structured_input_signature[1].items()
            values = self.tf.constant(request["instances"], spec.dtype)
            if len(values.shape) != len(spec.shape):
                raise ValueError(request["instances"])
            outputs = signature(**{name: values})
        except (KeyError, TypeError, ValueError, AttributeError, self.tf.errors.OpError) as error:
            rule = f"`instances` must be a list of inputs of a signature, one of {', '.join(self.signatures)}"
            raise ValidationError(rule) from error
        found = {name: readable(value.numpy().tolist()) for name, value in outputs.items()}
        if len(found) == 1:
            return {"predictions": next(iter(found.values()))}
        return {"predictions": [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]}


def readable(value):
    """Decodes bytes in nested lists."""
    if isinstance(value, list):
        return [readable(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    server = Server()
    server.append_worker(Signatures, timeout=60, route="/v1/models/translator:predict")
    server.run()

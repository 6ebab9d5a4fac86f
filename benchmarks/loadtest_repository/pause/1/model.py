"""Its input, 40 ms later: a service time that a busy machine changes little, for two senders to agree on."""

import time

import triton_python_backend_utils as pb_utils

PAUSE_S = 0.04


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(PAUSE_S)
            values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)]))
        return responses

"""Answers at once with the text it was sent."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [
                    pb_utils.Tensor(
                        "text_output", pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
                    )
                ]
            )
            for request in requests
        ]

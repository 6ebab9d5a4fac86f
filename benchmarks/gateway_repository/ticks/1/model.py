"""Streams responses at a steady rate; each says when it was sent, on the clock that all processes here share."""

import heapq
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.due, self.changed, self.number = [], threading.Condition(), 0
        threading.Thread(target=self.send, daemon=True).start()

    def execute(self, requests):
        for request in requests:
            count, every_s = pb_utils.get_input_tensor_by_name(request, "TIMES").as_numpy()
            with self.changed:
                self.push(time.monotonic() + every_s, request.get_response_sender(), int(count), every_s)
                self.changed.notify()

    def push(self, at_s, sender, left, every_s):
        self.number += 1
        heapq.heappush(self.due, (at_s, self.number, sender, left, every_s))

    def send(self):
        while True:
            with self.changed:
                while not self.due or self.due[0][0] > time.monotonic():
                    self.changed.wait(self.due[0][0] - time.monotonic() if self.due else None)
                at_s, _, sender, left, every_s = heapq.heappop(self.due)
            is_last = left <= 1
            tensor = pb_utils.Tensor("SENT_S", np.array([time.monotonic()]))
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
            sender.send(pb_utils.InferenceResponse([tensor]), flags=flags)
            if not is_last:
                with self.changed:
                    self.push(at_s + every_s, sender, left - 1, every_s)

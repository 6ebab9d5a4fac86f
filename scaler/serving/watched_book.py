"""The book as the loop follows it: what is served and no policy names is looked at too, and never changed."""

from __future__ import annotations

from collections.abc import Sequence

from scaler.deciding.decision import Floor, Spec
from scaler.deciding.policy import ModelPolicy, Policy
from scaler.serving.book import Book


class WatchedBook:
    """`served`: names of models."""

    def __init__(self, book: Book, served: Sequence[str]) -> None:
        self._book = book
        self._served = tuple(served)
        self._seen: Policy | None = None
        self._policy = Policy()

    @property
    def policy(self) -> Policy:
        if self._book.policy is not self._seen:
            self._seen = self._book.policy
            observed = {name: ModelPolicy() for name in self._served}
            self._policy = Policy(models=observed | self._seen.models)
        return self._policy

    def spec(self, model: str, now: float, lead_s: float, forecast: Floor | None) -> Spec:
        if model in self._served and not self._book.is_managed(model):
            words = "observed only, the policy does not name it"
            return Spec(model, ModelPolicy(), lead_s, is_paused=True, pause_words=words)
        return self._book.spec(model, now, lead_s, forecast)

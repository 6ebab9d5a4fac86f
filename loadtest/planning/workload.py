"""What a request says: the same call for the same plan, seed and number, in whichever process makes it.

Texts are words of `words.py`, one token each. A call's draws come from the seed and its number, so none depends on
which others were made.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from contracts.recorded_rows import BLOCK_TOKENS, Rows
from loadtest.call import Call, Tensor
from loadtest.planning.draws import draw_length, recorded_length, rows_for
from loadtest.planning.lengths import FromTrace, Length
from loadtest.planning.load import Replay
from loadtest.planning.plan import Plan
from loadtest.planning.replay import rows_of
from loadtest.planning.schedule import Schedule, shares
from loadtest.planning.users import ChatUser, EmbedUser, GenerateUser, TensorInput, TensorUser, User
from loadtest.planning.words import text_of

_CALLS, _TEXTS, _SYSTEMS, _BLOCKS, _CLOSED_USERS = 11, 12, 13, 14, 15
"""Streams of random numbers of their own, apart from the schedule's."""


def call_of(plan: Plan, schedule: Schedule, index: int) -> Call:
    """Call number `index`, with its later turns. Of a closed loop any number from 0 on, due at 0.

    A later turn's `messages` are only what is new in it.
    """
    if schedule.closed is None:
        number, row, copy = int(schedule.user[index]), int(schedule.row[index]), int(schedule.copy[index])
        t_s = float(schedule.t_intended_s[index])
    else:
        number, row, copy, t_s = _user_of(plan, index), -1, 0, 0.0
    replayed = rows_of(plan.load.trace) if isinstance(plan.load, Replay) else None
    return _made(_Maker(plan.seed, index, t_s, row, copy, replayed), plan.users[number], number)


def one_call(user: User, number: int, seed: int, index: int) -> Call:
    """A call of one user, without a plan or a schedule: due at 0. `number`: the user's, for its system prompt."""
    return _made(_Maker(seed, index, 0.0, -1, 0, None), user, number)


def _made(maker: _Maker, user: User, number: int) -> Call:
    match user:
        case ChatUser():
            return maker.chat(user, number)
        case GenerateUser():
            return maker.generate(user, number)
        case EmbedUser():
            return maker.embed(user)
        case TensorUser():
            return maker.tensors(user)


def _user_of(plan: Plan, index: int) -> int:
    rng = np.random.default_rng((plan.seed, _CLOSED_USERS, index))
    return int(rng.choice(len(plan.users), p=shares(plan)))


@dataclass(frozen=True)
class _Maker:
    """One call's draws."""

    seed: int
    index: int
    t_s: float
    row: int
    copy: int
    replayed: Rows | None
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rng", np.random.default_rng((self.seed, _CALLS, self.index)))

    def chat(self, user: ChatUser, number: int) -> Call:
        turns = int(self.rng.integers(user.turns.min, user.turns.max, endpoint=True))
        session = f"{user.name}-{self.index}" if turns > 1 else ""
        first, *later = [self._chat_turn(user, number, turn, session) for turn in range(turns)]
        return replace(first, later_turns=tuple(later))

    def _chat_turn(self, user: ChatUser, number: int, turn: int, session: str) -> Call:
        prompt, tokens = self._prompt_and_output(user.prompt_tokens, user.output_tokens)
        system = self._system(user, number) if turn == 0 else ""
        messages = [{"role": "system", "content": system}] if system else []
        return Call(
            index=self.index,
            t_intended_s=self.t_s if turn == 0 else 0.0,
            user=user.name,
            protocol="openai_chat",
            service=user.service,
            messages=[*messages, {"role": "user", "content": prompt}],
            max_tokens=tokens,
            force_length=user.force_length,
            temperature=user.temperature,
            seed=self._sampling_seed,
            session=session,
            think_s=float(self.rng.exponential(user.think_s)) if turn else 0.0,
            headers=tuple(user.headers.items()),
        )

    def generate(self, user: GenerateUser, number: int) -> Call:
        prompt, tokens = self._prompt_and_output(user.prompt_tokens, user.output_tokens)
        system = self._system(user, number)
        return Call(
            index=self.index,
            t_intended_s=self.t_s,
            user=user.name,
            protocol="grpc_generate",
            service=user.service,
            texts=(f"{system} {prompt}" if system else prompt,),
            max_tokens=tokens,
            force_length=user.force_length,
            temperature=user.temperature,
            seed=self._sampling_seed,
            headers=tuple(user.headers.items()),
        )

    def embed(self, user: EmbedUser) -> Call:
        return Call(
            index=self.index,
            t_intended_s=self.t_s,
            user=user.name,
            protocol="openai_embeddings",
            service=user.service,
            texts=tuple(self._text(user.prompt_tokens) for _ in range(user.texts)),
            headers=tuple(user.headers.items()),
        )

    def tensors(self, user: TensorUser) -> Call:
        return Call(
            index=self.index,
            t_intended_s=self.t_s,
            user=user.name,
            protocol="grpc_tensors",
            service=user.service,
            tensors=tuple(self._tensor(each, user.prompt_tokens) for each in user.inputs),
            headers=tuple(user.headers.items()),
        )

    def _tensor(self, wanted: TensorInput, length: Length) -> Tensor:
        size = math.prod(wanted.shape)
        values: list[float] | list[int] | list[str] | list[bool]
        if wanted.datatype == "BYTES":
            values = [self._text(length) for _ in range(size)]
        elif wanted.datatype in ("FP32", "FP64"):
            values = self.rng.random(size).tolist()
        elif wanted.datatype == "BOOL":
            values = (self.rng.random(size) < 0.5).tolist()
        else:
            values = self.rng.integers(10, size=size).tolist()
        return Tensor(wanted.name, wanted.datatype, wanted.shape, values)

    def _prompt_and_output(self, prompt: Length, output: Length) -> tuple[str, int]:
        """Where both come from one trace, both are of one row."""
        share = float(self.rng.random())
        text = self._text(prompt, share)
        if isinstance(output, FromTrace):
            rows, row = self._row(output, share)
            return text, recorded_length(output, int(rows.output_tokens[row]))
        return text, draw_length(output, self.rng)

    def _text(self, length: Length, share: float | None = None) -> str:
        if not isinstance(length, FromTrace):
            return self._fresh(draw_length(length, self.rng))
        rows, row = self._row(length, float(self.rng.random()) if share is None else share)
        num_tokens = recorded_length(length, int(rows.input_tokens[row]))
        if blocks := rows.blocks[row]:
            return self._of_blocks(blocks, num_tokens, max(1, round(BLOCK_TOKENS * length.scale)))
        return self._fresh(num_tokens)

    def _fresh(self, num_tokens: int) -> str:
        """Like no other call's text, so no cache knows it."""
        return text_of(num_tokens, self.seed, _TEXTS, self.index, int(self.rng.integers(2**32)))

    def _row(self, length: FromTrace, share: float) -> tuple[Rows, int]:
        rows = rows_for(length, self.replayed)
        is_replayed = length.trace is None or rows is self.replayed
        return rows, self.row if is_replayed else int(share * len(rows))

    def _of_blocks(self, blocks: tuple[int, ...], num_tokens: int, block_tokens: int) -> str:
        """A recorded prefix that two requests share is shared text. Of a copy only the first block is, as between
        any two sessions: else the copies would find each other in the cache."""
        texts = []
        rest = num_tokens
        for at, block in enumerate(blocks):
            if rest <= 0:
                break
            texts.append(text_of(min(rest, block_tokens), self.seed, _BLOCKS, block, self.copy if at else 0))
            rest -= block_tokens
        if rest > 0:
            texts.append(self._fresh(rest))
        return " ".join(texts)

    def _system(self, user: ChatUser | GenerateUser, number: int) -> str:
        if not user.system_tokens:
            return ""
        which = int(self.rng.integers(user.system_prompts))
        return text_of(user.system_tokens, self.seed, _SYSTEMS, number, which)

    @property
    def _sampling_seed(self) -> int:
        return (self.seed + self.index) % 2**31

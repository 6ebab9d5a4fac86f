"""The encoder's runner: buckets of texts, contexts, signs of life."""

import pytest
import torch
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from python_backend.worker.encoder import EncoderRunner
from python_backend.worker.skeleton import max_context_tokens

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "initializer_range": 0.2,
}


class WordTokenizer:
    """A text is its tokens: "3 4 5"."""

    def encode_batch(self, texts):
        return [type("Encoding", (), {"ids": [int(word) for word in text.split()]}) for text in texts]


@pytest.fixture
def bert():
    torch.manual_seed(0)
    return BertModel(BertConfig(**SIZES, max_position_embeddings=300)).eval()


def text_of(length: int) -> str:
    return " ".join(str(2 + i % 30) for i in range(length))


def test_a_long_text_among_short_ones_is_not_their_length(bert):
    """Two forwards, and the vectors are those of each text alone."""
    shapes = []
    bert.register_forward_pre_hook(
        lambda *args: shapes.append(list(args[2]["input_ids"].shape)), with_kwargs=True
    )
    texts = [text_of(8)] * 15 + [text_of(250)] + [text_of(9)] * 16
    vectors, num_tokens, _ = EncoderRunner(bert, WordTokenizer(), 300).embed(texts)
    assert shapes == [[31, 9], [1, 250]]
    assert num_tokens[15] == 250
    for index in (0, 15, 31):
        (alone,), _, _ = EncoderRunner(bert, WordTokenizer(), 300).embed([texts[index]])
        torch.testing.assert_close(vectors[index], alone, atol=1e-5, rtol=1e-4)


def test_every_layer_of_every_forward_is_a_sign_of_life(bert):
    """Two buckets, two forwards: twice as many as for one."""
    runner, beats = EncoderRunner(bert, WordTokenizer(), 300), []
    runner.watch(lambda: beats.append(1))
    runner.embed([text_of(8)])
    per_forward = len(beats)
    assert per_forward > 2 * SIZES["num_hidden_layers"]
    runner.embed([text_of(8)] * 8 + [text_of(250)])
    assert len(beats) == 3 * per_forward


def test_robertas_table_holds_fewer_tokens_than_rows():
    """Positions begin at padding_idx + 1: 20 rows hold 18 tokens. One more would read beyond the table."""
    model = RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=20, pad_token_id=1)).eval()
    assert max_context_tokens(model, 0) == 18
    runner = EncoderRunner(model, WordTokenizer(), max_context_tokens(model, 0))
    vectors, _, errors = runner.embed([text_of(18), text_of(19)])
    assert torch.isfinite(vectors[0]).all()
    assert errors == {1: "the text has 19 tokens, 18 fit the model's context"}


def test_berts_table_holds_as_many_tokens_as_rows(bert):
    """Or as many as are wanted."""
    assert max_context_tokens(bert, 0) == 300
    assert max_context_tokens(bert, 7) == 7

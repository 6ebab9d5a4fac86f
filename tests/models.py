"""The two fetched models, for tests that need real weights."""

from pathlib import Path

import pytest

from contracts.stack import MANIFEST_NAME, tidegate_home

CHAT = "smollm2-135m-instruct"
EMBED = "all-minilm-l6-v2"


def model_folder(name: str) -> Path:
    """The folder of a fetched model; skips the test when it is not there."""
    folder = tidegate_home() / "models" / name
    if not (folder / MANIFEST_NAME).exists():
        pytest.skip(f"{name} is not fetched; run `tidegate models fetch` (make test does)")
    return folder


CHAT_PROMPTS = [
    "What is the capital of France?",
    "Say hello.",
    "List three colours.",
    "Explain in detail how a steam engine turns heat into motion, step by step, for a child of ten years.",
    "Write a haiku about the sea.",
    "1 + 1 =",
    "Translate 'good morning' to Spanish.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes with exact amounts, and tell me what to do when the batter is too thin.",
    "Who wrote Hamlet?",
    "Summarise: " + "The tide comes in and the tide goes out, and the boats rise and fall with it. " * 12,
    "Count from one to ten.",
    "What is 12 times 12?",
    "Tell me a joke about computers.",
    "Name a large city in Japan and say what it is known for.",
    "你好，你叫什么名字？",
    "def fibonacci(n):",
    "What do bees make?",
    "Continue the story: Once upon a time, in a house by the river, there lived an old clockmaker who",
    "Repeat after me: " + "tidegate " * 40,
]


def chat_text(content: str) -> str:
    """SmolLM2's chat template with its default system prompt, written out."""
    return (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    )

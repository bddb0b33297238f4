"""Tiny data in the formats that the programs read, so that none of them needs the network.

The values are drawn with a fixed seed; only the formats are those of the real sets. Not here: which program gets which.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

_SOURCE = np.random.default_rng


def mnist(folder: Path, count: int = 300) -> None:
    """The four files of IDX format that `torchvision.datasets.MNIST` reads (Y. LeCun, "The MNIST database")."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    draw = _SOURCE(0)
    for name, size in (("train", count), ("t10k", count // 2)):
        labels = np.arange(size, dtype=np.uint8) % 10
        images = draw.integers(0, 64, (size, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 4] += 150  # so that something can be learnt
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, size, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, size) + labels.tobytes())


def cora(folder: Path, papers: int = 2708, words: int = 64) -> None:
    """`cora.content` and `cora.cites`: a citation graph with the real one's number of papers and fewer words."""
    folder.mkdir(parents=True)
    draw = _SOURCE(1)
    kinds = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning",
             "Rule_Learning", "Theory"]  # fmt: skip
    lines = []
    for paper in range(papers):
        kind = paper % len(kinds)
        features = (draw.random(words) < 0.1).astype(int)
        features[kind * 4 : kind * 4 + 4] = 1
        lines.append("\t".join([str(paper), *map(str, features), kinds[kind]]))
    (folder / "cora.content").write_text("\n".join(lines) + "\n")
    cited = draw.integers(0, papers, (2 * papers, 2))
    (folder / "cora.cites").write_text("\n".join(f"{a}\t{b}" for a, b in cited if a != b) + "\n")


_WORDS = [
    "the",
    "a",
    "one",
    "two",
    "of",
    "in",
    "and",
    "to",
    "was",
    "is",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "under",
    "mat",
    "hill",
    "near",
    "far",
]


def text(file: Path, words: int = 4000) -> None:
    """English-looking words, some of them often."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draw = _SOURCE(2)
    chosen = [_WORDS[int(index)] for index in draw.zipf(1.6, words) % len(_WORDS)]
    lines = [" ".join(chosen[start : start + 12]) + " ." for start in range(0, words, 12)]
    file.write_text("\n".join(lines) + "\n")


def play(file: Path) -> None:
    """`text`, with the exclamation from which minGPT's character model goes on: it knows no other characters."""
    text(file)
    file.write_text(file.read_text() + "O God, O God!\n")


def wikitext(folder: Path) -> None:
    """Three files of a language model's data set."""
    for name, words in (("train", 3000), ("valid", 600), ("test", 600)):
        text(folder / f"{name}.txt", words)


def shakespeare_char(folder: Path) -> None:
    """`train.bin`, `val.bin` and `meta.pkl` of nanoGPT's character data."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "\n !abcdefghijklmnopqrstuvwxyz"
    draw = _SOURCE(3)
    for name, size in (("train", 20_000), ("val", 5_000)):
        draw.integers(0, len(letters), size, dtype=np.uint16).tofile(folder / f"{name}.bin")
    codes = {letter: index for index, letter in enumerate(letters)}
    meta = {"vocab_size": len(letters), "stoi": codes, "itos": {index: letter for letter, index in codes.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def gpt2_tokens(file: Path, count: int = 4096) -> None:
    """Tokens with the header of llm.c's data files (magic number, version, count)."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, count
    tokens = _SOURCE(4).integers(0, 50257, count, dtype=np.uint16)
    file.write_bytes(header.tobytes() + tokens.tobytes())


def tinystories(folder: Path) -> None:
    """Two shards of tokens as llama2.c's own tokenizer of 512 words would leave them."""
    shards = folder / "tok512"
    shards.mkdir(parents=True)
    draw = _SOURCE(5)
    for name in ("data00.bin", "data01.bin"):
        tokens = draw.integers(3, 512, 8192, dtype=np.uint16)
        tokens[::100] = 1
        tokens.tofile(shards / name)


def tokenizer(file: Path) -> None:
    """A module instead of `tiktoken`, which would load its table from the network: one token per byte."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        "class _Bytes:\n"
        "    n_vocab, max_token_value, eot_token = 50257, 50256, 50256\n"
        "    def encode(self, text, **_):\n        return list(text.encode())\n"
        "    encode_ordinary = encode\n"
        "    def decode(self, tokens):\n        return bytes(one % 256 for one in tokens).decode(errors='replace')\n"
        "    def decode_bytes(self, tokens):\n        return bytes(one % 256 for one in tokens)\n"
        "def get_encoding(name):\n    return _Bytes()\n"
    )


def distribution(folder: Path) -> None:
    """`NAME-VERSION.dist-info`, by which a package that asks for its own version is installed."""
    folder.mkdir(parents=True)
    name, _, version = folder.name.removesuffix(".dist-info").partition("-")
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version or '1.0'}\n")


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist, "cora": cora, "text": text, "play": play, "wikitext": wikitext,
    "shakespeare_char": shakespeare_char, "gpt2_tokens": gpt2_tokens, "tinystories": tinystories,
    "tokenizer": tokenizer, "distribution": distribution,
}  # fmt: skip

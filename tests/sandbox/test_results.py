"""Values and tensors keep their meaning on the way, and bytes that make no sense are refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from gradebox.sandbox import Request, Sandbox, codec
from tests.sandbox.sandbox_runs import call


def test_tensors_arrive_as_torch_and_return_as_numpy(sandbox: Sandbox) -> None:
    image = np.arange(12, dtype=np.float32).reshape(3, 4)
    reply = sandbox.run(Request("drive.tensors", tensors={"image": image}))
    assert reply.value["image_type"] == "torch.Tensor"
    np.testing.assert_array_equal(reply.tensors["image"], image)
    np.testing.assert_array_equal(reply.tensors["transposed"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(reply.tensors["nested/weights/0"], [0, 1, 2])
    assert reply.tensors["scalar"].shape == ()
    assert math.isinf(reply.tensors["scalar"])


def test_the_value_names_the_tensor_that_stood_there(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.tensors", tensors={"image": np.zeros(2)}))
    assert reply.value["nested"] == {"weights": ["nested/weights/0", "nested/weights/1"]}


def test_bfloat16_becomes_float32_and_says_so(sandbox: Sandbox) -> None:
    reply = sandbox.run(Request("drive.tensors", tensors={"image": np.zeros(2)}))
    half = reply.tensors["half"]
    assert (half.dtype, reply.ranks[0].dtypes["half"]) == (np.float32, "bfloat16")
    assert half[0] == 1.5
    assert math.isnan(half[1])


def test_values_without_a_json_form_arrive_in_a_stated_one(sandbox: Sandbox) -> None:
    value = sandbox.run(Request("drive.odd_values")).value
    assert math.isnan(value["nan"])
    assert value["infinities"] == [math.inf, -math.inf]
    assert value["numpy"] == [0.5, 3, True]
    assert value["dollar"] == {"$float": "nan", "x": 1}
    assert value["object"] == "<object>"
    assert value["surrogate"] == "?"


def test_parameters_keep_nan_and_nesting(sandbox: Sandbox) -> None:
    reply = call(sandbox, "honest", "one_argument", x={"a": [1, math.nan, None]})
    assert reply.value["returned"]["a"][0] == 1
    assert math.isnan(reply.value["returned"]["a"][1])


@pytest.mark.parametrize(
    "text",
    [b"NaN", b"[1", b'{"$float": "one"}', b'{"$dict": [1]}', b'{"$pickle": "x"}', b"[" * 5000, b"\xff", b"1" * 5000],
    ids=["bare NaN", "cut off", "unknown float", "no pairs", "unknown form", "deep", "no UTF-8", "huge integer"],
)
def test_malformed_json_is_refused(text: bytes) -> None:
    with pytest.raises(codec.CodecError):
        codec.load_json(text)


@pytest.mark.parametrize("value", [{"a": [1.5, math.inf, "x"]}, {"$dict": {"$x": None}}, [], "ü", -3])
def test_json_survives_the_way_there_and_back(value: Any) -> None:
    assert codec.load_json(codec.dump_json(codec.to_json(value))) == value


@pytest.mark.parametrize("cut", [1, 9, 40])
def test_cut_off_tensors_are_refused(cut: int) -> None:
    data = codec.dump_tensors({"x": np.arange(4.0)})
    with pytest.raises(codec.CodecError):
        codec.load_tensors(data[:-cut])


def test_a_tensor_that_claims_other_bytes_is_refused() -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 8]}}).encode()
    with pytest.raises(codec.CodecError):
        codec.load_tensors(len(header).to_bytes(8, "little") + header + bytes(8))


def test_parts_with_wrong_lengths_are_refused() -> None:
    assert codec.split(codec.join(b"ab", b"")) == [b"ab", b""]
    with pytest.raises(codec.CodecError):
        codec.split(codec.join(b"ab")[:-1])

"""Ways to memory by its address, and what is like them and reaches none but one's own."""

import contextlib
import copy
import functools
import gc
import pickle


def _named(name, address):
    """An object that has whatever is asked for, without a name in this file."""

    class Anything:
        def __getattr__(self, asked):
            if asked == name:
                return {"shape": (1,), "typestr": "<i8", "data": (address, False), "version": 3}
            raise AttributeError(asked)

    return Anything()


def by_an_interface():
    import numpy as np

    name = "".join(map(chr, (95, 95, 97, 114, 114, 97, 121, 95, 105, 110, 116, 101, 114, 102, 97, 99, 101, 95, 95)))
    return int(np.add(_named(name, id(name)), 0)[0]) > 0


def by_an_interface_in_a_library():
    import numpy as np

    return int(np.atleast_1d(_named("__array_" + "interface__", id(gc)))[0]) > 0


def beyond_an_array():
    import numpy as np

    return len(np.lib.stride_tricks.as_strided(np.zeros(4), (4,), (1 << 20,)))


def beyond_an_array_by_a_library():
    import numpy as np
    import torch.utils._pytree

    wide = functools.partial(np.lib.stride_tricks.as_strided, shape=(9,))
    seen = torch.utils._pytree.tree_map(wide, [np.zeros(4)])
    return seen[0].shape[0]


def by_what_imports_extensions():
    import importlib

    return importlib._bootstrap._call_with_frames_removed(__import__("ctypes").cast, id(gc), gc.__class__) is None


def of_an_extension():
    """Imported by nobody before, it asks `ctypes` for functions, without a frame of Python's."""
    import scipy.signal
    import scipy.special
    import scipy.stats

    return float(scipy.special.gamma(4.0))


def by_pynvml():
    import numpy as np
    import pynvml

    word = np.zeros(1, np.int64)
    pynvml.memmove(word.ctypes.data, id(word), 8)
    return int(word[0]) > 0


def by_a_type_of_an_array():
    import numpy as np

    kind = type(np.zeros(1).ctypes._as_parameter_)
    return kind.from_address(id(kind)).value is not None


def by_a_thread():
    import threading

    import numpy as np
    import pynvml

    word = np.zeros(1, np.int64)
    thread = threading.Thread(target=pynvml.memmove, args=(word.ctypes.data, id(word), 8))
    thread.start()
    thread.join()
    return int(word[0]) > 0


def by_a_weak_pointer():
    import torch

    storage = torch.zeros(1).untyped_storage()
    return torch.UntypedStorage._new_with_weak_ptr(storage._weak_ref()) is not None


def by_code():
    return (lambda: 1).__code__.replace(co_stacksize=100) is not None


def as_a_file():
    with contextlib.suppress(OSError):
        open("/proc/self/../self/mem", "rb").close()
    return 1


def of_its_own():
    """Which any code may look at, in the ways that it likes."""
    import multiprocessing

    import numpy as np
    import torch

    values = np.arange(12.0).reshape(3, 4)
    windows = np.lib.stride_tricks.sliding_window_view(values[0], 2)
    pairs = np.lib.stride_tricks.as_strided(values[:, 1:], (3, 2), (32, 8))
    every = np.vectorize(lambda row: row.sum(), signature="(n)->()")(values)
    shared = multiprocessing.Array("d", 3)
    table = np.zeros(2, [("name", "U9"), ("seconds", "f8")])
    assert pickle.loads(pickle.dumps(copy.deepcopy(table))).dtype == table.dtype
    same = values.__array_interface__["data"][0] == torch.from_numpy(values).data_ptr()
    return [windows.shape, pairs.shape, every.shape, np.frombuffer(shared.get_obj()).shape, same]


def by_a_class_of_its_own():
    """As `ctypes.py_object`, of a class that NumPy hands out."""
    import numpy as np

    number = type(np.zeros(1).ctypes._as_parameter_)
    pointer = type(number)("Pointer", (number.__base__,), {"_type_": "O"})()
    target = [1]
    memoryview(pointer).cast("B")[:] = id(target).to_bytes(8, "little")
    return pointer.value is target


def behind_a_storage():
    import torch

    words = torch.zeros(1 << 16, dtype=torch.int64)
    words.untyped_storage().resize_(16)
    return int(torch.gather(words, 0, torch.tensor([3]))[0]) is not None


def beyond_a_sparse_tensor():
    import torch

    return torch.sparse_coo_tensor(torch.tensor([[9]]), torch.ones(1), (4,), check_invariants=False) is not None


def of_sparse_tensors():
    """Embeddings and tables with few entries, whose indices are a copy."""
    import torch

    table = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2))
    table._indices().fill_(7)
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    torch.optim.SparseAdam(embedding.parameters()).step()
    freed = torch.ones(4).untyped_storage()
    freed.resize_(0)
    freed.resize_(16)
    return table.to_dense().tolist()


def _unseen(name):
    """Of `ctypes`, without a look at the module by its own way, and without its name."""
    import importlib

    module = importlib.import_module("".join(map(chr, (99, 116, 121, 112, 101, 115))))
    return object.__getattribute__(module, name)


def by_an_array_of_objects():
    objects, target = (_unseen("py_object") * 1)(), [1]
    memoryview(objects).cast("B")[:] = id(target).to_bytes(8, "little")
    return objects[0] is target


def by_a_function_at_an_address():
    class Moves(_unseen("_CFuncPtr")):
        _flags_ = 1
        _restype_ = _unseen("c_void_p")

    return Moves(_unseen("_memmove_addr")) is not None


def by_a_dtype_that_grows():
    import numpy as np

    kind = np.dtype("V8")
    array = np.zeros(4, kind)
    kind.__setstate__((3, "|", None, None, None, 1 << 20, 1, 0))
    return array.nbytes


def lent_and_given_back():
    import numpy as np
    import torch

    words = torch.zeros(1000, dtype=torch.int64)
    lent = np.from_dlpack(words)
    words.untyped_storage().resize_(0)
    return int(lent[0]) is not None

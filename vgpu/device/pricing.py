"""How long a card takes for work: the laws of `vgpu.device.cost`, applied to one entry of a stream.

Not here: when it runs (`vgpu.device.queue`).
"""

from __future__ import annotations

from vgpu.device import attention_cost, convolution_cost, cost
from vgpu.device.kernel_work import COLLECTIVE, COMPUTE, COPY, FIXED, PEER, TRAFFIC, KernelWork, Product
from vgpu.device.spec import Interconnect, Spec

# One block of threads computes such a tile of a product's result; an elementwise kernel handles four elements with
# each thread (CUTLASS's default tiles; aten/src/ATen/native/cuda/thread_constants.h, thread_work_size).
_TILE_ELEMENTS = 128 * 128
_ELEMENTS_PER_THREAD = 4
_SMALL_BYTES = 1 << 18
_MOST_PRICED = 2_000
"""Work that comes once only, as that of convolutions does, is forgotten soon."""


class Pricing:
    """Prices work for one card, and the link that joins it to others."""

    def __init__(self, spec: Spec, link: Interconnect) -> None:
        self.spec = spec
        self.link = link
        self._has_tf32 = "tf32" in spec.peak_flops
        # Programs repeat their products at every step.
        self._products: dict[tuple[Product, str, int, bool], float] = {}
        self._launches: dict[tuple[int, str], float] = {}
        self.priced: dict[int, tuple[KernelWork, float]] = {}
        """By identity, with the work itself, so that the identity stays taken."""

    def seconds(self, work: KernelWork) -> float:
        """Device seconds of `work`, hiccups aside. Raises SpecError for FP8 products of a card that has none."""
        kind = work.kind
        if kind == TRAFFIC:
            priced = self.priced.get(id(work))
            if priced is not None and priced[0] is work:
                return priced[1]
            seconds = cost.traffic_seconds(
                self.spec, work.bytes, work.share, cached=work.cached, cycles=work.cycles, phases=work.phases,
                blocks=work.blocks, again=work.again,
            )  # fmt: skip
            if work.launches > 1:
                seconds += (work.launches - 1) * self.spec.minimum_kernel_seconds
            seconds *= work.ratio
            if work.cached and work.bytes <= _SMALL_BYTES and work.launches == work.phases == 1:
                self._keep(work, seconds)  # a small elementwise kernel
            return seconds
        if work.product is not None:
            # Repeated products come as the same object (`vgpu.runtime.operations.kernel_cost`): no other look is as
            # quick.
            priced = self.priced.get(id(work))
            if priced is not None and priced[0] is work:
                return priced[1]
            seconds = self._product(work.product, work) * work.ratio
            self._keep(work, seconds)
            return seconds
        if kind == COPY:
            return cost.transfer_seconds(self.spec, work.bytes, pinned=work.pinned)
        if kind == PEER:
            return self.link.latency_seconds + work.bytes / self.link.bandwidth_bytes_per_second
        if kind == COLLECTIVE:
            seconds = cost.collective_seconds(self.link, work.call, work.bytes, work.ranks)
            return max(seconds, self.spec.minimum_kernel_seconds)
        assert kind == FIXED, kind
        return work.seconds

    def _keep(self, work: KernelWork, seconds: float) -> None:
        if len(self.priced) >= _MOST_PRICED:
            self.priced.clear()
        self.priced[id(work)] = work, seconds

    def launch_seconds(self, work: KernelWork) -> float:
        """Host seconds to hand it to the device."""
        key = work.launches, "" if work.kind == COLLECTIVE else work.call
        seconds = self._launches.get(key)
        if seconds is None:
            seconds = self._launches[key] = self.spec.launch_seconds * key[0] + cost.call_seconds(self.spec, key[1])
        return seconds

    def precision(self, work: KernelWork) -> str:
        """The precision that it is computed in."""
        return "tf32" if work.tf32 and self._has_tf32 else work.dtype

    def engine(self, work: KernelWork) -> str:
        """The part of the device that it needs for itself, of ENGINES, or none."""
        return work.engine or (COMPUTE if self._fills(work) else "")

    def _fills(self, work: KernelWork) -> bool:
        """Whether a kernel's blocks take at least half of the multiprocessors, so that no equal one fits next to it."""
        if work.product is not None:
            tiles = work.product.batch * work.product.m * work.product.n / _TILE_ELEMENTS
            return 2 * tiles >= self.spec.multiprocessors
        resident = 1024 if self.spec.compute_capability == (7, 5) else 2048
        return 2 * work.elements / _ELEMENTS_PER_THREAD >= self.spec.multiprocessors * resident

    def _product(self, product: Product, work: KernelWork) -> float:
        tf32 = work.tf32 and self._has_tf32
        key = product, work.dtype, work.bytes, tf32
        seconds = self._products.get(key)
        if seconds is None:
            seconds = product_seconds(self.spec, product, work.dtype, work.bytes, tf32=tf32)
            self._products[key] = seconds
        return seconds


def product_seconds(spec: Spec, product: Product, dtype: str, moved: int, *, tf32: bool) -> float:
    """Device seconds of a product whose kernel moves `moved` bytes."""
    m, n, k = product.m, product.n, product.k
    if not product.flops:  # empty operands: the kernel fills what there is with zeros
        return cost.traffic_seconds(spec, moved)
    if product.convolution is not None:
        return convolution_cost.seconds(spec, product.convolution, dtype, tf32=tf32)
    if product.kernel in attention_cost.FUSED:
        efficiency = attention_cost.efficiency(
            spec, product.kernel, m, k, dtype=dtype, backward=product.backward, causal=product.causal
        )
        seconds = cost.kernel_seconds(
            spec, flops=product.flops, bytes=moved, dtype=attention_cost.peak(spec, product.kernel, dtype),
            efficiency=efficiency / attention_cost.products_of(product.kernel, dtype, spec),
        )  # fmt: skip
    else:
        seconds = cost.product_seconds(
            spec, m, n, k, batch=product.batch, times=product.times, bytes=moved, dtype=dtype, tf32=tf32
        )
    return max(seconds, product.steps * spec.minimum_kernel_seconds)

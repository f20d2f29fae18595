#!/usr/bin/env python3
"""Measures what a real driver does with managed memory, and what oversub relies on.

    tests/gpu/driver.py [--bytes N] [--json]

Needs python3 with numpy, a GPU with concurrent managed access, and a driver with
cuMemDiscardBatchAsync (580). Takes two times N bytes (default 256 MiB) of managed memory and
never more than the device has free. Prints one line for each finding:

  rates    bytes per second of prefetches by the size of a call and the number of streams that
           the calls go over in turn, and of use over the link
  use      what it takes to use on the host what was evicted, with and without accessed-by
  discard  what it takes to write memory whose content was dropped
  order    whether what follows a discard comes after it: in an idle stream, and in one
           that waits. `lost` counts ranges whose new content is gone.

Ends with status 1 where content was lost in an idle stream: oversub drops content so.
"""

import argparse
import ctypes as c
import json
import pathlib
import sys
import time

import numpy as np

MIB = 1 << 20
BLOCK = 2 * MIB
KERNELS = pathlib.Path(__file__).resolve().parent.parent / "workloads/kernels/kernels.ptx"
PREFER, ACCESSED_BY = 3, 5
# Streams that the library fetches over (runtime-shim/src/order.rs).
LANES = 4


class Place(c.Structure):
    """CUmemLocation."""

    _fields_ = [("kind", c.c_int), ("id", c.c_int)]


DEVICE, HOST = Place(1, 0), Place(2, 0)


class Driver:
    """The few calls of libcuda that are needed, with errors as exceptions."""

    SIGNATURES = {
        "cuMemAllocManaged": [c.POINTER(c.c_uint64), c.c_size_t, c.c_uint],
        "cuMemFree_v2": [c.c_uint64],
        "cuMemAdvise_v2": [c.c_uint64, c.c_size_t, c.c_int, Place],
        "cuMemPrefetchAsync_v2": [c.c_uint64, c.c_size_t, Place, c.c_uint, c.c_void_p],
        "cuMemDiscardBatchAsync": [
            c.POINTER(c.c_uint64), c.POINTER(c.c_size_t), c.c_size_t, c.c_ulonglong, c.c_void_p],
        "cuMemcpyDtoHAsync_v2": [c.c_void_p, c.c_uint64, c.c_size_t, c.c_void_p],
        "cuLaunchKernel": [c.c_void_p] + [c.c_uint] * 7 + [c.c_void_p] * 3,
        "cuStreamSynchronize": [c.c_void_p],
        "cuEventRecord": [c.c_void_p, c.c_void_p],
        "cuStreamWaitEvent": [c.c_void_p, c.c_void_p, c.c_uint],
    }

    def __init__(self):
        self.cuda = c.CDLL("libcuda.so.1")
        for name, arguments in self.SIGNATURES.items():
            getattr(self.cuda, name).argtypes = arguments
        self.call("cuInit", 0)
        context, module = c.c_void_p(), c.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", c.byref(module), KERNELS.read_bytes() + b"\0")
        self.kernels = {}
        for name in ("fill_u32", "sweep_step", "mix_rounds"):
            kernel = c.c_void_p()
            self.call("cuModuleGetFunction", c.byref(kernel), module, name.encode())
            self.kernels[name] = kernel
        self.streams = [self.stream() for _ in range(3)]
        self.lanes = [self.streams[1]] + [self.stream() for _ in range(LANES - 1)]
        self.events = [self.event() for _ in range(2)]

    def call(self, name, *arguments):
        status = getattr(self.cuda, name)(*arguments)
        if status:
            sys.exit(f"driver.py: {name} failed with status {status}")

    def stream(self):
        stream = c.c_void_p()
        self.call("cuStreamCreateWithPriority", c.byref(stream), 1, 0)
        return stream

    def event(self):
        event = c.c_void_p()
        self.call("cuEventCreate", c.byref(event), 2)
        return event

    def free_bytes(self):
        free, total = c.c_size_t(), c.c_size_t()
        self.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return free.value

    def take(self, size, prefer_host=True, accessed_by=False):
        address = c.c_uint64()
        self.call("cuMemAllocManaged", c.byref(address), size, 1)
        if prefer_host:
            self.call("cuMemAdvise_v2", address, size, PREFER, HOST)
        if accessed_by:
            self.call("cuMemAdvise_v2", address, size, ACCESSED_BY, DEVICE)
        return address.value

    def give(self, address):
        self.call("cuMemFree_v2", address)

    def launch(self, name, stream, address, size, *words):
        count = size // 4
        values = [c.c_uint64(address), c.c_uint64(count)] + [c.c_uint(word) for word in words]
        pointers = (c.c_void_p * len(values))(*[c.addressof(value) for value in values])
        grid = (count + 255) // 256
        self.call("cuLaunchKernel", self.kernels[name], grid, 1, 1, 256, 1, 1, 0, stream,
                  pointers, None)

    def fill(self, address, size, seed, stream=None):
        self.launch("fill_u32", stream or self.streams[0], address, size, 0, seed)

    def sweep(self, address, size):
        self.launch("sweep_step", self.streams[0], address, size, 3, 1, 5)

    def prefetch(self, address, size, to, call=None, lanes=1):
        call = call or size
        for index, start in enumerate(range(address, address + size, call)):
            stream = self.lanes[index % lanes]
            self.call("cuMemPrefetchAsync_v2", start, call, to, 0, stream)

    def discard(self, address, size):
        for start in range(address, address + size, BLOCK):
            where, bytes_ = c.c_uint64(start), c.c_size_t(BLOCK)
            self.call("cuMemDiscardBatchAsync", c.byref(where), c.byref(bytes_), 1, 0,
                      self.streams[1])

    def read(self, address, size):
        words = np.empty(size // 4, np.uint32)
        self.call("cuMemcpyDtoHAsync_v2", words.ctypes.data, address, size, self.streams[0])
        self.wait()
        return words

    def wait(self):
        for stream in self.streams + self.lanes[1:]:
            self.call("cuStreamSynchronize", stream)

    def timed(self, work, *arguments):
        self.wait()
        begin = time.perf_counter()
        work(*arguments)
        self.wait()
        return time.perf_counter() - begin

    def settle(self, address, size, to):
        self.prefetch(address, size, to)
        self.wait()


def rates(driver, size, found):
    memory = driver.take(size, accessed_by=True)
    driver.fill(memory, size, 1)
    driver.settle(memory, size, HOST)
    shapes = [(call, lanes) for call in (BLOCK, 4 * BLOCK, 16 * BLOCK) for lanes in (1, LANES)]
    for call, lanes in shapes + [(size, 1)]:
        for to, name in ((DEVICE, "in"), (HOST, "out")):
            took = driver.timed(driver.prefetch, memory, size, to, call, lanes)
            found("rates", way=name, call_bytes=call, streams=lanes, gb_per_s=size / took / 1e9)
    driver.sweep(memory, size)
    took = driver.timed(driver.sweep, memory, size)
    found("rates", way="used over the link, each way", gb_per_s=size / took / 1e9)
    driver.give(memory)


def use(driver, size, found):
    for accessed_by in (False, True):
        memory = driver.take(size, accessed_by=accessed_by)
        driver.settle(memory, size, DEVICE)
        driver.fill(memory, size, 1)
        driver.settle(memory, size, HOST)
        first = driver.timed(driver.sweep, memory, size)
        again = driver.timed(driver.sweep, memory, size)
        found("use", accessed_by=accessed_by, first_us_per_block=first * 1e6 * BLOCK / size,
              again_us_per_block=again * 1e6 * BLOCK / size)
        driver.give(memory)


def discard(driver, size, found):
    for prefer_host in (False, True):
        memory = driver.take(size, prefer_host=prefer_host)
        fresh = driver.timed(driver.fill, memory, size, 1)
        found("discard", prefer_host=prefer_host, what="first touch, nothing dropped",
              us_per_block=fresh * 1e6 * BLOCK / size)
        for place, name in ((DEVICE, "device"), (HOST, "host")):
            for to, then in ((None, "written"), (DEVICE, "prefetched in, written"),
                             (HOST, "prefetched out, written")):
                driver.settle(memory, size, place)
                driver.discard(memory, size)
                took = driver.timed(driver.prefetch, memory, size, to) if to else 0.0
                took += driver.timed(driver.fill, memory, size, 2)
                found("discard", prefer_host=prefer_host, what=f"dropped on the {name}, {then}",
                      us_per_block=took * 1e6 * BLOCK / size)
        driver.give(memory)


def order(driver, size, found):
    """New content that is written as soon as an event behind the discards allows it."""
    other = driver.take(16 * MIB, prefer_host=False)
    driver.settle(other, 16 * MIB, DEVICE)
    driver.fill(other, 16 * MIB, 3)
    program, own, writer = driver.streams
    behind, dropped = driver.events
    lost_idle = 0
    expected = driver.take(size, prefer_host=False)
    driver.fill(expected, size, 777)
    expected, given = driver.read(expected, size), expected
    driver.give(given)
    for waits in (False, True):
        lost = runs = 0
        for _ in range(8):
            memory = driver.take(size)
            driver.fill(memory, size, 5)
            driver.settle(memory, size, DEVICE)
            driver.launch("mix_rounds", program, other, 16 * MIB, 1000, 5)
            if waits:
                driver.call("cuEventRecord", behind, program)
                driver.call("cuStreamWaitEvent", own, behind, 0)
            driver.discard(memory, size)
            driver.call("cuEventRecord", dropped, own)
            driver.call("cuStreamWaitEvent", writer, dropped, 0)
            driver.fill(memory, size, 777, writer)
            driver.wait()
            time.sleep(0.05)
            intact = True
            for to in (HOST, DEVICE):
                intact &= bool(np.array_equal(driver.read(memory, size), expected))
                driver.settle(memory, size, to)
            runs, lost = runs + 1, lost + (not intact)
            driver.give(memory)
        found("order", stream="waits" if waits else "idle", runs=runs, lost=lost)
        lost_idle += 0 if waits else lost
    driver.give(other)
    return lost_idle


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=256 * MIB, help="default: 256 MiB")
    parser.add_argument("--json", action="store_true", help="one JSON value a line")
    options = parser.parse_args()
    size = options.bytes // (16 * BLOCK) * 16 * BLOCK
    driver = Driver()
    if size == 0 or 4 * size > driver.free_bytes():
        sys.exit("driver.py: --bytes must be 32 MiB at least, and a quarter of the device's free "
                 "memory at most")

    def found(kind, **values):
        values = {key: round(value, 2) if isinstance(value, float) else value
                  for key, value in values.items()}
        if options.json:
            print(json.dumps({"kind": kind, **values}), flush=True)
        else:
            print(kind, ", ".join(f"{key} {value}" for key, value in values.items()), flush=True)

    rates(driver, size, found)
    use(driver, size, found)
    discard(driver, size, found)
    lost = order(driver, min(size, 32 * MIB), found)
    if lost:
        sys.exit(f"driver.py: content written behind a discard in an idle stream was lost, "
                 f"{lost} times: oversub must not drop content with this driver")


if __name__ == "__main__":
    main()

//! A device for each test, and kernels whose effect is easy to say.
#![allow(dead_code)]

use std::time::Duration;

use oversub_softgpu::config::Config;
use oversub_softgpu::kernels::{Kernel, Param, Shape};
use oversub_softgpu::memory::{BLOCK_BYTES, Device};

/// Bytes that one piece of a test kernel covers.
pub const PIECE: u64 = 64 << 10;

/// A device of so many blocks with a fast link, as tests are about what happens, not when.
pub fn device(blocks: u64) -> Device {
    let config = Config {
        memory_bytes: blocks * BLOCK_BYTES,
        link_in_bytes_per_s: 100_000_000_000,
        link_out_bytes_per_s: 100_000_000_000,
        fault: Duration::ZERO,
        ..Config::default()
    };
    Device::new(config).expect("a device")
}

/// `x[i] = x[i] * 3 + add` over all words of `bytes`, in pieces of 64 KiB.
pub const MIX: Kernel = Kernel {
    name: "mix",
    params: &[Param::Pointer, Param::U64, Param::U64],
    pieces: |_, words| words[1].div_ceil(PIECE),
    run: mix,
};

unsafe fn mix(_: &Shape, words: &[u64], piece: u64) {
    let (base, bytes, add) = (words[0], words[1], words[2]);
    let from = piece * PIECE;
    let to = (from + PIECE).min(bytes);
    for at in (from..to).step_by(8) {
        let word = (base + at) as *mut u64;
        // SAFETY: within the allocation that the test passes.
        unsafe { word.write_volatile(mixed(word.read_volatile(), add)) };
    }
}

/// What [`MIX`] does to a word.
pub fn mixed(word: u64, add: u64) -> u64 {
    word.wrapping_mul(3).wrapping_add(add)
}

/// `out[i] += a[i]` for words that a linear congruential walk picks: 16 words a piece.
pub const SCATTER: Kernel = Kernel {
    name: "scatter",
    params: &[Param::Pointer, Param::U64, Param::U64],
    pieces: |_, words| words[1].div_ceil(PIECE),
    run: scatter,
};

/// The words that a piece of [`SCATTER`] touches: its own residue class, so that pieces
/// do not race.
pub fn scattered(piece: u64, pieces: u64, seed: u64, bytes: u64) -> impl Iterator<Item = u64> {
    let rows = bytes / 8 / pieces;
    let mut x = seed ^ piece;
    (0..16u64).filter(move |_| rows > 0).map(move |_| {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((x >> 33) % rows * pieces + piece) * 8
    })
}

unsafe fn scatter(_: &Shape, words: &[u64], piece: u64) {
    let (base, bytes, seed) = (words[0], words[1], words[2]);
    for at in scattered(piece, bytes.div_ceil(PIECE), seed, bytes) {
        let word = (base + at) as *mut u64;
        // SAFETY: within the allocation that the test passes.
        unsafe { word.write_volatile(mixed(word.read_volatile(), seed)) };
    }
}

/// Reads one word of each page given by stride, in order, in one piece.
pub const STRIDE: Kernel = Kernel {
    name: "stride",
    params: &[Param::Pointer, Param::U64, Param::U64],
    pieces: |_, _| 1,
    run: stride,
};

unsafe fn stride(_: &Shape, words: &[u64], _: u64) {
    for at in (0..words[1]).step_by(words[2] as usize) {
        // SAFETY: within the allocation that the test passes.
        unsafe { ((words[0] + at) as *const u64).read_volatile() };
    }
}

/// Launches over managed or device memory at a program address.
pub fn launch(device: &Device, kernel: &Kernel, address: u64, bytes: u64, word: u64) {
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    let view = device
        .to_device_view(address)
        .expect("the device's address");
    // SAFETY: the kernels above stay within `bytes` of the allocation.
    unsafe { device.run_kernel(kernel, &shape, &[view, bytes, word]) }.expect("runs");
}

/// The CPU's view of managed memory as words.
///
/// # Safety
/// The allocation must live as long as the slice, and no kernel write to it meanwhile.
pub unsafe fn words<'a>(address: u64, bytes: u64) -> &'a mut [u64] {
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u64, (bytes / 8) as usize) }
}

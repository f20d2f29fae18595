//! The way of a block: touched by the CPU, used by kernels, evicted, read back.

mod common;

use common::{MIX, device, launch, mixed, words};
use oversub_softgpu::memory::{BLOCK_BYTES, Location};

#[test]
fn content_survives_more_blocks_than_the_device_has() {
    let device = device(4);
    let bytes = 10 * BLOCK_BYTES;
    let address = device.alloc_managed(bytes).expect("managed memory");
    // SAFETY: allocated above, no kernel runs.
    let view = unsafe { words(address, bytes) };
    for (i, word) in view.iter_mut().enumerate() {
        *word = i as u64;
    }
    for round in 0..3 {
        launch(&device, &MIX, address, bytes, round);
    }
    device
        .prefetch(address, 2 * BLOCK_BYTES, Location::Device)
        .expect("prefetch");
    for (i, word) in view.iter().enumerate() {
        let expected = (0..3).fold(i as u64, mixed);
        assert_eq!(*word, expected, "word {i}");
    }
    let counters = device.counters().snapshot();
    println!("{counters:?}");
    assert!(counters.faults > 0 && counters.evictions_used > 0);
}

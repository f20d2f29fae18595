//! The driver's rules: what a fault brings in, who is evicted, what is counted.

mod common;

use common::{MIX, STRIDE, device, launch, words};
use oversub_softgpu::counters::Snapshot;
use oversub_softgpu::memory::{Advice, BLOCK_BYTES, Device, Fill, Location, Place};

const PAGE: u64 = 4096;

fn counted(device: &Device) -> Snapshot {
    device.counters().snapshot()
}

/// Content on the host, in so many blocks.
fn on_host(device: &Device, blocks: u64) -> u64 {
    let bytes = blocks * BLOCK_BYTES;
    let address = device.alloc_managed(bytes).expect("managed memory");
    // SAFETY: just allocated, no kernel runs.
    unsafe { words(address, bytes) }.fill(1);
    address
}

fn prefetch(device: &Device, base: u64, blocks: &[u64], to: Location) {
    for block in blocks {
        device
            .prefetch(base + block * BLOCK_BYTES, BLOCK_BYTES, to)
            .expect("prefetch");
    }
}

/// Whether a block is on the device, seen from whether a read of all of it faults.
fn is_resident(device: &Device, base: u64, block: u64) -> bool {
    !device.needs_transfer(base + block * BLOCK_BYTES, BLOCK_BYTES, Location::Device)
}

fn resident(device: &Device, base: u64, blocks: u64) -> Vec<u64> {
    (0..blocks)
        .filter(|block| is_resident(device, base, *block))
        .collect()
}

#[test]
fn a_sequential_read_of_a_block_takes_six_batches() {
    let device = device(16);
    let base = on_host(&device, 3);
    let before = counted(&device);
    launch(&device, &STRIDE, base, 3 * BLOCK_BYTES, PAGE);
    let after = counted(&device);
    assert_eq!(after.batches - before.batches, 3 * 6);
    assert_eq!(after.faults - before.faults, 3 * 6);
    assert_eq!(after.bytes_in_fault, 3 * 6 * (64 << 10));
    assert_eq!(after.bytes_in(), 3 * BLOCK_BYTES);
}

#[test]
fn the_cpu_reads_a_block_back_in_six_faults_too() {
    let device = device(16);
    let base = on_host(&device, 1);
    prefetch(&device, base, &[0], Location::Device);
    let before = counted(&device);
    // SAFETY: allocated above, no kernel runs.
    let sum: u64 = unsafe { words(base, BLOCK_BYTES) }.iter().sum();
    let after = counted(&device);
    assert_eq!(sum, BLOCK_BYTES / 8);
    assert_eq!(after.host_faults - before.host_faults, 6);
    assert_eq!(after.bytes_out_host_fault, BLOCK_BYTES);
}

#[test]
fn first_touch_populates_without_a_transfer() {
    let device = device(16);
    let bytes = 4 * BLOCK_BYTES;
    let address = device.alloc_managed(bytes).expect("managed memory");
    launch(&device, &MIX, address, bytes, 9);
    let counted = counted(&device);
    assert_eq!((counted.bytes_in(), counted.bytes_out()), (0, 0));
    assert_eq!(counted.populated_bytes, bytes);
    assert_eq!(device.resident_bytes(), bytes);
}

#[test]
fn first_touch_of_a_block_that_prefers_the_device_takes_one_fault() {
    let device = device(16);
    let address = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    let prefer = |location| Advice::Preferred(Some(location));
    device
        .advise(address, BLOCK_BYTES, prefer(Location::Device))
        .expect("advice");
    launch(&device, &STRIDE, address, BLOCK_BYTES, PAGE);
    assert_eq!(counted(&device).faults, 1);
}

#[test]
fn nothing_grows_where_the_host_is_preferred() {
    let device = device(16);
    let base = on_host(&device, 1);
    device
        .advise(base, BLOCK_BYTES, Advice::Preferred(Some(Location::Host)))
        .expect("advice");
    launch(&device, &STRIDE, base, BLOCK_BYTES, PAGE);
    assert_eq!(
        (counted(&device).faults, counted(&device).bytes_in_density),
        (32, 0)
    );
}

#[test]
fn the_least_recently_migrated_block_goes_first_and_accesses_do_not_count() {
    let device = device(4);
    let base = on_host(&device, 6);
    prefetch(&device, base, &[0, 1, 2, 3], Location::Device);
    // Accesses of block 0 do not keep it; a prefetch of block 1, where nothing moves, does.
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    let before = counted(&device);
    prefetch(&device, base, &[1], Location::Device);
    assert_eq!(counted(&device).bytes_in(), before.bytes_in());
    prefetch(&device, base, &[4], Location::Device);
    assert_eq!(resident(&device, base, 6), [1, 2, 3, 4]);
    prefetch(&device, base, &[5], Location::Device);
    assert_eq!(resident(&device, base, 6), [1, 3, 4, 5]);
    assert_eq!(counted(&device).evictions_used, 2);
    assert_eq!(counted(&device).bytes_out_eviction, 2 * BLOCK_BYTES);
}

#[test]
fn unused_then_discarded_then_used_blocks_lose_their_chunks() {
    let device = device(4);
    let base = on_host(&device, 8);
    prefetch(&device, base, &[0, 1, 2, 3], Location::Device);
    device
        .discard(base + 3 * BLOCK_BYTES, BLOCK_BYTES)
        .expect("discard");
    prefetch(&device, base, &[2], Location::Host);
    let evicted = |device: &Device| {
        let c = counted(device);
        [c.evictions_unused, c.evictions_discarded, c.evictions_used]
    };
    prefetch(&device, base, &[4], Location::Device);
    assert_eq!(evicted(&device), [1, 0, 0]);
    prefetch(&device, base, &[5], Location::Device);
    assert_eq!(evicted(&device), [1, 1, 0]);
    assert_eq!(counted(&device).bytes_out_eviction, 0);
    prefetch(&device, base, &[6], Location::Device);
    assert_eq!(evicted(&device), [1, 1, 1]);
    assert_eq!(resident(&device, base, 8), [1, 4, 5, 6]);
}

#[test]
fn a_block_that_came_back_by_prefetch_keeps_its_chunk() {
    let device = device(4);
    let base = on_host(&device, 1);
    prefetch(&device, base, &[0], Location::Device);
    prefetch(&device, base, &[0], Location::Host);
    prefetch(&device, base, &[0], Location::Device);
    let counted = counted(&device);
    assert_eq!(
        (counted.bytes_in_call, counted.bytes_out_call),
        (2 * BLOCK_BYTES, BLOCK_BYTES)
    );
    assert_eq!(counted.evictions_unused, 0);
}

#[test]
fn a_batch_merges_faults_of_one_page_and_gathers_those_of_many() {
    let device = device(64);
    let base = on_host(&device, 8);
    launch(&device, &MIX, base, 8 * BLOCK_BYTES, 1);
    let counted = counted(&device);
    assert!(counted.batches < counted.faults, "{counted:?}");
    assert_eq!(counted.bytes_in(), 8 * BLOCK_BYTES);
}

#[test]
fn counters_are_what_moved() {
    let device = device(4);
    let base = on_host(&device, 8);
    for round in 0..3 {
        launch(&device, &MIX, base, 8 * BLOCK_BYTES, round);
        prefetch(&device, base, &[round, round + 1], Location::Host);
    }
    let counted = counted(&device);
    // Every granule is on the host at first: what is on the device came in and did not
    // leave.
    assert_eq!(
        counted.bytes_in() - counted.bytes_out(),
        device.resident_bytes()
    );
    assert_eq!(
        counted.bytes_out_eviction,
        counted.evictions_used * BLOCK_BYTES
    );
    assert!(counted.stall_ns > 0 && counted.compute_ns > 0);
    assert_eq!(counted.kernels, 3);
}

#[test]
fn a_whole_overwrite_fetches_nothing_and_a_partial_one_its_granules() {
    let device = device(8);
    let base = on_host(&device, 2);
    device
        .memset(base, Fill::Bytes(7), BLOCK_BYTES)
        .expect("memset");
    assert_eq!(counted(&device).bytes_in(), 0);
    let source = [9u8; 100];
    let from = Place::Host(source.as_ptr() as u64);
    // SAFETY: the source has 100 bytes.
    unsafe { device.copy(Place::Device(base + BLOCK_BYTES + 50), from, 100) }.expect("copy");
    let counted = counted(&device);
    assert_eq!(
        (counted.bytes_in_copy, counted.copied_in_bytes),
        (64 << 10, 100)
    );
}

//! The driver's rules: what a fault brings in, who is evicted, what is counted.

mod common;

use common::{MIX, STRIDE, device, launch, mixed, words};
use oversub_softgpu::counters::Snapshot;
use oversub_softgpu::memory::{Advice, BLOCK_BYTES, Device, Fill, Location, Place};

const PAGE: u64 = 4096;
/// What a transfer moves at least.
const GRANULE: u64 = 64 << 10;

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

fn prefer(device: &Device, base: u64, blocks: u64, location: Location) {
    device
        .advise(
            base,
            blocks * BLOCK_BYTES,
            Advice::Preferred(Some(location)),
        )
        .expect("advice");
}

#[test]
fn what_prefers_the_host_stays_there_when_kernels_use_it() {
    let device = device(16);
    let base = on_host(&device, 2);
    prefer(&device, base, 2, Location::Host);
    launch(&device, &MIX, base, 2 * BLOCK_BYTES, 5);
    let after = counted(&device);
    assert_eq!((after.bytes_in(), after.populated_bytes), (0, 0));
    assert_eq!(
        (device.resident_bytes(), after.remote_bytes),
        (0, 2 * BLOCK_BYTES)
    );
    // SAFETY: allocated above, no kernel runs.
    let seen = unsafe { words(base, 2 * BLOCK_BYTES) };
    assert!(seen.iter().all(|word| *word == mixed(1, 5)));
    // The CPU's own mapping of the same page has stayed.
    assert_eq!(counted(&device).host_faults, 2 * 6);
}

#[test]
fn a_first_touch_of_what_prefers_the_host_populates_a_block_there_by_one_fault() {
    let device = device(16);
    let address = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    prefer(&device, address, 1, Location::Host);
    launch(&device, &STRIDE, address, BLOCK_BYTES, PAGE);
    let after = counted(&device);
    assert_eq!((after.faults, after.batches), (1, 1));
    assert_eq!((after.populated_bytes, device.resident_bytes()), (0, 0));
    assert_eq!(device.memory_info().0, 16 * BLOCK_BYTES);
}

#[test]
fn each_kernel_pays_for_what_it_uses_on_the_host_and_only_the_first_faults() {
    let device = device(16);
    let base = on_host(&device, 1);
    prefer(&device, base, 1, Location::Host);
    launch(&device, &STRIDE, base, BLOCK_BYTES, PAGE);
    let first = counted(&device);
    // What the CPU has mapped, the density prefetcher leaves alone: a fault for each part.
    assert_eq!((first.faults, first.remote_bytes), (32, BLOCK_BYTES));
    launch(&device, &STRIDE, base, BLOCK_BYTES / 2, PAGE);
    let second = counted(&device);
    assert_eq!((second.faults, second.batches), (32, 32));
    assert_eq!(second.remote_bytes - first.remote_bytes, BLOCK_BYTES / 2);
}

#[test]
fn a_prefetch_moves_what_prefers_the_host_until_it_is_sent_back() {
    let device = device(16);
    let base = on_host(&device, 1);
    prefer(&device, base, 1, Location::Host);
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    prefetch(&device, base, &[0], Location::Device);
    let there = counted(&device);
    assert_eq!(there.bytes_in_call, BLOCK_BYTES);
    launch(&device, &MIX, base, BLOCK_BYTES, 2);
    let local = counted(&device);
    assert_eq!(
        (local.faults, local.remote_bytes),
        (there.faults, there.remote_bytes)
    );
    prefetch(&device, base, &[0], Location::Host);
    launch(&device, &MIX, base, BLOCK_BYTES, 3);
    let back = counted(&device);
    assert!(back.faults > local.faults);
    assert_eq!(back.remote_bytes - local.remote_bytes, BLOCK_BYTES);
    // SAFETY: allocated above, no kernel runs.
    let word = unsafe { words(base, 8) }[0];
    assert_eq!(word, mixed(mixed(mixed(1, 1), 2), 3));
}

#[test]
fn memory_accessed_by_the_device_is_mapped_where_it_is_without_a_fault() {
    let device = device(16);
    let base = on_host(&device, 1);
    device
        .advise(base, BLOCK_BYTES, Advice::AccessedByDevice(true))
        .expect("advice");
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    prefetch(&device, base, &[0], Location::Device);
    prefetch(&device, base, &[0], Location::Host);
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    let after = counted(&device);
    assert_eq!((after.faults, after.remote_bytes), (0, 2 * BLOCK_BYTES));
    // Nowhere yet, and nothing preferred: the first touch decides.
    let fresh = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    device
        .advise(fresh, BLOCK_BYTES, Advice::AccessedByDevice(true))
        .expect("advice");
    launch(&device, &MIX, fresh, BLOCK_BYTES, 1);
    assert_eq!(device.resident_bytes(), BLOCK_BYTES);
}

#[test]
fn preferring_the_device_ends_its_mappings_of_the_host() {
    let device = device(16);
    let base = on_host(&device, 1);
    prefer(&device, base, 1, Location::Host);
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    prefer(&device, base, 1, Location::Device);
    launch(&device, &MIX, base, BLOCK_BYTES, 1);
    assert_eq!(counted(&device).remote_bytes, BLOCK_BYTES);
    assert_eq!(device.resident_bytes(), BLOCK_BYTES);
}

#[test]
fn copies_and_memsets_leave_what_prefers_the_host_there() {
    let device = device(16);
    let address = device
        .alloc_managed(2 * BLOCK_BYTES)
        .expect("managed memory");
    prefer(&device, address, 2, Location::Host);
    device
        .memset(address, Fill::Bytes(7), BLOCK_BYTES)
        .expect("memset");
    let source = [9u8; 1000];
    let from = Place::Host(source.as_ptr() as u64);
    let to = Place::Device(address + BLOCK_BYTES - 500);
    // SAFETY: the source has 1000 bytes.
    unsafe { device.copy(to, from, 1000) }.expect("copy");
    let after = counted(&device);
    assert_eq!((device.resident_bytes(), after.bytes_in()), (0, 0));
    assert_eq!(after.remote_bytes, BLOCK_BYTES + 1000);
    // SAFETY: allocated above, no kernel runs.
    let seen =
        unsafe { std::slice::from_raw_parts(address as *const u8, 2 * BLOCK_BYTES as usize) };
    let edge = BLOCK_BYTES as usize;
    assert_eq!(seen[..edge - 500].iter().max(), Some(&7));
    assert_eq!(seen[edge - 500..edge + 500], source);
    assert_eq!(seen[edge + 500..].iter().max(), Some(&0));
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
    // A block may be evicted with only some of its granules there, but never with none.
    assert_eq!(counted.bytes_out_eviction % GRANULE, 0);
    let evicted = counted.evictions_used * GRANULE..=counted.evictions_used * BLOCK_BYTES;
    assert!(evicted.contains(&counted.bytes_out_eviction), "{counted:?}");
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

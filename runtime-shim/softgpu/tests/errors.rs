//! What cannot be done is refused, and leaves the device as it was.

mod common;

use common::{MIX, STRIDE, device, launch, words};
use oversub_softgpu::kernels::Shape;
use oversub_softgpu::memory::{
    Advice, BLOCK_BYTES, Device, Fill, Kind, Location, MemoryError, Place,
};

fn is_invalid<T>(result: Result<T, MemoryError>) -> bool {
    matches!(result, Err(MemoryError::InvalidRange { .. }))
}

fn is_out_of_memory(result: Result<u64, MemoryError>) -> bool {
    matches!(result, Err(MemoryError::OutOfMemory { .. }))
}

#[test]
fn device_memory_ends_at_the_capacity_and_comes_back_when_freed() {
    let device = device(16);
    let most = 12 * BLOCK_BYTES;
    assert!(is_out_of_memory(device.alloc_device(17 * BLOCK_BYTES)));
    let a = device.alloc_device(most).expect("device memory");
    assert!(is_out_of_memory(device.alloc_device(BLOCK_BYTES)));
    assert!(is_out_of_memory(device.alloc_device(1)));
    device.free(a).expect("free");
    assert_eq!(device.memory_info(), (16 * BLOCK_BYTES, 16 * BLOCK_BYTES));
    device.alloc_device(most).expect("device memory again");
}

#[test]
fn managed_blocks_make_room_for_device_memory_and_keep_their_content() {
    let device = device(8);
    let bytes = 8 * BLOCK_BYTES;
    let managed = device.alloc_managed(bytes).expect("managed memory");
    launch(&device, &MIX, managed, bytes, 5);
    let taken = device.alloc_device(4 * BLOCK_BYTES).expect("device memory");
    assert_eq!(device.resident_bytes(), 4 * BLOCK_BYTES);
    launch(&device, &MIX, taken, 4 * BLOCK_BYTES, 1);
    // SAFETY: allocated above, no kernel runs.
    let view = unsafe { words(managed, bytes) };
    assert!(view.iter().all(|word| *word == 5));
}

#[test]
fn small_device_allocations_share_a_block() {
    let device = device(16);
    let all: Vec<u64> = (0..1000)
        .map(|_| device.alloc_device(600).expect("small"))
        .collect();
    assert_eq!(device.memory_info().0, 15 * BLOCK_BYTES);
    assert!(all.iter().all(|a| a % 512 == 0));
    for (i, address) in all.iter().enumerate() {
        device
            .memset(*address, Fill::Bytes(i as u8), 600)
            .expect("memset");
    }
    for (i, address) in all.iter().enumerate() {
        let mut back = [0u8; 600];
        let to = Place::Host(back.as_mut_ptr() as u64);
        // SAFETY: the target has 600 bytes.
        unsafe { device.copy(to, Place::Device(*address), 600) }.expect("copy");
        assert_eq!(back, [i as u8; 600]);
    }
    for address in all {
        device.free(address).expect("free");
    }
    assert_eq!(device.memory_info().0, 16 * BLOCK_BYTES);
}

#[test]
fn addresses_outside_live_allocations_are_refused() {
    let device = device(8);
    let managed = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    let plain = device.alloc_device(BLOCK_BYTES).expect("device memory");
    for (address, bytes) in [
        (0, 1),
        (managed, BLOCK_BYTES + 1),
        (managed + BLOCK_BYTES, 1),
    ] {
        assert!(is_invalid(device.prefetch(
            address,
            bytes,
            Location::Device
        )));
        assert!(is_invalid(device.discard(address, bytes)));
        assert!(is_invalid(device.advise(
            address,
            bytes,
            Advice::Preferred(None)
        )));
        assert!(is_invalid(device.range_state(address, bytes)));
        assert!(is_invalid(device.memset(address, Fill::Bytes(0), bytes)));
        let (to, from) = (Place::Device(address), Place::Device(plain));
        // SAFETY: no host memory is named.
        assert!(is_invalid(unsafe { device.copy(to, from, bytes) }));
    }
    assert!(is_invalid(device.prefetch(plain, 1, Location::Device)));
    assert!(is_invalid(device.memset(managed + 1, Fill::Words(0), 1)));
    assert!(is_invalid(device.free(managed + 1)));
    device.free(managed).expect("free");
    assert!(is_invalid(device.free(managed)));
    assert_eq!(device.lookup(managed), None);
    assert!(is_invalid(device.alloc_managed(0)));
    assert!(is_out_of_memory(device.alloc_managed(1 << 40)));
    assert!(is_out_of_memory(device.alloc_managed(u64::MAX)));
}

#[test]
fn read_mostly_is_refused_rather_than_pretended() {
    let device = device(8);
    let managed = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    let advised = device.advise(managed, BLOCK_BYTES, Advice::ReadMostly(true));
    assert!(matches!(advised, Err(MemoryError::NotSupported(_))));
}

#[test]
fn a_kernel_that_leaves_its_memory_ends_with_the_address() {
    let device = device(8);
    let managed = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    let view = device.to_device_view(managed).expect("view");
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    // SAFETY: the kernel leaves the allocation on purpose, but not the device's view.
    let result = unsafe { device.run_kernel(&STRIDE, &shape, &[view, 2 * BLOCK_BYTES, 4096]) };
    let Err(MemoryError::IllegalAddress { address, .. }) = result else {
        panic!("{result:?}")
    };
    assert_eq!(address, managed + BLOCK_BYTES);
    // The device works on.
    launch(&device, &MIX, managed, BLOCK_BYTES, 3);
    // SAFETY: allocated above, no kernel runs.
    let view = unsafe { words(managed, BLOCK_BYTES) };
    assert!(view.iter().all(|word| *word == 3));
}

#[test]
fn freed_memory_is_fresh_when_it_is_allocated_again() {
    let device = device(4);
    for round in 1..4 {
        let address = device
            .alloc_managed(3 * BLOCK_BYTES)
            .expect("managed memory");
        launch(&device, &MIX, address, 2 * BLOCK_BYTES, round);
        // SAFETY: just allocated, no kernel runs.
        let view = unsafe { words(address, 3 * BLOCK_BYTES) };
        assert!(view[..view.len() / 3 * 2].iter().all(|word| *word == round));
        assert!(view[view.len() / 3 * 2..].iter().all(|word| *word == 0));
        view.fill(77);
        device.free(address).expect("free");
    }
    assert_eq!(device.resident_bytes(), 0);
}

#[test]
fn a_range_answers_what_was_said_of_all_its_blocks() {
    let device = device(8);
    let base = device
        .alloc_managed(2 * BLOCK_BYTES)
        .expect("managed memory");
    let state = |device: &Device, bytes| device.range_state(base, bytes).expect("state");
    assert_eq!(state(&device, 2 * BLOCK_BYTES).preferred, Some(None));
    let prefer = Advice::Preferred(Some(Location::Device));
    device.advise(base, BLOCK_BYTES, prefer).expect("advice");
    device
        .prefetch(base, 2 * BLOCK_BYTES, Location::Host)
        .expect("prefetch");
    assert_eq!(
        state(&device, BLOCK_BYTES).preferred,
        Some(Some(Location::Device))
    );
    assert_eq!(state(&device, 2 * BLOCK_BYTES).preferred, None);
    assert_eq!(
        state(&device, 2 * BLOCK_BYTES).last_prefetch,
        Some(Some(Location::Host))
    );
    let found = device.lookup(base + 5).expect("allocation");
    assert_eq!(
        (found.base, found.bytes, found.kind),
        (base, 2 * BLOCK_BYTES, Kind::Managed)
    );
}

//! Everything at once: kernels, the CPU, prefetches both ways, allocations.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use common::{device, launch};
use oversub_softgpu::kernels::{Kernel, Param};
use oversub_softgpu::memory::{Advice, BLOCK_BYTES, Location};

const PAGE: u64 = 4096;

/// Adds one to the first word of every page.
const COUNT: Kernel = Kernel {
    name: "count",
    params: &[Param::Pointer, Param::U64, Param::U64],
    pieces: |_, words| words[1] / (16 * PAGE),
    run: |_, words, piece| {
        for page in 0..16 {
            // SAFETY: within the allocation that the test passes; others touch this word
            // only after the launch.
            unsafe { *((words[0] + (piece * 16 + page) * PAGE) as *mut u64) += 1 };
        }
    },
};

/// A word of the CPU's view.
fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: within a live allocation, aligned; accessed as an atomic.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

#[test]
fn no_update_is_lost_while_pages_go_both_ways() {
    pages_go_both_ways(None);
}

#[test]
fn no_update_is_lost_while_kernels_and_the_cpu_use_the_same_pages_of_the_host() {
    pages_go_both_ways(Some(Location::Host));
}

fn pages_go_both_ways(preferred: Option<Location>) {
    const BLOCKS: u64 = 12;
    const LAUNCHES: u64 = 6;
    let device = &device(4);
    let bytes = BLOCKS * BLOCK_BYTES;
    let base = device.alloc_managed(bytes).expect("managed memory");
    device
        .advise(base, bytes, Advice::Preferred(preferred))
        .expect("advice");
    let over = &AtomicBool::new(false);
    // Each party owns one word of every page, so they share pages but do not race.
    let written = thread::scope(|scope| {
        let cpu: Vec<_> = (1..3u64)
            .map(|own| {
                scope.spawn(move || {
                    let (mut x, mut counts) = (own, vec![0u64; (bytes / PAGE) as usize]);
                    while !over.load(Ordering::Relaxed) {
                        x = x.wrapping_mul(6364136223846793005).wrapping_add(own);
                        let page = (x >> 33) % (bytes / PAGE);
                        word(base + page * PAGE + own * 8).fetch_add(1, Ordering::Relaxed);
                        counts[page as usize] += 1;
                    }
                    (own, counts)
                })
            })
            .collect();
        for (from, to) in [(0, Location::Device), (5, Location::Host)] {
            scope.spawn(move || {
                for i in (0..BLOCKS).cycle().skip(from) {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    device
                        .prefetch(base + i * BLOCK_BYTES, BLOCK_BYTES, to)
                        .expect("prefetch");
                }
            });
        }
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let managed = device
                    .alloc_managed(3 * BLOCK_BYTES)
                    .expect("managed memory");
                device
                    .prefetch(managed, 2 * BLOCK_BYTES, Location::Device)
                    .expect("prefetch");
                let small = device.alloc_device(1000).expect("device memory");
                word(managed + BLOCK_BYTES).store(1, Ordering::Relaxed);
                device.free(small).expect("free");
                device.free(managed).expect("free");
            }
        });
        for _ in 0..LAUNCHES {
            launch(device, &COUNT, base, bytes, 0);
        }
        over.store(true, Ordering::Relaxed);
        cpu.into_iter()
            .map(|t| t.join().expect("cpu thread"))
            .collect::<Vec<_>>()
    });
    for page in 0..bytes / PAGE {
        let at = base + page * PAGE;
        assert_eq!(
            word(at).load(Ordering::Relaxed),
            LAUNCHES,
            "page {page} of the kernel"
        );
        for (own, counts) in &written {
            let value = word(at + own * 8).load(Ordering::Relaxed);
            assert_eq!(value, counts[page as usize], "page {page} of thread {own}");
        }
    }
    let peak = device.counters().managed_peak_resident_bytes.get();
    assert!(peak <= 4 * BLOCK_BYTES, "{peak}");
}

#[test]
fn launches_of_several_threads_run_one_after_the_other() {
    let device = &device(8);
    let bytes = 4 * BLOCK_BYTES;
    let base = device.alloc_managed(bytes).expect("managed memory");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || (0..5).for_each(|_| launch(device, &COUNT, base, bytes, 0)));
        }
    });
    assert!((0..bytes / PAGE).all(|p| word(base + p * PAGE).load(Ordering::Relaxed) == 20));
}

#[test]
fn system_calls_on_device_resident_memory_are_served() {
    use std::io::Write;
    let device = device(4);
    let base = device.alloc_managed(BLOCK_BYTES).expect("managed memory");
    launch(&device, &COUNT, base, BLOCK_BYTES, 0);
    // SAFETY: a live allocation, no kernel runs.
    let bytes = unsafe { std::slice::from_raw_parts(base as *const u8, BLOCK_BYTES as usize) };
    let mut sink = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .expect("null");
    sink.write_all(&bytes[..8]).expect("write");
    let mut pipe = [0; 2];
    // SAFETY: two descriptors are written to the array.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    let mut back = 0u64;
    // SAFETY: eight bytes go through the pipe, from managed memory to a word.
    unsafe {
        assert_eq!(libc::write(pipe[1], base as *const _, 8), 8);
        assert_eq!(libc::read(pipe[0], (&raw mut back).cast(), 8), 8);
    }
    assert_eq!(back, 1);
}

/// Compaction moves pages from frame to frame meanwhile, and the kernel then moves them from
/// view to view in more than one go. Without the right to ask for compaction the pages only
/// go from view to view.
#[test]
fn pages_go_both_ways_while_the_kernel_compacts_memory() {
    const BLOCKS: u64 = 192;
    const LAUNCHES: u64 = 12;
    let device = &device(BLOCKS / 2);
    let bytes = BLOCKS * BLOCK_BYTES;
    let base = device.alloc_managed(bytes).expect("managed memory");
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            while !over.load(Ordering::Relaxed) {
                if std::fs::write("/proc/sys/vm/compact_memory", "1").is_err() {
                    return;
                }
            }
        });
        for number in 0..LAUNCHES {
            launch(device, &COUNT, base, bytes, number);
            let half = bytes / 2 * (number % 2);
            device
                .prefetch(base + half, bytes / 2, Location::Host)
                .expect("prefetch");
        }
        over.store(true, Ordering::Relaxed);
    });
    for page in 0..bytes / PAGE {
        assert_eq!(
            word(base + page * PAGE).load(Ordering::Relaxed),
            LAUNCHES,
            "page {page}"
        );
    }
}

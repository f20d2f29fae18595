//! What the soft GPU's memory costs on this machine: prefetch rates against the link,
//! fault service, launches. `--json` prints one JSON object.

use std::thread;
use std::time::{Duration, Instant};

use oversub_softgpu::config::Config;
use oversub_softgpu::kernels::{Kernel, Param, Shape};
use oversub_softgpu::memory::{Advice, BLOCK_BYTES, Device, Location};

const ROUNDS: usize = 5;
const GRANULE: u64 = 64 << 10;

static EMPTY: Kernel = Kernel {
    name: "empty",
    params: &[],
    pieces: |_, _| 1,
    run: |_, _, _| {},
};

static EMPTY_WIDE: Kernel = Kernel {
    name: "empty_wide",
    pieces: |_, _| 64,
    ..EMPTY
};

/// Reads one word of each `words[2]` bytes.
static STRIDE: Kernel = Kernel {
    name: "stride",
    params: &[Param::Pointer, Param::U64, Param::U64],
    pieces: |_, _| 1,
    run: |_, words, _| {
        for at in (0..words[1]).step_by(words[2] as usize) {
            // SAFETY: within the benchmark's allocation.
            unsafe { ((words[0] + at) as *const u64).read_volatile() };
        }
    },
};

/// Reads one word of each 64 KiB, a piece each: many faults in flight.
static SPREAD: Kernel = Kernel {
    name: "spread",
    params: &[Param::Pointer, Param::U64],
    pieces: |_, words| words[1] / GRANULE,
    run: |_, words, piece| {
        // SAFETY: within the benchmark's allocation.
        unsafe { ((words[0] + piece * GRANULE) as *const u64).read_volatile() };
    },
};

static SUM: Kernel = Kernel {
    name: "sum",
    params: &[Param::Pointer, Param::U64],
    pieces: |_, words| words[1] / GRANULE,
    run: |_, words, piece| add_one(words[0] + piece * GRANULE, GRANULE),
};

fn add_one(at: u64, bytes: u64) {
    for word in (at..at + bytes).step_by(8) {
        let word = word as *mut u64;
        // SAFETY: within the benchmark's allocations.
        unsafe { *word = (*word).wrapping_add(1) };
    }
}

fn run(device: &Device, kernel: &Kernel, words: &[u64]) -> Duration {
    let shape = Shape {
        grid: [1; 3],
        block: [1; 3],
        shared_bytes: 0,
    };
    let began = Instant::now();
    // SAFETY: the words name the benchmark's live allocations.
    unsafe { device.run_kernel(kernel, &shape, words) }.expect("runs");
    began.elapsed()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn fast() -> Device {
    let rate = 1_000_000_000_000;
    Device::new(Config {
        link_in_bytes_per_s: rate,
        link_out_bytes_per_s: rate,
        fault: Duration::ZERO,
        ..Config::default()
    })
    .expect("device")
}

fn prefetch_rate(device: &Device, address: u64, bytes: u64, to: Location) -> f64 {
    let began = Instant::now();
    device.prefetch(address, bytes, to).expect("prefetch");
    bytes as f64 / began.elapsed().as_secs_f64()
}

/// Rates in bytes per second: in alone, out alone, in and out at once.
fn rates() -> [f64; 4] {
    let bytes = 96 << 20;
    let device = Device::new(Config::default()).expect("device");
    let [a, b] = [(); 2].map(|()| device.alloc_managed(bytes).expect("managed memory"));
    prefetch_rate(&device, a, bytes, Location::Device);
    prefetch_rate(&device, b, bytes, Location::Host);
    let mut all: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        all[1].push(prefetch_rate(&device, a, bytes, Location::Host));
        all[0].push(prefetch_rate(&device, a, bytes, Location::Device));
        let (out, into) = thread::scope(|scope| {
            let out = scope.spawn(|| prefetch_rate(&device, a, bytes, Location::Host));
            let into = scope.spawn(|| prefetch_rate(&device, b, bytes, Location::Device));
            (out.join().expect("out"), into.join().expect("in"))
        });
        all[2].push(into);
        all[3].push(out);
        device.prefetch(b, bytes, Location::Host).expect("prefetch");
        device
            .prefetch(a, bytes, Location::Device)
            .expect("prefetch");
    }
    all.map(median)
}

/// How much longer than the bare link a kernel takes that sweeps over 1.5 times the
/// device: every block goes out and comes in, one after the other, plus the batches' cost.
fn demand_over_link() -> f64 {
    let config = Config {
        memory_bytes: 64 * BLOCK_BYTES,
        ..Config::default()
    };
    let device = Device::new(config.clone()).expect("device");
    let bytes = 96 * BLOCK_BYTES;
    let address = device.alloc_managed(bytes).expect("managed memory");
    let view = device.to_device_view(address).expect("view");
    run(&device, &SUM, &[view, bytes]);
    run(&device, &SUM, &[view, bytes]);
    let before = device.counters().snapshot();
    let took = run(&device, &SUM, &[view, bytes]).as_secs_f64();
    let after = device.counters().snapshot();
    let moved = after.bytes_in() - before.bytes_in() + after.bytes_out() - before.bytes_out();
    let fixed = config.fault.as_secs_f64() * (after.batches - before.batches) as f64;
    took / (moved as f64 / config.link_in_bytes_per_s as f64 + fixed)
}

fn main() {
    let mut figures: Vec<(&str, f64)> = Vec::new();
    let link = Config::default().link_in_bytes_per_s as f64;
    let names = [
        "prefetch_in_share",
        "prefetch_out_share",
        "both_in_share",
        "both_out_share",
    ];
    figures.extend(names.into_iter().zip(rates().map(|rate| rate / link)));

    figures.push((
        "demand_sweep_over_link",
        median((0..3).map(|_| demand_over_link()).collect()),
    ));

    let device = fast();
    let blocks = 64;
    let bytes = blocks * BLOCK_BYTES;
    let address = device.alloc_managed(bytes).expect("managed memory");
    let view = device.to_device_view(address).expect("view");
    let per = |time: Duration, n: u64| time.as_secs_f64() * 1e6 / n as f64;
    let mut rows: Vec<Vec<f64>> = vec![Vec::new(); 8];
    for _ in 0..ROUNDS {
        device
            .prefetch(address, bytes, Location::Host)
            .expect("prefetch");
        let began = Instant::now();
        device
            .prefetch(address, bytes, Location::Device)
            .expect("prefetch");
        rows[0].push(per(began.elapsed(), blocks));
        let began = Instant::now();
        device
            .prefetch(address, bytes, Location::Device)
            .expect("prefetch");
        rows[1].push(per(began.elapsed(), blocks));
    }
    // Faults: each 64 KiB alone, one after the other; then the density ladder; then many
    // at once.
    let granules = bytes / GRANULE;
    device
        .advise(address, bytes, Advice::Preferred(Some(Location::Host)))
        .expect("advice");
    for _ in 0..ROUNDS {
        device
            .prefetch(address, bytes, Location::Host)
            .expect("prefetch");
        rows[2].push(per(
            run(&device, &STRIDE, &[view, bytes, GRANULE]),
            granules,
        ));
    }
    device
        .advise(address, bytes, Advice::Preferred(None))
        .expect("advice");
    for _ in 0..ROUNDS {
        device
            .prefetch(address, bytes, Location::Host)
            .expect("prefetch");
        rows[3].push(per(run(&device, &STRIDE, &[view, bytes, GRANULE]), blocks));
        device
            .prefetch(address, bytes, Location::Host)
            .expect("prefetch");
        rows[4].push(per(run(&device, &SPREAD, &[view, bytes]), blocks));
    }
    // Launches and resident work.
    run(&device, &SUM, &[view, bytes]);
    let mut plain = vec![1u64; (bytes / 8) as usize];
    for _ in 0..ROUNDS {
        let many = 2000;
        let launch = |kernel| {
            (0..many)
                .map(|_| run(&device, kernel, &[view, bytes]))
                .sum()
        };
        rows[5].push(per(launch(&EMPTY), many));
        rows[6].push(per(launch(&EMPTY_WIDE), many));
        let resident = run(&device, &SUM, &[view, bytes]).as_secs_f64();
        let halves = plain.split_at_mut((bytes / 16) as usize);
        let began = Instant::now();
        thread::scope(|scope| {
            for half in [halves.0, halves.1] {
                scope.spawn(move || add_one(half.as_ptr() as u64, size_of_val(half) as u64));
            }
        });
        rows[7].push(resident / began.elapsed().as_secs_f64());
    }
    let names = [
        "prefetch_block_overhead_us",
        "touch_block_us",
        "fault_64k_us",
        "fault_block_ladder_us",
        "fault_block_parallel_us",
        "launch_one_piece_us",
        "launch_64_pieces_us",
        "resident_over_plain",
    ];
    figures.extend(names.into_iter().zip(rows.into_iter().map(median)));
    if std::env::args().any(|a| a == "--json") {
        let fields: Vec<_> = figures
            .iter()
            .map(|(n, v)| format!("\"{n}\":{v:.3}"))
            .collect();
        println!("{{{}}}", fields.join(","));
    } else {
        for (name, value) in figures {
            println!("{name:28} {value:10.3}");
        }
    }
}

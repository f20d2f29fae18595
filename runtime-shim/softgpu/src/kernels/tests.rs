//! Each kernel against a thread-by-thread transcription of its CUDA source, on plain
//! memory, with the pieces in a scrambled order.

use super::{KERNELS, Param, Shape};

fn kernel(name: &str) -> &'static super::Kernel {
    KERNELS
        .iter()
        .find(|kernel| kernel.name == name)
        .expect("known kernel")
}

/// Runs all pieces of a launch with `threads` threads, last piece first.
fn launch(name: &str, threads: usize, params: &[u64]) {
    let kernel = kernel(name);
    assert_eq!(kernel.params.len(), params.len(), "{name}: parameters");
    let blocks = threads.div_ceil(128) as u32;
    let shape = Shape {
        grid: [blocks, 1, 1],
        block: [128, 1, 1],
        shared_bytes: 0,
    };
    for piece in (0..(kernel.pieces)(&shape, params)).rev() {
        // SAFETY: the tests pass arrays as large as the other parameters say.
        unsafe { (kernel.run)(&shape, params, piece) }
    }
}

fn p<T>(array: &[T]) -> u64 {
    array.as_ptr() as u64
}

fn pm<T>(array: &mut [T]) -> u64 {
    array.as_mut_ptr() as u64
}

fn f(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn hash(index: u32, seed: u32) -> u32 {
    let mut x = index.wrapping_mul(0x9E3779B9).wrapping_add(seed);
    x ^= x >> 16;
    x = x.wrapping_mul(0x7FEB352D);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846CA68B);
    x ^ (x >> 16)
}

fn unit(word: u32) -> f32 {
    ((word >> 8) as i32 - 8388608) as f32 * 2f32.powi(-23)
}

fn noise(count: usize, seed: u32) -> Vec<u32> {
    (0..count).map(|i| hash(i as u32, seed)).collect()
}

fn floats(count: usize, seed: u32) -> Vec<f32> {
    noise(count, seed).into_iter().map(unit).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// More than one piece, and a ragged end.
const COUNT: usize = 40_001;

#[test]
fn the_hash_has_the_values_of_the_cuda_source() {
    // Worked by hand from the definition: 0 and seed 0 stay 0.
    assert_eq!(hash(0, 0), 0);
    assert_eq!(super::vector::hash_word(7, 9), hash(7, 9));
    assert_eq!(super::vector::unit_float(u32::MAX), 1.0 - 2f32.powi(-23));
    assert_eq!(super::vector::unit_float(0), -1.0);
}

#[test]
fn every_kernel_declares_the_parameters_of_the_committed_ptx() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/workloads/kernels/kernels.ptx"
    );
    let ptx = std::fs::read_to_string(path).expect("committed PTX");
    let mut entries = 0;
    for text in ptx.split(".visible .entry ").skip(1) {
        let name = text.split('(').next().expect("name").trim();
        let declared: Vec<u32> = text
            .split(')')
            .next()
            .expect("parameter list")
            .split(".param .")
            .skip(1)
            .map(|word| if word.starts_with("u64") { 8 } else { 4 })
            .collect();
        let ours: Vec<u32> = kernel(name)
            .params
            .iter()
            .map(|param| {
                if matches!(param, Param::Pointer | Param::U64) {
                    8
                } else {
                    4
                }
            })
            .collect();
        assert_eq!(ours, declared, "{name}");
        entries += 1;
    }
    assert_eq!(entries, KERNELS.len());
}

#[test]
fn fills_write_the_sequence_and_wrap_its_index() {
    let mut words = vec![0u32; COUNT];
    let first = u32::MAX - 5;
    launch(
        "fill_u32",
        COUNT,
        &[pm(&mut words), COUNT as u64, first.into(), 77],
    );
    let want: Vec<u32> = (0..COUNT)
        .map(|i| hash(first.wrapping_add(i as u32), 77))
        .collect();
    assert_eq!(words, want);
    let mut values = vec![0f32; COUNT];
    launch(
        "fill_f32",
        COUNT,
        &[pm(&mut values), COUNT as u64, first.into(), 77, f(0.125)],
    );
    let want: Vec<f32> = want.into_iter().map(|word| unit(word) * 0.125).collect();
    assert_eq!(bits(&values), bits(&want));
}

#[test]
fn a_sweep_changes_each_covered_word_once() {
    let before = noise(COUNT, 1);
    let mut state = before.clone();
    launch(
        "sweep_step",
        COUNT,
        &[pm(&mut state), COUNT as u64, 1_664_525, 99, 0xABCD],
    );
    let step = |x: &u32| x.wrapping_mul(1_664_525).wrapping_add(99) ^ 0xABCD;
    assert_eq!(state, before.iter().map(step).collect::<Vec<_>>());

    let mut state = before.clone();
    launch("sweep_step", 128, &[pm(&mut state), COUNT as u64, 3, 5, 7]);
    assert_eq!(
        state[128..],
        before[128..],
        "a small launch leaves the rest untouched"
    );
    assert_ne!(state[..128], before[..128]);
}

#[test]
fn the_mixer_runs_all_rounds() {
    let before = noise(COUNT, 2);
    let mut state = before.clone();
    launch("mix_rounds", COUNT, &[pm(&mut state), COUNT as u64, 17, 5]);
    let mix = |x: &u32| {
        (0..17u32).fold(*x, |x, r| {
            (x ^ (x >> 15)).wrapping_mul(0x2C1B3C6D).wrapping_add(5 + r)
        })
    };
    assert_eq!(state, before.iter().map(mix).collect::<Vec<_>>());
}

#[test]
fn gather_folds_the_hashed_rows_in_order() {
    let (rows, slots, per_slot, key) = (1000u32, 24u32, 16u32, 0x1234_5678u32);
    let table = noise(rows as usize * 16, 3);
    let before = noise(slots as usize * 16, 4);
    let mut out = before.clone();
    let params = [
        p(&table),
        pm(&mut out),
        rows.into(),
        slots.into(),
        per_slot.into(),
        key.into(),
    ];
    launch("gather_rows", slots as usize * 16, &params);
    for (i, (got, start)) in out.iter().zip(before).enumerate() {
        let (slot, lane) = (i as u32 >> 4, i & 15);
        let want = (0..per_slot).fold(start, |acc, j| {
            let row = (u64::from(hash(slot * per_slot + j, key)) * u64::from(rows)) >> 32;
            (acc ^ (acc >> 15))
                .wrapping_mul(0x9E3779B1)
                .wrapping_add(table[row as usize * 16 + lane])
        });
        assert_eq!(*got, want, "word {i}");
    }
}

#[test]
fn a_tile_product_adds_to_what_is_there() {
    for (m, k, n) in [(32usize, 40usize, 48usize), (7, 3, 16), (1, 1, 32)] {
        let (a, b) = (noise(m * k, 5), noise(k * n, 6));
        let before = noise(m * n, 7);
        let mut c = before.clone();
        let params = [p(&a), p(&b), pm(&mut c), m as u64, k as u64, n as u64];
        launch("gemm_tile", (m * n).next_multiple_of(128), &params);
        for (i, (got, start)) in c.iter().zip(&before).enumerate() {
            let (column, row, panel) = (i & 15, (i >> 4) % m, (i >> 4) / m);
            let want = (0..k).fold(*start, |acc, q| {
                acc.wrapping_add(a[row * k + q].wrapping_mul(b[panel * k * 16 + q * 16 + column]))
            });
            assert_eq!(*got, want, "{m} x {k} x {n}, word {i}");
        }
    }
}

/// More groups than a piece holds.
const GROUPS: usize = 19;
const ROWS: usize = GROUPS * 32;

fn shifted(feature: usize) -> usize {
    (feature + 16) % ROWS
}

#[test]
fn forward_sums_inputs_in_order_and_adds_the_shifted_input() {
    let (w, x) = (floats(GROUPS * 1024, 8), floats(ROWS * 8, 9));
    let (mut pre, mut y) = (vec![0f32; ROWS * 8], vec![0f32; ROWS * 8]);
    let params = [p(&w), p(&x), pm(&mut pre), pm(&mut y), GROUPS as u64];
    launch("mlp_forward", ROWS * 8, &params);
    for i in 0..ROWS * 8 {
        let (feature, sample) = (i / 8, i % 8);
        let base = feature / 32 * 32;
        let mut acc = 0.0f32;
        for k in 0..32 {
            acc += w[feature * 32 + k] * x[shifted(base + k) * 8 + sample];
        }
        assert_eq!(pre[i].to_bits(), acc.to_bits(), "pre {i}");
        let want = x[shifted(feature) * 8 + sample] + acc / (1.0 + acc.abs());
        assert_eq!(y[i].to_bits(), want.to_bits(), "y {i}");
    }
}

#[test]
fn the_loss_and_its_gradient_are_those_of_squared_differences() {
    let x = floats(ROWS * 8, 10);
    let (mut dy, mut partial) = (vec![0f32; ROWS * 8], vec![0f32; GROUPS]);
    launch(
        "mlp_loss",
        ROWS * 8,
        &[p(&x), pm(&mut dy), pm(&mut partial), GROUPS as u64, 55],
    );
    let want: Vec<f32> = x
        .iter()
        .enumerate()
        .map(|(i, x)| x - unit(hash(i as u32, 55)))
        .collect();
    assert_eq!(bits(&dy), bits(&want));
    for (group, got) in partial.iter().enumerate() {
        let mut acc = 0.0f32;
        for d in &want[group * 256..][..256] {
            acc += d * d;
        }
        assert_eq!(got.to_bits(), acc.to_bits(), "group {group}");
    }
}

#[test]
fn gradients_are_summed_in_order() {
    let w = floats(GROUPS * 1024, 11);
    let (pre, dy, x) = (
        floats(ROWS * 8, 12),
        floats(ROWS * 8, 13),
        floats(ROWS * 8, 14),
    );
    let mut dpre = vec![0f32; ROWS * 8];
    launch(
        "mlp_activation_grad",
        ROWS * 8,
        &[p(&pre), p(&dy), pm(&mut dpre), ROWS as u64 * 8],
    );
    for i in 0..ROWS * 8 {
        let s = 1.0 + pre[i].abs();
        assert_eq!(dpre[i].to_bits(), (dy[i] / (s * s)).to_bits(), "dpre {i}");
    }
    let mut dx = vec![0f32; ROWS * 8];
    let params = [p(&w), p(&dpre), p(&dy), pm(&mut dx), GROUPS as u64];
    launch("mlp_input_grad", ROWS * 8, &params);
    for (i, dy) in dy.iter().enumerate() {
        let (feature, sample) = (i / 8, i % 8);
        let (base, k) = (feature / 32 * 32, feature % 32);
        let mut acc = 0.0f32;
        for o in 0..32 {
            acc += w[(base + o) * 32 + k] * dpre[(base + o) * 8 + sample];
        }
        let got = dx[shifted(feature) * 8 + sample];
        assert_eq!(got.to_bits(), (dy + acc).to_bits(), "dx {i}");
    }
    let mut dw = vec![0f32; GROUPS * 1024];
    launch(
        "mlp_weight_grad",
        GROUPS * 1024,
        &[p(&dpre), p(&x), pm(&mut dw), GROUPS as u64],
    );
    for (i, dw) in dw.iter().enumerate() {
        let (feature, k) = (i / 32, i % 32);
        let row = shifted(feature / 32 * 32 + k);
        let mut acc = 0.0f32;
        for b in 0..8 {
            acc += dpre[feature * 8 + b] * x[row * 8 + b];
        }
        assert_eq!(dw.to_bits(), acc.to_bits(), "dw {i}");
    }
}

#[test]
fn adam_updates_both_moments_then_the_weight() {
    let (w0, m0) = (floats(COUNT, 15), floats(COUNT, 16));
    let v0: Vec<f32> = floats(COUNT, 17).into_iter().map(f32::abs).collect();
    let g = floats(COUNT, 18);
    let (rate, beta1, beta2, epsilon) = (0.01f32, 0.9f32, 0.999f32, 1e-8f32);
    let (mut w, mut m, mut v) = (w0.clone(), m0.clone(), v0.clone());
    let params = [
        pm(&mut w),
        pm(&mut m),
        pm(&mut v),
        p(&g),
        COUNT as u64,
        f(rate),
        f(beta1),
        f(beta2),
        f(epsilon),
    ];
    launch("adam_step", COUNT, &params);
    for i in 0..COUNT {
        let mi = beta1 * m0[i] + (1.0 - beta1) * g[i];
        let vi = beta2 * v0[i] + (1.0 - beta2) * (g[i] * g[i]);
        let wi = w0[i] - rate * mi / (vi.sqrt() + epsilon);
        assert_eq!(
            [m[i], v[i], w[i]].map(f32::to_bits),
            [mi, vi, wi].map(f32::to_bits),
            "{i}"
        );
    }
}

#[test]
fn a_launch_of_nothing_has_no_pieces_and_strange_shapes_do_not_panic() {
    for kernel in KERNELS {
        let params: Vec<u64> = kernel.params.iter().map(|_| 0).collect();
        let shape = Shape {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            shared_bytes: 0,
        };
        assert_eq!((kernel.pieces)(&shape, &params), 0, "{}", kernel.name);
        assert_eq!((kernel.pieces)(&shape, &[]), 0, "{}", kernel.name);
    }
}

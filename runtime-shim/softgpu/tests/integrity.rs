//! Whatever is done to managed memory, in whatever order, the program reads what it
//! wrote: random plans against plain memory, at 0.5 to 4 times the device's capacity.

mod common;

use common::{MIX, PIECE, SCATTER, device, launch, mixed, scattered, words};
use oversub_softgpu::memory::{Advice, BLOCK_BYTES, Device, Fill, Location, Place};
use proptest::prelude::*;

/// A step of a plan. Positions are fractions of 1024 of the allocation.
#[derive(Clone, Debug)]
enum Step {
    Mix {
        from: u64,
        part: u64,
        add: u64,
    },
    Scatter {
        seed: u64,
    },
    Prefetch {
        from: u64,
        part: u64,
        to_device: bool,
    },
    Advise {
        from: u64,
        part: u64,
        advice: u8,
    },
    CpuWrite {
        at: u64,
        stride: u64,
        value: u64,
    },
    CpuRead {
        at: u64,
        stride: u64,
    },
    /// Dead content: discarded, then wholly overwritten by one of several means.
    Discard {
        from: u64,
        part: u64,
        by: u8,
        value: u8,
    },
    Memset {
        from: u64,
        part: u64,
        value: u8,
    },
    CopyIn {
        from: u64,
        part: u64,
        value: u8,
    },
    CopyOut {
        from: u64,
        part: u64,
    },
    CopyWithin {
        from: u64,
        to: u64,
        part: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..1024u64;
    let part = || 1..512u64;
    prop_oneof![
        3 => (at(), part(), any::<u64>()).prop_map(|(from, part, add)| Step::Mix { from, part, add }),
        2 => any::<u64>().prop_map(|seed| Step::Scatter { seed }),
        4 => (at(), part(), any::<bool>())
            .prop_map(|(from, part, to_device)| Step::Prefetch { from, part, to_device }),
        3 => (at(), part(), 0..7u8).prop_map(|(from, part, advice)| Step::Advise { from, part, advice }),
        2 => (at(), 1..5000u64, any::<u64>())
            .prop_map(|(at, stride, value)| Step::CpuWrite { at, stride, value }),
        2 => (at(), 1..5000u64).prop_map(|(at, stride)| Step::CpuRead { at, stride }),
        3 => (at(), part(), 0..4u8, any::<u8>())
            .prop_map(|(from, part, by, value)| Step::Discard { from, part, by, value }),
        1 => (at(), part(), any::<u8>()).prop_map(|(from, part, value)| Step::Memset { from, part, value }),
        1 => (at(), part(), any::<u8>()).prop_map(|(from, part, value)| Step::CopyIn { from, part, value }),
        1 => (at(), part()).prop_map(|(from, part)| Step::CopyOut { from, part }),
        1 => (at(), at(), part()).prop_map(|(from, to, part)| Step::CopyWithin { from, to, part }),
    ]
}

/// The device and plain memory, side by side.
struct Pair {
    device: Device,
    address: u64,
    bytes: u64,
    reference: Vec<u64>,
}

impl Pair {
    fn new(blocks: u64, bytes: u64) -> Self {
        let device = device(blocks);
        let address = device.alloc_managed(bytes).expect("managed memory");
        Self {
            device,
            address,
            bytes,
            reference: vec![0; (bytes / 8) as usize],
        }
    }

    /// A range in bytes, of whole words.
    fn range(&self, from: u64, part: u64) -> (u64, u64) {
        let at = self.bytes * from / 1024 / 8 * 8;
        let length = (self.bytes * part / 1024 / 8 * 8).clamp(8, self.bytes - at);
        (at, length)
    }

    fn cpu(&self) -> &'static mut [u64] {
        // SAFETY: the pair keeps the allocation, and kernels run only inside `apply`.
        unsafe { words(self.address, self.bytes) }
    }

    fn plain(&mut self, at: u64, length: u64) -> &mut [u64] {
        &mut self.reference[(at / 8) as usize..((at + length) / 8) as usize]
    }

    fn apply(&mut self, step: &Step) {
        let device = &self.device;
        let base = self.address;
        match *step {
            Step::Mix { from, part, add } => {
                let (at, length) = self.range(from, part);
                launch(device, &MIX, base + at, length, add);
                self.plain(at, length)
                    .iter_mut()
                    .for_each(|word| *word = mixed(*word, add));
            }
            Step::Scatter { seed } => {
                launch(device, &SCATTER, base, self.bytes, seed);
                let pieces = self.bytes.div_ceil(PIECE);
                for piece in 0..pieces {
                    for at in scattered(piece, pieces, seed, self.bytes) {
                        let word = &mut self.reference[(at / 8) as usize];
                        *word = mixed(*word, seed);
                    }
                }
            }
            Step::Prefetch {
                from,
                part,
                to_device,
            } => {
                let (at, length) = self.range(from, part);
                let to = if to_device {
                    Location::Device
                } else {
                    Location::Host
                };
                device.prefetch(base + at, length, to).expect("prefetch");
            }
            Step::Advise { from, part, advice } => {
                let (at, length) = self.range(from, part);
                let advice = match advice {
                    0 => Advice::Preferred(Some(Location::Device)),
                    1 => Advice::Preferred(Some(Location::Host)),
                    2 => Advice::Preferred(None),
                    3 => Advice::AccessedByDevice(true),
                    4 => Advice::AccessedByDevice(false),
                    // Twice as often as the rest: what a budget is kept by.
                    5 => Advice::Preferred(Some(Location::Host)),
                    _ => Advice::ReadMostly(false),
                };
                device.advise(base + at, length, advice).expect("advice");
            }
            Step::CpuWrite { at, stride, value } => {
                let first = (self.reference.len() as u64 * at / 1024) as usize;
                let chosen = (first..self.reference.len())
                    .step_by(stride as usize)
                    .take(50);
                for i in chosen {
                    self.cpu()[i] = value ^ i as u64;
                    self.reference[i] = value ^ i as u64;
                }
            }
            Step::CpuRead { at, stride } => {
                let first = (self.reference.len() as u64 * at / 1024) as usize;
                for i in (first..self.reference.len())
                    .step_by(stride as usize)
                    .take(50)
                {
                    assert_eq!(self.cpu()[i], self.reference[i], "word {i}");
                }
            }
            Step::Discard {
                from,
                part,
                by,
                value,
            } => {
                let (at, length) = self.range(from, part);
                device.discard(base + at, length).expect("discard");
                if by == 3 {
                    // A prefetch also ends the discard; the content is still undefined.
                    device
                        .prefetch(base + at, length, Location::Device)
                        .expect("prefetch");
                }
                match by {
                    0 => self.cpu()[(at / 8) as usize..((at + length) / 8) as usize]
                        .fill(u64::from_ne_bytes([value; 8])),
                    _ => device
                        .memset(base + at, Fill::Bytes(value), length)
                        .expect("memset"),
                }
                self.plain(at, length).fill(u64::from_ne_bytes([value; 8]));
            }
            Step::Memset { from, part, value } => {
                let (at, length) = self.range(from, part);
                let word = u32::from_ne_bytes([value; 4]);
                device
                    .memset(base + at, Fill::Words(word), length / 4)
                    .expect("memset");
                self.plain(at, length).fill(u64::from_ne_bytes([value; 8]));
            }
            Step::CopyIn { from, part, value } => {
                let (at, length) = self.range(from, part);
                let source = vec![u64::from_ne_bytes([value; 8]); (length / 8) as usize];
                let (to, from) = (
                    Place::Device(base + at),
                    Place::Host(source.as_ptr() as u64),
                );
                // SAFETY: the source has `length` bytes.
                unsafe { device.copy(to, from, length) }.expect("copy");
                self.plain(at, length).copy_from_slice(&source);
            }
            Step::CopyOut { from, part } => {
                let (at, length) = self.range(from, part);
                let mut target = vec![0u64; (length / 8) as usize];
                let to = Place::Host(target.as_mut_ptr() as u64);
                // SAFETY: the target has `length` bytes.
                unsafe { device.copy(to, Place::Device(base + at), length) }.expect("copy");
                assert_eq!(target, self.plain(at, length), "copied out at {at}");
            }
            Step::CopyWithin { from, to, part } => {
                let ((a, n), (b, m)) = (self.range(from, part), self.range(to, part));
                let length = n.min(m).min(a.abs_diff(b));
                let (to, from) = (Place::Device(base + b), Place::Device(base + a));
                if length > 0 {
                    // SAFETY: both ends are managed memory.
                    unsafe { device.copy(to, from, length) }.expect("copy");
                    let source = self.plain(a, length).to_vec();
                    self.plain(b, length).copy_from_slice(&source);
                }
            }
        }
    }

    fn check(&self) {
        let same = self
            .cpu()
            .iter()
            .zip(&self.reference)
            .position(|(a, b)| a != b);
        assert_eq!(same, None, "first word that differs");
        assert!(self.device.resident_bytes() <= self.device.config().memory_bytes);
        let peak = self.device.counters().managed_peak_resident_bytes.get();
        assert!(peak <= self.device.config().memory_bytes, "{peak}");
    }
}

/// Capacity in blocks, and managed bytes of 0.5 to 4 times that, not always whole blocks.
fn sizes() -> impl Strategy<Value = (u64, u64)> {
    (4..9u64, 5..40u64, 0..4u64).prop_map(|(blocks, tenths, ragged)| {
        let bytes = blocks * BLOCK_BYTES * tenths / 10;
        (
            blocks,
            bytes / 4096 * 4096 - ragged * 4096 - if ragged == 3 { 1000 } else { 0 },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn memory_is_what_the_program_wrote(
        (blocks, bytes) in sizes(),
        steps in prop::collection::vec(step(), 1..14),
    ) {
        let mut pair = Pair::new(blocks, bytes / 8 * 8);
        for step in &steps {
            pair.apply(step);
        }
        pair.check();
    }
}

#[test]
fn a_pool_of_four_blocks_finishes_a_program_of_forty() {
    let mut pair = Pair::new(4, 40 * BLOCK_BYTES);
    for seed in 0..3 {
        pair.apply(&Step::Scatter { seed });
    }
    pair.apply(&Step::Mix {
        from: 0,
        part: 1024,
        add: 7,
    });
    pair.check();
    assert!(pair.device.counters().evictions_used.get() >= 36);
}

#[test]
fn memory_that_prefers_the_host_is_what_the_program_wrote_and_takes_no_frame() {
    let mut pair = Pair::new(4, 10 * BLOCK_BYTES);
    let (from, part) = (0, 1024);
    pair.apply(&Step::Advise {
        from,
        part,
        advice: 1,
    });
    for seed in 0..3 {
        pair.apply(&Step::Scatter { seed });
        pair.apply(&Step::CpuWrite {
            at: 100 * seed,
            stride: 4999,
            value: seed,
        });
        pair.apply(&Step::Mix {
            from,
            part,
            add: seed,
        });
        pair.apply(&Step::Discard {
            from: 300,
            part: 200,
            by: 1,
            value: 3,
        });
        pair.apply(&Step::CopyWithin {
            from: 0,
            to: 600,
            part: 200,
        });
    }
    pair.check();
    let counters = pair.device.counters();
    assert_eq!(counters.managed_peak_resident_bytes.get(), 0);
    assert!(counters.remote_bytes.get() > 3 * 10 * BLOCK_BYTES);
}

#[test]
fn a_wrong_discard_is_seen() {
    let mut pair = Pair::new(4, 4 * BLOCK_BYTES);
    pair.apply(&Step::Mix {
        from: 0,
        part: 1024,
        add: 5,
    });
    pair.device
        .discard(pair.address, BLOCK_BYTES)
        .expect("discard");
    assert_eq!(pair.cpu()[0], 0xDBDB_DBDB_DBDB_DBDB);
    pair.device
        .discard(pair.address + BLOCK_BYTES, BLOCK_BYTES)
        .expect("discard");
    pair.device
        .prefetch(pair.address + BLOCK_BYTES, BLOCK_BYTES, Location::Device)
        .expect("prefetch");
    assert_eq!(
        pair.cpu()[(BLOCK_BYTES / 8) as usize],
        0xDBDB_DBDB_DBDB_DBDB
    );
}

use super::*;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const BASE: u64 = 1 << 40;
/// Whatever the shim's own stream waits for is over.
const LATEST: Turn = Turn(u64::MAX);

fn never(_: &Point) -> bool {
    false
}

fn freed(stream: Handle, seq: u64) -> Point {
    Point::Stream {
        stream,
        slot: stream as u8,
        seq,
    }
}

/// Allocates, growing as the shim does.
fn allocate(pool: &mut Pool, next: &mut u64, bytes: u64, stream: Handle) -> Grant {
    match pool.allocate(bytes, stream, never) {
        Ok(grant) => grant,
        Err(Refusal::Grow(size)) => {
            assert!(pool.add_segment(*next, size, bytes));
            *next += size + 64 * MIB;
            pool.allocate(bytes, stream, never).unwrap()
        }
        Err(Refusal::Full) => panic!("full"),
    }
}

#[test]
fn classes_round_up_without_wasting_blocks() {
    assert_eq!(Class::of(0), Some((Class::Small, 512)));
    assert_eq!(Class::of(513), Some((Class::Small, 1024)));
    assert_eq!(Class::of(2 * MIB), Some((Class::Large, 2 * MIB)));
    assert_eq!(
        Class::of(2 * MIB + 1),
        Some((Class::Medium, 2 * MIB + (64 << 10)))
    );
    assert_eq!(Class::of(31 * MIB), Some((Class::Large, 32 * MIB)));
    assert_eq!(Class::of(u64::MAX), None);
}

#[test]
fn freed_memory_is_reused_at_once_in_the_same_stream_newest_first() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let a = allocate(&mut pool, &mut next, 4 * MIB, 7);
    let _between = allocate(&mut pool, &mut next, 4 * MIB, 7);
    let b = allocate(&mut pool, &mut next, 4 * MIB, 7);
    let _after = allocate(&mut pool, &mut next, 4 * MIB, 7);
    pool.free(a.address, freed(7, 1), Turn::NONE).unwrap();
    pool.free(b.address, freed(7, 2), Turn::NONE).unwrap();
    let again = pool.allocate(4 * MIB, 7, never).unwrap();
    assert_eq!((again.address, again.wait_count), (b.address, 0));
    assert_eq!(pool.allocate(4 * MIB, 7, never).unwrap().address, a.address);
}

#[test]
fn another_stream_waits_for_the_stream_that_freed() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 32 * MIB, 7);
    pool.free(whole.address, freed(7, 5), Turn::NONE).unwrap();
    let grant = pool.allocate(32 * MIB, 8, never).unwrap();
    assert_eq!(grant.address, whole.address);
    assert_eq!(&grant.waits[..grant.wait_count], [7]);
}

#[test]
fn no_wait_is_needed_once_the_device_has_passed_the_free() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 32 * MIB, 7);
    pool.free(whole.address, freed(7, 5), Turn::NONE).unwrap();
    let passed = |point: &Point| {
        matches!(
            point,
            Point::Stream {
                slot: 7,
                seq: ..=5,
                ..
            }
        )
    };
    assert_eq!(pool.allocate(32 * MIB, 8, passed).unwrap().wait_count, 0);
}

#[test]
fn neighbours_of_several_streams_serve_one_request_after_waits_for_all() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let a = allocate(&mut pool, &mut next, 16 * MIB, 7);
    let b = allocate(&mut pool, &mut next, 16 * MIB, 8);
    assert_eq!(b.address, a.address + 16 * MIB);
    pool.free(a.address, freed(7, 1), Turn::NONE).unwrap();
    pool.free(b.address, freed(8, 2), Turn::NONE).unwrap();
    let grant = pool.allocate(24 * MIB, 9, never).unwrap();
    assert_eq!(grant.address, a.address);
    assert_eq!(&grant.waits[..grant.wait_count], [7, 8]);
    let rest = pool.allocate(8 * MIB, 8, never).unwrap();
    assert_eq!((rest.address, rest.wait_count), (a.address + 24 * MIB, 0));
}

#[test]
fn small_things_do_not_share_blocks_with_large_ones() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let small = allocate(&mut pool, &mut next, 4096, 7);
    let large = allocate(&mut pool, &mut next, 2 * MIB, 7);
    let tiny = allocate(&mut pool, &mut next, 100, 7);
    assert_eq!(tiny.address, small.address + 4096);
    assert!(large.address.abs_diff(small.address) >= SEGMENT_BYTES);
    assert_eq!(large.address % (2 * MIB), 0);
}

#[test]
fn an_iteration_repeated_gets_the_same_addresses_even_among_discards() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let sizes = [6 * MIB, 2 * MIB, 10 * MIB, 4096, 3 * MIB, 2 * MIB];
    let mut first: Option<Vec<u64>> = None;
    for round in 1..5 {
        let taken: Vec<u64> = sizes
            .iter()
            .map(|size| allocate(&mut pool, &mut next, *size, 7).address)
            .collect();
        for address in taken.iter().rev() {
            pool.free(*address, freed(7, round), Turn::NONE).unwrap();
        }
        // Claims of some of it, which differ from round to round.
        let dead = taken[0] + (round % 3) * 2 * MIB;
        pool.claim((dead, 2 * MIB), |_| true, LATEST).unwrap();
        pool.release(dead, 2 * MIB);
        assert_eq!(*first.get_or_insert(taken.clone()), taken);
    }
}

#[test]
fn a_claimed_range_is_not_handed_out_until_released() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 32 * MIB, 7);
    pool.free(whole.address, freed(7, 1), Turn::NONE).unwrap();
    assert_eq!(
        pool.claim((whole.address, 2 * MIB), never, LATEST),
        Err(Declined::NotPassed)
    );
    pool.claim((whole.address + 2 * MIB, 2 * MIB), |_| true, LATEST)
        .unwrap();
    assert!(matches!(
        pool.allocate(2 * MIB, 7, |_| true),
        Err(Refusal::Grow(_))
    ));
    pool.release(whole.address + 2 * MIB, 2 * MIB);
    assert!(pool.allocate(2 * MIB, 7, never).is_ok());
}

#[test]
fn ranges_that_are_discarded_together_may_share_a_chunk() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 4 * MIB, 7);
    pool.free(whole.address, freed(7, 1), Turn::NONE).unwrap();
    let halves = [whole.address, whole.address + 2 * MIB];
    for half in halves {
        pool.claim((half, 2 * MIB), |_| true, LATEST).unwrap();
    }
    for half in halves {
        pool.release(half, 2 * MIB);
    }
    let grant = pool.allocate(4 * MIB, 7, never).unwrap();
    assert_eq!(grant.address, whole.address);
}

#[test]
fn what_waits_for_a_turn_of_the_shims_own_stream_is_not_claimed_before_it() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 4 * MIB, 7);
    pool.free(whole.address, freed(7, 1), Turn::NONE).unwrap();
    pool.replace_stream(7, Turn(3));
    let range = (whole.address, 4 * MIB);
    assert_eq!(
        pool.claim(range, |_| true, Turn(2)),
        Err(Declined::NotPassed)
    );
    assert_eq!(pool.claim(range, |_| true, Turn(3)), Ok(()));
}

#[test]
fn memory_in_use_and_foreign_memory_cannot_be_claimed() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let used = allocate(&mut pool, &mut next, 2 * MIB, 7);
    let free = used.address + 2 * MIB;
    assert_eq!(
        pool.claim((used.address, 2 * MIB), |_| true, LATEST),
        Err(Declined::InUse)
    );
    assert_eq!(
        pool.claim((64, 2 * MIB), |_| true, LATEST),
        Err(Declined::NotPool)
    );
    assert_eq!(
        pool.claim((free, 1 << 40), |_| true, LATEST),
        Err(Declined::NotPool)
    );
    assert_eq!(pool.claim((free, 2 * MIB), |_| true, LATEST), Ok(()));
}

#[test]
fn a_destroyed_streams_memory_waits_for_the_discard_that_waits_for_it() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let whole = allocate(&mut pool, &mut next, 32 * MIB, 7);
    pool.free(whole.address, freed(7, 1), Turn::NONE).unwrap();
    assert!(pool.has_points_of(7));
    pool.replace_stream(7, Turn(3));
    assert!(!pool.has_points_of(7));
    let grant = pool.allocate(32 * MIB, 8, never).unwrap();
    assert_eq!((grant.wait_count, grant.turn), (0, Turn(3)));
}

#[test]
fn free_segments_go_back_above_the_threshold() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let a = allocate(&mut pool, &mut next, 64 * MIB, 7);
    let b = allocate(&mut pool, &mut next, 64 * MIB, 7);
    pool.free(a.address, freed(7, 1), Turn::NONE).unwrap();
    assert_eq!(pool.take_free_segment(0, never), None);
    assert_eq!(pool.take_free_segment(128 * MIB, |_| true), None);
    assert_eq!(
        pool.take_free_segment(0, |_| true),
        Some((a.address, 64 * MIB))
    );
    assert_eq!(pool.take_free_segment(0, |_| true), None);
    pool.free(b.address, Point::Done, Turn::NONE).unwrap();
    assert_eq!(
        pool.take_free_segment(0, never),
        Some((b.address, 64 * MIB))
    );
    assert_eq!(pool.usage.reserved, 0);
    assert_eq!(pool.usage.reserved_high, 128 * MIB);
}

#[test]
fn what_was_not_handed_out_is_not_freed() {
    let (mut pool, mut next) = (Pool::new(), BASE);
    let a = allocate(&mut pool, &mut next, 3 * MIB, 7);
    assert_eq!(pool.free(a.address + 512, Point::Done, Turn::NONE), None);
    assert_eq!(
        pool.part(a.address + MIB).map(|part| part.requested),
        Some(3 * MIB)
    );
    assert!(pool.free(a.address, Point::Done, Turn::NONE).is_some());
    assert_eq!(pool.free(a.address, Point::Done, Turn::NONE), None);
    assert_eq!(pool.part(a.address), None);
}

#[derive(Clone, Debug)]
enum Step {
    Allocate { bytes: u64, stream: Handle },
    Free { which: usize, stream: Handle },
    Claim { at: u64, blocks: u64, over: u64 },
    Release,
    Pass { stream: Handle },
    Destroy { stream: Handle },
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 3_usize..6;
    prop_oneof![
        5 => (prop_oneof![1_u64..4096, 4096..(2 * MIB), (2 * MIB)..(40 * MIB)], stream.clone())
            .prop_map(|(bytes, stream)| Step::Allocate { bytes, stream }),
        5 => (any::<usize>(), stream.clone())
            .prop_map(|(which, stream)| Step::Free { which, stream }),
        3 => (0_u64..64, 1_u64..6, 0_u64..8)
            .prop_map(|(at, blocks, over)| Step::Claim { at, blocks, over }),
        2 => Just(Step::Release),
        2 => stream.clone().prop_map(|stream| Step::Pass { stream }),
        1 => stream.prop_map(|stream| Step::Destroy { stream }),
        1 => Just(Step::Trim),
    ]
}

/// Per byte range: who freed it last and when, as a model without any cleverness.
#[derive(Default)]
struct Model {
    live: Vec<(u64, u64)>,
    freed: Vec<(u64, u64, Handle, u64)>,
    claims: Vec<(u64, u64)>,
    /// Up to when which stream is waited for by which turn of the shim's own.
    covered: Vec<(Handle, u64, u64)>,
    seq: u64,
    turn: u64,
    passed: [u64; 8],
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

impl Model {
    fn passed(&self) -> impl Fn(&Point) -> bool + use<> {
        let passed = self.passed;
        move |point| match point {
            Point::Done => true,
            Point::Stream { stream, seq, .. } => passed[*stream] >= *seq,
        }
    }

    fn check_grant(&mut self, grant: &Grant, stream: Handle) {
        let range = (grant.address, grant.bytes);
        assert!(
            !self.live.iter().any(|live| overlap(*live, range)),
            "handed out twice"
        );
        assert!(
            !self.claims.iter().any(|claim| overlap(*claim, range)),
            "claimed memory"
        );
        let waits = &grant.waits[..grant.wait_count];
        for (address, bytes, freed_in, seq) in &self.freed {
            let is_covered = self
                .covered
                .iter()
                .any(|(of, until, turn)| of == freed_in && *until >= *seq && grant.turn.0 >= *turn);
            let ordered = *freed_in == stream
                || waits.contains(freed_in)
                || self.passed[*freed_in] >= *seq
                || is_covered;
            assert!(
                !overlap((*address, *bytes), range) || ordered,
                "used before it is free"
            );
        }
        // From now on the memory's history is this stream's business.
        self.freed
            .retain(|(address, bytes, ..)| !overlap((*address, *bytes), range));
        self.live.push(range);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn memory_is_never_shared_claimed_or_used_too_early(
        steps in prop::collection::vec(step(), 1..200)
    ) {
        let (mut pool, mut model, mut next) = (Pool::new(), Model::default(), BASE);
        for step in steps {
            match step {
                Step::Allocate { bytes, stream } => {
                    let grant = match pool.allocate(bytes, stream, model.passed()) {
                        Ok(grant) => grant,
                        Err(Refusal::Grow(size)) => {
                            prop_assert!(pool.add_segment(next, size, bytes));
                            next += size;
                            pool.allocate(bytes, stream, model.passed()).unwrap()
                        }
                        Err(Refusal::Full) => panic!("full"),
                    };
                    prop_assert!(grant.bytes >= bytes);
                    model.check_grant(&grant, stream);
                }
                Step::Free { which, stream } if !model.live.is_empty() => {
                    let (address, bytes) = model.live.swap_remove(which % model.live.len());
                    model.seq += 1;
                    let part = pool.free(address, freed(stream, model.seq), Turn::NONE).unwrap();
                    prop_assert_eq!(part.bytes, bytes);
                    model.freed.push((address, bytes, stream, model.seq));
                }
                Step::Claim { at, blocks, over } => {
                    let range = (BASE + at * BLOCK_BYTES, blocks * BLOCK_BYTES);
                    if pool.claim(range, model.passed(), Turn(over)).is_ok() {
                        prop_assert!(!model.live.iter().any(|live| overlap(*live, range)));
                        let unpassed = model.freed.iter().any(|(address, bytes, stream, seq)| {
                            let covered = model.covered.iter().any(|(of, until, turn)| {
                                of == stream && until >= seq && *turn <= over
                            });
                            overlap((*address, *bytes), range)
                                && model.passed[*stream] < *seq
                                && !covered
                        });
                        prop_assert!(!unpassed, "discarded what the device still uses");
                        model.claims.push(range);
                    }
                }
                // Claims that share a chunk are released together.
                Step::Release => {
                    for (address, bytes) in model.claims.drain(..) {
                        pool.release(address, bytes);
                    }
                }
                Step::Pass { stream } => model.passed[stream] = model.seq,
                Step::Destroy { stream } => {
                    model.turn += 1;
                    pool.replace_stream(stream, Turn(model.turn));
                    model.covered.push((stream, model.seq, model.turn));
                }
                Step::Trim => {
                    let taken = pool.take_free_segment(0, model.passed());
                    if let Some(range) = taken {
                        prop_assert!(!model.live.iter().any(|live| overlap(*live, range)));
                        prop_assert!(!model.claims.iter().any(|claim| overlap(*claim, range)));
                        model.freed.retain(|(a, b, ..)| !overlap((*a, *b), range));
                    }
                }
                Step::Free { .. } => {}
            }
            let live: u64 = model.live.iter().map(|(_, bytes)| bytes).sum();
            prop_assert_eq!(pool.usage.used, live);
            let mut parts = 0;
            pool.for_each_part(|part| parts += part.bytes);
            prop_assert_eq!(parts, live);
        }
    }
}

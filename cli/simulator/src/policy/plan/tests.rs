use super::*;
use crate::class::Future;
use crate::policy::samples::Training;
use crate::units::{BLOCK_BYTES, Nanos};

fn ms(count: u64) -> Vec<Nanos> {
    vec![Nanos(1_000_000); count as usize]
}

#[test]
fn an_activation_has_one_gap_from_its_reader_to_its_backward_launch() {
    let training = Training::SMALL;
    let program = training.program();
    let gaps = Gaps::of(Future {
        program: &program,
        lifetimes: true,
    });
    let block = program.block_at(training.activation(2).address).unwrap();
    let found: Vec<(u32, u32)> = gaps
        .list()
        .iter()
        .filter(|gap| gaps.blocks(gap).contains(&block) && gap.to < training.launches())
        .map(|gap| (gap.from, gap.to))
        .collect();
    // Written by forward 2, read by forward 3 and by backward 3; dead after backward 2.
    assert_eq!(found, [(3, training.backward(0, 3).0)]);
    let gap = gaps.list().iter().find(|gap| gap.from == 3).unwrap();
    assert_eq!(gap.bytes, u64::from(gap.frames()) * BLOCK_BYTES);
}

#[test]
fn content_that_dies_is_born_anew_and_has_no_gap_between() {
    let training = Training::SMALL;
    let program = training.program();
    let future = |lifetimes| Future {
        program: &program,
        lifetimes,
    };
    let block = program.block_at(training.activation(0).address).unwrap();
    let born = |gaps: &Gaps| {
        (0..gaps.launches())
            .filter(|&launch| gaps.births(launch).iter().any(|piece| piece.block == block))
            .count()
    };
    assert_eq!(born(&Gaps::of(future(true))), 3);
    assert_eq!(born(&Gaps::of(future(false))), 1);
}

#[test]
fn levels_answer_as_a_plain_array_does() {
    let mut random = crate::trace::Random::new(1);
    let mut plain: Vec<i64> = (0..37).map(|_| random.below(100) as i64).collect();
    let mut levels = Levels::new(plain.clone().into_iter());
    for _ in 0..500 {
        let from = random.below(37);
        let to = from + random.below(38 - from);
        let value = random.below(41) as i64 - 20;
        levels.add(from as u32, to as u32, value);
        plain[from as usize..to as usize]
            .iter_mut()
            .for_each(|level| *level += value);
        assert_eq!(levels.highest(), plain.iter().copied().max().unwrap());
        let (end, limit) = (random.below(38), random.below(100) as i64);
        let expected = plain[..end as usize]
            .iter()
            .rposition(|&level| level > limit);
        let found = levels.last_above(end as u32, limit);
        assert_eq!(found.map(|launch| launch as usize), expected);
    }
}

#[test]
fn excess_counts_the_time_that_is_still_too_full() {
    let mut excess = Excess::new(&[5, 9, 9, 3, 9], &ms(5), 6);
    assert_eq!(excess.time(0, 5), Nanos(3_000_000));
    excess.relieve(1, 3, 2);
    assert_eq!(excess.time(0, 5), Nanos(3_000_000));
    excess.relieve(2, 5, 1);
    assert_eq!(excess.time(0, 5), Nanos(2_000_000));
    assert_eq!(excess.time(1, 2), Nanos(1_000_000));
    excess.relieve(1, 5, 2);
    assert!(!excess.any());
}

#[test]
fn a_track_gives_each_moment_once() {
    let mut track = Track::new(&ms(4));
    let half = Nanos(500_000);
    assert_eq!(track.forward(1, 4, Nanos(1_500_000), true), Some(2));
    assert_eq!(track.forward(1, 4, half, true), Some(2));
    assert_eq!(track.forward(1, 4, half, false), Some(3));
    assert_eq!(track.backward(0, 3, Nanos(1_000_000), false), Some(0));
    assert_eq!(track.backward(1, 3, half, false), None);
    assert_eq!(track.backward(0, 4, half, true), Some(3));
    assert_eq!(track.backward(0, 4, Nanos(1_000_000), false), Some(0));
}

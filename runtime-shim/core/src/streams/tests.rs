use super::*;

#[test]
fn the_default_streams_have_fixed_slots() {
    let streams = Streams::new();
    assert_eq!(streams.find(0), Some(LEGACY_SLOT));
    assert_eq!(streams.find(STREAM_LEGACY), Some(LEGACY_SLOT));
    assert_eq!(streams.find(STREAM_PER_THREAD), Some(SHARED_SLOT));
    assert_eq!(streams.find(0x5000), None);
}

#[test]
fn streams_get_slots_of_their_own_until_there_are_none() {
    let streams = Streams::new();
    let mut seen = std::collections::BTreeSet::new();
    for index in 1..=100_usize {
        let handle = 0x5555_0000_0000 + index * 0x310;
        let slot = streams.assign(handle, |_, _| true);
        assert_eq!(streams.assign(handle, |_, _| true), slot);
        if slot != SHARED_SLOT {
            assert!(seen.insert(slot), "slot {slot} given twice");
            assert_eq!(streams.stream(slot), Some(handle));
        }
    }
    assert!(!seen.contains(&LEGACY_SLOT));
    assert!(seen.len() >= 55, "{}", seen.len());
}

#[test]
fn a_retired_slot_waits_until_the_device_has_passed_its_stream() {
    let streams = Streams::new();
    let slot = streams.assign(0x5000, |_, _| true);
    let number = give(&streams, slot);
    streams.retire(0x5000);
    assert_eq!(streams.find(0x5000), None);
    assert_ne!(streams.assign(0x6000, |_, _| false), slot);
    assert_eq!(streams.assign(0x7000, |_, passed| passed <= number), slot);
}

fn give(streams: &Streams, slot: u8) -> u64 {
    let inside = streams.enter(slot);
    let number = streams.next(&inside);
    drop(inside);
    number
}

#[test]
fn the_device_is_idle_when_it_has_passed_all_that_any_stream_was_given() {
    let streams = Streams::new();
    assert!(streams.is_idle(|_| 0), "nothing was given");
    let slot = streams.assign(0x5000, |_, _| true);
    let [first, second] = [slot, LEGACY_SLOT].map(|slot| give(&streams, slot) as u32);
    assert!(!streams.is_idle(|_| first), "the second runs");
    let word = |slot| if slot == LEGACY_SLOT { second } else { 0 };
    assert!(!streams.is_idle(word), "the first runs");
    assert!(streams.is_idle(|_| second));
    give(&streams, SHARED_SLOT);
    assert!(!streams.is_idle(|_| u32::MAX / 2), "no one knows");
}

#[test]
fn a_mark_is_true_only_while_no_one_else_is_between_number_and_launch() {
    let streams = Streams::new();
    let value = |own: Option<&Inside<'_>>| streams.mark(3, own).map(|mark| mark.value);
    let mine = streams.enter(3);
    let number = streams.next(&mine);
    assert_eq!(value(Some(&mine)), Some(number));
    let other = streams.enter(3);
    assert_eq!(value(Some(&mine)), None);
    drop(other);
    assert_eq!(value(Some(&mine)), Some(number));
    drop(mine);
    assert!(streams.is_empty(3));
    assert_eq!(value(None), Some(number));
    assert_eq!(streams.mark(SHARED_SLOT, None), None);
}

#[test]
fn a_mark_is_due_after_a_stride_and_covers_what_came_before() {
    let streams = Streams::new();
    let is_due = || {
        let inside = streams.enter(2);
        streams.next(&inside);
        let due = streams.is_mark_due(&inside, 4);
        drop(inside);
        due
    };
    assert_eq!(
        [is_due(), is_due(), is_due(), is_due()],
        [false, false, false, true]
    );
    assert_eq!(streams.unmarked(2), Some(4));
    streams.note_mark(2, streams.mark(2, None).unwrap());
    assert_eq!(streams.unmarked(2), None);
    assert!(!is_due());
    assert_eq!(streams.unmarked(2), Some(5));
}

#[test]
fn a_mark_made_inside_covers_its_own_item() {
    let streams = Streams::new();
    let inside = streams.enter(2);
    streams.next(&inside);
    let mark = streams.mark(2, Some(&inside)).unwrap();
    drop(inside);
    assert_eq!(streams.unmarked(2), Some(1));
    streams.note_mark(2, mark);
    assert_eq!(streams.unmarked(2), None);
}

#[test]
fn a_free_asks_for_a_mark_in_an_idle_stream() {
    let streams = Streams::new();
    let number = give(&streams, 2);
    assert_eq!(streams.unmarked(5), None);
    let before = streams.mark(5, None).expect("nobody is inside");
    let freed = streams.want_mark(5);
    assert!(freed > number && !has_passed(before.value as u32, freed));
    assert_eq!(streams.unmarked(5), Some(1));
    assert_eq!(streams.mark(5, None).map(|mark| mark.value), Some(freed));
}

#[test]
fn marks_are_true_whatever_threads_do() {
    // Each thread publishes its number only after a while: a mark must never claim it.
    let streams = Streams::new();
    let done: Vec<std::sync::atomic::AtomicU64> = (0..4096).map(|_| 0.into()).collect();
    let running = std::sync::atomic::AtomicU32::new(3);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    let inside = streams.enter(4);
                    let number = streams.next(&inside);
                    std::hint::spin_loop();
                    done[number as usize].store(1, Ordering::SeqCst);
                    drop(inside);
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while running.load(Ordering::SeqCst) > 0 {
            let Some(mark) = streams.mark(4, None) else {
                continue;
            };
            for number in 1..=mark.value {
                assert_eq!(done[number as usize].load(Ordering::SeqCst), 1, "{number}");
            }
        }
    });
    assert_eq!(streams.mark(4, None).map(|mark| mark.value), Some(3000));
}

#[test]
fn passing_is_told_across_the_wrap_of_32_bits() {
    assert!(has_passed(7, 7) && has_passed(8, 7) && !has_passed(6, 7));
    let number = (1_u64 << 32) + 2;
    assert!(has_passed(2, number) && has_passed(3, number));
    assert!(!has_passed(u32::MAX, number));
}

#[test]
fn memory_freed_before_the_first_number_waits_for_a_mark() {
    // Launches made while nothing records take no number, and may still run.
    let streams = Streams::new();
    let number = streams.want_mark(5);
    let word_of_a_new_session = 0;
    assert!(!has_passed(word_of_a_new_session, number));
    let inside = streams.enter(5);
    streams.next(&inside);
    drop(inside);
    let mark = streams.mark(5, None).expect("nobody is inside");
    assert!(has_passed(mark.value as u32, number));
}

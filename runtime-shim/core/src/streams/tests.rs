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
    let number = streams.next(&streams.enter(slot));
    streams.retire(0x5000);
    assert_eq!(streams.find(0x5000), None);
    assert_ne!(streams.assign(0x6000, |_, _| false), slot);
    assert_eq!(streams.assign(0x7000, |_, passed| passed <= number), slot);
}

#[test]
fn a_mark_is_true_only_while_no_one_else_is_between_number_and_launch() {
    let streams = Streams::new();
    let mine = streams.enter(3);
    let number = streams.next(&mine);
    assert_eq!(streams.mark_value(3, 1), Some(number));
    let other = streams.enter(3);
    assert_eq!(streams.mark_value(3, 1), None);
    drop(other);
    assert_eq!(streams.mark_value(3, 1), Some(number));
    drop(mine);
    assert!(streams.is_empty(3));
    assert_eq!(streams.mark_value(3, 0), Some(number));
    assert_eq!(streams.mark_value(SHARED_SLOT, 0), None);
}

#[test]
fn a_mark_is_due_after_a_stride_and_covers_what_came_before() {
    let streams = Streams::new();
    let due: Vec<bool> = (0..4).map(|_| streams.is_mark_due(2, 4)).collect();
    assert_eq!(due, [false, false, false, true]);
    let number = streams.next(&streams.enter(2));
    assert_eq!(streams.unmarked(2), Some(number));
    streams.note_mark(2, number);
    assert_eq!(streams.unmarked(2), None);
    assert!(!streams.is_mark_due(2, 4));
    assert!(!streams.is_mark_due(SHARED_SLOT, 1));
}

#[test]
fn a_free_asks_for_a_mark_in_an_idle_stream() {
    let streams = Streams::new();
    let number = streams.next(&streams.enter(2));
    assert_eq!(streams.want_mark(5), number);
    assert_eq!(streams.unmarked(5), Some(number));
}

#[test]
fn passing_is_told_across_the_wrap_of_32_bits() {
    assert!(has_passed(7, 7) && has_passed(8, 7) && !has_passed(6, 7));
    let number = (1_u64 << 32) + 2;
    assert!(has_passed(2, number) && has_passed(3, number));
    assert!(!has_passed(u32::MAX, number));
}

//! The ring with real threads, with random records, and with a hostile other side.
#![cfg(not(loom))]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::Memory;
use oversub_protocol::command::{CommandRecord, Operation, queue};
use oversub_protocol::event::{Head, Kind, MAX_SLOTS, Words};
use oversub_protocol::fences::Fences;
use oversub_protocol::ring::{Corrupt, Lengths, Push, Reader, SoleWriter, Writer};
use proptest::prelude::*;

/// Slot `index` of record `number` of `thread`, every word telling which one it is.
fn slot(thread: u32, number: u64, slots: u8, index: usize) -> Words {
    let head = Head {
        kind: Kind(99),
        slots,
        stream: 0,
        flags: thread,
    };
    let mark = number * 100 + index as u64;
    let mut words = [mark; 7];
    words[0] = if index == 0 {
        zerocopy::transmute!(head)
    } else {
        u64::from(thread)
    };
    words
}

fn push(writer: &Writer, thread: u32, number: u64, slots: u8) -> Push {
    writer.push_with(usize::from(slots), |index| {
        slot(thread, number, slots, index)
    })
}

fn push_patient(writer: &Writer, thread: u32, number: u64, slots: u8) -> Push {
    writer.push_patient_with(usize::from(slots), |index| {
        slot(thread, number, slots, index)
    })
}

/// The thread and number of a record, which is whole.
fn whole(record: &[Words]) -> (u32, u64) {
    let head: Head = zerocopy::transmute!(record[0][0]);
    let number = record[0][1] / 100;
    for (index, words) in record.iter().enumerate() {
        assert_eq!(*words, slot(head.flags, number, head.slots, index));
    }
    (head.flags, number)
}

#[test]
fn records_come_out_in_the_order_in_which_they_went_in() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    for number in 0..1000 {
        let slots = u8::try_from(number % 8 + 1).unwrap();
        assert_eq!(push(&writer, 3, number, slots), Push::Written);
        assert_eq!(reader.next_record().unwrap().map(whole), Some((3, number)));
    }
    assert_eq!(reader.next_record(), Ok(None));
}

#[test]
fn a_full_ring_drops_the_new_record_whole_and_counts_it() {
    let memory = Memory::new(8);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    assert_eq!(push(&writer, 0, 1, 6), Push::Written);
    assert_eq!(push(&writer, 0, 2, 3), Push::Full);
    assert_eq!(push(&writer, 0, 3, 2), Push::Written);
    assert_eq!(push(&writer, 0, 4, 1), Push::Full);
    assert_eq!(writer.ring().dropped(), 2);
    let mut seen = Vec::new();
    assert_eq!(reader.drain(10, |record| seen.push(whole(record).1)), Ok(2));
    assert_eq!(seen, [1, 3]);
    assert_eq!(push(&writer, 0, 5, 8), Push::Written);
    assert_eq!(reader.next_record().unwrap().map(whole), Some((0, 5)));
}

#[test]
fn a_record_longer_than_the_longest_is_dropped_and_counted() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    assert_eq!(writer.push_with(MAX_SLOTS + 1, |_| [0; 7]), Push::Full);
    assert_eq!(writer.push_with(0, |_| [0; 7]), Push::Full);
    assert_eq!(writer.ring().dropped(), 2);
}

#[test]
fn drain_hands_over_no_more_than_asked() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    for number in 0..10 {
        assert_eq!(push(&writer, 0, number, 1), Push::Written);
    }
    assert_eq!(reader.drain(4, |_| {}), Ok(4));
    assert_eq!(reader.backlog(), 6);
    assert_eq!(reader.drain(100, |_| {}), Ok(6));
}

#[test]
fn one_push_wakes_a_sleeping_reader_and_the_next_does_not() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    assert!(reader.prepare_sleep());
    assert_eq!(push(&writer, 0, 1, 1), Push::WrittenWake);
    assert_eq!(push(&writer, 0, 2, 1), Push::Written);
    assert!(!reader.prepare_sleep(), "there is something to read");
    assert_eq!(push(&writer, 0, 3, 1), Push::Written);
    assert_eq!(reader.drain(10, |_| {}), Ok(3));
    assert!(reader.prepare_sleep());
    reader.cancel_sleep();
    assert_eq!(push(&writer, 0, 4, 1), Push::Written);
}

#[test]
fn a_dozing_reader_is_woken_by_a_prompt_record_or_by_many_patient_ones() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    assert!(reader.prepare_doze());
    assert_eq!(push_patient(&writer, 0, 1, 1), Push::Written);
    assert_eq!(push(&writer, 0, 2, 1), Push::WrittenWake);
    assert!(!reader.prepare_doze(), "there is something to read");
    assert_eq!(reader.drain(10, |_| {}), Ok(2));
    for lap in 0..10 {
        assert!(reader.prepare_doze());
        assert_eq!(push_patient(&writer, 0, lap, 1), Push::Written);
        assert_eq!(push_patient(&writer, 0, lap, 2), Push::Written);
        // A quarter of sixteen.
        assert_eq!(push_patient(&writer, 0, lap, 1), Push::WrittenWake);
        assert_eq!(push_patient(&writer, 0, lap, 1), Push::Written);
        assert_eq!(reader.drain(10, |_| {}), Ok(4));
    }
}

#[test]
fn a_reader_that_sleeps_is_woken_by_a_patient_record_too() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let reader = Reader::new(memory.ring(), Lengths::FromHead);
    assert!(reader.prepare_sleep());
    assert_eq!(push_patient(&writer, 0, 1, 1), Push::WrittenWake);
}

#[test]
fn a_reader_does_not_doze_while_a_record_is_being_written() {
    let memory = Memory::new(16);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let reader = Reader::new(memory.ring(), Lengths::FromHead);
    let mut dozed = None;
    let pushed = writer.push_patient_with(1, |index| {
        // Reserved, not published.
        dozed = Some(reader.prepare_doze());
        slot(0, 1, 1, index)
    });
    // It sleeps as it would otherwise: any record wakes it.
    assert_eq!((dozed, pushed), (Some(true), Push::WrittenWake));
}

#[test]
fn threads_that_push_at_once_keep_every_record_whole_and_in_their_order() {
    const THREADS: u32 = 4;
    const RECORDS: u64 = 20_000;
    let memory = Memory::new(64);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    let mut expected = [0; THREADS as usize];
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let writer = &writer;
            scope.spawn(move || {
                for number in 0..RECORDS {
                    let slots = u8::try_from((number + u64::from(thread)) % 8 + 1).unwrap();
                    while push(writer, thread, number, slots) == Push::Full {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut seen = 0;
        while seen < RECORDS * u64::from(THREADS) {
            let drained = reader
                .drain(50, |record| {
                    let (thread, number) = whole(record);
                    let next = &mut expected[thread as usize];
                    assert_eq!(number, *next);
                    *next += 1;
                })
                .unwrap();
            seen += drained as u64;
            if drained == 0 {
                std::thread::yield_now();
            }
        }
    });
    assert_eq!(expected, [RECORDS; THREADS as usize]);
    assert_eq!(reader.next_record(), Ok(None));
}

fn command(id: u32) -> CommandRecord {
    CommandRecord {
        operation: Operation::PREFETCH,
        queue: queue::IN,
        reserved: 0,
        id,
        address: u64::from(id) << 21,
        bytes: 2 << 20,
        cause_ns: 0,
        reserved_words: [0; 3],
    }
}

#[test]
fn commands_pass_in_order_and_a_full_ring_refuses_without_counting() {
    let memory = Memory::new(8);
    let mut writer = SoleWriter::new(memory.ring());
    let mut reader = Reader::new(memory.ring(), Lengths::One);
    for lap in 0..5 {
        for id in 0..8 {
            assert_eq!(writer.push(&command(lap * 8 + id)), Push::Written);
        }
        assert_eq!(writer.room(), 0);
        assert_eq!(writer.push(&command(99)), Push::Full);
        for id in 0..8 {
            let slots = reader.next_record().unwrap().unwrap();
            assert_eq!(CommandRecord::decode(&slots[0]), Ok(&command(lap * 8 + id)));
        }
    }
    assert_eq!(writer.ring().dropped(), 0);
}

#[test]
fn a_hostile_reader_cannot_make_the_sole_writer_overwrite_or_go_astray() {
    let memory = Memory::new(8);
    let mut writer = SoleWriter::new(memory.ring());
    for tail in [u64::MAX, 9, 1 << 63] {
        memory.head.tail.0.store(tail, Ordering::Relaxed);
        assert!(writer.room() <= 8);
    }
    memory.head.tail.0.store(0, Ordering::Relaxed);
    memory.head.head.0.store(u64::MAX - 1, Ordering::Relaxed);
    assert_eq!(writer.push(&command(1)), Push::Written);
    assert_eq!(memory.slots[0].sequence.load(Ordering::Relaxed), 1);
}

#[test]
fn hostile_sequence_numbers_are_reported() {
    for found in [2, 7, 1 << 40, u64::MAX] {
        let memory = Memory::new(8);
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        memory.head.head.0.store(1, Ordering::Relaxed);
        memory.slots[0].sequence.store(found, Ordering::Relaxed);
        let corrupt = Corrupt::Sequence { position: 0, found };
        assert_eq!(reader.next_record(), Err(corrupt));
        assert!(
            !reader.prepare_sleep(),
            "the reader must come back and see it"
        );
        assert_eq!(
            reader.drain(5, |_| panic!("nothing to hand over")),
            Err(corrupt)
        );
    }
}

#[test]
fn a_second_slot_that_is_not_published_is_reported() {
    let memory = Memory::new(8);
    let writer = Writer::new(memory.ring(), Fences::Both);
    let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
    assert_eq!(push(&writer, 0, 1, 3), Push::Written);
    memory.slots[2].sequence.store(0, Ordering::Relaxed);
    assert_eq!(
        reader.next_record(),
        Err(Corrupt::Sequence {
            position: 2,
            found: 0
        })
    );
}

#[test]
fn a_jumping_head_is_reported() {
    for found in [0, 9, u64::MAX] {
        let memory = Memory::new(8);
        let writer = Writer::new(memory.ring(), Fences::Both);
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        assert_eq!(push(&writer, 0, 1, 1), Push::Written);
        memory.head.head.0.store(found, Ordering::Relaxed);
        assert_eq!(reader.next_record(), Err(Corrupt::Head { tail: 0, found }));
        assert!(reader.backlog() <= 8);
    }
}

#[test]
fn impossible_lengths_are_reported() {
    for found in [0, 9, 255, 5] {
        let memory = Memory::new(8);
        let writer = Writer::new(memory.ring(), Fences::Both);
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        // Five is possible as such, but not when four slots are reserved.
        for number in 0..4 {
            assert_eq!(
                writer.push_with(1, |_| slot(0, number, found, 0)),
                Push::Written
            );
        }
        assert_eq!(
            reader.next_record(),
            Err(Corrupt::Length { position: 0, found })
        );
    }
}

#[test]
fn a_writer_that_scribbles_all_the_time_stops_the_reader_or_is_read_but_no_more() {
    let memory = Memory::new(8);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64;
            while !stop.load(Ordering::Relaxed) {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let cell = &memory.slots[(random >> 32) as usize % 8];
                memory.head.head.0.store(random % 20, Ordering::Relaxed);
                cell.sequence.store(random % 20, Ordering::Relaxed);
                cell.payload.store(&[random; 7]);
            }
        });
        for _ in 0..20_000 {
            let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
            let mut records = 0;
            let _ = reader.drain(64, |record| {
                records += 1;
                assert!((1..=MAX_SLOTS).contains(&record.len()));
            });
            assert!(records <= 64);
            reader.prepare_sleep();
        }
        stop.store(true, Ordering::Relaxed);
    });
}

proptest! {
    #[test]
    fn any_mix_of_pushes_and_reads_loses_and_invents_nothing(
        steps in prop::collection::vec((any::<bool>(), 1u8..=8), 1..300),
        slots in prop::sample::select(vec![8u32, 16, 64]),
    ) {
        let memory = Memory::new(slots);
        let writer = Writer::new(memory.ring(), Fences::Both);
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        let mut model = std::collections::VecDeque::new();
        let (mut used, mut dropped) = (0, 0);
        for (number, (write, length)) in steps.into_iter().enumerate() {
            let number = number as u64;
            if write {
                let fits = used + u32::from(length) <= slots;
                let pushed = push(&writer, 1, number, length);
                prop_assert_eq!(pushed, if fits { Push::Written } else { Push::Full });
                if fits {
                    used += u32::from(length);
                    model.push_back((number, length));
                } else {
                    dropped += 1;
                }
            } else {
                let read = reader.next_record().unwrap().map(|record| whole(record).1);
                let expected = model.pop_front();
                prop_assert_eq!(read, expected.map(|(number, _)| number));
                used -= expected.map_or(0, |(_, length)| u32::from(length));
            }
        }
        prop_assert_eq!(writer.ring().dropped(), dropped);
    }

    #[test]
    fn any_memory_content_is_read_without_panic_within_the_limit(
        head in any::<u64>(),
        cells in prop::collection::vec((0u64..12, any::<[u64; 7]>()), 8),
    ) {
        let memory = Memory::new(8);
        memory.head.head.0.store(head, Ordering::Relaxed);
        for (cell, (sequence, words)) in memory.slots.iter().zip(&cells) {
            cell.sequence.store(*sequence, Ordering::Relaxed);
            cell.payload.store(words);
        }
        for lengths in [Lengths::FromHead, Lengths::One] {
            let mut reader = Reader::new(memory.ring(), lengths);
            let mut records = 0;
            let _ = reader.drain(10, |_| records += 1);
            prop_assert!(records <= 8);
        }
    }
}

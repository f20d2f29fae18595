//! The ring under every interleaving and reordering that loom can find.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p oversub-protocol --release --test loom`
#![cfg(loom)]

use std::ptr::NonNull;

use loom::sync::{Arc, Notify};
use loom::thread;
use oversub_protocol::event::{Head, Kind, Words};
use oversub_protocol::fences::Fences;
use oversub_protocol::layout::{RingHead, SlotCell};
use oversub_protocol::ring::{Lengths, Push, Reader, Ring, Writer};
use oversub_protocol::sync::barrier::{Running, reader_half};

struct Memory {
    head: Box<RingHead>,
    slots: Box<[SlotCell]>,
}

impl Memory {
    fn new(slots: u32) -> Memory {
        let head = Box::new(RingHead::default());
        Memory {
            head,
            slots: (0..slots).map(|_| SlotCell::default()).collect(),
        }
    }

    fn ring(&self) -> Ring {
        let first = NonNull::from(&*self.slots).cast::<SlotCell>();
        // SAFETY: each model keeps the memory until all of its threads have ended.
        unsafe { Ring::from_raw(NonNull::from(&*self.head), first, self.slots.len() as u32) }
            .unwrap()
    }
}

/// Slot `index` of a record of `slots` slots, marked with `tag`.
fn slot(tag: u64, slots: u8, index: usize) -> Words {
    let head = Head {
        kind: Kind(99),
        slots,
        stream: 0,
        flags: 0,
    };
    let first: u64 = zerocopy::transmute!(head);
    let mut words = [tag; 7];
    words[0] = if index == 0 { first } else { tag };
    words[6] = index as u64;
    words
}

fn push(writer: &Writer, tag: u64, slots: u8) -> Push {
    writer.push_with(usize::from(slots), |index| slot(tag, slots, index))
}

fn push_patient(writer: &Writer, tag: u64, slots: u8) -> Push {
    writer.push_patient_with(usize::from(slots), |index| slot(tag, slots, index))
}

fn check_whole(record: &[Words]) -> u64 {
    let tag = record[0][1];
    for (index, words) in record.iter().enumerate() {
        assert_eq!(*words, slot(tag, record.len() as u8, index));
    }
    tag
}

#[test]
fn two_writers_and_a_reader_keep_every_record_whole() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(4));
        let writer = Arc::new(Writer::new(memory.ring(), Fences::Both));
        let other = {
            let writer = writer.clone();
            thread::spawn(move || push(&writer, 7, 2))
        };
        let mine = {
            let writer = writer.clone();
            thread::spawn(move || push(&writer, 5, 1))
        };
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        let mut seen = Vec::new();
        // While they run: what is there is whole.
        reader
            .drain(2, |record| seen.push(check_whole(record)))
            .unwrap();
        assert_ne!(other.join().unwrap(), Push::Full);
        assert_ne!(mine.join().unwrap(), Push::Full);
        // Afterwards: everything is there, once.
        reader
            .drain(4, |record| seen.push(check_whole(record)))
            .unwrap();
        seen.sort_unstable();
        assert_eq!(seen, [5, 7]);
    });
}

#[test]
fn a_slot_is_reused_only_after_the_reader_copied_it() {
    loom::model(|| {
        let memory = Arc::new(Memory::new(2));
        let writer = Writer::new(memory.ring(), Fences::Both);
        let thread = thread::spawn(move || {
            let mut written = Vec::new();
            for tag in 1..=4 {
                if push(&writer, tag, 1) != Push::Full {
                    written.push(tag);
                }
            }
            written
        });
        let mut reader = Reader::new(memory.ring(), Lengths::FromHead);
        let mut seen = Vec::new();
        reader
            .drain(2, |record| seen.push(check_whole(record)))
            .unwrap();
        reader
            .drain(2, |record| seen.push(check_whole(record)))
            .unwrap();
        let written = thread.join().unwrap();
        reader
            .drain(4, |record| seen.push(check_whole(record)))
            .unwrap();
        assert_eq!(seen, written);
        assert_eq!(reader.ring().dropped(), 4 - written.len() as u64);
    });
}

fn reader(memory: &Memory, fences: Fences) -> Reader {
    let reader = Reader::new(memory.ring(), Lengths::FromHead);
    match fences {
        Fences::Both => reader,
        Fences::Reader => {
            let mut reader = reader.with_barrier(reader_half);
            reader.spare_writers(true);
            reader
        }
    }
}

/// The calling thread is a writer while this lives, where the barrier must know.
fn running(fences: Fences, number: u64) -> Option<Running> {
    (fences == Fences::Reader).then(|| Running::begin(number as u32))
}

/// So many writers with one record each, and a reader that sleeps until it has seen all.
/// `turns`: it changes its mind about the barrier before every sleep. A
/// lost wake-up is a deadlock, which loom reports. The whole space takes many minutes; three
/// preemptions are what a wake-up can be lost by.
fn sleeping_reader(fences: Fences, writers: u64, preemptions: usize, turns: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Arc::new(Memory::new(2));
        let writer = Arc::new(Writer::new(memory.ring(), fences));
        let eventfd = Arc::new(Notify::new());
        let threads: Vec<_> = (1..=writers)
            .map(|tag| {
                let (writer, eventfd) = (writer.clone(), eventfd.clone());
                thread::spawn(move || {
                    let running = running(fences, tag);
                    let pushed = push(&writer, tag, 1);
                    drop(running);
                    match pushed {
                        Push::WrittenWake => {
                            eventfd.notify();
                            1
                        }
                        Push::Written => 0,
                        Push::Full => panic!("two slots for two records"),
                    }
                })
            })
            .collect();
        let mut reader = reader(&memory, fences);
        let (mut seen, mut sleeps) = (0, 0);
        loop {
            seen += reader
                .drain(4, |record| assert!(check_whole(record) <= 2))
                .unwrap();
            if seen as u64 == writers {
                break;
            }
            sleeps += 1;
            if turns {
                reader.spare_writers(sleeps % 2 == 0);
            }
            if reader.prepare_sleep() {
                eventfd.wait();
            }
        }
        let wakes: usize = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        assert!(wakes <= sleeps, "{wakes} wake-ups for {sleeps} sleeps");
    });
}

#[test]
fn a_sleeping_reader_is_always_woken_and_by_one_writer_only() {
    sleeping_reader(Fences::Both, 2, 3, false);
}

#[test]
fn a_reader_that_makes_the_barrier_is_always_woken() {
    sleeping_reader(Fences::Reader, 1, 3, false);
}

#[test]
fn a_reader_that_makes_the_barrier_is_woken_by_one_of_two_writers() {
    sleeping_reader(Fences::Reader, 2, 2, false);
}

#[test]
fn a_reader_that_takes_its_word_back_and_gives_it_again_is_always_woken() {
    sleeping_reader(Fences::Reader, 1, 3, true);
}

/// Two writers, each with one record of one slot; `true`: patient. The reader dozes until it
/// has seen what `done` asks for; its timer never comes, so that a lost wake-up is a deadlock.
fn dozing_reader(
    fences: Fences,
    preemptions: usize,
    slots: u32,
    patient: [bool; 2],
    done: fn(&[u64]) -> bool,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Arc::new(Memory::new(slots));
        let writer = Arc::new(Writer::new(memory.ring(), fences));
        let eventfd = Arc::new(Notify::new());
        let threads: Vec<_> = [1, 2]
            .into_iter()
            .zip(patient)
            .map(|(tag, patient)| {
                let (writer, eventfd) = (writer.clone(), eventfd.clone());
                thread::spawn(move || {
                    let running = running(fences, tag);
                    let pushed = if patient {
                        push_patient(&writer, tag, 1)
                    } else {
                        push(&writer, tag, 1)
                    };
                    drop(running);
                    match pushed {
                        Push::WrittenWake => eventfd.notify(),
                        Push::Written => {}
                        Push::Full => panic!("room for both"),
                    }
                })
            })
            .collect();
        let mut reader = reader(&memory, fences);
        let mut seen = Vec::new();
        while !done(&seen) {
            if reader.prepare_doze() {
                eventfd.wait();
            }
            reader
                .drain(4, |record| seen.push(check_whole(record)))
                .unwrap();
        }
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_dozing_reader_never_oversleeps_a_prompt_record() {
    // Sixteen slots: a patient record alone is not many.
    dozing_reader(Fences::Both, 3, 16, [true, false], |seen| seen.contains(&2));
}

#[test]
fn a_dozing_reader_that_makes_the_barrier_never_oversleeps_a_prompt_record() {
    dozing_reader(Fences::Reader, 2, 16, [true, false], |seen| {
        seen.contains(&2)
    });
}

#[test]
fn a_dozing_reader_is_woken_by_patient_records_once_they_are_many() {
    // Eight slots: two are many. What was read before the other came is not many any more,
    // and the timer's business.
    dozing_reader(Fences::Both, 3, 8, [true, true], |seen| !seen.is_empty());
}

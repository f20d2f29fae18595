//! The thread of an attached process, on a target and a driver that misbehave as told.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use oversub_engine::{BLOCK_BYTES, Cause, Direction, Event, FaultConfig, FaultEngine, Range};
use oversub_uvm::process::Mapping;
use oversub_uvm::{CPU, Uuid, UvmError};

use super::mover::{CHUNK_BYTES, Migrate};
use super::steer::{End, Steering, Target};
use super::{Figures, Message, offer};
use crate::probes::Seen;

const DEVICE: Uuid = [9; 16];
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST: u64 = 1000;

/// A process, as a test wants it to be.
#[derive(Default)]
struct Life {
    ended: AtomicBool,
    unmapped: AtomicBool,
    /// Reading its mappings fails, as while it execs.
    unreadable: AtomicBool,
    blocks: AtomicU32,
}

struct Fake(Arc<Life>);

impl Target for Fake {
    fn has_ended(&self) -> bool {
        self.0.ended.load(Ordering::Relaxed)
    }

    fn managed(&self) -> Option<Vec<Mapping>> {
        if self.0.unreadable.load(Ordering::Relaxed) {
            return None;
        }
        if self.0.unmapped.load(Ordering::Relaxed) {
            return Some(Vec::new());
        }
        let blocks = u64::from(self.0.blocks.load(Ordering::Relaxed));
        Some(vec![Mapping {
            start: FIRST * BLOCK_BYTES,
            end: (FIRST + blocks) * BLOCK_BYTES,
        }])
    }

    fn device(&self, processor: u16) -> Option<(Uuid, String)> {
        (processor == 1).then(|| (DEVICE, "GPU-9".to_owned()))
    }
}

/// What the driver was asked, and whether it serves.
#[derive(Default)]
struct Driver {
    asked: Mutex<Vec<(Range, Uuid)>>,
    broken: AtomicBool,
}

struct Space {
    driver: Arc<Driver>,
    held: Arc<AtomicBool>,
}

impl Drop for Space {
    fn drop(&mut self) {
        self.held.store(false, Ordering::Relaxed);
    }
}

impl Migrate for Space {
    fn migrate(&self, range: Range, to: Uuid) -> Result<(), UvmError> {
        self.driver
            .asked
            .lock()
            .expect("no panic")
            .push((range, to));
        match self.driver.broken.load(Ordering::Relaxed) {
            true => Err(UvmError::Refused {
                request: "UVM_MIGRATE",
                status: 0x1e,
            }),
            false => Ok(()),
        }
    }
}

struct Attached {
    life: Arc<Life>,
    driver: Arc<Driver>,
    held: Arc<AtomicBool>,
    leave: Arc<AtomicBool>,
    figures: Arc<Mutex<Figures>>,
    messages: SyncSender<Message>,
    thread: JoinHandle<End>,
}

impl Attached {
    fn new(blocks: u32) -> Self {
        let life = Arc::new(Life::default());
        life.blocks.store(blocks, Ordering::Relaxed);
        let driver = Arc::new(Driver::default());
        let held = Arc::new(AtomicBool::new(true));
        let space = Space {
            driver: Arc::clone(&driver),
            held: Arc::clone(&held),
        };
        let (messages, inbox) = sync_channel(1 << 16);
        let figures = Arc::new(Mutex::new(Figures::default()));
        let steering = Steering::new(
            Box::new(Fake(Arc::clone(&life))),
            Arc::new(space),
            FaultEngine::new(FaultConfig::default()),
            Arc::clone(&figures),
            messages.clone(),
        );
        let leave = Arc::clone(&steering.leave);
        let thread = std::thread::spawn(move || steering.run(inbox));
        Self {
            life,
            driver,
            held,
            leave,
            figures,
            messages,
            thread,
        }
    }

    fn see(&self, processor: u16, event: Event<'static>) {
        let seen = Seen {
            process: Some(1),
            processor,
            event,
        };
        assert!(offer(&self.messages, seen), "there is room");
    }

    fn fault(&self, processor: u16, block: u64) {
        self.see(
            processor,
            Event::Fault {
                address: (FIRST + block) * BLOCK_BYTES,
                faults: 6,
                by_host: false,
            },
        );
    }

    /// A round through `blocks` of which the device holds `fit`, as the driver alone does it.
    fn round(&self, blocks: u64, fit: u64) {
        for block in 0..blocks {
            self.fault(1, block);
            let range = Range {
                address: (FIRST + (block + blocks - fit) % blocks) * BLOCK_BYTES,
                bytes: BLOCK_BYTES,
            };
            self.see(
                1,
                Event::Migration {
                    range,
                    direction: Direction::Out,
                    cause: Cause::Eviction,
                },
            );
        }
    }

    fn asked(&self) -> Vec<(Range, Uuid)> {
        self.driver.asked.lock().expect("no panic").clone()
    }

    fn eventually(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !condition(self) {
            assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn end(self) -> End {
        let end = self.thread.join().expect("no panic");
        assert!(
            !self.held.load(Ordering::Relaxed),
            "the descriptor is let go"
        );
        end
    }
}

#[test]
fn what_is_learned_is_fetched_ahead_and_what_was_used_makes_room() {
    let attached = Attached::new(24);
    for _ in 0..4 {
        attached.round(24, 16);
    }
    attached.eventually("moves both ways", |attached| {
        let to = |device| attached.asked().iter().any(|(_, to)| *to == device);
        to(DEVICE) && to(CPU)
    });
    for (range, _) in attached.asked() {
        assert!(range.bytes <= CHUNK_BYTES);
        assert!(range.address >= FIRST * BLOCK_BYTES);
        assert!(range.end() <= (FIRST + 24) * BLOCK_BYTES);
    }
    attached.eventually("figures", |attached| {
        let figures = attached.figures.lock().expect("no panic");
        figures.moved_bytes > 0 && figures.device.as_deref() == Some("GPU-9")
    });
    attached.leave.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Detached);
}

#[test]
fn a_process_that_exits_is_let_go_without_being_asked() {
    let attached = Attached::new(24);
    attached.round(24, 16);
    attached.life.ended.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Exited);
}

#[test]
fn a_process_that_unmaps_all_or_execs_is_let_go() {
    let attached = Attached::new(24);
    attached.round(24, 16);
    attached.life.unmapped.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Unmapped);
}

#[test]
fn mappings_that_cannot_be_read_for_a_moment_change_nothing() {
    let attached = Attached::new(24);
    attached.life.unreadable.store(true, Ordering::Relaxed);
    attached.round(24, 16);
    attached.eventually("events are taken", |attached| {
        attached.figures.lock().expect("no panic").engine.faults == 24 * 6
    });
    attached.life.unreadable.store(false, Ordering::Relaxed);
    attached.leave.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Detached);
}

#[test]
fn a_driver_that_refuses_everything_is_not_asked_without_end() {
    let attached = Attached::new(24);
    attached.driver.broken.store(true, Ordering::Relaxed);
    for _ in 0..6 {
        attached.round(24, 16);
    }
    attached.eventually("events are taken", |attached| {
        attached.figures.lock().expect("no panic").engine.faults == 6 * 24 * 6
    });
    let refused = |attached: &Attached| attached.figures.lock().expect("no panic").engine.refused;
    // What it was asked is bounded by what was seen.
    assert!(
        attached.asked().len() <= 6 * 24 * 2,
        "{}",
        attached.asked().len()
    );
    assert!(refused(&attached) <= 6 * 24 * 2);
    attached.life.ended.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Exited);
}

#[test]
fn another_devices_events_are_counted_and_left_alone() {
    let attached = Attached::new(24);
    attached.fault(1, 0);
    attached.fault(2, 1);
    attached.eventually("both are taken", |attached| {
        let figures = attached.figures.lock().expect("no panic");
        (figures.engine.faults, figures.other_devices) == (6, 1)
    });
    attached.leave.store(true, Ordering::Relaxed);
    assert_eq!(attached.end(), End::Detached);
}

#[test]
fn whatever_addresses_come_only_managed_memory_is_moved() {
    let attached = Attached::new(24);
    let mut state = 1u64;
    for _ in 0..20_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let address = state >> (state % 40);
        let (direction, cause) = (Direction::Out, Cause::Eviction);
        let bytes = (state >> 20) % (64 * BLOCK_BYTES);
        match state % 3 {
            0 => attached.fault(1, (state >> 8) % 24),
            1 => attached.see(
                1,
                Event::Fault {
                    address,
                    faults: u32::MAX,
                    by_host: false,
                },
            ),
            _ => attached.see(
                1,
                Event::Migration {
                    range: Range { address, bytes },
                    direction,
                    cause,
                },
            ),
        }
    }
    for _ in 0..4 {
        attached.round(24, 16);
    }
    attached.life.ended.store(true, Ordering::Relaxed);
    let driver = Arc::clone(&attached.driver);
    assert_eq!(attached.end(), End::Exited);
    for (range, _) in driver.asked.lock().expect("no panic").iter() {
        assert!(range.address >= FIRST * BLOCK_BYTES && range.end() <= (FIRST + 24) * BLOCK_BYTES);
    }
}

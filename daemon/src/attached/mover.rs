//! Carries out moves: one thread per direction and process, one request at a time.
//!
//! Owns what one request may span, when it is tried again, and when it is given up. A
//! request holds locks of the target while it runs, so it is short; the driver is left
//! alone for a while when it says that it is busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use oversub_engine::{Command, Event, Operation, Queue, Range};
use oversub_uvm::process::Mapping;
use oversub_uvm::{Uuid, UvmError};

use super::Message;

/// Most bytes of one request: the driver holds the target's locks meanwhile.
pub const CHUNK_BYTES: u64 = 16 << 20;
/// First and longest wait before a request is made again.
const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// How often it is made again.
const ATTEMPTS: u32 = 6;
/// Longest sleep without looking whether to stop.
const STEP: Duration = Duration::from_millis(20);

/// Who moves memory: the driver, or a test.
pub trait Migrate: Send + Sync {
    /// Moves a range; it is there when this returns.
    ///
    /// # Errors
    /// As the driver answers.
    fn migrate(&self, range: Range, to: Uuid) -> Result<(), UvmError>;
}

/// What an error means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Make it again, later.
    Busy,
    /// It cannot be done: the memory is not, or not any more, as it was thought.
    Refused,
}

/// `NV_STATUS` values (nvstatuscodes.h) that pass.
const PASSING: [u32; 6] = [
    0x03, // NV_ERR_BUSY_RETRY
    0x1a, // NV_ERR_INSUFFICIENT_RESOURCES
    0x51, // NV_ERR_NO_MEMORY
    0x63, // NV_ERR_STATE_IN_USE
    0x65, // NV_ERR_TIMEOUT
    0x66, // NV_ERR_TIMEOUT_RETRY
];

/// What to make of an error.
pub fn judge(error: &UvmError) -> Answer {
    match error {
        UvmError::System { source, .. } => match source.raw_os_error() {
            // EAGAIN: the system is being suspended.
            Some(libc::EAGAIN | libc::EBUSY | libc::EINTR | libc::ENOMEM) => Answer::Busy,
            _ => Answer::Refused,
        },
        UvmError::Refused { status, .. } if PASSING.contains(status) => Answer::Busy,
        _ => Answer::Refused,
    }
}

/// How long to wait before attempt `attempt`, from 1: twice as long each time.
pub fn wait_before(attempt: u32) -> Duration {
    WAIT.0
        .saturating_mul(1 << attempt.saturating_sub(1).min(20))
        .min(WAIT.1)
}

/// The parts of `range` that are managed memory, none longer than [`CHUNK_BYTES`].
pub fn chunks(range: Range, managed: &[Mapping]) -> Vec<Range> {
    let mut parts = Vec::new();
    for mapping in managed {
        let mut start = mapping.start.max(range.address);
        let end = mapping.end.min(range.end());
        while start < end {
            let bytes = CHUNK_BYTES.min(end - start);
            parts.push(Range {
                address: start,
                bytes,
            });
            start += bytes;
        }
    }
    parts
}

/// The commands that one request can serve: the first, and those that go on where it ends.
/// Returns their range and how many they are.
pub fn joined(commands: &[Command]) -> Option<(Range, usize)> {
    let mut range = commands.first()?.range;
    let mut count = 1;
    for command in &commands[1..] {
        let together = range.bytes + command.range.bytes;
        if command.range.address != range.end() || together > CHUNK_BYTES {
            break;
        }
        range.bytes = together;
        count += 1;
    }
    Some((range, count))
}

/// What one mover needs.
pub(super) struct Mover {
    pub driver: Arc<dyn Migrate>,
    pub queue: Queue,
    pub device: Uuid,
    pub managed: Arc<RwLock<Vec<Mapping>>>,
    pub stop: Arc<AtomicBool>,
    pub reports: SyncSender<Message>,
}

impl Mover {
    /// Works until there are no more commands to come, or it is told to stop.
    pub fn run(self, commands: &Receiver<Command>) {
        let mut waiting: Vec<Command> = Vec::new();
        while !self.stopped() {
            if waiting.is_empty() {
                let Ok(command) = commands.recv() else { return };
                waiting.push(command);
            }
            waiting.extend(commands.try_iter());
            let Some((range, count)) = joined(&waiting) else {
                continue;
            };
            let (queue, id) = (self.queue, waiting[count - 1].id);
            let to = match waiting[0].operation {
                Operation::Evict => oversub_uvm::CPU,
                _ => self.device,
            };
            let (done, retries) = self.one(range, to);
            waiting.drain(..count);
            let event = match done {
                true => Event::Completed { queue, id },
                false => Event::Refused { queue, id },
            };
            let moved_bytes = if done { range.bytes } else { 0 };
            let report = Message::Moved {
                event,
                moved_bytes,
                retries,
            };
            if self.reports.send(report).is_err() {
                return;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Makes a request, again where the driver is busy; how it ended and how often it was
    /// made again.
    fn one(&self, range: Range, to: Uuid) -> (bool, u64) {
        let parts = match self.managed.read() {
            Ok(managed) => chunks(range, &managed),
            Err(_) => Vec::new(),
        };
        let mut retries = 0;
        for part in &parts {
            let mut attempt = 1;
            while let Err(error) = self.driver.migrate(*part, to) {
                if judge(&error) == Answer::Refused || attempt == ATTEMPTS || self.stopped() {
                    tracing::debug!(%error, address = part.address, "a move was refused");
                    return (false, retries);
                }
                self.sleep(wait_before(attempt));
                attempt += 1;
                retries += 1;
            }
        }
        (!parts.is_empty(), retries)
    }

    fn sleep(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && !self.stopped() {
            let step = left.min(STEP);
            std::thread::sleep(step);
            left -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{channel, sync_channel};

    const BLOCK: u64 = 2 << 20;

    fn range(address: u64, bytes: u64) -> Range {
        Range { address, bytes }
    }

    fn commands(ranges: &[Range]) -> Vec<Command> {
        let command = |(index, range): (usize, &Range)| Command {
            queue: Queue::In,
            id: index as u32 + 1,
            operation: Operation::Prefetch,
            range: *range,
        };
        ranges.iter().enumerate().map(command).collect()
    }

    #[test]
    fn no_request_is_longer_than_a_chunk_or_leaves_managed_memory() {
        let managed = [(4, 30), (32, 33)].map(|(start, end)| Mapping {
            start: start * BLOCK,
            end: end * BLOCK,
        });
        let parts = chunks(range(0, 64 * BLOCK), &managed);
        let expected = [(4, 8), (12, 8), (20, 8), (28, 2), (32, 1)]
            .map(|(start, blocks)| range(start * BLOCK, blocks * BLOCK));
        assert_eq!(parts, expected);
        assert_eq!(chunks(range(30 * BLOCK, BLOCK), &managed), []);
        let cut = chunks(range(3 * BLOCK + 4096, BLOCK), &managed);
        assert_eq!(cut, [range(4 * BLOCK, 4096)]);
    }

    #[test]
    fn neighbours_go_in_one_request_up_to_a_chunk() {
        let row: Vec<Range> = (0..20).map(|n| range(n * BLOCK, BLOCK)).collect();
        assert_eq!(joined(&commands(&row)), Some((range(0, 8 * BLOCK), 8)));
        let apart = [range(0, BLOCK), range(2 * BLOCK, BLOCK)];
        assert_eq!(joined(&commands(&apart)), Some((range(0, BLOCK), 1)));
        let page_left = [range(0, BLOCK - 4096), range(BLOCK, BLOCK)];
        assert_eq!(
            joined(&commands(&page_left)).map(|(_, count)| count),
            Some(1)
        );
        assert_eq!(joined(&[]), None);
    }

    #[test]
    fn waits_double_up_to_a_second() {
        let waits: Vec<u128> = (1..=4).map(|n| wait_before(n).as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 8]);
        assert_eq!(wait_before(40), WAIT.1);
    }

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_not() {
        let system = |number| UvmError::System {
            call: "x",
            source: std::io::Error::from_raw_os_error(number),
        };
        let refused = |status| UvmError::Refused {
            request: "x",
            status,
        };
        for busy in [
            system(libc::EAGAIN),
            system(libc::EBUSY),
            refused(0x51),
            refused(3),
        ] {
            assert_eq!(judge(&busy), Answer::Busy, "{busy}");
        }
        for lost in [system(libc::EBADF), refused(0x1e), refused(u32::MAX)] {
            assert_eq!(judge(&lost), Answer::Refused, "{lost}");
        }
    }

    /// A driver that answers as told, then well.
    struct Scripted {
        answers: Mutex<Vec<u32>>,
        seen: Mutex<Vec<(Range, Uuid)>>,
    }

    impl Migrate for Scripted {
        fn migrate(&self, range: Range, to: Uuid) -> Result<(), UvmError> {
            self.seen.lock().expect("no panic").push((range, to));
            match self.answers.lock().expect("no panic").pop() {
                Some(status) => Err(UvmError::Refused {
                    request: "x",
                    status,
                }),
                None => Ok(()),
            }
        }
    }

    /// Whether each command was done, and with how many retries.
    type Told = Vec<(bool, u64)>;
    /// What the driver was asked.
    type Asked = Vec<(Range, Uuid)>;

    fn run(answers: &[u32], ranges: &[Range]) -> (Told, Asked) {
        let driver = Arc::new(Scripted {
            answers: Mutex::new(answers.iter().rev().copied().collect()),
            seen: Mutex::default(),
        });
        let (sender, receiver) = channel();
        let (reports, reported) = sync_channel(1000);
        let managed = vec![Mapping {
            start: 0,
            end: 100 * BLOCK,
        }];
        let mover = Mover {
            driver: Arc::clone(&driver) as Arc<dyn Migrate>,
            queue: Queue::In,
            device: [7; 16],
            managed: Arc::new(RwLock::new(managed)),
            stop: Arc::default(),
            reports,
        };
        for command in commands(ranges) {
            sender.send(command).expect("there is room");
        }
        drop(sender);
        mover.run(&receiver);
        let told = reported.iter().filter_map(|message| match message {
            Message::Moved { event, retries, .. } => {
                Some((matches!(event, Event::Completed { .. }), retries))
            }
            _ => None,
        });
        let told = told.collect();
        let seen = driver.seen.lock().expect("no panic").clone();
        (told, seen)
    }

    #[test]
    fn a_busy_driver_is_asked_again_and_a_refusal_is_told() {
        let (told, seen) = run(&[3, 0x51], &[range(0, BLOCK)]);
        assert_eq!((told, seen.len()), (vec![(true, 2)], 3));
        assert_eq!(seen[0], (range(0, BLOCK), [7; 16]));
        let (told, seen) = run(&[0x1e], &[range(0, BLOCK), range(4 * BLOCK, BLOCK)]);
        assert_eq!((told, seen.len()), (vec![(false, 0), (true, 0)], 2));
        let (told, seen) = run(&[3; 50], &[range(0, BLOCK)]);
        assert_eq!((told[0].0, seen.len()), (false, ATTEMPTS as usize));
        let (told, seen) = run(&[], &[range(200 * BLOCK, BLOCK)]);
        assert_eq!(
            (told, seen.len()),
            (vec![(false, 0)], 0),
            "not managed memory"
        );
    }

    #[test]
    fn a_mover_that_is_told_to_stop_does_not_wait_any_longer() {
        let stop = Arc::new(AtomicBool::new(true));
        let (_sender, receiver) = channel::<Command>();
        let (reports, _reported) = sync_channel(1000);
        let mover = Mover {
            driver: Arc::new(Scripted {
                answers: Mutex::default(),
                seen: Mutex::default(),
            }),
            queue: Queue::Out,
            device: [0; 16],
            managed: Arc::default(),
            stop,
            reports,
        };
        mover.sleep(Duration::from_secs(3600));
        mover.run(&receiver);
    }
}

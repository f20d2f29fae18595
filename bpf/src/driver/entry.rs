//! The event queue's entries as the same typed events that the probes send. Pure.
//!
//! The queue has one entry for each fault that the device reported, in the driver's order,
//! so faults of one block in one batch are merged here as the probes' programs do it. What
//! the queue does not tell: evictions that copied nothing, who needed the room, when the
//! service loop began.

use oversub_uvm::tools::{CLIENT_GPC, Cause as QueueCause, Event};

use crate::event::{Cause, Direction, ProbeEvent, Source, What};
use crate::offsets::DriverVersion;

/// From here on a processor's number has room for eight parts of a device; the queue's
/// 64-byte entries still number whole devices.
const WITH_PARTS: DriverVersion = DriverVersion(550, 40, 0);

/// Faults of one block in one batch, so far.
#[derive(Clone, Copy, Debug)]
struct OpenFaults {
    time_ns: u64,
    first: u64,
    last: u64,
    batch: u32,
    faults: u32,
    raw_faults: u32,
    processor: u16,
}

/// The batch so far.
#[derive(Clone, Copy, Debug)]
struct OpenBatch {
    batch: u32,
    began_ns: u64,
    faults: u32,
    processor: u16,
}

/// Turns the entries of one process's queue into events.
#[derive(Debug)]
pub struct Decoder {
    tgid: u32,
    parts: bool,
    /// From the driver's clock (`CLOCK_MONOTONIC_RAW`) to `CLOCK_MONOTONIC`, nanoseconds.
    offset_ns: i64,
    faults: Option<OpenFaults>,
    batches: Vec<OpenBatch>,
}

/// Batches whose replay may be outstanding; older ones are given up.
const OPEN_BATCHES: usize = 64;
const BLOCK_BYTES: u64 = 2 << 20;

impl Decoder {
    /// For the queue of this process, under a driver of this version.
    pub fn new(tgid: u32, version: Option<DriverVersion>) -> Decoder {
        Decoder {
            tgid,
            parts: version.is_none_or(|version| version >= WITH_PARTS),
            offset_ns: 0,
            faults: None,
            batches: Vec::new(),
        }
    }

    /// What the driver's clock is behind by.
    pub fn set_offset(&mut self, offset_ns: i64) {
        self.offset_ns = offset_ns;
    }

    /// Takes one entry in.
    pub fn take(&mut self, entry: Event, sink: &mut dyn FnMut(ProbeEvent)) {
        if !matches!(entry, Event::GpuFault { .. }) {
            self.flush(sink);
        }
        match entry {
            Event::GpuFault {
                address,
                batch,
                device,
                time_ns,
            } => self.fault(address, time_ns, batch, device, sink),
            Event::CpuFault { address, time_ns } => {
                let what = What::Fault {
                    address,
                    faults: 1,
                    raw_faults: 1,
                    batch: 0,
                    by_host: true,
                };
                self.send(time_ns, 0, what, sink);
            }
            Event::Migration {
                address,
                bytes,
                cause,
                source,
                target,
                time_ns,
            } => {
                let (src, dst) = (self.processor(source), self.processor(target));
                let (direction, processor) = match (src, dst) {
                    (0, 1..) => (Direction::IN, dst),
                    (1.., 0) => (Direction::OUT, src),
                    _ => (Direction::ACROSS, dst),
                };
                let what = What::Migration {
                    address,
                    bytes,
                    direction,
                    cause: cause_of(cause),
                };
                self.send(time_ns, processor, what, sink);
            }
            Event::Replay {
                batch,
                device,
                client: CLIENT_GPC,
                time_ns,
            } => self.replay(batch, time_ns, device, sink),
            Event::Thrashing {
                address,
                bytes,
                time_ns,
            } => self.send(time_ns, 0, What::Thrashing { address, bytes }, sink),
            Event::Throttle {
                address,
                processor,
                time_ns,
            } => {
                let processor = self.processor(processor);
                self.send(time_ns, processor, What::Throttle { address }, sink);
            }
            Event::Replay { .. } | Event::Other(_) => {}
        }
    }

    /// Sends what is open: nothing more is there to be merged.
    pub fn flush(&mut self, sink: &mut dyn FnMut(ProbeEvent)) {
        let Some(open) = self.faults.take() else {
            return;
        };
        let what = What::Fault {
            address: open.first,
            faults: open.faults,
            raw_faults: open.raw_faults,
            batch: open.batch,
            by_host: false,
        };
        self.send(open.time_ns, open.processor, what, sink);
    }

    fn fault(
        &mut self,
        address: u64,
        time_ns: u64,
        batch: u32,
        index: u8,
        sink: &mut dyn FnMut(ProbeEvent),
    ) {
        let processor = self.processor(index);
        let same = |open: &OpenFaults| {
            open.batch == batch
                && open.processor == processor
                && open.first / BLOCK_BYTES == address / BLOCK_BYTES
        };
        if !self.faults.as_ref().is_some_and(same) {
            self.flush(sink);
        }
        let open = self.faults.get_or_insert(OpenFaults {
            time_ns,
            first: address,
            last: !0,
            batch,
            faults: 0,
            raw_faults: 0,
            processor,
        });
        // Faults that the driver merged follow one another, with one address. Others may
        // too, so this is the least number that there can have been.
        let merged = open.last == address;
        open.last = address;
        open.raw_faults += 1;
        open.faults += u32::from(!merged);
        let known = |open: &&mut OpenBatch| open.batch == batch && open.processor == processor;
        match self.batches.iter_mut().find(known) {
            Some(open) => open.faults += u32::from(!merged),
            None => {
                if self.batches.len() == OPEN_BATCHES {
                    self.batches.remove(0);
                }
                self.batches.push(OpenBatch {
                    batch,
                    began_ns: time_ns,
                    faults: 1,
                    processor,
                });
            }
        }
    }

    /// A replay that follows faults of this process. The queue tells of all replays there
    /// are, also of those for other processes.
    fn replay(&mut self, batch: u32, time_ns: u64, index: u8, sink: &mut dyn FnMut(ProbeEvent)) {
        let processor = self.processor(index);
        let ours = |open: &OpenBatch| open.batch == batch && open.processor == processor;
        let Some(found) = self.batches.iter().position(ours) else {
            return;
        };
        let open = self.batches.remove(found);
        let what = What::Batch {
            batch,
            faults: open.faults,
            service_ns: time_ns.saturating_sub(open.began_ns),
        };
        self.send(time_ns, processor, what, sink);
    }

    /// The number that the driver's events have for the queue's.
    fn processor(&self, index: u8) -> u16 {
        match index {
            0 => 0,
            _ if self.parts => (u16::from(index) - 1) * 8 + 1,
            _ => u16::from(index),
        }
    }

    fn send(&self, raw_ns: u64, processor: u16, what: What, sink: &mut dyn FnMut(ProbeEvent)) {
        sink(ProbeEvent {
            time_ns: raw_ns.saturating_add_signed(self.offset_ns),
            tgid: Some(self.tgid),
            source: Source::Uvm,
            space: 0,
            processor,
            what,
        });
    }
}

/// The queue tells less than the driver's own causes.
fn cause_of(cause: QueueCause) -> Cause {
    match cause {
        QueueCause::Call => Cause::API_MIGRATE,
        QueueCause::Fault => Cause::REPLAYABLE_FAULT,
        QueueCause::Prefetch => Cause::PREFETCH,
        QueueCause::Eviction => Cause::EVICTION,
        QueueCause::AccessCounter => Cause::ACCESS_COUNTER,
        QueueCause::Other(_) => Cause::API_TOOLS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: DriverVersion = DriverVersion(535, 183, 1);

    fn fault(address: u64, batch: u32, time_ns: u64) -> Event {
        Event::GpuFault {
            address,
            batch,
            device: 1,
            time_ns,
        }
    }

    fn replay(batch: u32, time_ns: u64) -> Event {
        Event::Replay {
            batch,
            device: 1,
            client: CLIENT_GPC,
            time_ns,
        }
    }

    fn decode(version: DriverVersion, entries: &[Event]) -> Vec<ProbeEvent> {
        let mut decoder = Decoder::new(42, Some(version));
        decoder.set_offset(1_000);
        let mut events = Vec::new();
        for entry in entries {
            decoder.take(*entry, &mut |event| events.push(event));
        }
        decoder.flush(&mut |event| events.push(event));
        events
    }

    #[test]
    fn faults_of_one_block_and_batch_are_one_event_and_merged_ones_count_once() {
        let base = 0x7e00_0000_0000;
        let events = decode(
            OLD,
            &[
                fault(base, 3, 10),
                fault(base, 3, 11),
                fault(base + 4096, 3, 12),
                fault(base + BLOCK_BYTES, 3, 13),
                fault(base + BLOCK_BYTES, 4, 14),
            ],
        );
        let told: Vec<_> = events
            .iter()
            .map(|event| match event.what {
                What::Fault {
                    address,
                    faults,
                    raw_faults,
                    batch,
                    by_host: false,
                } => (event.time_ns, address - base, faults, raw_faults, batch),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            told,
            [
                (1_010, 0, 2, 3, 3),
                (1_013, BLOCK_BYTES, 1, 1, 3),
                (1_014, BLOCK_BYTES, 1, 1, 4)
            ]
        );
        assert!(events.iter().all(|event| event.tgid == Some(42)));
    }

    #[test]
    fn a_batch_lasts_from_its_first_fault_to_its_replay_and_other_peoples_replays_are_ignored() {
        let events = decode(
            OLD,
            &[
                fault(0, 3, 10),
                fault(4096, 3, 20),
                replay(9, 50),
                replay(3, 60),
                replay(3, 70),
            ],
        );
        let batches: Vec<_> = events
            .iter()
            .filter(|event| matches!(event.what, What::Batch { .. }))
            .collect();
        assert_eq!(batches.len(), 1);
        assert_eq!(
            batches[0].what,
            What::Batch {
                batch: 3,
                faults: 2,
                service_ns: 50
            }
        );
        assert_eq!(batches[0].time_ns, 1_060);
    }

    #[test]
    fn migrations_have_the_drivers_own_causes_and_the_devices_number_of_the_version() {
        let migration = |cause, source, target| Event::Migration {
            address: 0x1000,
            bytes: 8192,
            cause,
            source,
            target,
            time_ns: 5,
        };
        let events = decode(OLD, &[migration(QueueCause::Eviction, 2, 0)]);
        assert_eq!(
            events[0].what,
            What::Migration {
                address: 0x1000,
                bytes: 8192,
                direction: Direction::OUT,
                cause: Cause::EVICTION
            }
        );
        assert_eq!(events[0].processor, 2);
        let events = decode(
            DriverVersion(550, 163, 1),
            &[migration(QueueCause::Call, 0, 2)],
        );
        assert!(matches!(
            events[0].what,
            What::Migration {
                direction: Direction::IN,
                cause: Cause::API_MIGRATE,
                ..
            }
        ));
        assert_eq!(events[0].processor, 9);
    }

    #[test]
    fn entries_of_unknown_kinds_say_nothing() {
        assert!(decode(OLD, &[Event::Other(0), Event::Other(9), Event::Other(255)]).is_empty());
    }
}

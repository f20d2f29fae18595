//! From what the driver did to what the engine is told.

use std::collections::HashMap;

use oversub_bpf::{Cause as DriverCause, Direction as DriverDirection, ProbeEvent, What};
use oversub_engine::{Cause, Direction, Event, Range};

/// The driver's address spaces remembered by process.
const MAX_SPACES: usize = 4096;

/// One thing that a probe saw in one process.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The process; none where it is not known.
    pub process: Option<u32>,
    /// The driver's number of the device; 0: not known, or the host.
    pub processor: u16,
    /// What it was.
    pub event: Event<'static>,
}

impl Seen {
    /// The service time, where this is the end of a fault batch.
    pub fn service_seconds(&self) -> Option<f64> {
        match self.event {
            Event::FaultBatch { service_us, .. } => Some(f64::from(service_us) / 1e6),
            _ => None,
        }
    }
}

/// What the engine is told of it; none where it is no business of the engine's.
pub(super) fn translate(event: &ProbeEvent, spaces: &mut HashMap<u64, u32>) -> Option<Seen> {
    if let (Some(process), true) = (event.tgid, event.space != 0)
        && (spaces.len() < MAX_SPACES || spaces.contains_key(&event.space))
    {
        spaces.insert(event.space, process);
    }
    if event.what == What::SpaceEnd {
        spaces.remove(&event.space);
    }
    let process = event.tgid.or_else(|| spaces.get(&event.space).copied());
    let processor = event.processor;
    let event = match event.what {
        What::Fault {
            address,
            faults,
            by_host,
            ..
        } => Event::Fault {
            address,
            faults,
            by_host,
        },
        What::Batch {
            faults, service_ns, ..
        } => {
            let service_us = u32::try_from(service_ns / 1_000).unwrap_or(u32::MAX);
            Event::FaultBatch { faults, service_us }
        }
        // How much was moved is not known, so nobody is told of it.
        What::Migration { bytes: 0, .. } => return None,
        What::Migration {
            address,
            bytes,
            direction,
            cause,
        } => {
            let direction = match direction {
                DriverDirection::IN => Direction::In,
                DriverDirection::OUT => Direction::Out,
                _ => return None,
            };
            let cause = cause_of(cause, direction);
            Event::Migration {
                range: Range { address, bytes },
                direction,
                cause,
            }
        }
        What::Populate { address, bytes } => Event::Populated {
            range: Range { address, bytes },
        },
        What::Eviction { .. }
        | What::ServiceBegin
        | What::ServiceEnd { .. }
        | What::Range { .. }
        | What::Thrashing { .. }
        | What::Throttle { .. }
        | What::SpaceEnd => {
            return None;
        }
    };
    Some(Seen {
        process,
        processor,
        event,
    })
}

fn cause_of(cause: DriverCause, direction: Direction) -> Cause {
    match (cause, direction) {
        (DriverCause::REPLAYABLE_FAULT | DriverCause::NON_REPLAYABLE_FAULT, Direction::In) => {
            Cause::Fault
        }
        (DriverCause::REPLAYABLE_FAULT | DriverCause::NON_REPLAYABLE_FAULT, Direction::Out) => {
            Cause::HostFault
        }
        (DriverCause::PREFETCH, _) => Cause::Density,
        (DriverCause::EVICTION, _) => Cause::Eviction,
        (DriverCause::API_MIGRATE, _) => Cause::Call,
        _ => Cause::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_bpf::Source;

    fn event(tgid: Option<u32>, space: u64, what: What) -> ProbeEvent {
        ProbeEvent {
            time_ns: 1,
            tgid,
            source: Source::Uvm,
            space,
            processor: 0,
            what,
        }
    }

    #[test]
    fn a_space_is_known_once_a_process_has_made_a_range_in_it() {
        let mut spaces = HashMap::new();
        let fault = What::Fault {
            address: 7,
            faults: 1,
            raw_faults: 1,
            batch: 0,
            by_host: false,
        };
        let seen = translate(&event(None, 5, fault), &mut spaces).expect("a fault is told");
        assert_eq!(seen.process, None);
        assert!(
            translate(
                &event(
                    Some(42),
                    5,
                    What::Range {
                        address: 0,
                        bytes: 1
                    }
                ),
                &mut spaces
            )
            .is_none()
        );
        let seen = translate(&event(None, 5, fault), &mut spaces).expect("a fault is told");
        assert_eq!(seen.process, Some(42));
    }

    #[test]
    fn a_space_that_ended_is_forgotten_and_moves_of_unknown_size_are_not_told() {
        let mut spaces = HashMap::from([(5, 42)]);
        let unknown = What::Migration {
            address: 0,
            bytes: 0,
            direction: DriverDirection::IN,
            cause: DriverCause::EVICTION,
        };
        assert!(translate(&event(None, 5, unknown), &mut spaces).is_none());
        assert!(translate(&event(Some(42), 5, What::SpaceEnd), &mut spaces).is_none());
        assert!(spaces.is_empty());
    }

    #[test]
    fn going_out_by_a_fault_is_the_hosts_doing() {
        assert_eq!(
            cause_of(DriverCause::REPLAYABLE_FAULT, Direction::Out),
            Cause::HostFault
        );
        assert_eq!(
            cause_of(DriverCause::REPLAYABLE_FAULT, Direction::In),
            Cause::Fault
        );
        assert_eq!(cause_of(DriverCause(99), Direction::In), Cause::Other);
    }
}

//! What the driver did, counted by process and device. Pure: time is that of the events.
//!
//! The number of series is bounded: processes beyond the limit share one, and a process
//! that ended is folded into another, so that sums never go back.

use std::collections::{BTreeMap, HashMap, VecDeque};

use oversub_bpf::{Direction, Eviction, Payer, ProbeEvent, What};

/// Processes counted by themselves.
pub const MAX_PROCESSES: usize = 128;
/// Devices of one process counted by themselves.
const MAX_DEVICES: usize = 32;
/// Evicted blocks remembered.
const MAX_EVICTED: usize = 1 << 16;
/// A block that faults so soon after its eviction was evicted in vain, nanoseconds.
pub const CAPACITY_THRASH_NS: u64 = 1_000_000_000;
const BLOCK_BYTES: u64 = 2 << 20;
/// Latency buckets: below `2^i` microseconds, the last without an end.
pub const BUCKETS: usize = 22;
/// Causes of migrations, by the driver's number (`uvm_make_resident_cause_t`).
pub const CAUSES: [&str; 10] = [
    "fault",
    "non_replayable_fault",
    "access_counter",
    "density",
    "eviction",
    "tools",
    "call",
    "range_group",
    "advice",
    "other",
];
/// Directions, by [`Direction`]'s number.
pub const DIRECTIONS: [&str; 3] = ["in", "out", "across"];
/// Who needed the room of an eviction.
pub const PAYERS: [&str; 3] = ["fault", "call", "unknown"];

/// Whose counters: a process, or one of those that stand for many.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Who {
    /// By its number in the initial pid namespace.
    Process(u32),
    /// The driver did not say for whom.
    Unknown,
    /// Processes beyond the limit.
    Other,
    /// Processes that ended.
    Ended,
}

/// Counters of one process on one device.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Faults of the device, after the driver's merging of duplicates.
    pub faults: u64,
    /// And before it.
    pub raw_faults: u64,
    /// Blocks that faulted in a batch.
    pub block_faults: u64,
    /// Faults of the host.
    pub host_faults: u64,
    /// Batches of faults.
    pub batches: u64,
    /// Bytes by direction and cause.
    pub bytes: [[u64; CAUSES.len()]; DIRECTIONS.len()],
    /// Moves by direction and cause, whose bytes may not be known.
    pub moves: [[u64; CAUSES.len()]; DIRECTIONS.len()],
    /// Evictions of the process's memory by who needed the room, without and with a copy.
    pub evictions: [[u64; 2]; PAYERS.len()],
    /// Faults on blocks that were evicted shortly before.
    pub capacity_faults: u64,
    /// Pages over which processors fought.
    pub thrashing: u64,
    /// Waits that the driver imposed for that.
    pub throttles: u64,
    /// Service latency of batches.
    pub latency: [u64; BUCKETS],
    /// Sum of the latencies, nanoseconds.
    pub latency_ns: u64,
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        let each = |mine: &mut [u64], theirs: &[u64]| {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        };
        self.faults += other.faults;
        self.raw_faults += other.raw_faults;
        self.block_faults += other.block_faults;
        self.host_faults += other.host_faults;
        self.batches += other.batches;
        self.capacity_faults += other.capacity_faults;
        self.thrashing += other.thrashing;
        self.throttles += other.throttles;
        self.latency_ns += other.latency_ns;
        each(self.bytes.as_flattened_mut(), other.bytes.as_flattened());
        each(self.moves.as_flattened_mut(), other.moves.as_flattened());
        each(
            self.evictions.as_flattened_mut(),
            other.evictions.as_flattened(),
        );
        each(&mut self.latency, &other.latency);
    }
}

/// All counters.
#[derive(Default, Debug)]
pub struct DriverTotals {
    counters: BTreeMap<(Who, u16), Totals>,
    /// Processes with counters of their own, and how many devices each has.
    processes: BTreeMap<u32, usize>,
    /// When a block was last evicted, by process and block.
    evicted: HashMap<(u32, u64), u64>,
    /// The same in the order of time.
    order: VecDeque<((u32, u64), u64)>,
}

impl DriverTotals {
    /// Counts one event.
    pub fn take(&mut self, event: &ProbeEvent) {
        let mut capacity = 0;
        match (event.tgid, event.what) {
            (
                Some(process),
                What::Fault {
                    address,
                    faults,
                    by_host: false,
                    ..
                },
            ) if self.was_evicted(process, address, event.time_ns) => {
                capacity = u64::from(faults.max(1));
            }
            (
                Some(process),
                What::Migration {
                    address,
                    bytes,
                    cause: oversub_bpf::Cause::EVICTION,
                    ..
                },
            ) => self.note_eviction(process, address, bytes, event.time_ns),
            (Some(process), What::Eviction { address, bytes, .. }) if address != 0 => {
                self.note_eviction(process, address, bytes, event.time_ns);
            }
            _ => {}
        }
        if matches!(
            event.what,
            What::ServiceBegin
                | What::ServiceEnd { .. }
                | What::Range { .. }
                | What::SpaceEnd
                | What::Populate { .. }
        ) {
            return;
        }
        let totals = self.of(event.tgid, event.processor);
        totals.capacity_faults += capacity;
        count(totals, &event.what);
    }

    /// Every counter there is.
    pub fn iter(&self) -> impl Iterator<Item = (Who, u16, &Totals)> {
        self.counters
            .iter()
            .map(|((who, processor), totals)| (*who, *processor, totals))
    }

    /// The processes with counters of their own.
    pub fn processes(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Folds what a process counted, because it has ended.
    pub fn end(&mut self, process: u32) {
        self.processes.remove(&process);
        let who = Who::Process(process);
        let keys: Vec<(Who, u16)> = self
            .counters
            .range((who, 0)..=(who, u16::MAX))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            if let Some(last) = self.counters.remove(&key) {
                self.counters
                    .entry((Who::Ended, key.1))
                    .or_default()
                    .add(&last);
            }
        }
    }

    fn of(&mut self, process: Option<u32>, processor: u16) -> &mut Totals {
        let key = match process {
            None => (Who::Unknown, processor),
            Some(process)
                if self
                    .counters
                    .contains_key(&(Who::Process(process), processor)) =>
            {
                (Who::Process(process), processor)
            }
            Some(process) => {
                let known = self.processes.contains_key(&process);
                let room = known || self.processes.len() < MAX_PROCESSES;
                let devices = self.processes.get(&process).copied().unwrap_or(0);
                if room && devices < MAX_DEVICES {
                    *self.processes.entry(process).or_default() += 1;
                    (Who::Process(process), processor)
                } else {
                    // Numbers of devices are small, those of unknown ones are not ours.
                    (Who::Other, processor.min(MAX_DEVICES as u16))
                }
            }
        };
        self.counters.entry(key).or_default()
    }

    fn note_eviction(&mut self, process: u32, address: u64, bytes: u64, now: u64) {
        let first = address / BLOCK_BYTES;
        let last = address.saturating_add(bytes.saturating_sub(1)) / BLOCK_BYTES;
        // A record is of one block; whatever it says, no more than that is believed.
        for block in first..=last.min(first + 1) {
            self.evicted.insert((process, block), now);
            self.order.push_back(((process, block), now));
        }
        while let Some((key, at)) = self.order.front().copied() {
            let old = at.saturating_add(CAPACITY_THRASH_NS) < now;
            if !old && self.order.len() <= MAX_EVICTED {
                break;
            }
            self.order.pop_front();
            if self.evicted.get(&key) == Some(&at) {
                self.evicted.remove(&key);
            }
        }
    }

    fn was_evicted(&mut self, process: u32, address: u64, now: u64) -> bool {
        let evicted = self.evicted.remove(&(process, address / BLOCK_BYTES));
        evicted.is_some_and(|at| now.saturating_sub(at) <= CAPACITY_THRASH_NS)
    }
}

fn count(totals: &mut Totals, what: &What) {
    match *what {
        What::Fault { by_host: true, .. } => totals.host_faults += 1,
        What::Fault {
            faults, raw_faults, ..
        } => {
            totals.faults += u64::from(faults);
            totals.raw_faults += u64::from(raw_faults);
            totals.block_faults += 1;
        }
        What::Batch { service_ns, .. } => {
            totals.batches += 1;
            totals.latency_ns += service_ns;
            totals.latency[bucket(service_ns)] += 1;
        }
        What::Migration {
            bytes,
            direction,
            cause,
            ..
        } => {
            let Direction(direction) = direction;
            let direction = usize::from(direction).min(DIRECTIONS.len() - 1);
            let cause = usize::from(cause.0).min(CAUSES.len() - 1);
            totals.bytes[direction][cause] += bytes;
            totals.moves[direction][cause] += 1;
        }
        What::Eviction { kind, payer, .. } => {
            let payer = match payer {
                Payer::Fault(_) => 0,
                Payer::Call(_) => 1,
                Payer::Unknown => 2,
            };
            totals.evictions[payer][usize::from(kind == Eviction::USED)] += 1;
        }
        What::Thrashing { .. } => totals.thrashing += 1,
        What::Throttle { .. } => totals.throttles += 1,
        _ => {}
    }
}

/// Of a latency in nanoseconds.
fn bucket(nanoseconds: u64) -> usize {
    let microseconds = nanoseconds / 1_000;
    let index = (u64::BITS - microseconds.leading_zeros()) as usize;
    index.min(BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use oversub_bpf::{Cause, Source};

    fn event(tgid: Option<u32>, processor: u16, time_ns: u64, what: What) -> ProbeEvent {
        ProbeEvent {
            time_ns,
            tgid,
            source: Source::Uvm,
            space: 1,
            processor,
            what,
        }
    }

    fn fault(address: u64) -> What {
        What::Fault {
            address,
            faults: 3,
            raw_faults: 5,
            batch: 1,
            by_host: false,
        }
    }

    fn evicted(address: u64) -> What {
        What::Migration {
            address,
            bytes: BLOCK_BYTES,
            direction: Direction::OUT,
            cause: Cause::EVICTION,
        }
    }

    fn of(totals: &DriverTotals, who: Who, processor: u16) -> Totals {
        let found = totals
            .iter()
            .find(|(found, device, _)| (*found, *device) == (who, processor));
        found
            .map(|(_, _, totals)| totals.clone())
            .unwrap_or_default()
    }

    #[test]
    fn faults_and_bytes_are_counted_by_process_and_device() {
        let mut totals = DriverTotals::default();
        totals.take(&event(Some(7), 1, 0, fault(0)));
        totals.take(&event(Some(7), 2, 0, fault(0)));
        totals.take(&event(Some(7), 1, 0, evicted(0)));
        totals.take(&event(None, 1, 0, fault(0)));
        let mine = of(&totals, Who::Process(7), 1);
        assert_eq!((mine.faults, mine.raw_faults, mine.block_faults), (3, 5, 1));
        assert_eq!(mine.bytes[1][4], BLOCK_BYTES);
        assert_eq!(of(&totals, Who::Process(7), 2).bytes, [[0; 10]; 3]);
        assert_eq!(of(&totals, Who::Unknown, 1).faults, 3);
    }

    #[test]
    fn a_fault_soon_after_an_eviction_is_a_capacity_fault_once() {
        let mut totals = DriverTotals::default();
        let block = 6 * BLOCK_BYTES;
        totals.take(&event(Some(7), 1, 10, evicted(block)));
        // Another process's block of the same address is another block.
        totals.take(&event(Some(8), 1, 20, fault(block)));
        totals.take(&event(Some(7), 1, 20, fault(block + 4096)));
        totals.take(&event(Some(7), 1, 30, fault(block + 8192)));
        assert_eq!(of(&totals, Who::Process(7), 1).capacity_faults, 3);
        assert_eq!(of(&totals, Who::Process(8), 1).capacity_faults, 0);
        let late = 40 + CAPACITY_THRASH_NS + 1;
        totals.take(&event(Some(7), 1, 40, evicted(block)));
        totals.take(&event(Some(7), 1, late, fault(block)));
        assert_eq!(of(&totals, Who::Process(7), 1).capacity_faults, 3);
    }

    #[test]
    fn evicted_blocks_are_forgotten_by_age_and_by_number() {
        let mut totals = DriverTotals::default();
        for block in 0..(MAX_EVICTED as u64 + 10) {
            totals.take(&event(Some(7), 1, block, evicted(block * BLOCK_BYTES)));
        }
        assert!(totals.evicted.len() <= MAX_EVICTED && totals.order.len() <= MAX_EVICTED);
        totals.take(&event(Some(7), 1, u64::MAX, evicted(0)));
        assert_eq!((totals.evicted.len(), totals.order.len()), (1, 1));
    }

    #[test]
    fn the_number_of_series_is_bounded_and_sums_survive_an_end() {
        let mut totals = DriverTotals::default();
        for process in 0..1000 {
            totals.take(&event(Some(process), 1, 0, fault(0)));
        }
        assert_eq!(totals.iter().count(), MAX_PROCESSES + 1);
        assert_eq!(
            of(&totals, Who::Other, 1).faults,
            3 * (1000 - MAX_PROCESSES as u64)
        );
        for process in totals.processes() {
            totals.end(process);
        }
        assert_eq!(totals.iter().count(), 2);
        let sum: u64 = totals.iter().map(|(_, _, totals)| totals.faults).sum();
        assert_eq!(sum, 3000);
        for device in 0..1000 {
            totals.take(&event(Some(1), device, 0, fault(0)));
        }
        assert!(totals.iter().count() <= 2 + 2 * MAX_DEVICES + 1);
    }

    #[test]
    fn latencies_fall_into_powers_of_two() {
        assert_eq!(
            [0, 999, 1_000, 1_999, 2_000, 313_000].map(bucket),
            [0, 0, 1, 1, 2, 9]
        );
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn evictions_are_counted_by_who_needed_the_room() {
        let mut totals = DriverTotals::default();
        for (payer, kind) in [
            (Payer::Fault(Some(9)), Eviction::USED),
            (Payer::Call(8), Eviction::UNUSED),
            (Payer::Unknown, Eviction::USED),
        ] {
            let what = What::Eviction {
                address: 0,
                bytes: BLOCK_BYTES,
                kind,
                duration_ns: 1,
                payer,
            };
            totals.take(&event(Some(7), 1, 0, what));
        }
        assert_eq!(
            of(&totals, Who::Process(7), 1).evictions,
            [[0, 1], [1, 0], [0, 1]]
        );
    }
}

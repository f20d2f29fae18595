//! Steering by faults alone, on a model of the driver: blocks come by faults, go by the
//! order of their last migration, and pages that are there are used without a word.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use oversub_engine::{
    BLOCK_BYTES, BlockId, Bytes, Cause, Command, Direction, Event, FaultConfig, FaultEngine,
    FaultStats, Operation, Queue, Range,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const PAGES: u64 = BLOCK_BYTES / PAGE;
/// Faults that bring a whole block, by the driver's density prefetcher.
const FAULTS_OF_A_BLOCK: u64 = 6;

/// The device, its driver, and what carries out commands.
struct Device {
    capacity: usize,
    /// Least recently migrated first; with the pages that are missing.
    blocks: VecDeque<(BlockId, BTreeSet<u64>)>,
    /// Accesses between a command and its effect.
    delay: u64,
    now: u64,
    orders: [VecDeque<(u64, Command)>; 2],
    engine: Option<FaultEngine>,
    faults: u64,
    blocks_in: u64,
    evicted_by_driver: u64,
}

impl Device {
    fn new(capacity: usize, steered: bool) -> Self {
        let config = FaultConfig {
            ahead: Bytes(32 << 20),
            ..FaultConfig::default()
        };
        Self {
            capacity,
            blocks: VecDeque::new(),
            delay: 0,
            now: 0,
            orders: Default::default(),
            engine: steered.then(|| FaultEngine::new(config)),
            faults: 0,
            blocks_in: 0,
            evicted_by_driver: 0,
        }
    }

    fn tell(&mut self, event: Event<'_>) {
        if let Some(engine) = &mut self.engine {
            engine.step(&event);
        }
    }

    fn find(&mut self, block: BlockId) -> Option<&mut BTreeSet<u64>> {
        let found = self.blocks.iter_mut().find(|(there, _)| *there == block);
        found.map(|(_, missing)| missing)
    }

    fn make_room(&mut self) {
        while self.blocks.len() >= self.capacity {
            if let Some((victim, _)) = self.blocks.pop_front() {
                self.evicted_by_driver += 1;
                self.tell(Event::Migration {
                    range: whole(victim),
                    direction: Direction::Out,
                    cause: Cause::Eviction,
                });
            }
        }
    }

    /// The program uses all of a block.
    fn access(&mut self, block: BlockId) {
        self.carry_out();
        self.now += 1;
        let missing = self.find(block).map(|missing| missing.len() as u64);
        let faults = match missing {
            Some(0) => return self.decide(),
            None | Some(PAGES) => FAULTS_OF_A_BLOCK,
            Some(few) => few.min(FAULTS_OF_A_BLOCK),
        };
        self.faults += faults;
        let first = self
            .find(block)
            .and_then(|missing| missing.first().copied());
        self.tell(Event::Fault {
            address: block.address() + first.unwrap_or(0) * PAGE,
            faults: faults as u32,
            by_host: false,
        });
        if missing.is_none() {
            self.make_room();
            self.blocks_in += 1;
        }
        self.blocks.retain(|(there, _)| *there != block);
        self.blocks.push_back((block, BTreeSet::new()));
        self.decide();
    }

    fn decide(&mut self) {
        let mut commands = Vec::new();
        if let Some(engine) = &mut self.engine {
            engine.decide(&mut commands);
        }
        for command in commands {
            let queue = usize::from(command.queue == Queue::Out);
            self.orders[queue].push_back((self.now + self.delay, command));
        }
    }

    fn carry_out(&mut self) {
        for queue in [1, 0] {
            while let Some((_, command)) =
                self.orders[queue].pop_front_if(|(due, _)| *due <= self.now)
            {
                self.one(command);
                self.decide();
            }
        }
    }

    fn one(&mut self, command: Command) {
        let block = BlockId::containing(command.range.address);
        match command.operation {
            Operation::Evict => self.blocks.retain(|(there, _)| *there != block),
            _ => {
                if self.find(block).is_none() {
                    self.make_room();
                    self.blocks_in += 1;
                    self.blocks.push_back((block, (0..PAGES).collect()));
                }
                let first = (command.range.address - block.address()) / PAGE;
                let pages = first..first + command.range.bytes / PAGE;
                if let Some(missing) = self.find(block) {
                    missing.retain(|page| !pages.contains(page));
                }
            }
        }
        let Command { queue, id, .. } = command;
        self.tell(Event::Completed { queue, id });
    }

    fn run(mut self, program: impl IntoIterator<Item = u64>) -> Self {
        for block in program {
            self.access(BlockId(1000 + block));
        }
        self
    }

    fn stats(&self) -> FaultStats {
        self.engine
            .as_ref()
            .map(FaultEngine::stats)
            .unwrap_or_default()
    }
}

fn whole(block: BlockId) -> Range {
    Range {
        address: block.address(),
        bytes: BLOCK_BYTES,
    }
}

/// Faults and blocks in from access `from` on: the driver alone, and steered.
fn compare(
    capacity: usize,
    delay: u64,
    from: usize,
    program: &[u64],
) -> BTreeMap<&'static str, (f64, f64)> {
    let mut results = BTreeMap::new();
    for (name, steered) in [("driver", false), ("steered", true)] {
        let device = |part: &[u64]| {
            let mut device = Device::new(capacity, steered);
            device.delay = delay;
            device.run(part.iter().copied())
        };
        let (start, all) = (device(&program[..from]), device(program));
        let difference = |of: fn(&Device) -> u64| (of(&all) - of(&start)) as f64;
        results.insert(
            name,
            (difference(|d| d.faults), difference(|d| d.blocks_in)),
        );
    }
    results
}

fn rounds(blocks: u64, count: u64) -> Vec<u64> {
    (0..count).flat_map(|_| 0..blocks).collect()
}

#[test]
fn a_sweep_larger_than_the_device_loses_nearly_all_of_its_faults() {
    for (blocks, capacity, delay, left) in [
        (12, 8, 0, 0.12),
        (12, 7, 1, 0.2),
        (48, 31, 1, 0.15),
        (300, 200, 3, 0.1),
    ] {
        let program = rounds(blocks, 12);
        let results = compare(capacity, delay, 3 * blocks as usize, &program);
        let (driver, steered) = (results["driver"], results["steered"]);
        assert!(
            steered.0 < left * driver.0,
            "{blocks} blocks in {capacity}: {results:?}"
        );
        assert!(steered.1 < 0.9 * driver.1, "{blocks}: {results:?}");
    }
}

#[test]
fn of_a_large_sweep_only_the_excess_and_a_margin_moves() {
    let results = compare(200, 3, 900, &rounds(300, 12));
    let ratio = results["steered"].1 / results["driver"].1;
    // A third does not fit, and a twelfth is on its way.
    assert!(ratio < 0.55, "{results:?}");
}

#[test]
fn a_program_that_fits_is_left_alone() {
    let device = Device::new(20, true).run(rounds(18, 10));
    assert_eq!(device.stats().prefetched_bytes, 0);
    assert_eq!(device.faults, 18 * FAULTS_OF_A_BLOCK);
}

#[test]
fn accesses_that_nobody_can_predict_cost_next_to_nothing() {
    let mut state = 12345u64;
    let program: Vec<u64> = (0..20_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % 120
        })
        .collect();
    let results = compare(80, 2, 2_000, &program);
    assert!(
        results["steered"].1 < 1.02 * results["driver"].1,
        "{results:?}"
    );
}

#[test]
fn another_order_is_learned_when_it_comes() {
    let forward = rounds(48, 6);
    let backward: Vec<u64> = (0..8).flat_map(|_| (0..48).rev()).collect();
    let program: Vec<u64> = forward.iter().chain(&backward).copied().collect();
    let results = compare(31, 1, forward.len() + 4 * 48, &program);
    assert!(
        results["steered"].0 < 0.2 * results["driver"].0,
        "{results:?}"
    );
}

#[test]
fn neighbours_in_changing_order_do_not_break_the_thread() {
    // Two processors side by side: each pair comes in either order.
    let program: Vec<u64> = (0..14u64)
        .flat_map(|round| {
            (0..24).flat_map(move |pair| {
                let swapped = (round * 7 + pair * 5) % 3 == 0;
                let (a, b) = (2 * pair, 2 * pair + 1);
                if swapped { [b, a] } else { [a, b] }
            })
        })
        .collect();
    let results = compare(31, 1, 4 * 48, &program);
    assert!(
        results["steered"].0 < 0.2 * results["driver"].0,
        "{results:?}"
    );
}

#[test]
fn what_is_asked_for_is_aligned_and_leaves_one_page_to_show_the_use() {
    let mut device = Device::new(8, true);
    let mut seen = 0;
    for block in rounds(12, 10) {
        device.access(BlockId(block));
        for (_, command) in device.orders.iter().flatten() {
            seen += 1;
            let Range { address, bytes } = command.range;
            assert!(bytes > 0 && bytes <= BLOCK_BYTES);
            assert!(address % PAGE == 0 && bytes % PAGE == 0);
            let last = address + bytes - 1;
            assert_eq!(BlockId::containing(address), BlockId::containing(last));
            if command.operation == Operation::Prefetch {
                assert!(bytes < BLOCK_BYTES, "a page is left out");
            } else {
                assert_eq!(bytes, BLOCK_BYTES);
            }
        }
    }
    assert!(seen > 0);
}

#[test]
fn refused_commands_are_not_repeated_until_the_block_is_used_again() {
    let mut device = Device::new(8, true).run(rounds(12, 4));
    let mut commands = Vec::new();
    let mut engine = device.engine.take().expect("steered");
    for (_, command) in device.orders.iter().flatten() {
        commands.push(*command);
    }
    for _ in 0..1_000 {
        engine.decide(&mut commands);
        let Some(Command { queue, id, .. }) = commands.pop() else {
            return;
        };
        engine.step(&Event::Refused { queue, id });
        commands.clear();
    }
    panic!("refused commands come again and again");
}

#[test]
fn memory_that_is_gone_is_not_moved_any_more() {
    let mut device = Device::new(8, true).run(rounds(12, 4));
    let engine = device.engine.as_mut().expect("steered");
    engine.retain(|_| false);
    let mut commands = Vec::new();
    engine.decide(&mut commands);
    assert_eq!(commands, []);
    let stats = engine.stats();
    assert_eq!((stats.known_bytes, stats.resident_bytes), (0, 0));
}

proptest! {
    #[test]
    fn whatever_comes_counters_fit_and_tables_stay_within_their_limits(
        events in prop::collection::vec((0u64..40, 0u8..8, 0u32..50, 0u64..4 << 20), 1..400)
    ) {
        let config = FaultConfig { history: 64, blocks: 32, ..FaultConfig::default() };
        let mut engine = FaultEngine::new(config);
        let mut commands = Vec::new();
        for (block, kind, id, bytes) in events {
            let far = if id == 49 { u64::MAX - 40 * BLOCK_BYTES } else { 0 };
            let address = far + block * BLOCK_BYTES + u64::from(id % 8) * PAGE;
            let range = Range { address, bytes };
            let migration = |direction, cause| Event::Migration { range, direction, cause };
            let queue = if id % 2 == 0 { Queue::In } else { Queue::Out };
            engine.step(&match kind {
                0..3 => Event::Fault { address, faults: id, by_host: false },
                3 => migration(Direction::Out, Cause::Eviction),
                4 => migration(Direction::In, Cause::Call),
                5 => migration(Direction::Out, Cause::HostFault),
                6 => Event::Completed { queue, id },
                _ => Event::Refused { queue, id },
            });
            engine.decide(&mut commands);
            let stats = engine.stats();
            prop_assert!(stats.known_bytes <= 32 * BLOCK_BYTES);
            prop_assert!(stats.resident_bytes <= stats.known_bytes);
        }
    }
}

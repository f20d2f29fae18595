//! Between a profile and the engine's tables: what a session leaves, what one begins with.
//!
//! The launches of an earlier run come before the first one of this run, as if they had
//! been its own, and are expected to be repeated from the first one on; where they are not,
//! the place among them is found as it is within a session. Memory gets its
//! past uses when it is allocated, by its name. Owns the seeds alone; each table says
//! itself what it has learned.

use std::collections::{BTreeMap, BTreeSet};

use crate::BlockId;
use crate::access::Accesses;
use crate::functions::Functions;
use crate::hash::Map;
use crate::identity::Identities;
use crate::profile::{LAUNCHES, Part, Profile, Used};
use crate::units::{BLOCK_BYTES, Range, TICKS};
use crate::world::World;
use crate::world::block::Extent;
use crate::world::history::History;

/// Most uses that seeds keep, newest launches first, and most that all allocations of a
/// session together are given.
const SEEDS: usize = 1 << 20;
const GIVEN: u64 = 1 << 24;

/// A use of an allocation's blocks in an earlier run.
#[derive(Clone, Copy, Debug)]
struct Seed {
    /// Position of the launch.
    position: u64,
    first: u64,
    count: u64,
    sweep: bool,
}

/// What is still to be given to allocations.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// By name, in rising order of positions.
    seeds: Map<u64, Vec<Seed>>,
    /// Names of what launches used on the host.
    on_host: BTreeSet<u64>,
    /// Position of the last launch that a profile told of.
    last: u64,
    given: u64,
    bytes: u64,
}

impl Warm {
    /// From the launches that were put into the history, at positions from 1.
    fn new(profile: &Profile) -> Self {
        let used: Map<u32, &Used> = profile.used.iter().map(|used| (used.exec, used)).collect();
        let mut seeds: Map<u64, Vec<Seed>> = Map::default();
        let mut kept = 0;
        for (index, &(exec, _)) in profile.launches.iter().enumerate().rev() {
            let position = index as u64 + 1;
            let Some(used) = used.get(&exec) else {
                continue;
            };
            kept += used.parts.len();
            if kept > SEEDS {
                break;
            }
            for part in &used.parts {
                seeds.entry(part.name).or_default().push(Seed {
                    position,
                    first: part.first,
                    count: part.count,
                    sweep: used.sweep,
                });
            }
        }
        for of_name in seeds.values_mut() {
            of_name.reverse();
        }
        let kept: usize = seeds.values().map(Vec::capacity).sum();
        Self {
            bytes: (kept * size_of::<Seed>() + seeds.capacity() * 40) as u64,
            seeds,
            on_host: profile.on_host.iter().copied().collect(),
            last: profile.launches.len() as u64,
            given: 0,
        }
    }

    /// Memory was allocated: what was known of memory of its name is known of it.
    pub(crate) fn allocated(&mut self, range: Range, world: &mut World) {
        if let Some((name, _)) = world.memory.allocation_name(range.address)
            && self.on_host.contains(&name)
        {
            world.visits.expect(range.address);
        }
        self.give_uses(range, world);
    }

    /// Its blocks get the uses that those of memory of its name had.
    fn give_uses(&mut self, range: Range, world: &mut World) {
        if self.seeds.is_empty() {
            return;
        }
        let head = world.history.head();
        if world
            .history
            .lag()
            .is_some_and(|lag| head - lag > self.last)
        {
            // The present repeats this run's own past.
            (self.seeds, self.bytes) = (Map::default(), 0);
            return;
        }
        let Some((name, _)) = world.memory.allocation_name(range.address) else {
            return;
        };
        let base = range.address / BLOCK_BYTES;
        let blocks = range.bytes.div_ceil(BLOCK_BYTES);
        let stale = world.history.stale() * TICKS;
        for seed in self.seeds.get(&name).into_iter().flatten() {
            let count = seed.count.min(blocks.saturating_sub(seed.first));
            self.given += count;
            if self.given > GIVEN {
                return;
            }
            for block in 0..count {
                let Some(slot) = world.blocks.find(BlockId(base + seed.first + block)) else {
                    continue;
                };
                let within = if seed.sweep {
                    block * TICKS / seed.count
                } else {
                    0
                };
                world
                    .blocks
                    .will_use(slot, seed.position * TICKS + within, stale, None);
            }
        }
    }

    /// Estimated size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Puts what a profile tells into the tables of a new engine.
pub(crate) fn restore(
    profile: &Profile,
    functions: &mut Functions,
    identities: &mut Identities,
    accesses: &mut Accesses,
    world: &mut World,
) -> Warm {
    functions.restore(&profile.functions);
    identities.restore(&profile.identities, &profile.skeletons);
    accesses.restore(profile);
    world.progress.restore(&profile.times);
    world.history.restore(&profile.launches);
    Warm::new(profile)
}

/// What the tables of an engine have learned.
pub(crate) fn learned(
    functions: &Functions,
    identities: &Identities,
    accesses: &Accesses,
    world: &World,
) -> Profile {
    let mut profile = Profile {
        functions: functions.names().to_vec(),
        launches: launches(&world.history),
        times: world.progress.learned(),
        ..Profile::default()
    };
    (profile.identities, profile.skeletons) = identities.learned();
    accesses.learned(&mut profile);
    let places: BTreeMap<u64, (u64, u64)> = world.memory.names_by_place();
    for (exec, access) in accesses.sets() {
        let extents = access.sweep.as_ref().unwrap_or(&access.set);
        let parts = extents.iter().flat_map(|&extent| named(extent, &places));
        profile.used.push(Used {
            exec,
            sweep: access.sweep.is_some(),
            parts: parts.collect(),
        });
    }
    profile.on_host = world.used_on_host();
    let useful = &world.usefulness;
    profile.prefetched = (useful.helpful_bytes(), useful.wasted_bytes);
    profile.used.sort_unstable_by_key(|used| used.exec);
    profile.trim();
    profile
}

/// The launches that a profile tells of: how the session began, with what it does once
/// alone, and its last cycle.
fn launches(history: &History) -> Vec<(u32, u32)> {
    let all = history.len();
    let cycle = history.lag().map_or(all, |lag| lag as usize);
    let mut launches = history.opening((2 * cycle).min(LAUNCHES / 2)).to_vec();
    let own = history.own();
    let rest = own.saturating_sub(launches.len()).min(all);
    launches.extend(history.newest(rest.min(cycle).min(LAUNCHES / 2)));
    launches
}

/// The parts of allocations that an extent covers. `places`: by their first block, the end
/// and the name.
fn named(extent: Extent, places: &BTreeMap<u64, (u64, u64)>) -> Vec<Part> {
    let before = places.range(..=extent.first).next_back();
    let behind = places.range(extent.first + 1..extent.end());
    let touched = before.into_iter().chain(behind);
    let parts = touched.filter_map(|(&start, &(end, name))| {
        let first = extent.first.max(start);
        let count = extent.end().min(end).checked_sub(first)?;
        (count > 0).then_some(Part {
            name,
            first: first - start,
            count,
        })
    });
    parts.collect()
}

//! Builds a [`Program`] from the events of a process, in program order.
//!
//! Owns what a program must satisfy: launches touch memory that was obtained and not given
//! back, parts are handed out once, sizes stay within [`Limits`]. Does not read files.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use super::indexed::{Indexed, Thinner};
use super::intern::Interner;
use super::program::{Block, Call, Kind, Launch, LaunchInfo, Piece, Program, Span, Step, is_call};
use super::touches::Touches;
use crate::units::{BLOCK_BYTES, LEAF_BYTES, Leaves, Nanos, Region};

/// How large a program may be. What is over a limit is refused before memory is taken for it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Highest address, exclusive (five-level paging: 2^57).
    pub address: u64,
    /// Blocks ever obtained (2^22: 8 TiB).
    pub blocks: usize,
    /// Launches (2^24).
    pub launches: usize,
    /// Events of all kinds (2^26).
    pub steps: usize,
    /// Read and written regions of one launch, and its pointers (2^18).
    pub ranges: usize,
    /// Blocks that one launch touches, each counted in every region that it lies in (2^24).
    pub touches: u64,
    /// Accesses after equal sets are stored once (2^26: 768 MiB).
    pub accesses: usize,
    /// Pieces that die and pointers, after equal lists are stored once (2^25 each).
    pub pieces: usize,
    /// Different kernel names (2^16), of at most 4 KiB each.
    pub names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            address: 1 << 57,
            blocks: 1 << 22,
            launches: 1 << 24,
            steps: 1 << 26,
            ranges: 1 << 18,
            touches: 1 << 24,
            accesses: 1 << 26,
            pieces: 1 << 25,
            names: 1 << 16,
        }
    }
}

/// Longest kernel name, bytes.
const NAME_BYTES: usize = 4096;

/// Why an event cannot follow those before it.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildError {
    /// A region ends past the highest address.
    #[error("{bytes} bytes at {address:#x} end past the highest address, {limit:#x}")]
    Address {
        /// First byte.
        address: u64,
        /// Size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// An allocation or part of no bytes.
    #[error("a region of 0 bytes at {address:#x}")]
    Empty {
        /// First byte.
        address: u64,
    },
    /// Memory that was never obtained, or was given back.
    #[error("no allocation at {address:#x}: an `alloc` that holds it must come before")]
    NotAllocated {
        /// Where.
        address: u64,
    },
    /// Memory that is obtained already.
    #[error("memory at {address:#x} is already allocated: a `free` must come before")]
    Allocated {
        /// Where.
        address: u64,
    },
    /// A part that was never handed out, or was taken back.
    #[error("no part at {address:#x} is handed out: a `use` must come before")]
    NotUsed {
        /// Where.
        address: u64,
    },
    /// A part that is handed out already.
    #[error("memory at {address:#x} is already handed out: an `unuse` must come before")]
    Used {
        /// Where.
        address: u64,
    },
    /// Iterations are numbered from 0, each once.
    #[error("iteration {found} where {expected} is next")]
    Iteration {
        /// Number given.
        found: u64,
        /// Number due.
        expected: u64,
    },
    /// Over a limit.
    #[error("more than {limit} {what}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}

/// One launch, as [`ProgramBuilder::launch`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct LaunchSpec<'a> {
    /// Kernel name.
    pub name: &'a str,
    /// Hash of name, shapes and integer arguments.
    pub signature: u64,
    /// Duration with everything resident.
    pub time: Nanos,
    /// What it is.
    pub kind: Kind,
    /// The host waits for it.
    pub sync: bool,
    /// Takes scalars that change at each launch.
    pub varies: bool,
    /// What it reads.
    pub reads: &'a [Region],
    /// What it writes; also in `reads`: updated.
    pub writes: &'a [Region],
    /// Pointer arguments; none: the starts of `reads`, then of `writes`.
    pub pointers: Option<&'a [u64]>,
    /// How much of the blocks that it touches by an index it uses; none: all regions are used
    /// from end to end.
    pub indexed: Option<Indexed>,
}

impl<'a> LaunchSpec<'a> {
    /// A kernel that the host does not wait for, with a signature made from its name.
    pub fn kernel(name: &'a str, time: Nanos, reads: &'a [Region], writes: &'a [Region]) -> Self {
        // FNV-1a: stable across runs and versions, unlike the standard library's hasher.
        let signature = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        Self {
            name,
            signature,
            time,
            kind: Kind::Kernel,
            sync: false,
            varies: false,
            reads,
            writes,
            pointers: None,
            indexed: None,
        }
    }
}

/// Takes a process's events in program order and gives a [`Program`].
pub struct ProgramBuilder {
    name: String,
    limits: Limits,
    footprint: Option<u64>,
    names: Vec<String>,
    name_numbers: HashMap<String, u32>,
    addresses: Vec<u64>,
    numbers: HashMap<u64, Block>,
    /// By block: how many allocations lie in it.
    allocated: Vec<u32>,
    /// By block: touched since it was obtained.
    populated: Vec<bool>,
    populated_now: u64,
    populated_most: u64,
    /// First byte of each live allocation, and its end.
    allocations: BTreeMap<u64, u64>,
    /// First byte of each part handed out, and its end.
    parts: BTreeMap<u64, u64>,
    launches: Vec<LaunchInfo>,
    accesses: Interner<super::program::Access>,
    pointers: Interner<u64>,
    pieces: Interner<Piece>,
    steps: Vec<Step>,
    iteration_starts: Vec<u32>,
    lifetimes: bool,
    /// By block: some launch uses less than all of it, by an index.
    indexed: Vec<bool>,
    /// By block: it lies in memory that the CPU touches.
    by_program: Vec<bool>,
    calls: HashMap<Launch, Call>,
    thinned: Vec<Block>,
    touches: Touches,
    thinner: Thinner,
    scratch: Vec<u64>,
}

impl ProgramBuilder {
    /// An empty program of that name, under the usual limits.
    pub fn new(name: &str) -> Self {
        Self::with_limits(name, Limits::default())
    }

    /// An empty program under other limits. Limits over `u32::MAX` act as `u32::MAX`.
    pub fn with_limits(name: &str, limits: Limits) -> Self {
        Self {
            name: name.to_owned(),
            limits,
            footprint: None,
            names: Vec::new(),
            name_numbers: HashMap::new(),
            addresses: Vec::new(),
            numbers: HashMap::new(),
            allocated: Vec::new(),
            populated: Vec::new(),
            populated_now: 0,
            populated_most: 0,
            allocations: BTreeMap::new(),
            parts: BTreeMap::new(),
            launches: Vec::new(),
            accesses: Interner::new(),
            pointers: Interner::new(),
            pieces: Interner::new(),
            steps: Vec::new(),
            iteration_starts: Vec::new(),
            lifetimes: false,
            indexed: Vec::new(),
            by_program: Vec::new(),
            calls: HashMap::new(),
            thinned: Vec::new(),
            touches: Touches::default(),
            thinner: Thinner::default(),
            scratch: Vec::new(),
        }
    }

    /// Sets the footprint, instead of the most blocks populated at once.
    pub fn footprint(&mut self, bytes: u64) {
        self.footprint = Some(bytes);
    }

    /// Most blocks populated at once so far, in bytes; memory that an allocator took back
    /// counts until it is given back to the driver.
    pub fn populated_bytes(&self) -> u64 {
        self.populated_most * BLOCK_BYTES
    }

    /// Memory was obtained from the driver.
    pub fn alloc(&mut self, address: u64, bytes: u64) -> Result<(), BuildError> {
        let region = self.region(address, bytes)?;
        if let Some(address) = overlap(&self.allocations, region) {
            return Err(BuildError::Allocated { address });
        }
        // Before any block is made: a hostile size takes no memory.
        let parts = region.parts();
        let blocks = (region.end() - 1) / BLOCK_BYTES - region.address / BLOCK_BYTES + 1;
        if blocks > self.limits.blocks as u64 {
            return Err(too_many("blocks", self.limits.blocks));
        }
        self.step(Step::Alloc(region))?;
        for (number, _) in parts {
            let next = Block(self.addresses.len() as u32);
            let block = *self.numbers.entry(number).or_insert(next);
            if block == next {
                if self.addresses.len() >= self.limits.blocks {
                    return Err(too_many("blocks", self.limits.blocks));
                }
                self.addresses.push(number * BLOCK_BYTES);
                self.allocated.push(0);
                self.populated.push(false);
                self.indexed.push(false);
                self.by_program.push(false);
            }
            self.allocated[block.index()] += 1;
        }
        self.allocations.insert(address, region.end());
        Ok(())
    }

    /// Memory was given back to the driver, with all parts that lie in it.
    pub fn free(&mut self, address: u64) -> Result<(), BuildError> {
        let end = self
            .allocations
            .remove(&address)
            .ok_or(BuildError::NotAllocated { address })?;
        let region = Region {
            address,
            bytes: end - address,
        };
        while let Some((&part, &part_end)) = self.parts.range(..end).next_back() {
            if part_end <= address {
                break;
            }
            self.parts.remove(&part);
        }
        let dead = dying(&self.allocations, region);
        let dead = self.dead(dead)?;
        for (number, _) in region.parts() {
            let Some(block) = self.numbers.get(&number) else {
                continue;
            };
            let allocated = &mut self.allocated[block.index()];
            *allocated -= 1;
            if *allocated == 0 && std::mem::take(&mut self.populated[block.index()]) {
                self.populated_now -= 1;
            }
        }
        self.step(Step::Free(region, dead))
    }

    /// The framework's allocator handed out a part.
    pub fn use_(&mut self, address: u64, bytes: u64) -> Result<(), BuildError> {
        let region = self.region(address, bytes)?;
        // An arena that grew at its end is several allocations; a part may lie across them.
        let mut covered = address;
        while covered < region.end() {
            match self.allocations.range(..=covered).next_back() {
                Some((_, &end)) if end > covered => covered = end,
                _ => return Err(BuildError::NotAllocated { address: covered }),
            }
        }
        if let Some(address) = overlap(&self.parts, region) {
            return Err(BuildError::Used { address });
        }
        self.parts.insert(address, region.end());
        self.lifetimes = true;
        self.step(Step::Use(region))
    }

    /// And took it back: its content is dead. A leaf that another part shares lives on.
    pub fn unuse(&mut self, address: u64) -> Result<(), BuildError> {
        let end = self
            .parts
            .remove(&address)
            .ok_or(BuildError::NotUsed { address })?;
        let region = Region {
            address,
            bytes: end - address,
        };
        let dead = dying(&self.parts, region);
        let dead = self.dead(dead)?;
        self.step(Step::Unuse(region, dead))
    }

    /// A launch.
    pub fn launch(&mut self, spec: LaunchSpec<'_>) -> Result<Launch, BuildError> {
        if self.launches.len() >= self.limits.launches {
            return Err(too_many("launches", self.limits.launches));
        }
        let accesses = self.touched(spec.reads, spec.writes, spec.indexed)?;
        let pointers = match spec.pointers {
            Some(pointers) => pointers,
            None => {
                self.scratch.clear();
                let regions = spec.reads.iter().chain(spec.writes);
                self.scratch.extend(regions.map(|region| region.address));
                &self.scratch
            }
        };
        if pointers.len() > self.limits.ranges {
            return Err(too_many("pointers in one launch", self.limits.ranges));
        }
        let pointers = self
            .pointers
            .intern(pointers, self.limits.pieces)
            .ok_or(too_many("pointers", self.limits.pieces))?;
        let name = self.name_number(spec.name)?;
        let launch = Launch(self.launches.len() as u32);
        if is_call(spec.name) && spec.reads.len() <= 1 && spec.writes.len() <= 1 {
            let call = Call {
                overwrites: spec.writes.first().copied(),
                reads: spec.reads.first().copied(),
            };
            self.calls.insert(launch, call);
        }
        self.launches.push(LaunchInfo {
            name,
            signature: spec.signature,
            time: spec.time,
            kind: spec.kind,
            sync: spec.sync,
            varies: spec.varies,
            iteration: (self.iteration_starts.len() as u32).checked_sub(1),
            accesses,
            pointers,
        });
        self.step(Step::Launch(launch))?;
        Ok(launch)
    }

    /// The CPU touched managed memory.
    pub fn host(&mut self, reads: &[Region], writes: &[Region]) -> Result<(), BuildError> {
        let accesses = self.touched(reads, writes, None)?;
        for region in reads.iter().chain(writes) {
            self.obtained_by_program(*region);
        }
        self.step(Step::Host(accesses))
    }

    /// All allocations that a region lies in are the program's own managed memory.
    fn obtained_by_program(&mut self, region: Region) {
        let begun = self.allocations.range(..region.end()).rev();
        for (&address, &end) in begun.take_while(|&(_, &end)| end > region.address) {
            let bytes = end - address;
            for (number, _) in (Region { address, bytes }).parts() {
                if let Some(block) = self.numbers.get(&number) {
                    self.by_program[block.index()] = true;
                }
            }
        }
    }

    /// Iteration `number` begins.
    pub fn iteration(&mut self, number: u64) -> Result<(), BuildError> {
        let expected = self.iteration_starts.len() as u64;
        if number != expected {
            return Err(BuildError::Iteration {
                found: number,
                expected,
            });
        }
        self.iteration_starts.push(self.launches.len() as u32);
        self.step(Step::Iteration(number as u32))
    }

    /// The program.
    pub fn finish(mut self) -> Program {
        let footprint_bytes = self.footprint.unwrap_or(self.populated_bytes());
        self.steps.shrink_to_fit();
        self.launches.shrink_to_fit();
        let end = self.launches.len() as u32;
        let ends = self.iteration_starts.iter().skip(1).copied().chain([end]);
        let iterations = self
            .iteration_starts
            .iter()
            .zip(ends)
            .map(|(&s, e)| s..e)
            .collect::<Vec<_>>();
        let peaks = peaks(&self.steps, self.lifetimes, &iterations);
        Program {
            name: self.name,
            footprint_bytes,
            names: self.names,
            addresses: self.addresses,
            numbers: self.numbers,
            launches: self.launches,
            accesses: self.accesses.finish(),
            pointers: self.pointers.finish(),
            pieces: self.pieces.finish(),
            steps: self.steps,
            iterations,
            peaks,
            lifetimes: self.lifetimes,
            indexed: self.indexed,
            by_program: self.by_program,
            calls: self.calls,
        }
    }

    fn step(&mut self, step: Step) -> Result<(), BuildError> {
        if self.steps.len() >= self.limits.steps {
            return Err(too_many("events", self.limits.steps));
        }
        self.steps.push(step);
        Ok(())
    }

    fn region(&self, address: u64, bytes: u64) -> Result<Region, BuildError> {
        let region = check(Region { address, bytes }, &self.limits)?;
        if bytes == 0 {
            return Err(BuildError::Empty { address });
        }
        Ok(region)
    }

    fn name_number(&mut self, name: &str) -> Result<u32, BuildError> {
        if let Some(&number) = self.name_numbers.get(name) {
            return Ok(number);
        }
        if self.names.len() >= self.limits.names {
            return Err(too_many("kernel names", self.limits.names));
        }
        if name.len() > NAME_BYTES {
            return Err(too_many("bytes in a kernel name", NAME_BYTES));
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.name_numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    fn touched(
        &mut self,
        reads: &[Region],
        writes: &[Region],
        indexed: Option<Indexed>,
    ) -> Result<Span, BuildError> {
        if reads.len() + writes.len() > self.limits.ranges {
            return Err(too_many("regions in one launch", self.limits.ranges));
        }
        let mut touches = 0;
        for region in reads.iter().chain(writes) {
            touches += check(*region, &self.limits)?.bytes / BLOCK_BYTES + 1;
            if touches > self.limits.touches {
                return Err(too_many(
                    "blocks in one launch",
                    self.limits.touches as usize,
                ));
            }
        }
        let (addresses, numbers, allocated) = (&self.addresses, &self.numbers, &self.allocated);
        // Neighbours in memory are mostly neighbours by number: saves most look-ups.
        let mut guess = 0;
        let accesses = self.touches.of(reads, writes, |number| {
            let address = number * BLOCK_BYTES;
            let block = if addresses.get(guess) == Some(&address) {
                Block(guess as u32)
            } else {
                *numbers
                    .get(&number)
                    .ok_or(BuildError::NotAllocated { address })?
            };
            if allocated[block.index()] == 0 {
                return Err(BuildError::NotAllocated { address });
            }
            guess = block.index() + 1;
            Ok(block)
        })?;
        if let Some(indexed) = indexed {
            let (parts, allocations) = (&self.parts, &self.allocations);
            let holds = |regions: &BTreeMap<u64, u64>, region: Region| {
                let (&address, &end) = regions.range(..=region.address).next_back()?;
                (region.end() <= end).then(|| Region {
                    address,
                    bytes: end - address,
                })
            };
            let part_of = |region| holds(parts, region).or_else(|| holds(allocations, region));
            let regions = reads.iter().chain(writes).copied();
            let thinned = &mut self.thinned;
            self.thinner
                .thin(accesses, regions, part_of, addresses, indexed, thinned);
            for block in self.thinned.drain(..) {
                self.indexed[block.index()] = true;
            }
        }
        for access in &*accesses {
            if !std::mem::replace(&mut self.populated[access.block.index()], true) {
                self.populated_now += 1;
            }
        }
        self.populated_most = self.populated_most.max(self.populated_now);
        self.accesses
            .intern(accesses, self.limits.accesses)
            .ok_or(too_many("different accesses", self.limits.accesses))
    }

    fn dead(&mut self, region: Region) -> Result<Span, BuildError> {
        let pieces: Vec<Piece> = region
            .parts()
            .filter_map(|(number, leaves)| {
                Some(Piece {
                    block: *self.numbers.get(&number)?,
                    leaves,
                })
            })
            .filter(|piece| piece.leaves != Leaves::NONE)
            .collect();
        self.pieces
            .intern(&pieces, self.limits.pieces)
            .ok_or(too_many("different pieces that die", self.limits.pieces))
    }
}

fn too_many(what: &'static str, limit: usize) -> BuildError {
    BuildError::TooMany { what, limit }
}

fn check(region: Region, limits: &Limits) -> Result<Region, BuildError> {
    let Region { address, bytes } = region;
    match address.checked_add(bytes) {
        Some(end) if end <= limits.address => Ok(region),
        _ => Err(BuildError::Address {
            address,
            bytes,
            limit: limits.address,
        }),
    }
}

/// First byte of a neighbour that overlaps the region.
fn overlap(taken: &BTreeMap<u64, u64>, region: Region) -> Option<u64> {
    let (&start, &end) = taken.range(..region.end()).next_back()?;
    (end > region.address).then_some(start.max(region.address))
}

/// The leaves of a region that none of the remaining regions shares. It is already taken
/// out of them; they do not overlap it, so only its first and last leaf can be shared.
fn dying(remaining: &BTreeMap<u64, u64>, region: Region) -> Region {
    let mut first = region.address / LEAF_BYTES;
    let mut end = region.end().div_ceil(LEAF_BYTES);
    let before = remaining.range(..region.address).next_back();
    if before.is_some_and(|(_, &before)| before > first * LEAF_BYTES) {
        first += 1;
    }
    let after = remaining.range(region.end()..).next();
    if after.is_some_and(|(&after, _)| after < end * LEAF_BYTES) {
        end -= 1;
    }
    let leaves = end.saturating_sub(first);
    Region {
        address: first * LEAF_BYTES,
        bytes: leaves * LEAF_BYTES,
    }
}

/// By iteration: its launch at which most bytes are handed out, by the framework's allocator where
/// that is told, or else by the driver; its first launch where there are none.
pub(super) fn peaks(steps: &[Step], lifetimes: bool, iterations: &[Range<u32>]) -> Vec<u32> {
    let starts = iterations.iter().map(|launches| (launches.start, 0));
    let mut peaks: Vec<(u32, u64)> = starts.collect();
    let (mut bytes, mut begun) = (0_u64, 0_usize);
    for step in steps {
        match *step {
            Step::Alloc(region) if !lifetimes => bytes += region.bytes,
            Step::Free(region, _) if !lifetimes => bytes = bytes.saturating_sub(region.bytes),
            Step::Use(region) => bytes += region.bytes,
            Step::Unuse(region, _) => bytes = bytes.saturating_sub(region.bytes),
            Step::Iteration(_) => begun += 1,
            Step::Launch(launch) => {
                let peak = begun.checked_sub(1).and_then(|index| peaks.get_mut(index));
                if let Some(peak) = peak.filter(|peak| bytes > peak.1) {
                    *peak = (launch.0, bytes);
                }
            }
            Step::Alloc(_) | Step::Free(..) | Step::Host(_) => {}
        }
    }
    peaks.into_iter().map(|(launch, _)| launch).collect()
}

#[cfg(test)]
mod tests;

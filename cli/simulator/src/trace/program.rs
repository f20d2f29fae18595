//! A trace in memory: who touches which parts of which blocks, in program order.
//!
//! Block sets that repeat are stored once. Built by [`super::ProgramBuilder`]; read-only
//! from then on and shared by all runs.

use std::collections::HashMap;
use std::ops::Range;

use super::Random;
use crate::units::{BLOCK_BYTES, LEAF_PAGES, Leaves, Nanos, PAGE_BYTES, Region};

/// A block of the program, numbered from 0 in the order in which memory was obtained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block(pub u32);

impl Block {
    /// For indexing.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A launch (kernel, copy or memset), numbered from 0 in program order over the whole trace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Launch(pub u32);

impl Launch {
    /// For indexing.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a launch uses what it touches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Reads it.
    Read,
    /// Reads and writes it, or writes it in part: the old content is needed.
    Update,
    /// Writes all of it: the old content is dead.
    Overwrite,
}

impl Mode {
    /// It changes the content.
    pub fn writes(self) -> bool {
        self != Mode::Read
    }

    /// It needs the old content.
    pub fn needs_content(self) -> bool {
        self != Mode::Overwrite
    }
}

/// One touch of one block by one launch. A launch may touch a block more than once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// Which block.
    pub block: Block,
    /// Which parts of it.
    pub leaves: Leaves,
    /// What for.
    pub mode: Mode,
    /// How much of these parts is used, in pages of 4 KiB: what goes over the link where it is
    /// used on the host.
    pub pages: u16,
}

impl Access {
    /// One that uses these parts from end to end.
    pub fn whole(block: Block, leaves: Leaves, mode: Mode) -> Self {
        Self {
            block,
            leaves,
            mode,
            pages: (leaves.count() * LEAF_PAGES) as u16,
        }
    }

    /// Bytes of `part` of the leaves that are used, as if spread evenly over all of them;
    /// rounded up to pages.
    pub fn used_bytes(&self, part: Leaves) -> u64 {
        let part = u64::from((part & self.leaves).count());
        let all = u64::from(self.leaves.count()).max(1);
        (u64::from(self.pages) * part).div_ceil(all) * PAGE_BYTES
    }
}

/// A part of one block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Which block.
    pub block: Block,
    /// Which parts of it.
    pub leaves: Leaves,
}

/// Where a slice lies in one of the program's shared arrays.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    pub(super) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// What kind of work a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A kernel, a memset or a copy within the device.
    Kernel,
    /// A copy from the host's own memory.
    ToDevice,
    /// A copy to the host's own memory.
    ToHost,
}

/// One launch, without its accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaunchInfo {
    /// Index into [`Program::name`].
    pub name: u32,
    /// Hash of name, shapes, strides, types and integer arguments (trace format, `sig`).
    pub signature: u64,
    /// Duration with everything resident.
    pub time: Nanos,
    /// What it is.
    pub kind: Kind,
    /// The host waits for it.
    pub sync: bool,
    /// The real kernel takes scalars that change at each launch.
    pub varies: bool,
    /// Iteration that it belongs to; none for set-up.
    pub iteration: Option<u32>,
    pub(super) accesses: Span,
    pub(super) pointers: Span,
}

/// A launch of this name is a copy or a memset.
pub(super) fn is_call(name: &str) -> bool {
    ["memcpy", "memset"]
        .iter()
        .any(|call| name.starts_with(call))
}

/// What a copy or memset overwrites and reads of managed memory, in bytes, where it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// All of it, from end to end.
    pub overwrites: Option<Region>,
    /// What is copied.
    pub reads: Option<Region>,
}

/// One event of the program, in program order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Memory was obtained from the driver.
    Alloc(Region),
    /// Memory was given back to the driver; `dead` parts lose their content.
    Free(Region, Span),
    /// The framework's allocator handed out a part: its content is undefined.
    Use(Region),
    /// And took it back; `dead` parts lose their content (no other live part shares them).
    Unuse(Region, Span),
    /// A launch.
    Launch(Launch),
    /// The CPU touched managed memory.
    Host(Span),
    /// An iteration begins.
    Iteration(u32),
}

/// A whole trace.
#[derive(Debug)]
pub struct Program {
    pub(super) name: String,
    pub(super) footprint_bytes: u64,
    pub(super) names: Vec<String>,
    pub(super) addresses: Vec<u64>,
    pub(super) numbers: HashMap<u64, Block>,
    pub(super) launches: Vec<LaunchInfo>,
    pub(super) accesses: Vec<Access>,
    pub(super) pointers: Vec<u64>,
    pub(super) pieces: Vec<Piece>,
    pub(super) steps: Vec<Step>,
    pub(super) iterations: Vec<Range<u32>>,
    /// By iteration: its launch at which most is handed out, the first of several.
    pub(super) peaks: Vec<u32>,
    pub(super) lifetimes: bool,
    /// By block: some launch uses less than all of it, by an index.
    pub(super) indexed: Vec<bool>,
    /// By block: it lies in memory that the CPU touches at some time.
    pub(super) by_program: Vec<bool>,
    /// What copies and memsets say of themselves.
    pub(super) calls: HashMap<Launch, Call>,
}

impl Program {
    /// The trace's name: its file's stem.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Most blocks populated at once, in bytes: the base of oversubscription ratios.
    pub fn footprint_bytes(&self) -> u64 {
        self.footprint_bytes
    }

    /// Whether the trace tells which parts the framework's allocator handed out.
    pub fn has_lifetimes(&self) -> bool {
        self.lifetimes
    }

    /// Some launch uses less than all of the block, by an index: rows of a table, pages of a
    /// cache.
    pub fn is_indexed(&self, block: Block) -> bool {
        self.indexed[block.index()]
    }

    /// The program itself obtained the block as managed memory: the CPU touches what was obtained
    /// with it, which it cannot do with device memory.
    pub fn is_by_program(&self, block: Block) -> bool {
        self.by_program[block.index()]
    }

    /// What of its block counts as written after an access that writes: which parts of a block
    /// have content is not known where it is used by an index, so then it is all of it.
    pub fn written(&self, access: &Access) -> Leaves {
        if self.is_indexed(access.block) {
            Leaves::ALL
        } else {
            access.leaves
        }
    }

    /// There are such blocks.
    pub fn has_indexed(&self) -> bool {
        self.indexed.contains(&true)
    }

    /// How many blocks were ever obtained.
    pub fn blocks(&self) -> usize {
        self.addresses.len()
    }

    /// First byte of a block.
    pub fn address(&self, block: Block) -> u64 {
        self.addresses[block.index()]
    }

    /// The block that holds `address`, where it was ever obtained.
    pub fn block_at(&self, address: u64) -> Option<Block> {
        self.numbers.get(&(address / BLOCK_BYTES)).copied()
    }

    /// The blocks of a region, with the parts of each.
    pub fn pieces_of(&self, region: Region) -> impl Iterator<Item = Piece> + Clone + '_ {
        region.parts().filter_map(|(number, leaves)| {
            let block = *self.numbers.get(&number)?;
            Some(Piece { block, leaves })
        })
    }

    /// Everything that happens, in program order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// All launches, in program order; [`Launch`] is the index.
    pub fn launches(&self) -> &[LaunchInfo] {
        &self.launches
    }

    /// One launch.
    pub fn launch(&self, launch: Launch) -> &LaunchInfo {
        &self.launches[launch.index()]
    }

    /// What a launch touches, in the order of first touch.
    pub fn accesses(&self, launch: Launch) -> &[Access] {
        &self.accesses[self.launch(launch).accesses.range()]
    }

    /// The identity of a launch's block set: equal for equal sets.
    pub fn access_set(&self, launch: Launch) -> Span {
        self.launch(launch).accesses
    }

    /// A launch's pointer arguments.
    pub fn pointers(&self, launch: Launch) -> &[u64] {
        &self.pointers[self.launch(launch).pointers.range()]
    }

    /// The launch is a copy or a memset: a call of its own, which says what it overwrites.
    pub fn is_call(&self, launch: Launch) -> bool {
        is_call(self.kernel_name(launch))
    }

    /// What the driver's own call says of a launch that is one, where it names whole ranges.
    pub fn call(&self, launch: Launch) -> Option<Call> {
        self.calls.get(&launch).copied()
    }

    /// A kernel's name.
    pub fn kernel_name(&self, launch: Launch) -> &str {
        &self.names[self.launch(launch).name as usize]
    }

    /// What a [`Step::Host`] touches.
    pub fn host_accesses(&self, span: Span) -> &[Access] {
        &self.accesses[span.range()]
    }

    /// What dies at a [`Step::Free`] or [`Step::Unuse`].
    pub fn dead(&self, span: Span) -> &[Piece] {
        &self.pieces[span.range()]
    }

    /// The launches of each iteration (set-up is in none), as launch numbers.
    pub fn iterations(&self) -> &[Range<u32>] {
        &self.iterations
    }

    /// The steady iterations, as launch numbers, one after the other: those from the third to the
    /// last but one, where there are so many; otherwise the last.
    ///
    /// Where a program marks an iteration's beginning says nothing of what it does. These begin
    /// where most memory is handed out: there a schedule has least choice of what is on the device,
    /// so that what it did before they are measured helps it least.
    pub fn steady(&self) -> Vec<Range<u32>> {
        match self.peaks.get(2..) {
            Some(peaks) if peaks.len() > 1 => {
                peaks.windows(2).map(|ends| ends[0]..ends[1]).collect()
            }
            _ => self.iterations.last().cloned().into_iter().collect(),
        }
    }

    /// The same program on a device that takes `factor` times as long for each launch.
    /// Times are rounded to nanoseconds.
    pub fn scaled(mut self, factor: f64) -> Self {
        for launch in &mut self.launches {
            launch.time = Nanos((launch.time.0 as f64 * factor).round() as u64);
        }
        self
    }

    /// The same program where each launch takes up to `percent` more or less time, evenly
    /// spread, by `seed`.
    pub fn varied(mut self, percent: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        for launch in &mut self.launches {
            // 53 bits: from -1 to 1.
            let share = (random.next_u64() >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
            let factor = (1.0 + share * percent / 100.0).max(0.0);
            launch.time = Nanos((launch.time.0 as f64 * factor).round() as u64);
        }
        self
    }

    /// Duration of some launches with everything resident.
    pub fn ideal(&self, launches: Range<u32>) -> Nanos {
        let range = launches.start as usize..launches.end as usize;
        self.launches[range].iter().map(|launch| launch.time).sum()
    }

    /// Mean duration of a steady iteration with everything resident.
    pub fn ideal_steady(&self) -> Nanos {
        let steady = self.steady();
        let count = steady.len().max(1) as u64;
        let total: Nanos = steady
            .into_iter()
            .map(|launches| self.ideal(launches))
            .sum();
        Nanos(total.0 / count)
    }
}

//! Reads the tensors out of a trace: one pass for what lives how long, one for who uses it.

use std::collections::BTreeMap;

use super::{MIN_BYTES, Tensor, TensorId, Tensors, Use, iterations};
use crate::class::Future;
use crate::trace::{Access, Launch, Piece, Program, Step};
use crate::units::{BLOCK_BYTES, LEAF_BYTES, LEAVES, Leaves, Nanos, Region};

pub(super) fn build(future: Future<'_>) -> Tensors<'_> {
    let program = future.program;
    let by_hand = future.lifetimes && program.has_lifetimes();
    let lives = cut(program, lives(program, by_hand));
    let mut pieces = Vec::new();
    let mut tensors: Vec<Tensor> = lives
        .into_iter()
        .map(|life| {
            let start = pieces.len() as u32;
            pieces.extend(program.pieces_of(life.region));
            Tensor {
                region: life.region,
                birth: Launch(life.birth),
                death: Launch(life.death),
                persistent: spans_iteration(program, &life),
                pieces: start..pieces.len() as u32,
                uses: 0..0,
            }
        })
        .collect();
    let mut walk = Walk::new(program, &tensors, &pieces).run();
    let uses = by_tensor(&mut tensors, &walk.uses);
    if !by_hand {
        walk.live = needed(&tensors, &uses, program.launches().len());
    }
    let mut starts = Vec::with_capacity(program.launches().len() + 1);
    let mut clock = Nanos(0);
    starts.push(clock);
    for launch in program.launches() {
        clock += launch.time;
        starts.push(clock);
    }
    Tensors {
        iterations: iterations::iterations(program, &walk.live),
        program,
        tensors,
        pieces,
        uses,
        launch_uses: walk.uses,
        launch_starts: walk.launch_starts,
        starts,
        load: walk.load,
        mixed: walk.mixed,
        by_hand,
    }
}

/// A part of memory and the launches for which it exists: `birth` to before `death`.
#[derive(Clone, Copy, Debug)]
struct Life {
    region: Region,
    birth: u32,
    death: u32,
    /// It was taken back while the program ran.
    ends: bool,
}

/// What was handed out (or obtained from the driver), in that order.
fn lives(program: &Program, by_hand: bool) -> Vec<Life> {
    let end = program.launches().len() as u32;
    let mut lives: Vec<Life> = Vec::new();
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut next = 0;
    for step in program.steps() {
        match *step {
            Step::Launch(launch) => next = launch.0 + 1,
            Step::Use(region) if by_hand => begin(&mut lives, &mut open, region, next, end),
            Step::Alloc(region) if !by_hand => begin(&mut lives, &mut open, region, next, end),
            Step::Unuse(region, _) if by_hand => {
                if let Some(life) = open.remove(&region.address) {
                    (lives[life].death, lives[life].ends) = (next, true);
                }
            }
            // Also ends what was handed out there and never taken back.
            Step::Free(region, _) => {
                let inside: Vec<u64> = open
                    .range(region.address..region.end())
                    .map(|(&at, _)| at)
                    .collect();
                for address in inside {
                    if let Some(life) = open.remove(&address) {
                        lives[life].death = next;
                    }
                }
            }
            _ => {}
        }
    }
    lives
}

fn begin(
    lives: &mut Vec<Life>,
    open: &mut BTreeMap<u64, usize>,
    region: Region,
    birth: u32,
    death: u32,
) {
    open.insert(region.address, lives.len());
    lives.push(Life {
        region,
        birth,
        death,
        ends: false,
    });
}

/// Cuts what is never taken back at every address that launches name, and drops what is too
/// small to be listed.
fn cut(program: &Program, lives: Vec<Life>) -> Vec<Life> {
    let mut lasting: BTreeMap<u64, Vec<u64>> = lives
        .iter()
        .filter(|life| !life.ends)
        .map(|life| (life.region.address, Vec::new()))
        .collect();
    for launch in 0..program.launches().len() as u32 {
        for &pointer in program.pointers(Launch(launch)) {
            if let Some((&base, cuts)) = lasting.range_mut(..=pointer).next_back()
                && base != pointer
                && cuts.last() != Some(&pointer)
            {
                cuts.push(pointer);
            }
        }
    }
    for cuts in lasting.values_mut() {
        cuts.sort_unstable();
        cuts.dedup();
    }
    let mut parts = Vec::with_capacity(lives.len());
    for life in lives {
        let cuts = if life.ends {
            None
        } else {
            lasting.get(&life.region.address)
        };
        let mut from = life.region.address;
        let end = life.region.end();
        for &at in cuts.map_or(&[][..], Vec::as_slice) {
            // A rest too small to be listed stays with its neighbour.
            if at >= from + MIN_BYTES && at < end && end - at >= MIN_BYTES {
                parts.push(part(life, from, at));
                from = at;
            }
        }
        if end - from >= MIN_BYTES {
            parts.push(part(life, from, end));
        }
    }
    parts
}

fn part(life: Life, from: u64, to: u64) -> Life {
    Life {
        region: Region {
            address: from,
            bytes: to - from,
        },
        ..life
    }
}

/// It is alive before an iteration begins and after its end.
fn spans_iteration(program: &Program, life: &Life) -> bool {
    let iterations = program.iterations();
    let first = iterations.partition_point(|launches| launches.start < life.birth);
    iterations
        .get(first)
        .is_some_and(|launches| life.death > launches.end || !life.ends)
}

/// What of a tensor lies in one block: the leaves that it has to itself, and all.
#[derive(Clone, Copy, Debug)]
struct Owner {
    tensor: TensorId,
    inner: Leaves,
    all: Leaves,
}

/// The second pass: launch by launch, who uses what, and how full memory is.
struct Walk<'a, 'p> {
    program: &'p Program,
    tensors: &'a [Tensor],
    pieces: &'a [Piece],
    owners: Vec<Vec<Owner>>,
    /// Blocks with content of parts that are not listed.
    small: Vec<bool>,
    holding: u32,
    live_bytes: u64,
    /// By tensor, one more than the launch that names it in an argument.
    named: Vec<u32>,
    /// By tensor, one more than the launch of its last use, and that use's place.
    last: Vec<(u32, u32)>,
    out: Walked,
}

#[derive(Default)]
struct Walked {
    uses: Vec<Use>,
    launch_starts: Vec<u32>,
    load: Vec<u32>,
    live: Vec<u64>,
    mixed: Vec<bool>,
}

impl<'a, 'p> Walk<'a, 'p> {
    fn new(program: &'p Program, tensors: &'a [Tensor], pieces: &'a [Piece]) -> Self {
        Self {
            program,
            tensors,
            pieces,
            owners: vec![Vec::new(); program.blocks()],
            small: vec![false; program.blocks()],
            holding: 0,
            live_bytes: 0,
            named: vec![0; tensors.len()],
            last: vec![(0, 0); tensors.len()],
            out: Walked {
                mixed: vec![false; program.blocks()],
                ..Walked::default()
            },
        }
    }

    fn run(mut self) -> Walked {
        let mut deaths: Vec<TensorId> = (0..self.tensors.len() as u32).map(TensorId).collect();
        deaths.sort_by_key(|id| self.tensors[id.index()].death);
        let mut deaths = deaths.into_iter().peekable();
        let mut births = (0..self.tensors.len() as u32).map(TensorId).peekable();
        let tensors = self.tensors;
        for step in self.program.steps() {
            match *step {
                Step::Launch(launch) => {
                    // Memory that dies before a launch may be born again before it.
                    while let Some(id) = deaths.next_if(|id| tensors[id.index()].death <= launch) {
                        self.end(id);
                    }
                    while let Some(id) = births.next_if(|id| tensors[id.index()].birth <= launch) {
                        if tensors[id.index()].death > launch {
                            self.begin(id);
                        }
                    }
                    self.launch(launch);
                }
                Step::Free(region, _) => {
                    for piece in self.program.pieces_of(region) {
                        let index = piece.block.index();
                        if std::mem::take(&mut self.small[index]) && self.owners[index].is_empty() {
                            self.holding -= 1;
                        }
                    }
                }
                _ => {}
            }
        }
        self.out.launch_starts.push(self.out.uses.len() as u32);
        self.out
    }

    fn begin(&mut self, id: TensorId) {
        let tensor = &self.tensors[id.index()];
        self.live_bytes += tensor.bytes();
        for piece in &self.pieces[tensor.pieces.start as usize..tensor.pieces.end as usize] {
            let index = piece.block.index();
            if self.owners[index].is_empty() && !self.small[index] {
                self.holding += 1;
            }
            self.owners[index].push(Owner {
                tensor: id,
                inner: inner(tensor.region, self.program.address(piece.block)),
                all: piece.leaves,
            });
        }
    }

    fn end(&mut self, id: TensorId) {
        let tensor = &self.tensors[id.index()];
        if tensor.birth >= tensor.death {
            return; // no launch could use it
        }
        self.live_bytes -= tensor.bytes();
        for piece in &self.pieces[tensor.pieces.start as usize..tensor.pieces.end as usize] {
            let index = piece.block.index();
            self.owners[index].retain(|owner| owner.tensor != id);
            if self.owners[index].is_empty() && !self.small[index] {
                self.holding -= 1;
            }
        }
    }

    fn launch(&mut self, launch: Launch) {
        let stamp = launch.0 + 1;
        self.out.launch_starts.push(self.out.uses.len() as u32);
        for &pointer in self.program.pointers(launch) {
            let Some(block) = self.program.block_at(pointer) else {
                continue;
            };
            for owner in &self.owners[block.index()] {
                let region = self.tensors[owner.tensor.index()].region;
                if region.address <= pointer && pointer < region.end() {
                    self.named[owner.tensor.index()] = stamp;
                }
            }
        }
        for access in self.program.accesses(launch) {
            self.access(launch, access);
        }
        self.out.load.push(self.holding);
        self.out.live.push(self.live_bytes);
    }

    fn access(&mut self, launch: Launch, access: &Access) {
        let stamp = launch.0 + 1;
        let index = access.block.index();
        let mut listed = Leaves::NONE;
        for owner in &self.owners[index] {
            listed |= owner.all;
            // A leaf that neighbours share tells nothing unless an argument names the tensor.
            let touched = !(access.leaves & owner.inner).is_empty()
                || self.named[owner.tensor.index()] == stamp
                    && !(access.leaves & owner.all).is_empty();
            if !touched {
                continue;
            }
            let last = &mut self.last[owner.tensor.index()];
            if last.0 != stamp {
                *last = (stamp, self.out.uses.len() as u32);
                self.out.uses.push(Use {
                    launch,
                    tensor: owner.tensor,
                    reads: false,
                    writes: false,
                });
            }
            // A shared leaf at the edge is never wholly overwritten by one of its owners.
            let own = !(access.leaves & owner.inner).is_empty() || owner.inner.is_empty();
            let used = &mut self.out.uses[last.1 as usize];
            used.reads |= access.mode.needs_content() && own;
            used.writes |= access.mode.writes();
        }
        if !listed.covers(access.leaves) && !self.small[index] {
            self.small[index] = true;
            self.out.mixed[index] = true;
            if self.owners[index].is_empty() {
                self.holding += 1;
            }
        }
    }
}

/// Bytes whose content some launch still needs, by launch: what is alive where nothing
/// tells of lives. Content lasts from the launch that writes it anew to its last use.
fn needed(tensors: &[Tensor], uses: &[Use], launches: usize) -> Vec<u64> {
    let mut change = vec![0i64; launches + 1];
    for tensor in tensors {
        let uses = &uses[tensor.uses.start as usize..tensor.uses.end as usize];
        for content in uses.chunk_by(|_, next| next.reads) {
            let (Some(first), Some(last)) = (content.first(), content.last()) else {
                continue;
            };
            let start = if first.reads { 0 } else { first.launch.index() };
            change[start] += tensor.bytes() as i64;
            change[last.launch.index() + 1] -= tensor.bytes() as i64;
        }
    }
    let mut live = 0;
    change[..launches]
        .iter()
        .map(|change| {
            live += change;
            live as u64
        })
        .collect()
}

/// The leaves of the block at `base` that lie wholly inside `region`.
fn inner(region: Region, base: u64) -> Leaves {
    let from = region.address.max(base) - base;
    let to = region.end().min(base + BLOCK_BYTES) - base;
    let first = from.div_ceil(LEAF_BYTES) as u32;
    let end = (to / LEAF_BYTES) as u32;
    Leaves::between(first.min(end), end.min(LEAVES))
}

/// The uses again, by tensor; sets each tensor's range.
fn by_tensor(tensors: &mut [Tensor], uses: &[Use]) -> Vec<Use> {
    let mut sorted = uses.to_vec();
    sorted.sort_by_key(|u| u.tensor); // stable: launches stay in order
    let mut at = 0;
    for (index, tensor) in tensors.iter_mut().enumerate() {
        let start = at;
        while sorted.get(at).is_some_and(|u| u.tensor.index() == index) {
            at += 1;
        }
        tensor.uses = start as u32..at as u32;
    }
    sorted
}
